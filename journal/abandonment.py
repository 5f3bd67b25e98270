"""Abandonment: what is left of an entity whose history an operator cut off.

Pure. The entity goes on from its last continuous revision. Entries above it that belong to an ended
history are evidence from then on, those that arrive late too: they decide nothing, acknowledge
nothing, and nothing follows them. What they may have let out is not forgotten with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from journal.acceptance import COMMITTED_ACTION
from journal.control import Abandoned
from journal.data import EMPTY
from journal.entry import Entry
from journal.errors import HistoryIncomplete
from journal.folding import fold
from journal.history import Link
from journal.lanes import Effect
from journal.log import Row
from journal.release import Rules, report_of
from journal.work import FINISHED, Status, Work, finish, note

Cuts = Mapping[str, Sequence[Abandoned]]
"""What was abandoned, by entity: ``Control.abandoned``."""

_SEVERAL = 2
_WAITS_FOR_SOMEBODY = frozenset({Status.UNKNOWN, Status.DEAD, Status.PENDING})
_FINAL = FINISHED - {Status.CANCELLED}


def cut_of(cuts: Sequence[Abandoned], revision: int, history: str) -> Abandoned | None:
    """The abandonment that dropped what stands at this place; None: it counts."""
    for cut in reversed(cuts):
        if revision > cut.through and history in cut.ended:
            return cut
    return None


def dropping(
    cuts: Sequence[Abandoned], revision: int, history: str, digest: str
) -> Abandoned | None:
    """The abandonment that dropped this entry of the journal; None: it counts.

    One that was damaged then is known by its stored digest alone.
    """
    for cut in reversed(cuts):
        if digest in cut.rivals or digest in cut.unreadable:
            return cut
    return cut_of(cuts, revision, history)


def is_evidence(cuts: Sequence[Abandoned], link: Link) -> bool:
    """Whether an entry that arrives, or a rival, can only be kept as evidence."""
    return dropping(cuts, link.revision, link.history, link.digest) is not None


def abandoned_operation(row: Row, cuts: Cuts) -> HistoryIncomplete:
    """What whoever asks about a dropped operation is told."""
    cut = dropping(cuts.get(row.entity, ()), row.revision, row.history, row.digest)
    when = "" if cut is None else f" on {cut.since} ({cut.reason})"
    return HistoryIncomplete(
        f"operation {row.operation} was revision {row.revision} of {row.entity}, whose history was "
        f"abandoned{when}; if it is still wanted, send it again under a new operation ID",
        entity=row.entity,
        revision=row.revision,
        operation=row.operation,
        abandoned=None if cut is None else cut.since,
        durable_through=0 if cut is None else cut.through,
    )


# What becomes of the entity's releases.


def sort_releases(
    rows: Mapping[str, Work], dropped: Sequence[Entry], rules: Rules, *, proven: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The releases that may have been committed in what is dropped, and those taken back in it.

    ``rows`` are those of the entity at its boundary. ``proven`` says that every dropped revision is
    there and could be read: then only a commitment among them makes a release doubtful, and only a
    release that none of them commits can be told from one that went out.
    """
    after = _as_dropped(rows, dropped, rules)
    committed = {
        report_of(entry.body).release
        for entry in dropped
        if entry.envelope.action == COMMITTED_ACTION
    }
    doubtful: list[str] = []
    withdrawn: list[str] = []
    for identity, row in sorted(after.items()):
        before = rows.get(identity)
        if row.effect != Effect.EXTERNAL:
            continue
        if before is not None and before.status in _FINAL:
            continue
        if identity in committed or (not proven and (before is None or not before.over)):
            doubtful.append(identity)
        elif before is not None and not before.over and _is_taken_back(before, row):
            withdrawn.append(identity)
    return tuple(doubtful), tuple(withdrawn)


def _is_taken_back(before: Work, after: Work) -> bool:
    return after.status == Status.CANCELLED or after.cancel_requested > before.cancel_requested


def _as_dropped(
    rows: Mapping[str, Work], dropped: Iterable[Entry], rules: Rules
) -> dict[str, Work]:
    """The rows as the dropped decisions would have them; those that they permitted, too."""
    found = dict(rows)
    for entry in dropped:
        found.update(fold(found, entry, EMPTY, rules))
    return found


def settle_releases(
    rows: Mapping[str, Work],
    cut: Abandoned,
    dropped: Sequence[Entry],
    rules: Rules,
    asks: Callable[[Work], bool] = lambda _: False,
) -> dict[str, Work]:
    """The rows that an abandonment changes or makes, from those at the boundary.

    A release that may have been committed is *unknown*, with the evidence of what is dropped; one
    that surely was not, and was taken back, stays taken back. Doing it twice changes nothing more.
    A release whose permission nobody has is not known to exist. ``asks`` says whether a release's
    receiver can be asked.
    """
    after = _as_dropped(rows, dropped, rules)
    settled: dict[str, Work] = {}
    for identity in cut.doubtful:
        known = rows.get(identity) or after.get(identity)
        if known is not None:
            settled[identity] = _doubted(known, after.get(identity, known), cut, asks)
    for identity in cut.withdrawn:
        row = rows.get(identity)
        if row is None or row.over:
            continue
        if row.status == Status.READY:
            why = "taken back in what was abandoned"
            settled[identity] = finish(row, Status.CANCELLED, cut.since, why)
        else:
            settled[identity] = msgspec.structs.replace(row, cancel_requested=1)
    return settled


def _doubted(row: Work, told: Work, cut: Abandoned, asks: Callable[[Work], bool]) -> Work:
    """A release of which nobody knows how often it was attempted."""
    row = msgspec.structs.replace(
        row,
        # The first commitment may be as old as the permission.
        committed=row.committed or row.created,
        attempts=max(row.attempts, told.attempts, _SEVERAL),
        lease=max(row.lease, told.lease),
        maybe=1,
        receipt=row.receipt or told.receipt,
    )
    if row.status in _WAITS_FOR_SOMEBODY and row.status == told.status:
        return row
    return msgspec.structs.replace(
        row,
        status=str(Status.UNKNOWN),
        started=cut.since,
        finished=None,
        claim=None,
        worker=None,
        sweep_at=None,
        due=cut.since if asks(row) else None,
        step=note(f"unknown: it may have been committed in what was abandoned: {cut.reason}"),
    )
