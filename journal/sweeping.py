"""Sweeping: moving on what is in progress beyond its time. It shares nothing with the worker.

It needs the files and the clock, and nobody alive: a worker that was killed at its cap, hung, or
lost with its machine leaves a row that only this can end. Oldest first, in bounded portions, each
row for itself, so that one that cannot be moved keeps no other in its place.
"""

from __future__ import annotations

import os

import msgspec
from msgspec import Struct

from journal.acceptance import DUPLICATE
from journal.control import Running
from journal.doubting import decision_after
from journal.entry import MAX_INTEGER
from journal.errors import (
    FenceFailed,
    HistoryIncomplete,
    JournalUnavailable,
    LockHeld,
    NotFound,
    Recovering,
    Refusal,
    UnrewindError,
)
from journal.lanes import Effect, Lane
from journal.log import OBSERVATIONS
from journal.observing import Observed, last_observed, observation_of
from journal.outcomes import Change, after_expiry
from journal.record import Record
from journal.reports import (
    apply,
    asks,
    has_ended,
    read_row,
    report_identity,
    terms,
    write,
    write_ready,
)
from journal.standing import LOGGER, close_for_work
from journal.store import work as works
from journal.work import COMMITTED, Work
from journal.writepath import make_ready

PORTION = 200
_FORGET = 5000


class Moved(Struct, frozen=True):
    """A row that a sweep moved, and where it was when its time was over."""

    id: str
    lane: str
    step: str
    status: str


class Swept(Struct, frozen=True):
    """What a sweep did. ``failed`` rows stay as they are; the next sweep tries them again."""

    moved: list[Moved]
    failed: int

    @property
    def count(self) -> int:
        """How many rows were moved."""
        return len(self.moved)


async def sweep(record: Record, limit: int = 100_000) -> Swept:
    """Move every row whose time is over, at most ``limit``, and note that it was done.

    A row goes to *unknown* where a call may have been made to a receiver that does not suppress
    repeats, back to its lane where it does, and to the dead letters when its budget is spent. What
    has come to wait in a lane that is switched off is discarded. Raises Recovering,
    JournalUnavailable or LockHeld when nothing can be moved now.
    """
    moved: list[Moved] = []
    failed: set[str] = set()
    while len(moved) < limit:
        portion = await _portion(record, min(PORTION, limit - len(moved)) + len(failed))
        portion = [row for row in portion if row.id not in failed]
        if not portion:
            break
        for row in portion:
            try:
                status = await _move(record, row)
            except (Recovering, JournalUnavailable, LockHeld):
                raise
            except UnrewindError as error:
                LOGGER.warning("work %s cannot be swept now: %s", row.id, error)
                failed.add(row.id)
                continue
            if status is not None:
                moved.append(Moved(row.id, row.lane, row.step, status))
    absorbed, settled = await _absorb(record)
    moved += settled
    with record.lock.held():
        ready = await make_ready(record)
        lanes = ready.control.lanes.items()
        off = [name for name, state in lanes if state.running is Running.OFF]
        await write_ready(
            record,
            ready,
            [
                works.write_sweep(len(moved), absorbed, os.getpid()),
                *[works.discard_waiting(name) for name in off],
                *works.forget(record.settings.keep, _FORGET),
            ],
        )
    return Swept(moved, len(failed))


async def _portion(record: Record, limit: int) -> list[Work]:
    with record.lock.held():
        ready = await make_ready(record)
        rows, spoiled = works.readable_of((await ready.store.read([works.read_expired(limit)]))[0])
    if spoiled:
        await write(
            record, [works.park(identity, why, 1, 1.0) for identity, why in spoiled.items()]
        )
    return rows


