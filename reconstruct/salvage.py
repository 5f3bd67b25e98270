"""Salvage: what a store's own copies can give back to a journal that was rolled back.

The store keeps the bytes of every decision and of control. ``salvage_of`` reads how far they
continue what the journal still holds, and what the witness saw beyond both. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from journal.control import Control, ControlUnreadable, fold
from journal.detection import Finding, Seen, is_outlived
from journal.entry import GENESIS, Entry, read
from journal.errors import Damaged, EngineError, Invalid, Refused
from journal.history import Head, follows, link_of
from journal.log import PAGE_BYTES, Look
from journal.log.engine import SqlLog
from journal.record import Record
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.tables import Marker, StoredDecision
from journal.witness import Witness
from reconstruct.remains import Broken, HealingSurvey, Loss, Span, known_of
from reconstruct.unfinished import kept

PAGE = 1000
_ALL = 1 << 60


class Last(Struct, frozen=True):
    """The last decision of a line; an unknown digest or history is None."""

    history: str | None
    sequence: int
    digest: str | None

    @classmethod
    def of(cls, look: Look) -> Last:
        """The last decision of a journal that stands at ``look``."""
        last = look.last
        if last is None:
            return cls(None, 0, GENESIS)
        return cls(last.history, last.sequence, last.digest)


class Salvage(Struct, frozen=True):
    """A survey with what ``heal`` works from.

    ``control`` are the control entries that the journal lacks, ``whole`` is control with them,
    ``start`` is the journal's last decision.
    """

    survey: HealingSurvey
    control: list[Entry]
    whole: Control
    start: Last


async def salvage_of(record: Record, finding: Finding, seen: Seen) -> Salvage:
    """Everything that healing would take, read and judged. Raises Refused."""
    _check_gone(record)
    store, log = record.store, record.log
    marker = seen.marker
    witness = record.witness.read()
    ours = (record.settings.tenant, record.settings.instance)
    if marker is None or (marker.tenant, marker.instance) != ours:
        store = marker = None
    if store is None and log is None:
        raise Refused("neither store nor journal can be read: there is nothing to heal from")
    outlived = is_store_outlived(record, marker)
    whole, missing, beyond = await _control(record, store, log, outlived=outlived)
    if outlived:
        store = None
    if witness is not None and witness.ended(whole):
        witness = None
    start = Last.of(seen.look)
    await _check_joint(store, start)
    taken = Taken(record.settings.tenant, whole, start, witness)
    if store is not None:
        for rows in pages(store, start.sequence):
            await taken.add(log, rows)
    taken.end()
    loss = await _loss(log, seen, marker, whole, taken, missing, beyond)
    survey = HealingSurvey(
        detail=finding.detail,
        journal=None if log is None else known_of(seen.look),
        store=None if store is None else kept(beyond, marker),
        witness=witness,
        control=len(missing),
        decisions=taken.count,
        first=taken.first,
        last=taken.last.sequence if taken.count else 0,
        actions=dict(sorted(taken.actions.items())),
        broken=list(taken.broken.values()),
        others=0 if loss is None else loss.others,
        loss=loss,
        generation=1
        + max(
            whole.authority.generation,
            taken.generation,
            0 if marker is None else marker.place.generation,
            0 if witness is None else witness.generation,
        ),
        highest=max(
            taken.last.sequence,
            0 if marker is None else marker.place.sequence,
            0 if witness is None else witness.sequence,
        ),
    )
    return Salvage(survey, missing, whole, start)


def is_store_outlived(record: Record, marker: Marker | None) -> bool:
    """Whether the journal had given up, before it was rolled back, what the store holds beyond."""
    return marker is not None and record.control is not None and is_outlived(record.control, marker)


def _check_gone(record: Record) -> None:
    """Refuse to take a journal for gone or damaged that only cannot be reached now."""
    if record.log is not None:
        return
    place = record.log_place
    advice = "it may be whole. Let it be read, or move it away if it is lost, then look again"
    try:
        if place.file is not None:
            place.file.stat()
        elif not place.exists():
            return
        place.open(read_only=True).database.close()
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refused(
            f"the journal {place.label} cannot be reached ({error.strerror}): {advice}"
        ) from None
    except Damaged as error:
        if place.file is None:
            raise Refused(
                f"the journal is damaged where it is, and cannot be healed there: {error}. Bring a "
                "whole copy of it back; if there is none, keep this one under another name, so "
                "that there is none any more, and apply again: a new one is built from the store"
            ) from None
    except EngineError as error:
        raise Refused(f"the journal cannot be reached ({error}): {advice}") from None


def pages(store: SqlStore, after: int) -> Iterator[list[StoredDecision]]:
    """The store's decisions above a sequence, in pages bounded by number and by bytes."""
    while True:
        rows: list[StoredDecision] = []
        size = 0
        for found in store.database.stream(tables.read_decisions(after, PAGE)):
            rows += tables.decisions_of([found])
            size += len(rows[-1].text) + len(rows[-1].body)
            if size >= PAGE_BYTES:
                break
        if not rows:
            return
        after = rows[-1].sequence
        yield rows


