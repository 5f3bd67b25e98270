"""Derivation: whether a row of work is what the journal's decisions lead to.

A restore of the table of work alone leaves the marker and every entity right, and makes old
releases look as if nobody had begun with them. So what is about to leave is held against the
journal itself, and so is everything that is open when all heads are compared.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

import msgspec
from msgspec import Struct

from journal.abandonment import Cuts
from journal.data import hash_of
from journal.entry import Entry
from journal.errors import Invalid
from journal.folding import fold
from journal.lanes import Effect
from journal.record import Record
from journal.store import work as works
from journal.store.engine import SqlStore
from journal.work import COMMITTED, Status, Work

_ENTRIES = 1000
_PAGE = 500
_NAMED = 1000
_UNLIMITED = 1 << 60
_OUTCOME = ("attempts", "lease", "committed", "cancel_requested", "receipt")
"""What a row says of the decisions after its permission, and nothing but those changes."""


class Wrong(Struct, frozen=True):
    """What a row says otherwise than the journal. ``behind``: as an earlier moment would say it."""

    why: str
    behind: bool


async def contradictions(record: Record, rows: Sequence[Work], cuts: Cuts) -> dict[str, Wrong]:
    """What each of these releases says otherwise than the journal, by ID.

    Under the turn lock, or to be looked at again under it: a decision that is not handed off yet
    looks like a contradiction. Rows whose data or whose history cannot be read are left out: other
    rules keep those back. Of an entity whose history was cut off only the attempts are compared.
    """
    found: dict[str, Wrong] = {}
    grouped: dict[str, list[Work]] = {}
    for row in rows:
        if row.effect == Effect.EXTERNAL and row.entity is not None:
            grouped.setdefault(row.entity, []).append(row)
    entries = await _entries(
        record, {entity: min(row.revision or 1 for row in own) for entity, own in grouped.items()}
    )
    for entity, own in grouped.items():
        known = entries[entity]
        if known is None:
            continue
        for row in own:
            try:
                wrong = contradiction(record, row, known, cut=entity in cuts)
            except msgspec.MsgspecError:
                continue
            if wrong is not None:
                found[row.id] = wrong
    return found


async def _entries(record: Record, firsts: Mapping[str, int]) -> dict[str, list[Entry] | None]:
    """Entities' entries from a revision on; None where one of them cannot be read."""
    found: dict[str, list[Entry] | None] = {entity: [] for entity in firsts}
    left = dict(firsts)
    while page := await record.journal().histories(left, _ENTRIES):
        for row in page:
            known = found[row.entity]
            if known is not None:
                try:
                    known.append(row.entry())
                except Invalid:
                    found[row.entity] = None
        last = page[-1]
        left = {entity: first for entity, first in left.items() if entity > last.entity}
        left[last.entity] = last.revision + 1
    return found


def contradiction(
    record: Record, row: Work, entries: Sequence[Entry], *, cut: bool = False
) -> Wrong | None:
    """What a release's row says otherwise than its entity's decisions; None: nothing.

    ``entries`` begin at or before the row's permission.
    """
    rows: dict[str, Work] = {}
    permission: Entry | None = None
    for entry in entries:
        envelope = entry.envelope
        if envelope.revision < (row.revision or 1):
            continue
        if permission is None:
            permission = entry
        rows.update(fold(rows, entry, row.data.encode(), record.rules))
    derived = rows.get(row.id)
    wrong: str | None
    if cut:
        # What an abandonment settled is no decision of the entity.
        wrong = None if derived is None else _beyond(row, derived)
        return None if wrong is None else Wrong(wrong, behind=True)
    unpermitted = _unpermitted(row, permission)
    if unpermitted is not None:
        return Wrong(unpermitted, behind=False)
    if derived is None:  # its entity type is declared no more
        return None
    wrong = otherwise(row, derived)
    return None if wrong is None else Wrong(wrong, behind=True)


