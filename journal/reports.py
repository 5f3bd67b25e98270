"""Reports: keeping a claim alive, and taking in what became of it.

Everything here runs under the turn lock against one ``Record``; times are the database's. Every
write names the row's status and the claim's number.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct

from journal.acceptance import Acceptance, Operation
from journal.control import Authority, Running, Stage
from journal.errors import (
    DiskFailed,
    EngineError,
    FenceFailed,
    LeaseLost,
    NotFound,
    Recovering,
    StaleGeneration,
    UnrewindError,
)
from journal.holding import limits_of
from journal.lanes import Effect, Lane, Terms, terms_of
from journal.outcomes import (
    CALLING,
    Change,
    Decide,
    Put,
    Reported,
    after_command,
    after_report_of_worker,
    can_ask,
    check_reported,
    repeatable,
)
from journal.record import Record
from journal.release import REPORT_TYPE, body_of
from journal.sql import Rows, Statement
from journal.standing import not_written, poison
from journal.store import tables
from journal.store import work as works
from journal.work import Status, Work, note
from journal.writepath import Ready, decide, make_ready

GENERATION_BITS = 32
"""A claim's number has its generation above these bits: it only rises, through recoveries too."""


class Reception(Struct, frozen=True):
    """What a report led to: the work's status now, and the decision where there is one."""

    id: str
    status: str
    acceptance: Acceptance | None = None
    observed: bool = False


def lane_of(record: Record, name: str) -> Lane:
    """A lane by its name. Raises NotFound naming those that exist."""
    lane = record.settings.lanes.get(name)
    if lane is None:
        known = ", ".join(sorted(record.settings.lanes))
        raise NotFound(f"there is no lane {name}; declared: {known}", lane=name)
    return lane


def terms(record: Record, name: str) -> Terms:
    """The terms of a lane; those of an opaque receiver for one that is declared no more."""
    return terms_of(record.settings.lanes.get(name, Lane()), record.settings.receiver)


def asks(record: Record, row: Work) -> bool:
    """Whether the receiver of a row can be asked about it."""
    receiver = record.settings.receiver.get(row.receiver) if row.receiver else None
    by_url = receiver is not None and receiver.status_url is not None
    return can_ask(row, terms(record, row.lane), asked_by_url=by_url)


def held_by(ready: Ready, name: str, lane: Lane) -> str | None:
    """What holds a whole lane back now; None: nothing does."""
    state = ready.control.lanes.get(name)
    if state is not None and state.running is not Running.ON:
        return f"lane {name} is {state.running}: {state.reason}"
    return limits_of(ready.control).of_lane(name, lane)


async def held_among(record: Record, ready: Ready, rows: Sequence[Work]) -> dict[str, str]:
    """Which of these rows may not begin now, whatever their lane says, and why, by ID.

    A row of a command does not name the action that asked for it: the journal does, and is asked
    while an action of its type is stopped, never else.
    """
    limits = limits_of(ready.control)
    if limits.stage is Stage.OPEN and not limits.holds:
        return {}
    unnamed = {
        row.operation: row.id
        for row in rows
        if row.operation and row.effect != Effect.EXTERNAL and limits.stops_actions(row.entity)
    }
    found = await record.journal().operations([*unnamed]) if unnamed else []
    actions = {row.operation: row.entry().envelope.action for row in found}
    held = {row.id: limits.of_work(row, actions.get(row.operation or "")) for row in rows}
    return {identity: why for identity, why in held.items() if why is not None}


# Keeping a claim alive.


async def write(record: Record, statements: Sequence[Statement | Rows]) -> None:
    """Write to the tables of work, in a tenant that stands as it should.

    Raises Recovering in one that does not: then nobody may go on on the strength of a claim (P7).
    """
    with record.lock.held():
        ready = await make_ready(record)
        await write_ready(record, ready, statements)


async def write_ready(record: Record, ready: Ready, statements: Sequence[Statement | Rows]) -> None:
    """``write`` in a turn that is ready already."""
    fence = tables.fence(ready.marker, ready.marker.place, ready.tip.sequence)
    try:
        await ready.store.batch([fence, *statements])
    except FenceFailed:
        raise  # another process was quicker
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    except EngineError as error:
        raise not_written(record, error) from error
    record.saw()


class Beating(Struct, frozen=True):
    """Claims of one lane that are alive, and what they are about to do, where they say it."""

    lane: str
    claims: Sequence[tuple[str, int]]
    step: str | None = None


async def beat(record: Record, beating: Beating) -> list[tuple[str, int]]:
    """Keep claims alive, with a step where one is named; those of them that still hold.

    A step that stands for a risky act MUST be written before it, and the act MUST NOT begin for a
    claim that is not in the answer; one of an ended generation never is (P7). Raises NotFound or
    Recovering.
    """
    lane = lane_of(record, beating.lane)
    with record.lock.held():
        ready = await make_ready(record)
        held = held_by(ready, beating.lane, lane) if beating.step == CALLING else None
        if held is not None:
            raise Recovering(held)
        authority = ready.control.authority
        claims = [claim for claim in beating.claims if not has_ended(claim[1], authority)]
        if beating.step == CALLING:
            claims = await _may_begin(record, ready, claims)
        statements = [works.beat(claims, lane.sweep_after)]
        if beating.step is not None:
            statements.append(works.set_step(claims, note(beating.step)))
        await write_ready(record, ready, statements)
        rows = (await ready.store.read([works.read_claims(claims)]))[0]
        return [(row.id, row.lease) for row in works.rows_of(rows)]


