"""The work of a tenant's lanes, for whoever holds the tenant open: `journal.lanes`.

Claims, signs of life, reports and everything that is asked or done by hand. Reports that are
decisions go through the writer, many in one commit.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from journal import asking, handling, inquiry, permits, reports, sweeping
from journal.asking import Question
from journal.control import LaneState, Running
from journal.errors import (
    HistoryIncomplete,
    LeaseLost,
    NotFound,
    OperationReused,
    Recovering,
    StaleGeneration,
    TransitionRefused,
    UnrewindError,
    WriterStopped,
)
from journal.feed import Page
from journal.folding import after_report
from journal.lanes import Effect
from journal.observing import observe
from journal.outcomes import Decide, Outcome, Reported, Told
from journal.permits import Asked, Claimed
from journal.reading import check_journalled, check_readable
from journal.record import Record
from journal.reports import Beating, Reception
from journal.store import work as works
from journal.work import Work
from journal.writer import Writer

T = TypeVar("T")

_EVIDENCE = (HistoryIncomplete, LeaseLost, Recovering, StaleGeneration)
_TELLING = frozenset({Outcome.CONFIRMED, Outcome.REFUSED})


class _Runs(Protocol):
    async def __call__(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T: ...


class LaneWork:
    """Made by ``Journal``. ``write`` and ``read`` run a coroutine over its two records."""

    def __init__(
        self,
        writer: Writer,
        write: _Runs,
        read: _Runs,
        differs: Callable[[], Coroutine[Any, Any, str | None]],
    ) -> None:
        self._writer = writer
        self._write = write
        self._read = read
        self._differs = differs

    # Workers.

    async def claim(self, asked: Asked) -> Claimed:
        """Claim work of a lane; the permits MUST NOT be there before the journal is (P3)."""
        differs = await self._differs()
        if differs is not None:
            return Claimed([], differs)
        return await self._write(permits.claim, asked)

    async def beat(self, beating: Beating) -> list[tuple[str, int]]:
        """Keep claims alive; those that still hold."""
        return await self._write(reports.beat, beating)

    async def report(self, said: Reported, principal: str | None = None) -> Reception:
        """Take a report: as a decision, as a change of the row, or else as an observation.

        An observation is what a report becomes that can be no decision now: the tenant is closed,
        the reporter's claim or generation has ended, the entity's history is incomplete, or nobody
        knows the release. It is kept in the journal, and an observed receipt counts as known.
        Raises JournalUnavailable or WriterStopped when nothing could be kept: report again.
        """
        try:
            return await self._report(said, principal)
        except WriterStopped:
            raise
        except OperationReused:
            # The same report under the same claim was taken before, in other words.
            return Reception(said.id, (await self._read(inquiry.read_one, said.id)).status)
        except _EVIDENCE as error:
            why = error.detail
        except (NotFound, TransitionRefused) as error:
            if said.outcome not in _TELLING:
                raise
            why = error.detail
        await self._write(observe, said, why, principal)
        return Reception(said.id, "observed", observed=True)

    async def _report(self, said: Reported, principal: str | None) -> Reception:
        try:
            row, change = await self._read(_foresee, said)
        except NotFound:
            # The store may have been put back to before it: only a turn notices that.
            return await self._write(reports.report, said, principal)
        if not isinstance(change, Decide):
            return await self._write(reports.report, said, principal)
        identity = reports.report_identity(row, change)
        operation = reports.operation_of(row, change, principal, identity)
        answer = (await self._writer.submit([operation]))[0]
        if isinstance(answer, UnrewindError):
            raise answer
        after = after_report(row, change.action, change.report, operation.at or "")
        return Reception(row.id, after.status, answer)

    async def to_ask(self, lane: str, limit: int) -> list[Question]:
        """The releases of a lane about which its receiver is to be asked now."""
        return await self._write(asking.to_ask, lane, limit)

    async def take_answer(
        self,
        told: Told,
        said: Reported,
        idle: str | None = None,
        question: Question | None = None,
    ) -> Reception | None:
        """Take in what a receiver said when it was asked; ``idle`` is who is at no work on it."""
        return await self._write(asking.take_answer, told, said, idle, question)

    async def sweep(self) -> sweeping.Swept:
        """Move on what is in progress beyond its time."""
        return await self._write(sweeping.sweep)

    async def last_sweep(self) -> sweeping.LastSweep | None:
        """The last good sweep."""
        return await self._read(sweeping.last_sweep)

    # By hand.

    async def set_lane(
        self,
        lane: str,
        running: Running,
        reason: str,
        principal: str | None = None,
        *,
        discard: bool = False,
    ) -> LaneState:
        """Pause a lane, let it run again, or switch a best-effort one off."""

        async def work(record: Record) -> LaneState:
            return await handling.set_lane(
                record, lane, running, reason, principal, discard=discard
            )

        return await self._write(work)

    async def enqueue(self, lane: str, kind: str, items: Sequence[tuple[str, bytes]]) -> list[str]:
        """Put work that is no decision into an internal or best-effort lane."""
        return await self._write(handling.enqueue, lane, kind, items)

    async def cancel(self, release: str, reason: str, principal: str | None = None) -> Reception:
        """Cancel a release before its commitment, or ask for it afterwards."""
        return await self._write(handling.cancel, release, reason, principal)

    async def settle(
        self,
        release: str,
        happened: bool,
        evidence: str,
        receipt: str | None = None,
        principal: str | None = None,
        *,
        reason: str | None = None,
        expected: str | None = None,
    ) -> Reception:
        """Say what became of a release of unknown outcome."""

        async def work(record: Record) -> Reception:
            return await handling.settle(
                record,
                release,
                happened,
                evidence,
                receipt,
                principal,
                reason=reason,
                expected=expected,
            )

        return await self._write(work)

    async def record_incident(
        self, release: str, reason: str, principal: str | None = None
    ) -> Reception:
        """Record that a release should not have been."""
        return await self._write(handling.record_incident, release, reason, principal)

    async def replay(
        self, ids: Sequence[str], reason: str, principal: str | None = None
    ) -> handling.Handled:
        """Put dead letters back into their lanes."""
        return await self._write(handling.replay, ids, reason, principal)

    async def drain(
        self, ids: Sequence[str], reason: str, principal: str | None = None
    ) -> handling.Handled:
        """Put dead letters aside for good."""
        return await self._write(handling.drain, ids, reason, principal)

    # Questions.

    async def work(
        self,
        effects: Sequence[Effect],
        wanted: inquiry.Filter,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page:
        """A page of releases, commands or items.

        Raises Recovering in a closed tenant: a store that was rewound may show a release as waiting
        that went out.
        """
        return await self._read(_open, inquiry.read_work, effects, wanted, after, limit)

    async def one(self, identity: str) -> inquiry.WorkView:
        """One release, command or item. Raises Recovering in a closed tenant."""
        return await self._read(_open, inquiry.read_one, identity)

    async def lanes(self) -> list[inquiry.LaneView]:
        """Every lane."""
        return await self._read(inquiry.read_lanes)

    async def where(self, operation: str) -> inquiry.Where:
        """Which boundary an operation has reached."""
        return await self._read(_journalled, inquiry.read_where, operation)

    async def observations(self, after: str | None = None, limit: int | None = None) -> Page:
        """What was reported and could be no decision."""
        return await self._read(inquiry.read_observations, after, limit)


async def _open(record: Record, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    await check_readable(record)
    return await _journalled(record, function, *args)


async def _journalled(
    record: Record, function: Callable[..., Coroutine[Any, Any, T]], *args: Any
) -> T:
    found = await function(record, *args)
    await check_journalled(record)
    return found


async def _foresee(record: Record, said: Reported) -> tuple[Work, Any]:
    """The row that a report is about, and what would follow from it."""
    row = await reports.read_row(record, said.id)
    control = await record.current_control(await record.look())
    reports.check_generation(said, control.authority)
    if record.store is None:
        raise Recovering("the store is missing or unreadable")
    now: str = (await record.store.read([works.READ_NOW]))[0][0][0]
    return row, reports.change_after(record, row, said, now)
