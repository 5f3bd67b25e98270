"""Deriving releases anew: their rows, as the journal's decisions alone lead to them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from journal.abandonment import Cuts
from journal.control import Abandoned
from journal.data import EMPTY, after_again
from journal.derivation import otherwise
from journal.driving import drive
from journal.entry import Release
from journal.errors import Invalid
from journal.folding import fold
from journal.lanes import Effect
from journal.log import Row
from journal.record import Record
from journal.sql import Statement
from journal.store import work as works
from journal.store.engine import SqlStore
from journal.work import Status, Work
from reconstruct.cut_releases import dropped_by, settled

_ENTRIES = 1000
_PAGE = 200
_UNLIMITED = 1 << 60
_PERMISSION = (
    "lane",
    "name",
    "revision",
    "operation",
    "version",
    "receiver",
    "recipient",
    "digest",
    "corrects",
    "data",
)
_PERMITS = b'"releases":[{'
"""How the envelope of a decision that permits a release reads, in RFC 8785's form."""


async def derived(record: Record, row: Work) -> Work | None:
    """A release that waits for its first commitment, as its entity's decisions lead to it.

    None where they lead to no such release, or cannot be read.
    """
    entity = row.entity or ""
    control = await record.current_control(await record.look())
    if entity in control.abandoned:
        return None  # what was cut off says more of its releases than is left
    rows = await rows_of(record, entity)
    anew = None if rows is None else rows.get(row.id)
    return anew if anew is not None and anew.status == Status.READY else None


async def rows_of(
    record: Record, entity: str, cuts: Sequence[Abandoned] = (), through: int = _UNLIMITED
) -> dict[str, Work] | None:
    """An entity's rows of work by ID, as its decisions ``through`` a sequence lead to them.

    ``cuts`` are its abandonments. None where an entry of it cannot be read.
    """
    rows: dict[str, Work] = {}
    data, first = EMPTY, 1

    async def settle(digest: str | None) -> None:
        for cut in cuts:
            if cut.digest == digest:
                rows.update(settled(record, rows, cut, await dropped_by(record, cut)))

    await settle(None)
    while page := await record.journal().history(entity, first, _UNLIMITED, _ENTRIES):
        for found in page:
            try:
                entry = found.entry()
                data = after_again(data, entry.body, entry.envelope.body.type)
            except Invalid:
                return None
            if (entry.envelope.sequence or 0) > through:
                return rows
            rows.update(fold(rows, entry, data, record.rules))
            await settle(entry.digest)
        first = page[-1].revision + 1
    return rows


def permitting(record: Record) -> Iterator[str]:
    """Entities of which some decision permits a release, each once. Reads every envelope."""
    database = record.journal().database
    query = Statement(
        "SELECT DISTINCT entity FROM entries WHERE stream = 'decisions'"
        " AND instr(CAST(envelope AS BLOB), ?) > 0",
        (_PERMITS,),
    )
    for (entity,) in database.stream(query):
        yield entity


def unlike(
    record: Record,
    store: SqlStore,
    flawed: Collection[str | None],
    entities: Iterator[str],
    cuts: Cuts,
    through: int = _UNLIMITED,
) -> Iterator[tuple[str, str]]:
    """Entities whose releases in the store are not what the journal leads to, each with why.

    Decisions ``through`` a sequence count. A row that is missing is unlike too. Entities in
    ``flawed`` and types that are declared no more are left out.
    """
    sound = (
        entity
        for entity in entities
        if entity not in flawed and entity.partition("/")[0] in record.lifecycles
    )
    while page := [*islice(sound, _PAGE)]:
        found, _ = works.readable_of(drive(store.read([works.read_all_of(page)]))[0])
        kept: dict[str, list[Work]] = {}
        for row in found:
            if row.effect == Effect.EXTERNAL:
                kept.setdefault(row.entity or "", []).append(row)
        for entity in page:
            wanted = drive(rows_of(record, entity, cuts.get(entity, ()), through))
            if wanted is not None:
                why = _unlike(kept.get(entity, []), wanted)
                if why is not None:
                    yield entity, why


def unasked(record: Record, store: SqlStore) -> Iterator[tuple[str, str]]:
    """Entities with releases in the store that no decision of the journal asked for, and which."""
    after = 0
    while page := works.page_of(drive(store.read([_releases(after)]))[0]):
        after = page[-1][0]
        rows = [row for _, row in page]
        named = sorted({row.operation for row in rows if row.operation is not None})
        asked = {
            (found.entity, release.id)
            for found in drive(record.journal().operations(named))
            for release in _releases_of(found)
        }
        for row in rows:
            if (row.entity, row.id) not in asked:
                yield row.entity or "", f"no decision of the journal asked for release {row.id}"


def _permitted_otherwise(row: Work, wanted: Work) -> str | None:
    for name in _PERMISSION:
        if getattr(row, name) != getattr(wanted, name):
            return f"its {name} is not what its permission says"
    return None


def _releases_of(found: Row) -> Sequence[Release]:
    try:
        return found.entry().envelope.releases
    except Invalid:
        return ()


def _releases(after: int) -> Statement:
    where = "effect = 'external' AND number > ?"
    return works.select_numbered(where, "ORDER BY number LIMIT ?", after, _ENTRIES)


def _unlike(found: Sequence[Work], wanted: dict[str, Work]) -> str | None:
    rows = {row.id: row for row in found}
    for identity, row in wanted.items():
        if row.effect != Effect.EXTERNAL:
            continue
        if identity not in rows:
            return f"the store lacks release {identity}, which the journal permits"
        wrong = _permitted_otherwise(rows[identity], row) or otherwise(rows[identity], row)
        if wrong is not None:
            return f"release {identity}: {wrong}"
    return None
