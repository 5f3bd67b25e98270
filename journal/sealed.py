"""Sealed entries: what callers that own their store append, in any order.

Pure: entries and what the journal holds around them in, one ruling out. unrewind assigns no
revisions here. An entry that arrives before its predecessor is kept and fixes the only digest
acceptable in the missing place; the durable boundary moves when the chain is continuous.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from journal.abandonment import Cuts, cut_of, is_evidence
from journal.control import Abandoned, Authority, HistoryRecord
from journal.entry import GENESIS, Entry
from journal.errors import (
    Forked,
    HistoryIncomplete,
    Invalid,
    OperationReused,
    Overloaded,
    StaleGeneration,
)
from journal.history import Break, Chain, Flaw, Head, Link, examine, link_of
from journal.lifecycle import Lifecycle, Owner, lifecycle_of
from journal.log import CALLER, EntityChain, FlawRow, Rival

MAX_AHEAD = 4096
"""How many entries of one entity may wait for a missing revision."""


class Held(Struct, frozen=True):
    """A stored entry of the entity: its link and the state that it leads to."""

    link: Link
    state: str


class Around(Struct, frozen=True):
    """What the journal holds of one entity: chain, entries near and beyond the boundary, rivals."""

    chain: EntityChain
    held: tuple[Held, ...]
    rivals: tuple[Link, ...] = ()
    since: Mapping[tuple[Flaw, int], str] = {}
    """Since when flaws that are known already stand, by kind and first revision."""


class Surroundings(Struct, frozen=True):
    """Everything that the entries of one request are judged against.

    ``operations`` maps known operation IDs to digests, ``places`` maps (stream, history, sequence)
    to digests. ``dropped`` maps operation IDs that were abandoned to what is said of them, ``cuts``
    entities to their abandonments.
    """

    authority: Authority
    histories: Sequence[HistoryRecord]
    entities: Mapping[str, Around]
    operations: Mapping[str, str]
    places: Mapping[tuple[str, str, int], str]
    lifecycles: Mapping[str, Lifecycle]
    now: str
    dropped: Mapping[str, HistoryIncomplete] = {}
    cuts: Cuts = {}


class SealedAnswer(Struct, frozen=True):
    """How an entry stands: it may be acknowledged once ``durable_through`` reaches it."""

    entity: str
    revision: int
    digest: str
    outcome: str
    durable_through: int
    complete: bool
    state: str


class SealedRuling(Struct, frozen=True):
    """What to append. With ``fault`` only the rivals are, as evidence, and the fault is raised."""

    entries: tuple[tuple[str, Entry], ...] = ()
    answers: tuple[SealedAnswer, ...] = ()
    chains: tuple[EntityChain, ...] = ()
    flaws: tuple[FlawRow, ...] = ()
    rivals: tuple[Rival, ...] = ()
    fault: Forked | HistoryIncomplete | None = None


def stream_of(entity: str) -> str:
    """The order that a caller-owned entity's entries belong to."""
    return CALLER + entity.partition("/")[0]


def check_owner(entry: Entry, tenant: str, lifecycles: Mapping[str, Lifecycle]) -> None:
    """Refuse an entry of another tenant or of a type that no caller owns. Raises Invalid."""
    envelope = entry.envelope
    if envelope.tenant != tenant:
        raise Invalid(f"the entry belongs to tenant {envelope.tenant}", field="tenant")
    lifecycle = lifecycle_of(lifecycles, envelope.entity)
    if lifecycle.owner is not Owner.CALLER:
        raise Invalid(
            f"{envelope.entity}: only caller-owned types take sealed entries; "
            "send the decision instead",
            field="entity",
        )


