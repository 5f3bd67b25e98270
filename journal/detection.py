"""Detection: whether the store agrees with its journal.

``compare`` is the rule, pure: markers and places in, a verdict out. ``differing_heads`` is the slow
comparison that a marker cannot replace: an older database file beside a newer `-wal` opens without
complaint and shows the newest marker over stale rows.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any

from msgspec import Struct

from journal.acceptance import EntityHead, Place
from journal.control import HEAL, Control, tip_of
from journal.data import hash_of
from journal.errors import Invalid
from journal.log import JournalHead, Log, Look, Row
from journal.sql import Statement
from journal.store import Store
from journal.store.tables import Marker, count_decisions, heads_of, page_of_heads, read_heads
from journal.witness import Witness

MAX_WAITING = 65_536
_PAGE = 500
_MAX_NAMED = 1000


class Verdict(StrEnum):
    """What the comparison found."""

    CLEAN = "clean"
    CRASHED = "crashed"
    REWOUND = "rewound"
    REPLACED = "replaced"
    FORKED = "forked"
    JOURNAL_REWOUND = "journal-rewound"
    CLOSED = "closed"

    @property
    def sound(self) -> bool:
        """Whether the tenant may carry on."""
        return self in {Verdict.CLEAN, Verdict.CRASHED}


class Finding(Struct, frozen=True):
    """A verdict with the sentence and the facts that explain it."""

    verdict: Verdict
    detail: str
    facts: dict[str, Any] = {}


class Seen(Struct, frozen=True):
    """What was looked at: the journal first, then the store, then the journal again.

    ``at_marker`` and ``at_journalled`` are what the journal holds at the store's marker and at its
    handed-off watermark, ``at_tip`` what the store holds at the journal's tip; None is nothing.
    ``copied`` is the last control entry of which the store keeps a copy, 0 when not looked at.
    ``at_witness`` is what the journal holds at the place that the witness remembers.
    """

    look: Look
    marker: Marker | None
    at_marker: Place | None = None
    at_journalled: Place | None = None
    at_tip: str | None = None
    copied: int = 0
    witness: Witness | None = None
    at_witness: str | None = None


def compare(control: Control, seen: Seen, instance: str) -> Finding:
    """The verdict table, tested in its order."""
    marker = seen.marker
    if control.instance != instance:
        return Finding(
            Verdict.CLOSED,
            f"the journal belongs to instance {control.instance}, the settings say {instance}",
        )
    witness = seen.witness
    if witness is not None and not witness.is_of(control):
        return Finding(
            Verdict.CLOSED,
            f"the witness remembers journal {witness.journal[:12]} of tenant {witness.tenant}, "
            f"this is {control.journal[:12]} of {control.tenant}: bring the right journal back, or "
            "move the witness's file away if that is the wrong one",
        )
    lost = _half_healed(control) or beyond_witness(control, seen)
    if marker is None or (marker.instance, marker.tenant) != (instance, control.tenant):
        fault = _unfit_store(marker)
        # Nothing may be appended to a journal that falls short, whatever became of the store.
        if lost is None:
            return Finding(Verdict.REPLACED, fault)
        return Finding(Verdict.JOURNAL_REWOUND, f"{lost}; {fault}")
    tip = tip_of(control.authority, seen.look.last)
    facts = {
        "store": {"history": marker.place.history, "sequence": marker.place.sequence},
        "journal": {"history": tip.history, "sequence": tip.sequence},
    }
    contradiction = _contradiction(control, seen, marker, tip)
    if lost is not None:
        return Finding(Verdict.JOURNAL_REWOUND, _told(lost, seen, marker, contradiction), facts)
    if contradiction is not None:
        return Finding(*contradiction, facts)
    place = marker.place
    if place.history != tip.history:
        detail = f"the store is in history {place.history}, which ended; {tip.history} is in force"
        return Finding(Verdict.REWOUND, detail + _given_up(control, seen, marker), facts)
    if place.generation != control.authority.generation:
        detail = (
            f"the store is of generation {place.generation}, "
            f"{control.authority.generation} is in force"
        )
        return Finding(Verdict.REWOUND, detail + _given_up(control, seen, marker), facts)
    if place.sequence < tip.sequence:
        detail = f"the store ends at sequence {place.sequence}, the journal at {tip.sequence}"
        return Finding(Verdict.REWOUND, detail, facts)
    if place.sequence > tip.sequence:
        waiting = place.sequence - tip.sequence
        return Finding(Verdict.CRASHED, f"{waiting} decisions wait for their handoff", facts)
    return Finding(Verdict.CLEAN, "store and journal agree", facts)


def _unfit_store(marker: Marker | None) -> str:
    if marker is None:
        return "the store is missing or empty"
    return f"the store belongs to tenant {marker.tenant}, instance {marker.instance}"


def is_outlived(control: Control, marker: Marker) -> bool:
    """Whether the journal has had a new beginning, or ended the store's history, since the store.

    What such a store holds beyond the journal was given up then: it proves nothing of the journal.
    """
    place = marker.place
    ended = {record.history for record in control.histories[:-1]}
    return place.generation < control.renewed or place.history in ended


def _given_up(control: Control, seen: Seen, marker: Marker) -> str:
    if _holds_handed_off(control, seen, marker):
        return ""
    return (
        f"; it handed off through sequence {marker.journalled}, and the journal has gone on without"
        " that: apply undoes what the store alone holds"
    )


def _holds_handed_off(control: Control, seen: Seen, marker: Marker) -> bool:
    """Whether the journal has something where the store's handed-off decisions end."""
    at = seen.at_journalled or _base_at(control, marker.journalled)
    return marker.journalled <= 0 or at is not None


