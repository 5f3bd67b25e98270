"""Replay: from journal entries to the store's rows, deciding nothing.

Pure. A replay applies recorded outcomes: the state that the envelope names, and the data that the
bodies merge to, which must hash to the recorded value. What does not is *divergent*; it and every
flaw of a chain stop their entity and nobody else's. What was abandoned is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from journal.acceptance import Decision, EntityHead, head_after
from journal.data import EMPTY, after_again, hash_of
from journal.entry import Entry, Envelope
from journal.errors import Invalid
from journal.history import Flaw, Head, follows, link_of
from journal.lifecycle import Lifecycle, Owner
from journal.log import FlawRow, Row


class Stop(Struct, frozen=True):
    """Where an entity's replay ended before its last entry, and why."""

    entity: str
    flaw: Flaw
    revision: int
    through: int
    detail: str


class Lineage(Struct, frozen=True):
    """What is followed of an entity in whose history two decisions stand in one place.

    ``digests`` are those of the decisions up to the last one that parent links decide on; where
    they decide nothing, those before the fork.
    """

    digests: frozenset[str]
    stop: Stop


class Replay:
    """Replays rows in order over heads that the caller loads, page by page.

    ``heads`` are the entities' rows as they will stand; ``stops`` the entities that ended early,
    with how many later entries each holds back.
    """

    def __init__(self, lifecycles: Mapping[str, Lifecycle]) -> None:
        self.heads: dict[str, EntityHead] = {}
        self.stops: dict[str, Stop] = {}
        self.held: dict[str, int] = {}
        self.lineages: dict[str, frozenset[str]] = {}
        self._owners = {kind: lifecycle.owner for kind, lifecycle in lifecycles.items()}

    def load(self, heads: Mapping[str, EntityHead]) -> None:
        """Start these entities from their rows in the store."""
        self.heads.update(heads)

    def forget(self) -> None:
        """Let go of the heads of a page that is committed; memory stays flat."""
        self.heads.clear()

    def run(self, rows: Iterable[Row]) -> list[Decision]:
        """The decisions that these rows add, in order."""
        return [decision for row in rows if (decision := self.step(row)) is not None]

    def step(self, row: Row) -> Decision | None:
        """The decision that one row adds, if it adds one."""
        if row.dropped:
            return None
        if self.stops:
            lineage = self.lineages.get(row.entity)
            if row.entity in self.stops if lineage is None else row.digest not in lineage:
                self.held[row.entity] += 1
                return None
        try:
            decision = self._apply(row)
        except _Flawed as fault:
            self.stop(row.entity, fault.flaw, row.revision, fault.detail)
            return None
        self.heads[row.entity] = head_after(decision)
        return decision

    def take_lineage(self, lineage: Lineage) -> None:
        """Follow one lineage of an entity that has two; it ends as a fork, wherever that leads."""
        stop = lineage.stop
        self.lineages[stop.entity] = lineage.digests
        self.stops[stop.entity] = stop
        self.held[stop.entity] = 0

    def put_back(self, entity: str, head: EntityHead | None) -> None:
        """Put an entity where it stood before; None: before its first decision."""
        if head is None:
            self.heads.pop(entity, None)
        else:
            self.heads[entity] = head

    def copy(self) -> Replay:
        """This replay as it stands, to come back to."""
        kept = Replay({})
        kept.become(self)
        return kept

    def become(self, other: Replay) -> None:
        """Stand where ``other`` stood when it was copied."""
        self.heads, self.stops, self.held = dict(other.heads), dict(other.stops), dict(other.held)
        self.lineages = dict(other.lineages)

    def stop(self, entity: str, flaw: Flaw, revision: int, detail: str, held: int = 1) -> None:
        """End an entity's replay before ``revision``, which holds back ``held`` entries so far."""
        head = self.heads.get(entity)
        through = 0 if head is None else min(head.revision, revision - 1)
        self.lineages.pop(entity, None)
        self.stops[entity] = Stop(entity, flaw, revision, through, detail)
        self.held[entity] = held

    def flaws(self, now: str, known: Mapping[tuple[str, Flaw, int], str]) -> list[FlawRow]:
        """The stops as the journal's index of incomplete histories keeps them.

        ``known`` says since when those that stood before do, by entity, flaw and first revision.
        """
        return [
            FlawRow(
                entity=stop.entity,
                flaw=stop.flaw,
                first=stop.revision,
                last=stop.revision,
                digests=(),
                durable_through=stop.through,
                holds=self.held[stop.entity],
                since=known.get((stop.entity, stop.flaw, stop.revision), now),
                detail=stop.detail,
            )
            for stop in self.stops.values()
        ]

    def _apply(self, row: Row) -> Decision:
        try:
            entry = row.entry()
        except Invalid as error:
            raise _Flawed(Flaw.MISMATCH, f"{_at(row)}: {error.detail}") from None
        head = self.heads.get(row.entity)
        if head is None or not _continues(head, entry.envelope):
            flaw = follows(_head(head), link_of(entry.envelope, entry.digest))
            if flaw is not None:
                stands = 0 if head is None else head.revision
                raise _Flawed(flaw, f"{_at(row)} does not continue revision {stands}: {flaw}")
        data = _data_after(row, head, entry)
        owner = self._owners.get(row.entity.partition("/")[0], Owner.MANAGED)
        return Decision(entry, data, owner)


class _Flawed(Exception):
    def __init__(self, flaw: Flaw, detail: str) -> None:
        self.flaw = flaw
        self.detail = detail
        super().__init__(detail)


def _at(row: Row) -> str:
    return f"{row.entity} revision {row.revision} (sequence {row.sequence}, {row.digest[:12]})"


def _head(head: EntityHead | None) -> Head:
    return Head() if head is None else Head(head.revision, head.history, head.digest)


def _continues(head: EntityHead, envelope: Envelope) -> bool:
    """What ``follows`` says of nearly every entry, without a struct for each side."""
    before = envelope.predecessor
    return (
        before is not None
        and before.digest == head.digest
        and before.revision == head.revision
        and before.history == head.history
        and envelope.revision == head.revision + 1
    )


def _data_after(row: Row, head: EntityHead | None, entry: Entry) -> bytes:
    before = EMPTY if head is None else head.data.encode()
    try:
        data = after_again(before, entry.body, entry.envelope.body.type)
    except Invalid as error:
        raise _Flawed(Flaw.DIVERGENT, f"{_at(row)}: {error.detail}") from None
    if hash_of(data) != entry.envelope.outcome.data:
        raise _Flawed(
            Flaw.DIVERGENT, f"{_at(row)}: the replay does not reproduce the recorded data"
        )
    return data
