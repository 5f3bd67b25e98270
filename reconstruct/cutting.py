"""Cutting: where a history can be cut off, and what that leaves behind.

Reads, never writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from journal.abandonment import is_evidence
from journal.control import Abandoned, Control, Missing
from journal.entry import MAX_INTEGER, Entry
from journal.errors import Invalid
from journal.history import Flaw, Head, Link, examine, link_of
from journal.log import DECISIONS, Log, Rival, Row
from journal.log.engine import SqlLog
from reconstruct.orders import POSITION, SEQUENCE, Hole, holes, left_of, size_of
from reconstruct.replay import Lineage, Stop

DECISION = "decision"
FORK = "fork"
RIVAL = "rival"
_PAGE = 1000


class Candidate(Struct, frozen=True):
    """Something that a cut drops: a `decision` behind it, one side of a `fork`, or a `rival`."""

    operation: str
    digest: str
    revision: int
    action: str
    history: str
    kind: str

    @classmethod
    def of(cls, entry: Entry, kind: str) -> Candidate:
        """The entry, as it has to be named."""
        envelope = entry.envelope
        return cls(
            envelope.operation,
            entry.digest,
            envelope.revision,
            envelope.action,
            envelope.history,
            kind,
        )


class Behind(Struct, frozen=True):
    """What a cut leaves behind.

    ``rows`` stand above it, the damaged ones among them in ``unreadable``; ``forks`` stand beside
    the chain at or below it, and ``rivals`` were never taken.
    """

    rows: tuple[Row, ...]
    unreadable: tuple[Row, ...] = ()
    forks: tuple[Row, ...] = ()
    rivals: tuple[Rival, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there is nothing to cut off."""
        return not (self.rows or self.unreadable or self.forks or self.rivals)

    def readable(self) -> list[Entry]:
        """The decisions above the cut that can be read, in the order of their arrival."""
        damaged = {row.position for row in self.unreadable}
        rows = sorted(self.rows, key=lambda row: row.position)
        return [row.entry() for row in rows if row.position not in damaged]

    def candidates(self) -> list[Candidate]:
        """Everything that has to be named."""
        found = [Candidate.of(entry, DECISION) for entry in self.readable()]
        found += [Candidate.of(row.entry(), FORK) for row in self.forks]
        found += [Candidate.of(rival.entry, RIVAL) for rival in self.rivals]
        return sorted(found, key=lambda each: (each.revision, each.digest))


class Followed(Struct, frozen=True):
    """A caller-owned entity's chain, followed from its first revision to where it can be cut."""

    boundary: Head
    row: Row | None
    state: str
    behind: Behind


async def rows_above(log: Log, entity: str, through: int) -> list[Row]:
    """An entity's entries above a revision, damaged ones too, without what was dropped before."""
    found: list[Row] = []
    first = through + 1
    while page := await log.history(entity, first, MAX_INTEGER, _PAGE):
        # A page may end between two entries of one revision.
        last = page[-1].revision
        found += [row for row in page if row.revision < last]
        found += await log.history(entity, last, last, _PAGE)
        first = last + 1
    return found


async def look_behind(log: Log, entity: str, through: int) -> Behind:
    """What stands above a managed entity's boundary, and beside the chain that leads to it."""
    rows = await rows_above(log, entity, through)
    lineage = await lineage_of(log, entity)
    beside: list[Row] = []
    if lineage is not None:
        before = [row for row in await rows_above(log, entity, 0) if row.revision <= through]
        beside = [row for row in before if row.digest not in lineage.digests]
    return Behind(tuple(rows), tuple([row for row in rows if _link(row) is None]), tuple(beside))


async def follow(log: Log, entity: str, cuts: Sequence[Abandoned]) -> Followed:
    """Follow a caller-owned entity's chain; damaged entries end it, and rivals do not."""
    rows = await rows_above(log, entity, 0)
    links = {row.digest: link for row in rows if (link := _link(row)) is not None}
    boundary = examine(links.values()).boundary
    chain = _chain_to(boundary, links)
    at = next((row for row in rows if row.digest == boundary.digest), None)
    beside = [row for row in rows if row.revision <= boundary.revision and row.digest not in chain]
    behind = Behind(
        tuple([row for row in rows if row.revision > boundary.revision]),
        tuple([row for row in rows if row.digest not in links]),
        tuple([row for row in beside if row.digest in links]),
        tuple(
            [
                rival
                for rival in await log.rivals(entity)
                if not is_evidence(cuts, link_of(rival.entry.envelope, rival.entry.digest))
            ]
        ),
    )
    state = "" if at is None else at.entry().envelope.outcome.state
    return Followed(boundary, at, state, behind)


async def lineage_of(log: Log, entity: str) -> Lineage | None:
    """The lineage that the parent links of an entity's decisions choose; None: there is no fork."""
    if not await log.forks(entity):
        return None
    rows = await rows_above(log, entity, 0)
    links = {row.digest: link for row in rows if (link := _link(row)) is not None}
    found = examine(links.values())
    fork = next((each for each in found.breaks if each.flaw is Flaw.FORK), None)
    if fork is None:
        return None
    boundary = found.boundary
    detail = f"{entity}: revision {fork.first} has rivals {', '.join(fork.digests)}"
    stop = Stop(entity, Flaw.FORK, fork.first, boundary.revision, detail)
    return Lineage(frozenset(_chain_to(boundary, links)), stop)


def _chain_to(boundary: Head, links: Mapping[str, Link]) -> set[str]:
    """The digests of the chain that ends at the boundary."""
    chain: set[str] = set()
    digest: str | None = boundary.digest or None
    while digest is not None and digest in links:
        chain.add(digest)
        before = links[digest].predecessor
        digest = None if before is None else before.digest
    return chain


def _link(row: Row) -> Link | None:
    """The entry's link; None for one that is damaged."""
    try:
        return link_of(row.entry().envelope, row.digest)
    except Invalid:
        return None


def missing_in(
    log: SqlLog, control: Control, at: Row | None, rows: Sequence[Row], position: int
) -> list[Missing]:
    """The revisions between the cut and the newest entry that nobody has.

    With the places in the journal's orders that stand empty between their neighbours, as far as no
    abandonment explains them yet. ``position`` is where the journal stands.
    """
    found: list[Missing] = []
    before = at
    empty: list[Hole] | None = None
    known = [each for cuts in control.abandoned.values() for cut in cuts for each in cut.missing]
    for row in sorted(rows, key=lambda row: (row.revision, row.position)):
        count = row.revision - 1 - (0 if before is None else before.revision)
        if count > 0:
            if empty is None:
                empty = holes(log.database, control)
            low = 0 if before is None else before.position
            high = row.position if low < row.position else position + 1
            each = Missing(count, _span(empty, known, POSITION, low, high, count))
            if row.sequence is not None and row.stream == DECISIONS:
                low = 0 if before is None else before.sequence or 0
                sequences = _span(empty, known, SEQUENCE, low, row.sequence, count)
                each = Missing(count, each.positions, sequences)
            found.append(each)
            known.append(each)
        before = row
    return found


def _span(
    empty: Sequence[Hole], known: Sequence[Missing], what: str, low: int, high: int, count: int
) -> tuple[int, int, int] | None:
    """Between which numbers how many places are empty that nothing explains without this one."""
    of_order = [hole for hole in empty if hole.what == what]
    span = (low, high, count)
    asked = Missing(count, span) if what == POSITION else Missing(count, None, span)
    explained = size_of(left_of(of_order, known)) - size_of(left_of(of_order, [*known, asked]))
    return (low, high, explained) if explained > 0 else None