def _told(lost: str, seen: Seen, marker: Marker, contradiction: tuple[Verdict, str] | None) -> str:
    if contradiction is not None:
        return f"{lost}; {contradiction[1]}"
    if seen.witness is not None and marker.place.sequence < seen.witness.sequence:
        return f"{lost}; the store holds no more either: both were rolled back"
    return lost


def _contradiction(
    control: Control, seen: Seen, marker: Marker, tip: Place
) -> tuple[Verdict, str] | None:
    place = marker.place
    at_marker = seen.at_marker or _base_at(control, place.sequence)
    if at_marker is not None and at_marker.digest != place.digest:
        return Verdict.FORKED, (
            f"at sequence {place.sequence} the store holds {place.digest[:12]}, "
            f"the journal {at_marker.digest[:12]}"
        )
    ahead = place.sequence > tip.sequence and place.history == tip.history
    if ahead and tip.sequence >= control.authority.first and seen.at_tip != tip.digest:
        return Verdict.FORKED, (
            f"the store's decision at sequence {tip.sequence} is not the journal's"
        )
    proves = not is_outlived(control, marker)
    if proves and not _holds_handed_off(control, seen, marker):
        return Verdict.JOURNAL_REWOUND, (
            f"the store handed off through sequence {marker.journalled}; "
            f"the journal has nothing there and ends at {tip.sequence}"
        )
    if proves and seen.copied > control.sequence:
        return Verdict.JOURNAL_REWOUND, (
            f"the store keeps control entries through {seen.copied}, "
            f"the journal ends at {control.sequence}"
        )
    if place.generation > control.authority.generation:
        return Verdict.JOURNAL_REWOUND, (
            f"the store is of generation {place.generation}, the journal knows only "
            f"{control.authority.generation}"
        )
    if ahead and place.sequence - tip.sequence > MAX_WAITING:
        return Verdict.FORKED, (
            f"{place.sequence - tip.sequence} decisions wait, more than {MAX_WAITING} can"
        )
    return None


def beyond_witness(control: Control, seen: Seen) -> str | None:
    """How the journal falls short of what the witness saw; None when it does not."""
    witness = seen.witness
    if witness is None or witness.ended(control):
        return None
    saw = f"the witness saw {witness.position} entries at {witness.at}, through sequence "
    saw += f"{witness.sequence} and control entry {witness.control}"
    if witness.epoch > control.rebased:
        return f"{saw}, after a new beginning of which this journal knows nothing"
    if witness.position > seen.look.position:
        return f"{saw}; the journal ends at {seen.look.position}"
    if seen.at_witness != witness.digest:
        return f"{saw}; the journal holds another entry there: it was rolled back and went on"
    return None