async def _may_begin(
    record: Record, ready: Ready, claims: Sequence[tuple[str, int]]
) -> list[tuple[str, int]]:
    """Those of these claims whose work may begin now.

    Since the claim a receiver's window may have ended, or an operator may have stopped something.
    """
    found, now = await ready.store.read([works.read_claims(claims), works.READ_NOW])
    rows = works.rows_of(found)
    held = await held_among(record, ready, rows)
    return [
        (row.id, row.lease)
        for row in rows
        if row.id not in held
        and (row.effect != Effect.EXTERNAL or repeatable(row, terms(record, row.lane), now[0][0]))
    ]


# Reporting.


def operation_of(row: Work, decided: Decide, principal: str | None, identity: str) -> Operation:
    """The operation that makes a decision of what became of a release."""
    return Operation(
        operation=identity,
        entity=row.entity or "",
        action=decided.action,
        body=body_of(decided.report),
        body_type=REPORT_TYPE,
        actor=decided.report.worker,
        principal=principal,
    )


def report_identity(row: Work, decided: Decide) -> str:
    """The operation ID of a report, the same however often it is repeated."""
    lease = decided.report.lease
    said = "asked" if lease is None else str(lease)
    return f"{row.id}/{decided.action.rpartition('.')[2]}/{said}"


async def read_row(record: Record, identity: str) -> Work:
    """One row of work. Raises NotFound or Recovering."""
    if record.store is None:
        raise Recovering("the store is missing or unreadable")
    rows = works.rows_of((await record.store.read([works.read_work([identity])]))[0])
    if not rows:
        raise NotFound(f"there is no release, command or item {identity}", id=identity)
    return rows[0]


def change_after(record: Record, row: Work, said: Reported, now: str) -> Change:
    """What follows from a report on a row. Raises Invalid."""
    check_reported(said)
    lane = record.settings.lanes.get(row.lane, Lane())
    chance = random.random()  # noqa: S311 - spreads attempts out, guards nothing
    if row.effect != Effect.EXTERNAL:
        return after_command(row, said, lane, now, chance)
    return after_report_of_worker(
        row, said, lane, terms(record, row.lane), now, chance, ask=asks(record, row)
    )


async def report(record: Record, said: Reported, principal: str | None = None) -> Reception:
    """Take a worker's report on its attempt.

    Raises NotFound, LeaseLost when another claim has been made since, TransitionRefused when the
    release has ended already, HistoryIncomplete, Recovering or JournalUnavailable: then the caller
    keeps the report as an observation.
    """
    with record.lock.held():
        ready = await make_ready(record)
        row = await read_row(record, said.id)
        check_generation(said, ready.control.authority)
        if row.over and row.effect != Effect.EXTERNAL and row.lease == said.lease:
            return Reception(row.id, row.status)
        now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
        change = change_after(record, row, said, now)
        if isinstance(change, Put) and said.lease is not None:
            _check_lease(row, said.lease)
        return await apply(record, ready, row, change, principal)


def check_generation(said: Reported, authority: Authority) -> None:
    """A report under a claim of an ended generation decides nothing (P7). Raises as above."""
    if said.lease is not None:
        check_claim(said.id, said.lease, authority)


def check_claim(identity: str, lease: int, authority: Authority) -> None:
    """A claim of an ended generation allows nothing more (P7). Raises StaleGeneration."""
    if has_ended(lease, authority):
        raise StaleGeneration(
            f"{identity}: claim {lease} belongs to generation {lease >> GENERATION_BITS}, "
            f"{authority.generation} is in force",
            generation=authority.generation,
            history=authority.history,
        )


def has_ended(lease: int, authority: Authority) -> bool:
    """Whether a claim was made in a generation that a recovery has ended."""
    return lease >> GENERATION_BITS < authority.generation


def _check_lease(row: Work, lease: int) -> None:
    if row.status != Status.RUNNING or row.lease != lease:
        raise LeaseLost(
            f"{row.id} is {row.status} under claim {row.lease}; claim {lease} has ended",
            id=row.id,
            work_status=row.status,
        )


async def apply(
    record: Record,
    ready: Ready,
    row: Work,
    change: Change,
    principal: str | None = None,
    identity: str | None = None,
) -> Reception:
    """Carry a change out: as a decision, or on the row while it is as it was."""
    if isinstance(change, Put):
        await write_ready(record, ready, [works.put_while(row, change.row)])
        return Reception(row.id, change.row.status)
    operation = operation_of(row, change, principal, identity or report_identity(row, change))
    answer = (await decide(record, ready, [operation]))[0]
    if isinstance(answer, UnrewindError):
        raise answer
    after = await read_row(record, row.id)
    return Reception(row.id, after.status, answer)