def _unpermitted(row: Work, permission: Entry | None) -> str | None:
    if permission is None or permission.envelope.operation != row.operation:
        return f"revision {row.revision} of {row.entity} is no decision {row.operation}"
    if permission.envelope.outcome.data not in {None, hash_of(row.data.encode())}:
        return f"its content is not what {row.operation} permitted"
    return mismatch(row, permission)


def mismatch(row: Work, permission: Entry) -> str | None:
    """Where a release's row is not what its permission says."""
    envelope = permission.envelope
    if row.effect != Effect.EXTERNAL:
        return None
    if envelope.action != row.name:
        return f"its permission is the action {envelope.action}, not {row.name}"
    for release in envelope.releases:
        if release.id != row.id:
            continue
        if release.version != row.version:
            return f"it was permitted for version {release.version}, not {row.version}"
        if release.digest != row.digest:
            return f"it was permitted for content {release.digest}, not {row.digest}"
        if (release.lane, release.receiver) != (row.lane, row.receiver):
            return f"it was permitted in lane {release.lane} for {release.receiver or 'workers'}"
        if release.recipient != row.recipient:
            return f"it was permitted for recipient {release.recipient}, not {row.recipient}"
        return None
    return f"{envelope.action} at revision {envelope.revision} permits no such release"


def otherwise(row: Work, derived: Work) -> str | None:
    """What a release's row says of its outcome otherwise than the decisions do; None: nothing."""
    if row.status == Status.DEAD:
        # A row that could not be read became a dead letter without a decision.
        return _beyond(row, derived)
    if _class(row) != _class(derived):
        return _stands(row, derived)
    if (row.status, derived.status) == (Status.RUNNING, Status.UNKNOWN):
        # Nobody is at an attempt again whose outcome was decided to be unknown: it takes another.
        return _stands(row, derived)
    for name in _OUTCOME:
        mine, theirs = getattr(row, name), getattr(derived, name)
        if mine != theirs:
            return f"its {name} is {mine} in the store and {theirs} by the journal"
    return None


def _beyond(row: Work, derived: Work) -> str | None:
    """Whether the journal knows of an attempt, or an end, that the row does not."""
    if derived.over and not row.over:
        return _stands(row, derived)
    if derived.lease > row.lease:
        return f"its lease is {row.lease} in the store and {derived.lease} by the journal"
    return None


def _stands(row: Work, derived: Work) -> str:
    return f"the store says {row.status}, the journal {derived.status}"


def _class(row: Work) -> str:
    """The status, as far as decisions tell it: between attempts a store moves by itself."""
    return "under way" if row.status in COMMITTED else row.status


async def behind(record: Record, store: SqlStore, flawed: Container[str]) -> dict[str, str]:
    """Open releases of the store that are not where the journal's decisions lead, by ID, and why.

    Those of entities in ``flawed``, whose histories are incomplete, are left out.
    Found beside a writer, so to be looked at again (``still_behind``). The cost follows what is
    open.
    """
    found: dict[str, str] = {}
    cuts = await _cuts(record)
    after = ""
    while len(found) < _NAMED:
        page = (await store.read([works.read_open(Effect.EXTERNAL, after, _PAGE)]))[0]
        rows, spoiled = works.readable_of(page)
        if not rows and not spoiled:
            break
        after = max([*spoiled, *(row.id for row in rows)])
        sound = [row for row in rows if row.entity not in flawed]
        found |= _behind(await contradictions(record, sound, cuts))
    return found


async def still_behind(
    record: Record, store: SqlStore, suspects: Collection[str]
) -> dict[str, str]:
    """Those of the suspects that are behind now; under the turn lock, with nothing pending."""
    if not suspects:
        return {}
    page = (await store.read([works.read_work(suspects)]))[0]
    return _behind(await contradictions(record, works.readable_of(page)[0], await _cuts(record)))


async def _cuts(record: Record) -> Cuts:
    return (await record.current_control(await record.look())).abandoned


def _behind(found: Mapping[str, Wrong]) -> dict[str, str]:
    return {identity: wrong.why for identity, wrong in found.items() if wrong.behind}