async def _move(record: Record, row: Work) -> str | None:
    """Move one row, unless it has moved by itself since it was read; its status now."""
    with record.lock.held():
        ready = await make_ready(record)
        now, found = await ready.store.read(
            [works.READ_NOW, works.read_claims([(row.id, row.lease)])]
        )
        rows = works.rows_of(found)
        if not rows or (rows[0].sweep_at or "") > now[0][0]:
            return None
        row = rows[0]
        lane = record.settings.lanes.get(row.lane, Lane())
        ask = asks(record, row)
        change: Change | None = None
        identity: str | None = None
        if row.effect == Effect.EXTERNAL:
            seen = await last_observed(record, row.id)
            told = await decision_after(record, row, seen, ready.control.doubted, ask=ask)
            if told is not None and not told.report.maybe:
                change, identity = told, f"{report_identity(row, told)}/{row.lease}"
            if has_ended(row.lease, ready.control.authority):
                # The store was put back, perhaps to before the step that its worker wrote last.
                row = msgspec.structs.replace(row, maybe=1)
        if change is None:
            change = after_expiry(row, lane, terms(record, row.lane), now[0][0], ask=ask)
            # Under an ID of its own: the worker may live, and its own report is to be heard too.
            identity = f"{row.id}/expired/{row.lease}"
        reception = await apply(record, ready, row, change, None, identity)
        answer = reception.acceptance
        if answer is not None and answer.outcome == DUPLICATE and reception.status == row.status:
            # A decision moves its row in the same commit, so this row was put back since (P4).
            if await record.marker() != ready.marker:
                raise FenceFailed("the store moved while work was swept")
            why = f"it is {row.status}, and what became of that attempt was decided"
            raise await close_for_work(record, {row.id: why})
    return reception.status


async def _absorb(record: Record) -> tuple[int, list[Moved]]:
    """Make decisions of the observations that came since the last sweep, where they still can be.

    The sequence through which none need be looked at again, and what was settled. One of an entity
    whose history is incomplete waits until it is whole.
    """
    last = await last_sweep(record)
    after = 0 if last is None else last.absorbed
    waiting = MAX_INTEGER
    settled: list[Moved] = []
    while rows := await record.journal().stream(OBSERVATIONS, after, PORTION):
        for row in rows:
            after = row.sequence or after
            found = observation_of(row)
            if found is None:
                continue
            try:
                done = await _settle(record, found, row.digest)
            except HistoryIncomplete as error:
                LOGGER.warning("observation of %s waits: %s", found.release, error)
                waiting = min(waiting, after - 1)
            except Refusal as error:
                LOGGER.warning("observation of %s stays one: %s", found.release, error)
            except NotFound as error:
                # Of a release that is known, it waits for a decision of its entity.
                LOGGER.warning("observation of %s stays one: %s", found.release, error)
                if await _is_known(record, found.release):
                    waiting = min(waiting, after - 1)
            else:
                settled += [] if done is None else [done]
    return min(after, waiting), settled


async def _is_known(record: Record, release: str) -> bool:
    try:
        await read_row(record, release)
    except NotFound:
        return False
    return True


async def _settle(record: Record, found: Observed, digest: str) -> Moved | None:
    """Make a decision of what an observation tells; None where it tells nothing new."""
    with record.lock.held():
        ready = await make_ready(record)
        row = await read_row(record, found.release)
        doubt = ready.control.doubted
        change = await decision_after(record, row, found, doubt, ask=asks(record, row))
        if change is None or row.effect != Effect.EXTERNAL or row.status not in COMMITTED:
            return None
        identity = f"{report_identity(row, change)}/{digest[:12]}"
        done = await apply(record, ready, row, change, None, identity)
    return Moved(row.id, row.lane, row.step, done.status)


class LastSweep(Struct, frozen=True):
    """When the last good sweep was, how many rows it moved, and all together."""

    succeeded: str
    moved: int
    total: int
    absorbed: int
    process: int
    age: float


async def last_sweep(record: Record) -> LastSweep | None:
    """The last good sweep; None: there was none yet."""
    if record.store is None:
        raise Recovering("the store is missing or unreadable")
    rows = (await record.store.read([works.READ_SWEEP]))[0]
    if not rows:
        return None
    last = LastSweep(*rows[0])
    return msgspec.structs.replace(last, age=max(0.0, last.age))