class _Working:
    """One entity while the entries of a request are judged."""

    def __init__(self, around: Around, cuts: Sequence[Abandoned]) -> None:
        self.chain = around.chain
        self.held = {(held.link.revision, held.link.history): held for held in around.held}
        self.cuts = cuts
        self.rivals = [link for link in around.rivals if not is_evidence(cuts, link)]
        self.since = around.since

    def at(self, revision: int) -> list[Held]:
        return [held for (number, _), held in self.held.items() if number == revision]

    def beyond(self) -> list[Held]:
        boundary = self.chain.boundary.revision
        return [held for held in self.held.values() if held.link.revision > boundary]

    def awaits(self, revision: int) -> bool:
        """Whether ``revision`` is the first one that is missing."""
        missing = self.chain.boundary.revision + 1
        held = {found.link.revision for found in self.beyond()}
        while missing in held:
            missing += 1
        return revision == missing

    def take_rival(self, link: Link) -> None:
        """Note what contradicts a stored entry, unless it is evidence alone."""
        if not is_evidence(self.cuts, link):
            self.rivals.append(link)

    def advance(self) -> tuple[Break, ...]:
        """Move the boundary as far as the chain is continuous; what is wrong beyond it.

        It does not move past a fork that is not settled: nothing that follows is acknowledged.
        """
        beyond = self.beyond()
        links = [held.link for held in beyond]
        found = examine(links, self.chain.boundary)
        if self.rivals:
            disputed = min(rival.revision for rival in self.rivals)
            before = [link for link in links if link.revision < disputed]
            found = Chain(examine(before, self.chain.boundary).boundary, found.breaks)
        state = self.chain.state
        for held in self.at(found.boundary.revision):
            if held.link.digest == found.boundary.digest:
                state = held.state
        newest = max([self.chain.newest, *(held.link.revision for held in beyond)])
        self.chain = EntityChain(self.chain.entity, found.boundary, state, newest)
        return found.breaks


def judge_sealed(entries: Sequence[Entry], around: Surroundings) -> SealedRuling:
    """Judge the entries of one request in order: all are taken or none.

    A *rival*, an entry whose place is held by another digest, is kept as evidence and makes the
    request fail as forked; it displaces nothing and lowers no boundary. Raises Forked (nothing to
    keep), StaleGeneration, OperationReused, Invalid or Overloaded.
    """
    working = _working(around, around.entities)
    operations = dict(around.operations)
    places = dict(around.places)
    taken: list[tuple[str, Entry]] = []
    rivals: list[Rival] = []
    outcomes: list[str] = []
    fault: Forked | HistoryIncomplete | None = None
    for entry in entries:
        envelope = entry.envelope
        entity = working[envelope.entity]
        if envelope.operation in around.dropped:
            raise around.dropped[envelope.operation]
        if is_evidence(entity.cuts, link_of(envelope, entry.digest)):
            rivals.append(Rival(entry, _stands_at(entity, envelope.revision), around.now))
            fault = fault or _late(entry, entity)
            continue
        if operations.get(envelope.operation) == entry.digest:
            outcomes.append("duplicate")
            continue
        rival_of = _rival_of(entity, entry)
        if rival_of is not None:
            if any(new.digest == rival_of for _, new in taken):
                raise _contradiction(entry, rival_of)
            rivals.append(Rival(entry, rival_of, around.now))
            fault = fault or _forked(entry, rival_of)
            continue
        if envelope.operation in operations:
            raise OperationReused(
                f"operation {envelope.operation} already belongs to another decision",
                differing=["digest"],
            )
        _check_neighbours(entity, entry)
        _check_authority(entity, entry, around)
        _check_sequence(entry, places)
        _check_room(entity, entry)
        held = Held(link_of(envelope, entry.digest), envelope.outcome.state)
        entity.held[envelope.revision, envelope.history] = held
        operations[envelope.operation] = entry.digest
        taken.append((stream_of(envelope.entity), entry))
        outcomes.append("accepted")
    touched = sorted({entry.envelope.entity for entry in entries})
    if fault is not None:
        # Nothing of the request is taken: the entities are judged as they stood, with the rivals.
        touched = sorted({rival.entry.envelope.entity for rival in rivals})
        working = _working(around, touched)
        taken, outcomes = [], []
    for rival in rivals:
        envelope = rival.entry.envelope
        working[envelope.entity].take_rival(link_of(envelope, rival.entry.digest))
    flaws = {entity: _flaws(working[entity], around) for entity in touched}
    return SealedRuling(
        entries=tuple(taken),
        answers=tuple(
            _answer(entry, outcome, working[entry.envelope.entity], flaws)
            for entry, outcome in zip(entries, outcomes, strict=False)
        ),
        chains=tuple(working[entity].chain for entity in touched),
        flaws=tuple(flaw for entity in touched for flaw in flaws[entity]),
        rivals=tuple(rivals),
        fault=fault,
    )


