"""The ledger: what became of an accepted operation, or who owes an answer, and until when (P12).

Pure. Every accepted operation has one fate, derived from the journal and from the rows of work that
its decision made. Nothing is ever counted down to zero: what is not known to have ended is
*unresolved*, with an owner and a deadline.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from journal.lanes import Effect, Lane
from journal.work import FINISHED, Status, Work, after_seconds


class Fate(StrEnum):
    """How an accepted operation ends. There is no fifth."""

    COMPLETED = "completed"
    """What it asked for has happened, or nothing follows from it but the decision itself."""
    CANCELLED = "cancelled"
    """It was withdrawn, superseded, put aside or abandoned before it was known to happen."""
    REJECTED = "rejected"
    """The receiver would not have it."""
    UNRESOLVED = "unresolved"
    """It has not ended, or nobody knows whether it happened."""


class Verdict(Struct, frozen=True):
    """A fate with its reason; ``owner`` and ``deadline`` where it is unresolved, else null.

    ``open`` names the releases and commands that have not ended.
    """

    fate: Fate
    why: str
    owner: str | None = None
    deadline: str | None = None
    overdue: bool = False
    open: tuple[str, ...] = ()


class Duty(Struct, frozen=True):
    """Who answers for what no lane does, within how many seconds; the lanes' own beside it."""

    owner: str
    within: float
    lanes: Mapping[str, Lane]

    def of_lane(self, name: str) -> tuple[str, float]:
        """Who answers for what stands in a lane, and within how many seconds of its acceptance."""
        lane = self.lanes.get(name)
        if lane is None:
            return self.owner, self.within
        return lane.owner, lane.resolve_within or self.within


class Decided(Struct, frozen=True):
    """What the ledger has to know of an accepted operation.

    ``held_since`` is set where the journal does not vouch for it yet (its history is incomplete
    before it, its entry is damaged, or the store has lost it), with the reason; ``abandoned`` says
    why it is no decision any more. ``releases`` are the IDs that its envelope permits.
    """

    operation: str
    revision: int
    recorded: str
    releases: tuple[str, ...] = ()
    abandoned: str | None = None
    held_since: str | None = None
    held: str = ""


_ENDS: Mapping[str, Fate] = {
    Status.DONE: Fate.COMPLETED,
    Status.CANCELLED: Fate.CANCELLED,
    Status.DRAINED: Fate.CANCELLED,
    Status.DISCARDED: Fate.CANCELLED,
    Status.REFUSED: Fate.REJECTED,
}
_WEIGHT = (Fate.COMPLETED, Fate.CANCELLED, Fate.REJECTED)


def fate_of(decided: Decided, rows: Iterable[Work], duty: Duty, now: str) -> Verdict:
    """The one fate of an operation, from every row that its decision made or that it permits.

    A release belongs to the operation whose permission stands. One that a later operation permits
    anew ends the earlier one; one that was there before is answered for by that earlier one.
    """
    if decided.abandoned is not None:
        return Verdict(Fate.CANCELLED, f"abandoned: {decided.abandoned}")
    if decided.held_since is not None:
        return _unresolved(
            decided.held, duty.owner, after_seconds(decided.held_since, duty.within), now
        )
    known = {row.id: row for row in rows}
    lacking = [identity for identity in decided.releases if identity not in known]
    if lacking:
        return _unresolved(
            f"the store has no row of {lacking[0]}: rebuild it with `unrewind recover begin`",
            duty.owner,
            after_seconds(decided.recorded, duty.within),
            now,
            lacking,
        )
    own = [row for row in known.values() if row.operation == decided.operation]
    waiting = [row for row in own if row.status not in FINISHED]
    if waiting:
        return _of_open(waiting, decided.recorded, duty, now)
    elsewhere = [row for row in known.values() if row.operation != decided.operation]
    ends = [(_ENDS[row.status], _end_of(row)) for row in own]
    ends += [_moved(row, decided) for row in elsewhere]
    if not ends:
        return Verdict(Fate.COMPLETED, "decided; nothing more follows from it")
    fate, why = max(ends, key=lambda end: _WEIGHT.index(end[0]))
    return Verdict(fate, why)


def _moved(row: Work, decided: Decided) -> tuple[Fate, str]:
    if (row.revision or 0) > decided.revision:
        return Fate.CANCELLED, f"{row.id} was withdrawn, and permitted anew by {row.operation}"
    return Fate.COMPLETED, f"{row.id} was permitted before: {row.operation} answers for it"


def _end_of(row: Work) -> str:
    receipt = "" if row.receipt is None else f", receipt {row.receipt}"
    doubt = "; it may have happened" if row.maybe and row.status != Status.DONE else ""
    return f"{row.id}: {row.step or row.status}{receipt}{doubt}"


def _of_open(rows: Sequence[Work], recorded: str, duty: Duty, now: str) -> Verdict:
    """Unresolved, by whichever row has to be resolved first; its time runs from the acceptance."""
    terms = []
    for row in rows:
        owner, within = duty.of_lane(row.lane)
        terms.append((after_seconds(recorded, within), row.owner or owner, row))
    deadline, owner, row = min(terms, key=lambda term: (term[0], term[2].id))
    said = row.status if row.status in _STANDS else f"of an unknown status {row.status!r}"
    what = "release" if row.effect == Effect.EXTERNAL else "command"
    why = f"{what} {row.id} is {said}: {row.last_error or row.step}"
    return _unresolved(why, owner, deadline, now, sorted(each.id for each in rows))


_STANDS: Collection[str] = frozenset(Status)


def _unresolved(
    why: str, owner: str, deadline: str, now: str, waiting: Sequence[str] = ()
) -> Verdict:
    return Verdict(Fate.UNRESOLVED, why, owner, deadline, deadline < now, tuple(waiting))
