"""Handling by hand: what an operator does to a lane, a release or a dead letter.

Each is a recorded change: of a release a decision of its entity, of a lane an entry of control, of
a command a row with the operator's name in its step. Nothing turns *unknown* into *ready* in bulk,
and doing a thing twice acts once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256

import msgspec
from msgspec import Struct

from journal import decrees
from journal.admission import MEASURED_OVER, Door
from journal.control import Authority, Control, LaneState, Running
from journal.detection import Verdict
from journal.entry import MAX_ACTION, MAX_STRING, Entry, check_name, check_text
from journal.errors import Invalid, NotFound, Refusal, Refused, TransitionRefused
from journal.lanes import Effect
from journal.lifecycle import RELEASE_ACTIONS
from journal.outcomes import Decide, Put, repeatable
from journal.record import Record
from journal.release import Report
from journal.reports import (
    Reception,
    apply,
    asks,
    lane_of,
    read_row,
    report_identity,
    terms,
    write,
)
from journal.standing import append_control
from journal.store import work as works
from journal.work import Status, Work, finish, note
from journal.writepath import Ready, loads_of, make_ready

MAX_ITEMS = 1000
MAX_HANDLED = 1000
"""Dead letters that one call drains or replays."""


class Handled(Struct, frozen=True):
    """What was done to each dead letter: its status now, or why it stays."""

    done: list[str]
    left: dict[str, str]


# Lanes.


async def set_lane(
    record: Record,
    name: str,
    running: Running,
    reason: str,
    principal: str | None = None,
    *,
    discard: bool = False,
) -> LaneState:
    """Pause a lane, let it run again, or switch a best-effort one off. Survives a rewind.

    What runs already is left to its end. Off, a lane discards what waits and what comes, counted;
    so it must be said that this is meant. Raises NotFound, Invalid, Refused or JournalUnavailable.
    """
    lane = lane_of(record, name)
    check_name("reason", reason, MAX_STRING)
    if running is Running.OFF:
        if lane.effect is not Effect.BEST_EFFORT:
            raise Refused(f"lane {name} is {lane.effect}: its work may wait, never be discarded")
        if not discard:
            raise Refused(f"switching lane {name} off discards what waits in it: say --discard")

    def build(control: Control) -> tuple[Entry, Authority] | None:
        before = control.lanes.get(name)
        if (Running.ON if before is None else before.running) is running:
            return None
        entry = decrees.lane_entry(
            control,
            name,
            running,
            reason,
            f"control-{record.clock.fresh()}",
            record.clock.now(),
            principal,
        )
        return entry, control.authority

    with record.lock.held():
        finding, _ = await record.examine()
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
            raise Refused(f"nothing is written to this journal: {finding.detail}")
        control = await append_control(record, build)
        if running is Running.OFF:
            await write(record, [works.discard_waiting(name)])
    return control.lanes.get(name, LaneState(Running.ON, reason, record.clock.now()))


async def enqueue(
    record: Record, lane: str, kind: str, items: Sequence[tuple[str, bytes]]
) -> list[str]:
    """Put work that is no decision into an internal or best-effort lane; the new IDs.

    Each item is an ID of the caller's choice and JSON; an ID that is there already makes nothing
    new. In a lane that is switched off it is counted and discarded. Raises NotFound, Invalid,
    Overloaded or Recovering.
    """
    declared = lane_of(record, lane)
    if declared.external:
        raise Invalid(f"lane {lane} has external effects: only a decision can release to it")
    check_name("kind", kind, MAX_ACTION)
    if not 1 <= len(items) <= MAX_ITEMS:
        raise Invalid(f"send 1 to {MAX_ITEMS} items at once", field="items")
    rows = [_item(lane, str(declared.effect), kind, identity, data) for identity, data in items]
    with record.lock.held():
        ready = await make_ready(record)
        now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
        known = works.rows_of(
            (await ready.store.read([works.read_work([row.id for row in rows])]))[0]
        )
        state = ready.control.lanes.get(lane)
        off = state is not None and state.running is Running.OFF
        off = off and declared.effect is Effect.BEST_EFFORT
        fresh = {row.id: row for row in rows}
        for row in known:
            if row.lane != lane:
                raise Invalid(f"item {row.id} stands in lane {row.lane}", field="items")
            fresh.pop(row.id, None)
        made = [
            msgspec.structs.replace(row, due=now, created=now, owner=declared.owner)
            for row in fresh.values()
        ]
        if off:
            made = [finish(row, Status.DISCARDED, now, "the lane is switched off") for row in made]
        elif made:
            await _admit(record, ready, made)
        if made:
            await write(record, [works.write_work(made)])
    return [row.id for row in made]


async def _admit(record: Record, ready: Ready, rows: Sequence[Work]) -> None:
    counts, flow = await ready.store.read([works.READ_COUNTS, works.read_flow(MEASURED_OVER)])
    loads, outstanding = loads_of(counts, flow)
    Door(record.settings.lanes, loads, outstanding, record.settings.max_outstanding).admit(rows)


def _item(lane: str, effect: str, kind: str, identity: str, data: bytes) -> Work:
    check_name("item", identity, MAX_ACTION)
    try:
        msgspec.json.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"item {identity} is not JSON: {error}", field="items") from None
    return Work(
        id=f"item_{lane}_{identity}",
        lane=lane,
        effect=effect,
        name=kind,
        status=str(Status.READY),
        entity=None,
        revision=None,
        sequence=0,
        place=0,
        operation=None,
        version=None,
        receiver=None,
        recipient=None,
        digest=None,
        corrects=None,
        data=data.decode(),
        weight=1.0,
        due=None,
        created="",
        step="accepted: waits to be picked up",
    )


# Releases.


async def cancel(
    record: Record, identity: str, reason: str, principal: str | None = None
) -> Reception:
    """Cancel one release before its commitment; afterwards it is only requested.

    A request is answered with the status as it is: what is under way may happen, and its outcome
    is still recorded. Done twice, it acts once. Raises NotFound, TransitionRefused when it has
    ended, and what decisions do.
    """
    check_name("reason", reason, MAX_STRING)
    with record.lock.held():
        ready = await make_ready(record)
        row = await _release(record, identity)
        if row.status == Status.READY:
            change = _by_hand("cancelled", row, reason)
            # A release that is permitted anew after this can be cancelled again.
            again = f"{report_identity(row, change)}/{row.revision}"
            return await apply(record, ready, row, change, principal, again)
        if row.status == Status.CANCELLED:
            return Reception(identity, row.status)
        if row.over:
            raise TransitionRefused(
                f"release {identity} is {row.status}: nothing is left to cancel; a corrective "
                "action may undo what it did",
                release=identity,
                work_status=row.status,
            )
        if not row.cancel_requested:
            requested = _by_hand("cancel-requested", row, reason)
            # Taken back by a new permission, it can be asked for again.
            again = f"{report_identity(row, requested)}/{record.clock.fresh()}"
            await apply(record, ready, row, requested, principal, again)
        return Reception(identity, "cancel-requested")


async def settle(
    record: Record,
    identity: str,
    happened: bool,
    evidence: str,
    receipt: str | None,
    principal: str | None = None,
    *,
    reason: str | None = None,
    expected: str | None = None,
) -> Reception:
    """Say what became of a release of unknown outcome, on evidence that a person has.

    With ``expected`` only while its status is that one. Said twice it is one decision. Raises
    NotFound, TransitionRefused when its outcome is known, another one or a claim is under way.
    """
    check_name("evidence", evidence, MAX_STRING)
    check_text("receipt", receipt)
    check_text("reason", reason)
    if expected is not None and expected not in set(Status):
        known = ", ".join(Status)
        raise Invalid(f"{expected} is no status; there are: {known}", field="expected")
    with record.lock.held():
        ready = await make_ready(record)
        row = await _release(record, identity)
        if row.status == Status.RUNNING:
            raise TransitionRefused(
                f"release {identity} is under way under claim {row.lease}: wait for its end",
                release=identity,
                work_status=row.status,
            )
        what = "confirmed" if happened else "refused"
        report = Report(
            release=identity,
            evidence=note(evidence),
            receipt=receipt,
            reason=None if reason is None else note(reason),
            expected=expected,
        )
        change = Decide(RELEASE_ACTIONS + what, report)
        return await apply(record, ready, row, change, principal)


async def record_incident(
    record: Record, identity: str, reason: str, principal: str | None = None
) -> Reception:
    """Record that a release should not have been, whatever became of it."""
    check_name("reason", reason, MAX_STRING)
    with record.lock.held():
        ready = await make_ready(record)
        row = await _release(record, identity)
        change = _by_hand("incident", row, reason)
        identity = f"{identity}/incident/{sha256(reason.encode()).hexdigest()[:12]}"
        return await apply(record, ready, row, change, principal, identity)


async def _release(record: Record, identity: str) -> Work:
    row = await read_row(record, identity)
    if row.effect != Effect.EXTERNAL:
        raise Invalid(f"{identity} is no release but {row.effect} work")
    return row


def _by_hand(what: str, row: Work, reason: str) -> Decide:
    return Decide(RELEASE_ACTIONS + what, Report(release=row.id, evidence=note(reason)))


# Dead letters.


async def replay(
    record: Record, ids: Sequence[str], reason: str, principal: str | None = None
) -> Handled:
    """Put dead letters back into their lane, each with its whole budget; the rest is named.

    Releases of unknown outcome too, by name: they have an owner, who may say so. A release goes
    back only where a repeat is safe: nothing can have happened, or the receiver still suppresses
    the ID. Replayed twice, it acts once.
    """

    async def one(row: Work) -> Reception:
        ready = await make_ready(record)
        now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
        if row.effect != Effect.EXTERNAL:
            fresh = msgspec.structs.replace(
                row,
                status=str(Status.RETRY),
                failures=0,
                expired=0,
                due=now,
                step=note(f"replayed by {principal or 'an operator'}: {reason}"),
            )
            return await apply(record, ready, row, Put(fresh))
        if not repeatable(row, terms(record, row.lane), now):
            ask = "; ask its receiver" if asks(record, row) else ""
            raise TransitionRefused(
                f"it may have happened, and its receiver would not know a repeat{ask}: settle it "
                "on evidence, or decide anew"
            )
        change = _by_hand("replayed", row, reason)
        identity = f"{report_identity(row, change)}/{row.lease}"
        return await apply(record, ready, row, change, principal, identity)

    return await _each(record, ids, one, reason, (Status.DEAD, Status.UNKNOWN))


async def drain(
    record: Record, ids: Sequence[str], reason: str, principal: str | None = None
) -> Handled:
    """Put dead letters aside for good, with the reason; the rest is named."""

    async def one(row: Work) -> Reception:
        ready = await make_ready(record)
        now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
        if row.effect != Effect.EXTERNAL:
            return await apply(record, ready, row, Put(finish(row, Status.DRAINED, now, reason)))
        change = _by_hand("drained", row, reason)
        identity = f"{report_identity(row, change)}/{row.lease}"
        return await apply(record, ready, row, change, principal, identity)

    return await _each(record, ids, one, reason, (Status.DEAD,))


async def _each(
    record: Record,
    ids: Sequence[str],
    one: Callable[[Work], Awaitable[Reception]],
    reason: str,
    statuses: tuple[Status, ...],
) -> Handled:
    check_name("reason", reason, MAX_STRING)
    if not 1 <= len(ids) <= MAX_HANDLED:
        raise Invalid(f"name 1 to {MAX_HANDLED} dead letters at once", field="ids")
    done: list[str] = []
    left: dict[str, str] = {}
    for identity in ids:
        with record.lock.held():
            await make_ready(record)
            try:
                row = await read_row(record, identity)
                if row.status not in statuses:
                    left[identity] = f"it is {row.status}, not {statuses[0]}"
                    continue
                await one(row)
            except (Refusal, NotFound) as error:
                left[identity] = error.detail
                continue
        done.append(identity)
    return Handled(done, left)