async def _control(
    record: Record, store: SqlStore | None, log: SqlLog | None, *, outlived: bool
) -> tuple[Control, list[Entry], int]:
    """Control as it will be, the entries that the journal lacks, and the store's last copy.

    Copies that do not continue the ones before them are of no use, nor are those of an ``outlived``
    store from the first that differs on. Raises Refused when the store's
    copies are not the journal's, or do not begin at the first where there is no journal.
    """
    own = [] if log is None else [row.entry() for row in await log.control()]
    copies: list[StoredDecision] = []
    if store is not None:
        copies = tables.decisions_of((await store.read([tables.read_control(0, _ALL)]))[0])
    for copy in copies:
        mine = own[copy.sequence - 1] if copy.sequence <= len(own) else None
        if outlived and mine is not None and copy.digest != mine.digest:
            copies = copies[: copies.index(copy)]
            break
        if mine is not None and copy.digest != mine.digest and _sound(copy) is not None:
            raise Refused(
                f"control entry {copy.sequence} of the store is not the journal's: the journal "
                "went on after it was rolled back, or the store is another one's. Put the real "
                "journal back; keep both files as they are"
            )
    missing: list[Entry] = []
    for copy in (copy for copy in copies if copy.sequence > len(own)):
        entry = _sound(copy)
        if entry is None or copy.sequence != len(own) + len(missing) + 1:
            break
        missing.append(entry)
    whole = _folded(own, missing, record.settings.tenant)
    if whole is None:
        raise Refused(
            "the journal is missing and the store keeps no copy of control from its first entry "
            "on: there is nothing to heal from. Put the journal back"
        )
    if whole.instance != record.settings.instance:
        raise Refused(f"the store belongs to instance {whole.instance}: it heals no journal here")
    return whole, missing, copies[-1].sequence if copies else 0


def _folded(own: Sequence[Entry], missing: list[Entry], tenant: str) -> Control | None:
    """Control of both together; entries of ``missing`` that do not continue it are taken out."""
    while own or missing:
        try:
            return fold([*own, *missing], tenant)
        except ControlUnreadable:
            if not missing:
                raise
            missing.pop()
    return None


def _sound(row: StoredDecision) -> Entry | None:
    """The row's entry, when its bytes hash to its digest and belong where they stand."""
    try:
        entry = read(row.text, row.body)
    except Invalid:
        return None
    if entry.digest != row.digest or entry.envelope.sequence != row.sequence:
        return None
    return entry


async def _check_joint(store: SqlStore | None, last: Last) -> None:
    """Refuse unless the store holds the journal's last decision, where it holds later ones."""
    if store is None or last.sequence == 0:
        return
    later = (await store.read([tables.read_decisions(last.sequence, 1)]))[0]
    rows = (await store.read([tables.read_decisions_down(last.sequence, 1)]))[0]
    stored = tables.decisions_of(rows)
    at = stored[0] if stored and stored[0].sequence == last.sequence else None
    if at is not None and at.digest != last.digest:
        raise Refused(
            f"at sequence {last.sequence} the store holds {at.digest[:12]}, the journal "
            f"{str(last.digest)[:12]}: they have parted, and nothing can be healed. Put back the "
            "one that is newer; keep both files as they are"
        )
    if later and at is None:
        raise Refused(
            f"the store lacks the journal's last decision, sequence {last.sequence}: what it holds "
            "above cannot be shown to continue the journal"
        )