def _half_healed(control: Control) -> str | None:
    """Where a journal is healed in its place: until that has ended, nothing else is appended."""
    if control.last != HEAL:
        return None
    return f"its healing, begun at {control.since}, has not ended: `unrewind recover apply` does it"


def _base_at(control: Control, sequence: int) -> Place | None:
    for record in control.histories:
        if record.first - 1 == sequence:
            return Place(record.history, record.generation, sequence, record.digest)
    return None


class Difference(Struct, frozen=True):
    """An entity whose row in the store is not what the journal says; None is no such entity."""

    entity: str
    store: int | None
    journal: int | None


def _differs(row: EntityHead | None, head: JournalHead | None) -> bool:
    if row is None or head is None:
        return row is not None or head is not None
    return (
        row.revision != head.revision
        or row.digest != head.digest
        or hash_of(row.data.encode()) != head.data
    )


def _difference(entity: str, row: EntityHead | None, head: JournalHead | None) -> Difference:
    return Difference(
        entity, None if row is None else row.revision, None if head is None else head.revision
    )


async def differing_heads(
    store: Store, log: Log, flawed: Collection[str], limit: int = _MAX_NAMED, after: str = ""
) -> list[Difference]:
    """Entities above ``after``, by name, whose head or data hash differs; at most ``limit``.

    Entities in ``flawed`` are left out. Reads pages of both sides side by side; decisions that
    arrive meanwhile can show up, so a caller without the turn lock checks again under it
    (``still_differing``).
    """
    found: list[Difference] = []
    while True:
        rows = heads_of((await store.read([page_of_heads(after, _PAGE)]))[0])
        last = max(rows) if len(rows) == _PAGE else None
        journal = await _journal_heads(log, after, last)
        for entity in sorted({*rows, *journal}):
            row, head = rows.get(entity), journal.get(entity)
            if entity not in flawed and _differs(row, head):
                found.append(_difference(entity, row, head))
                if len(found) >= limit:
                    return found
        if last is None:
            return found
        after = last


async def _journal_heads(log: Log, after: str, last: str | None) -> dict[str, JournalHead]:
    found: dict[str, JournalHead] = {}
    while True:
        page = await log.heads(after, _PAGE)
        for head in page.heads:
            if last is None or head.entity <= last:
                found[head.entity] = head
        if page.end is None or (last is not None and page.end >= last):
            return found
        after = page.end


async def is_torn(store: Store, log: Log, through: int) -> bool:
    """Whether the file mixes pages of several moments: no SQL on it can be relied upon.

    An older database file beside a newer `-wal` does: rows that no moment lacked are missing, or
    the tables themselves contradict each other. Every head may be right all the same. ``through``
    is a sequence that store and journal have both passed; the cost follows the file's size.
    """
    told, counted = await store.read([_CHECK, count_decisions(through)])
    faults = [text for (text,) in told if text != "ok" and not text.startswith(_ROW_RULES)]
    count: int = counted[0][0]
    return bool(faults) or count < await log.count_decisions(through)


_CHECK = Statement("PRAGMA integrity_check")
"""Not the quick one, which does not see that an index and its table are of two moments."""

_ROW_RULES = ("NULL value in", "CHECK constraint failed in")
"""What it says of rows that break a rule: the application's affair, no torn file."""


async def still_differing(store: Store, log: Log, suspects: list[Difference]) -> list[Difference]:
    """Those of the suspects that differ now; call it under the turn lock."""
    found: list[Difference] = []
    for start in range(0, len(suspects), _PAGE):
        part = suspects[start : start + _PAGE]
        rows = heads_of((await store.read([read_heads(item.entity for item in part)]))[0])
        for item in part:
            row = rows.get(item.entity)
            newest = await log.newest(item.entity)
            head = None if newest is None else _head_of(newest)
            if _differs(row, head):
                found.append(_difference(item.entity, row, head))
    return found


def _head_of(newest: Row) -> JournalHead:
    """A journal entry as a head; a damaged one vouches for no data, so that it differs."""
    try:
        return newest.head()
    except Invalid:
        return JournalHead(newest.entity, newest.revision, newest.digest, None)