def _working(around: Surroundings, entities: Iterable[str]) -> dict[str, _Working]:
    return {
        entity: _Working(around.entities[entity], around.cuts.get(entity, ()))
        for entity in entities
    }


def _answer(
    entry: Entry, outcome: str, entity: _Working, flaws: Mapping[str, Sequence[FlawRow]]
) -> SealedAnswer:
    return SealedAnswer(
        entity=entry.envelope.entity,
        revision=entry.envelope.revision,
        digest=entry.digest,
        outcome=outcome,
        durable_through=entity.chain.boundary.revision,
        complete=not flaws[entry.envelope.entity],
        state=entity.chain.state,
    )


def _rival_of(entity: _Working, entry: Entry) -> str | None:
    """The digest that stands where this entry would: same place, or same predecessor."""
    for held in entity.at(entry.envelope.revision):
        if held.link.digest == entry.digest:
            continue
        same_place = held.link.history == entry.envelope.history
        if same_place or held.link.predecessor == entry.envelope.predecessor:
            return held.link.digest
    return None


def _stands_at(entity: _Working, revision: int) -> str:
    """The digest that stands at a revision, or that the next one there will follow."""
    held = entity.at(revision)
    return held[0].link.digest if held else entity.chain.boundary.digest or GENESIS


def _late(entry: Entry, entity: _Working) -> HistoryIncomplete:
    """What the sender of an entry that was abandoned is told; the entry is kept as evidence."""
    envelope = entry.envelope
    cut = cut_of(entity.cuts, envelope.revision, envelope.history)
    when = "" if cut is None else f" on {cut.since} ({cut.reason})"
    return HistoryIncomplete(
        f"{envelope.entity} revision {envelope.revision} of history {envelope.history} was "
        f"abandoned{when}; {entry.digest} is kept as evidence. If it is still wanted, seal it anew "
        "in the history in force, under a new operation ID",
        entity=envelope.entity,
        revision=envelope.revision,
        operation=envelope.operation,
        abandoned=None if cut is None else cut.since,
        durable_through=entity.chain.boundary.revision,
    )


def _forked(entry: Entry, stored: str) -> Forked:
    envelope = entry.envelope
    return Forked(
        f"{envelope.entity} revision {envelope.revision} is {stored}; "
        f"{entry.digest} is kept as a rival and the history is held until the fork is settled",
        entity=envelope.entity,
        revision=envelope.revision,
        stored=stored,
        rival=entry.digest,
    )


def _contradiction(entry: Entry, other: str) -> Forked:
    envelope = entry.envelope
    return Forked(
        f"{envelope.entity} revision {envelope.revision} is both {other} and {entry.digest} in "
        "this request; nothing of it was taken: send the one that your store holds",
        entity=envelope.entity,
        revision=envelope.revision,
        rival=entry.digest,
    )


def _check_neighbours(entity: _Working, entry: Entry) -> None:
    envelope = entry.envelope
    for successor in entity.at(envelope.revision + 1):
        before = successor.link.predecessor
        if before is not None and before.digest != entry.digest:
            raise Forked(
                f"{envelope.entity} revision {envelope.revision}: the journal holds its successor, "
                f"which names {before.digest}; {entry.digest} is not that decision",
                entity=envelope.entity,
                revision=envelope.revision,
                expected=before.digest,
                offered=entry.digest,
            )
    predecessors = entity.at(envelope.revision - 1)
    named = envelope.predecessor
    if predecessors and named is not None:
        stored = {(held.link.digest, held.link.history) for held in predecessors}
        if (named.digest, named.history) not in stored:
            raise Forked(
                f"{envelope.entity} revision {envelope.revision} names predecessor "
                f"{named.digest}, which is not the one in the journal",
                entity=envelope.entity,
                revision=envelope.revision,
                expected=min(digest for digest, _ in stored),
                offered=named.digest,
            )