class Taken:
    """The store's decisions above the journal's, judged one after another.

    ``holes`` are sequences that a decision must have had and that nobody holds whole.
    """

    def __init__(self, tenant: str, control: Control, last: Last, witness: Witness | None) -> None:
        self.last = last
        self.count = self.first = self.generation = self.seen = 0
        self.actions: dict[str, int] = {}
        self.broken: dict[str, Broken] = {}
        self.holes: list[Span] = []
        self.parted = False
        self.witness = witness
        self._tenant = tenant
        self._control = control
        self._histories = {record.history: record for record in control.histories}
        self._heads: dict[str, Head] = {}
        self._ended = False

    async def add(self, log: SqlLog | None, rows: Sequence[StoredDecision]) -> list[Entry]:
        """Judge rows in order; those that the journal can take."""
        entries = []
        for row in rows:
            entry = self._place(row)
            if entry is None:
                continue
            await self._follow(log, entry)
            entries.append(entry)
        return entries

    def _place(self, row: StoredDecision) -> Entry | None:
        """The row's entry, unless it cannot stand in the journal's order."""
        if self._ended:
            return None
        entry = _sound(row)
        if entry is None or entry.envelope.tenant != self._tenant:
            if row.sequence > self.last.sequence + 1:
                self.holes.append(Span(self.last.sequence + 1, row.sequence))
            else:
                self.holes.append(Span(row.sequence, row.sequence))
            self.last = Last(self.last.history, row.sequence, None)
            return None
        envelope = entry.envelope
        record = self._histories.get(envelope.history)
        if record is None:
            # Decisions of a history that no control entry is known of: nothing can judge them.
            self.holes.append(Span(row.sequence, None))
            self._ended = True
            return None
        first = self.last.sequence + 1
        if envelope.history != self.last.history:
            if self.last.digest is not None and record.digest != self.last.digest:
                self.holes.append(Span(first, None))
            first = max(record.first, first)
        if row.sequence > first:
            self.holes.append(Span(first, row.sequence - 1))
        self.last = Last(envelope.history, row.sequence, row.digest)
        return entry

    async def _follow(self, log: SqlLog | None, entry: Entry) -> None:
        envelope = entry.envelope
        head = self._heads.get(envelope.entity)
        if head is None:
            newest = None if log is None else await log.newest(envelope.entity)
            head = Head()
            if newest is not None:
                head = Head(newest.revision, newest.history, newest.digest)
        sequence = envelope.sequence or 0
        flaw = follows(head, link_of(envelope, entry.digest))
        if flaw is not None and not self._cut_off(entry) and envelope.entity not in self.broken:
            self.broken[envelope.entity] = Broken(
                envelope.entity, envelope.revision, sequence, flaw, head.revision
            )
        self._heads[envelope.entity] = Head(envelope.revision, envelope.history, entry.digest)
        self.count += 1
        self.first = self.first or sequence
        self.generation = max(self.generation, envelope.generation)
        self.actions[envelope.action] = self.actions.get(envelope.action, 0) + 1
        if self.witness is None:
            return
        if sequence <= self.witness.sequence:
            self.seen += 1
        if sequence == self.witness.sequence and entry.digest != self.witness.head:
            self.parted = True

    def _cut_off(self, entry: Entry) -> bool:
        """Whether an abandonment made the entity go on from before this entry."""
        before = entry.envelope.predecessor
        return any(
            (each.through, each.digest)
            == ((before.revision, before.digest) if before else (0, None))
            for each in self._control.abandoned.get(entry.envelope.entity, ())
        )

    def end(self) -> None:
        """After the last row: whether the history in force begins where the decisions end."""
        force = self._control.authority
        if self._ended or force.history == self.last.history or self.last.digest is None:
            return
        if force.digest != self.last.digest:
            self.holes.append(Span(self.last.sequence + 1, None))


async def _loss(
    log: SqlLog | None,
    seen: Seen,
    marker: Marker | None,
    whole: Control,
    taken: Taken,
    missing: Sequence[Entry],
    beyond: int,
) -> Loss | None:
    """What neither side holds, as far as anybody can say."""
    witness = taken.witness
    decisions = list(taken.holes)
    control = [Span(whole.sequence + 1, beyond)] if beyond > whole.sequence else []
    parted = taken.parted
    if witness is not None:
        if witness.sequence > taken.last.sequence and not any(
            hole.last is None for hole in decisions
        ):
            decisions.append(Span(taken.last.sequence + 1, witness.sequence))
        if witness.control > max(whole.sequence, beyond):
            control = [Span(whole.sequence + 1, witness.control)]
        parted = parted or await _has_parted(log, seen, witness)
    others = _others(seen, missing, taken, [*decisions, *control])
    if not decisions and not control and not parted and others == 0:
        return None
    name = GENESIS if marker is None else marker.place.digest
    return Loss(name if witness is None else witness.digest, decisions, control, parted, others)


async def _has_parted(log: SqlLog | None, seen: Seen, witness: Witness) -> bool:
    """Whether the journal holds something else than the witness saw."""
    if log is None:
        return False
    if witness.position <= seen.look.position:
        row = await log.at(witness.position)
        if row is None or row.digest != witness.digest:
            return True
    last = seen.look.last
    if 0 < witness.sequence <= (0 if last is None else last.sequence):
        place = await log.place(witness.sequence)
        return place is None or place.digest != witness.head
    return False


def _others(seen: Seen, missing: Sequence[Entry], taken: Taken, lost: Sequence[Span]) -> int | None:
    """At least how many entries of other orders the witness saw that nobody keeps."""
    witness = taken.witness
    if witness is None:
        return None
    control = sum(1 for entry in missing if (entry.envelope.sequence or 0) <= witness.control)
    known = control + taken.seen + sum(span.size for span in lost)
    return max(0, witness.position - seen.look.position - known)