def _check_room(entity: _Working, entry: Entry) -> None:
    envelope = entry.envelope
    if len(entity.beyond()) < MAX_AHEAD:
        return
    if entity.rivals:
        raise Overloaded(
            f"{envelope.entity}: {MAX_AHEAD} entries wait until its fork is settled: "
            "`unrewind recover abandon` settles it"
        )
    if not entity.awaits(envelope.revision):
        missing = entity.chain.boundary.revision + 1
        raise Overloaded(
            f"{envelope.entity}: {MAX_AHEAD} entries wait for revision {missing} already"
        )


def _check_authority(entity: _Working, entry: Entry, around: Surroundings) -> None:
    """Only the history in force takes entries; a sealed one only what a successor names."""
    envelope = entry.envelope
    authority = around.authority
    if envelope.history == authority.history:
        if envelope.generation != authority.generation:
            raise StaleGeneration(
                f"the entry carries generation {envelope.generation}, "
                f"{authority.generation} is in force",
                generation=authority.generation,
                history=authority.history,
            )
        return
    known = any(record.history == envelope.history for record in around.histories)
    named = any(
        successor.link.predecessor is not None and successor.link.predecessor.digest == entry.digest
        for successor in entity.at(envelope.revision + 1)
    )
    if not (known and named):
        raise StaleGeneration(
            f"history {envelope.history} is not in force; seal the decision anew in "
            f"{authority.history}, generation {authority.generation}, "
            "under the same operation ID",
            generation=authority.generation,
            history=authority.history,
        )


def _check_sequence(entry: Entry, places: dict[tuple[str, str, int], str]) -> None:
    envelope = entry.envelope
    if envelope.sequence is None:
        return
    place = (stream_of(envelope.entity), envelope.history, envelope.sequence)
    stored = places.get(place)
    if stored is not None and stored != entry.digest:
        raise Forked(
            f"sequence {envelope.sequence} of this history belongs to {stored}; "
            "the caller's store was rewound or has two writers",
            sequence=envelope.sequence,
            stored=stored,
            offered=entry.digest,
        )
    places[place] = entry.digest


def _flaws(entity: _Working, around: Surroundings) -> list[FlawRow]:
    breaks = list(entity.advance())
    by_revision: dict[int, set[str]] = {}
    for rival in entity.rivals:
        digests = by_revision.setdefault(rival.revision, set())
        digests.add(rival.digest)
        digests.update(held.link.digest for held in entity.at(rival.revision))
    breaks.extend(
        Break(Flaw.FORK, revision, revision, tuple(sorted(digests)))
        for revision, digests in sorted(by_revision.items())
    )
    chain = entity.chain
    holds = len(entity.beyond())
    return [
        FlawRow(
            entity=chain.entity,
            flaw=found.flaw,
            first=found.first,
            last=found.last,
            digests=found.digests,
            durable_through=chain.boundary.revision,
            holds=holds,
            since=entity.since.get((found.flaw, found.first), around.now),
            detail=describe(chain.entity, found),
        )
        for found in breaks
    ]


def describe(entity: str, found: Break) -> str:
    """A flaw in a sentence."""
    if found.flaw is Flaw.GAP:
        many = found.last > found.first
        what = (
            f"revisions {found.first} to {found.last} are"
            if many
            else (f"revision {found.first} is")
        )
        return f"{entity}: {what} missing"
    if found.flaw is Flaw.FORK:
        return f"{entity}: revision {found.first} has rivals {', '.join(found.digests)}"
    return f"{entity}: revision {found.first} is an {found.flaw} ({', '.join(found.digests)})"


def empty_chain(entity: str) -> EntityChain:
    """The chain of an entity that the journal has not seen."""
    return EntityChain(entity, Head(), "", 0)
