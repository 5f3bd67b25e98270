"""Permits: claiming the work of a lane.

    claim ──► commit in the store ──► journal ──► permit ──► attempt ──► report

A permit for an external release MUST NOT be given before the journal holds its commitment (P3).
Everything here runs under the turn lock against one ``Record``; times are the database's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from journal.acceptance import COMMITTED_ACTION, Acceptance, Operation
from journal.control import Doubt
from journal.derivation import contradictions
from journal.doubting import decision_after, is_doubtful
from journal.entry import MAX_OPERATION, MAX_STRING, check_name, check_text
from journal.errors import (
    FenceFailed,
    Invalid,
    JournalUnavailable,
    LeaseLost,
    OperationReused,
)
from journal.holding import OPENING, limits_of
from journal.lanes import Contract, Effect, Lane
from journal.observing import Observed, last_observed, observed_among
from journal.outcomes import PICKED_UP, Decide, Outcome, before_attempt, before_commitment
from journal.record import Record
from journal.release import Report, report_of
from journal.reports import (
    GENERATION_BITS,
    asks,
    check_claim,
    held_among,
    held_by,
    lane_of,
    operation_of,
    terms,
    write,
)
from journal.sql import Rows, Statement
from journal.standing import LOGGER, close_for_work
from journal.store import work as works
from journal.work import Status, Work, after_seconds
from journal.writepath import Claim, Ready, decide, make_ready

MAX_CLAIM = 256
"""Rows that one claim may hold."""

_SLACK = 16
_MOST_LOOKED_AT = 2000
_HOLD = 15.0
_STOPPED = 60.0
_LOST = (
    "a loss of the journal was accepted, and nobody has found out since whether an attempt of this "
    "was in it: run `unrewind recover reconcile`"
)


class Asked(Struct, frozen=True):
    """A claim as it is asked for.

    ``operation`` is the claim's own operation ID: repeating it gives the same permits.
    ``execution`` is the caller's reference to what runs the attempt (a workflow, a run). ``only``
    names the work that is wanted, before it is due if need be.
    """

    lane: str
    worker: str
    operation: str
    limit: int = 1
    execution: str | None = None
    only: tuple[str, ...] = ()


class Permit(Struct, frozen=True):
    """The right to attempt one piece of work, until ``until`` unless it is kept alive.

    ``lease`` is the claim's number, to be named in everything that follows. ``beat_every`` is how
    often, in seconds, a sign of life is due. ``key`` is what a receiver may be given as an
    idempotency key, null where the contract allows none. ``commitment`` is the digest of the
    journalled decision to make the effect; null for work that stays in the house.
    """

    id: str
    lane: str
    effect: str
    name: str
    lease: int
    attempt: int
    entity: str | None
    revision: int | None
    operation: str | None
    version: str | None
    recipient: str | None
    digest: str | None
    corrects: str | None
    contract: str
    key: str | None
    data: msgspec.Raw
    until: str
    beat_every: float
    commitment: str | None


class Claimed(Struct, frozen=True):
    """The permits given; ``held`` says why there are none, where something holds the lane."""

    permits: list[Permit]
    held: str | None = None


async def claim(record: Record, asked: Asked) -> Claimed:
    """Commit to work of a lane and give the permits for it.

    When this returns, the journal holds the commitment of every external release among them (P3).
    Raises NotFound, Invalid, LeaseLost for a repeat whose claim has ended, Recovering or
    JournalUnavailable.
    """
    lane = lane_of(record, asked.lane)
    check_name("operation", asked.operation, MAX_OPERATION - 8)
    check_name("worker", asked.worker, MAX_STRING)
    check_text("execution", asked.execution)
    if not 1 <= asked.limit <= MAX_CLAIM:
        raise Invalid(f"limit must be from 1 to {MAX_CLAIM}", field="limit")
    with record.lock.held():
        ready = await make_ready(record)
        again = await _again(record, ready, asked, lane)
        if again is not None:
            return again
        held = held_by(ready, asked.lane, lane)
        if held is not None:
            return Claimed([], held)
        picked = await _pick(record, ready, asked, lane)
        await _keep_derived(record, ready, picked)
        permits = await _commit(record, ready, asked, lane, picked)
        return Claimed(permits, None if permits else picked.held)


async def _again(record: Record, ready: Ready, asked: Asked, lane: Lane) -> Claimed | None:
    """The permits that this claim was given before; None: it is a new one.

    Paused, a lane leaves to its end what runs; a stage or a stop holds that back too.
    """
    rows = works.rows_of((await ready.store.read([works.read_claim(asked.operation)]))[0])
    if rows:
        _check_same(asked, rows[0])
        for row in rows:
            check_claim(row.id, row.lease, ready.control.authority)
        commitments = await _commitments(record, rows)
        held = await held_among(record, ready, rows)
        return Claimed(
            [
                permit_of(record, row, lane, commitments.get(row.id))
                for row in rows
                if row.id not in held
            ],
            next(iter(held.values()), None),
        )
    identities = [_identity(asked, number) for number in range(asked.limit)]
    for found in await record.journal().operations(identities):
        entry = found.entry()
        if entry.envelope.action == COMMITTED_ACTION:
            release = report_of(entry.body).release
            raise LeaseLost(
                f"claim {asked.operation} has ended; `releases/{release}` says what became of it",
                release=release,
            )
        if found.operation == asked.operation:
            raise Invalid(
                f"operation {asked.operation} belongs to {entry.envelope.action} of "
                f"{entry.envelope.entity}; a claim needs an ID of its own",
                field="operation",
            )
    return None


def _check_same(asked: Asked, row: Work) -> None:
    """A claim's ID that somebody else uses gives nobody a permit that another one has (P6)."""
    pairs = {"lane": (asked.lane, row.lane), "worker": (asked.worker, row.worker)}
    differing = [field for field, (now, then) in pairs.items() if now != then]
    if differing:
        raise OperationReused(
            f"claim {asked.operation} is another one's; this request differs in: "
            f"{', '.join(differing)}",
            differing=differing,
        )


def _identity(asked: Asked, number: int) -> str:
    """The operation ID of a claim's n-th commitment; the claim's own for the first."""
    return asked.operation if number == 0 else f"{asked.operation}#{number}"


async def _commitments(record: Record, rows: Sequence[Work]) -> dict[str, str]:
    """The digest of the journalled commitment of each release among a claim's rows."""
    found: dict[str, str] = {}
    for row in rows:
        if row.entity is None or row.effect != Effect.EXTERNAL:
            continue
        for one in await record.journal().history(row.entity, row.revision or 1, 1 << 60, 1000):
            if one.entry().envelope.action == COMMITTED_ACTION:
                report = report_of(one.body)
                if (report.release, report.lease) == (row.id, row.lease):
                    found[row.id] = one.digest
    return found


class _Picked(Struct):
    rows: list[Work]
    aside: list[Statement | Rows]
    decisions: list[Operation]
    held: str | None = None


async def _room(record: Record, ready: Ready, asked: Asked, lane: Lane) -> int:
    """How much may be picked up now: as far as slots and rate budgets go."""
    counts = works.counts_of((await ready.store.read([works.READ_COUNTS]))[0])
    running = sum(
        count.items
        for count in counts
        if count.lane == asked.lane and count.status == Status.RUNNING
    )
    free = min(asked.limit, lane.concurrency * lane.batch - running)
    return min(free, await _budget(record, ready, asked.lane, lane)) if free > 0 else 0


async def _pick(record: Record, ready: Ready, asked: Asked, lane: Lane) -> _Picked:
    """What is due in the lane, and what is to be done about whatever cannot go."""
    picked = _Picked([], [], [])
    most = await _room(record, ready, asked, lane)
    if most <= 0:
        ahead, clock = await ready.store.read([works.READ_BUDGETS_AHEAD, works.UNIX_NOW])
        # A clock that was set back would refill these no sooner than it has caught up.
        picked.aside += [works.write_budget(key, left, clock[0][0]) for key, left in ahead]
        return picked
    flawed = await record.journal().flawed() if ready.look.flawed else {}
    now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
    seen: set[str] = set()
    limits = limits_of(ready.control)
    among = limits.among(asked.lane) if lane.external else None
    picked.held = None if among is None else limits.keeps()
    limit = most + _SLACK
    while True:
        wanted = works.read_claimable(asked.lane, limit, now, asked.only, among)
        rows, spoiled = works.readable_of((await ready.store.read([wanted]))[0])
        for identity in spoiled.keys() - seen:
            why = spoiled[identity]
            LOGGER.error("work %s of lane %s cannot be read: %s", identity, asked.lane, why)
            picked.aside.append(works.park(identity, why, lane.attempts, lane.backoff))
        fresh = [row for row in rows if row.id not in seen]
        held = await held_among(record, ready, fresh)
        observed = await observed_among(record, [row.id for row in fresh])
        picked.held = next(iter(held.values()), picked.held)
        for row in fresh:
            if len(picked.rows) == most:
                return picked
            if row.id in held:
                picked.aside.append(works.hold(row.id, f"held: {held[row.id]}", _STOPPED))
                continue
            told = await last_observed(record, row.id) if row.id in observed else None
            stopped = await _stopped(record, row, now, flawed, ready.control.doubted, told)
            if stopped is None:
                picked.rows.append(row)
            elif isinstance(stopped, Operation):
                picked.decisions.append(stopped)
            else:
                picked.aside.append(stopped)
        exhausted = len(rows) + len(spoiled) < limit or limit > _MOST_LOOKED_AT
        if exhausted or len(picked.rows) == most:
            return picked
        # Whatever is set aside must not keep the rows behind it from leaving in this very pass.
        seen |= spoiled.keys() | {row.id for row in rows}
        limit *= 4


async def _stopped(
    record: Record,
    row: Work,
    now: str,
    flawed: Mapping[str, int],
    doubt: Doubt | None,
    seen: Observed | None,
) -> Operation | Statement | None:
    """What keeps a due row from being attempted: a decision to make, or a hold to write."""
    lane = record.settings.lanes[row.lane]
    try:
        msgspec.json.decode(row.data)
    except msgspec.MsgspecError as error:
        return works.park(row.id, f"its data is not JSON: {error}", lane.attempts, lane.backoff)
    astray = _astray(row, lane)
    if astray is not None:
        return works.hold(row.id, f"held: {astray}", _HOLD)
    if row.effect != Effect.EXTERNAL:
        return None
    if row.entity in flawed:
        return works.hold(row.id, f"held: the history of {row.entity} is incomplete", _HOLD)
    ask = asks(record, row)
    told = await decision_after(record, row, seen, doubt, ask=ask)
    if told is not None and not told.report.maybe:
        # The sweeper makes it a decision; where one was refused to it, this is the next chance.
        return operation_of(row, told, None, f"{row.id}/observed/{record.clock.fresh()}")
    if await is_doubtful(record, row, doubt):
        return works.hold(row.id, f"held: {_LOST}", _STOPPED)
    receipt = seen if seen is not None and seen.outcome == Outcome.CONFIRMED else None
    if doubt is not None and row.status == Status.READY and receipt is not None:
        # A commitment may be in what was lost. Else what is said before one is about no attempt.
        doubted = before_commitment(row, receipt.evidence or receipt.why, ask=ask)
        return operation_of(row, doubted, None, f"{row.id}/observed/{record.clock.fresh()}")
    if row.status == Status.RETRY:
        found = terms(record, row.lane)
        stop = before_attempt(row, lane, found, now, ask=ask)
        if stop is not None:
            return operation_of(row, stop, None, record.clock.fresh())
    return None


async def _keep_derived(record: Record, ready: Ready, picked: _Picked) -> None:
    """Let no release leave of which the journal knows more, or something else, than its row (P4).

    Raises Recovering, after closing the tenant, where the row is of an earlier moment: the store
    was put back in part. FenceFailed where another process has decided meanwhile.
    """
    wrong = await contradictions(record, picked.rows, ready.control.abandoned)
    if wrong and await record.marker() != ready.marker:
        raise FenceFailed("the store moved while a claim was looked at")
    older = {identity: found.why for identity, found in wrong.items() if found.behind}
    if older:
        raise await close_for_work(record, older)
    for identity, found in wrong.items():
        picked.aside.append(works.hold(identity, f"held: {found.why}", _STOPPED))
    picked.rows = [row for row in picked.rows if row.id not in wrong]


def _astray(row: Work, lane: Lane) -> str | None:
    """Why a row is not for the lane that it stands in, as that is declared by now; None: it is."""
    if lane.external != (row.effect == Effect.EXTERNAL):
        return f"it is {row.effect} work, and lane {row.lane} is declared {lane.effect}"
    if lane.external and row.receiver != lane.receiver:
        return (
            f"it was permitted for {row.receiver or 'workers'}, and lane {row.lane} now sends to "
            f"{lane.receiver or 'workers'}"
        )
    return None


async def _budget(record: Record, ready: Ready, name: str, lane: Lane) -> int:
    """How many items the rate budgets of the lane and its receiver allow now."""
    least = MAX_CLAIM
    for tokens, _ in (await _tokens(record, ready, name, lane)).values():
        least = min(least, int(tokens))
    return least


async def _tokens(
    record: Record, ready: Ready, name: str, lane: Lane
) -> dict[str, tuple[float, float]]:
    """Tokens of each rate budget that applies, refilled, and the Unix time of that."""
    rates = {f"lane/{name}": lane.rate}
    if lane.external:
        rates[OPENING] = limits_of(ready.control).rate()
    if lane.receiver is not None:
        rates[f"receiver/{lane.receiver}"] = record.settings.receiver[lane.receiver].rate
    rates = {key: rate for key, rate in rates.items() if rate > 0}
    if not rates:
        return {}
    kept, clock = await ready.store.read([works.read_budgets(rates), works.UNIX_NOW])
    now: float = clock[0][0]
    known = {key: (tokens, at) for key, tokens, at, _ in kept}
    found: dict[str, tuple[float, float]] = {}
    for key, rate in rates.items():
        burst = max(1.0, rate)
        tokens, at = known.get(key, (burst, now))
        found[key] = (min(burst, tokens + max(0.0, now - at) * rate), now)
    return found


async def _commit(
    record: Record, ready: Ready, asked: Asked, lane: Lane, picked: _Picked
) -> list[Permit]:
    """Commit to what was picked, in one batch of store and journal; the permits."""
    if not (picked.rows or picked.aside or picked.decisions):
        return []
    generation = ready.control.authority.generation
    now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
    step = (
        f"{PICKED_UP} by {asked.worker}" if not lane.pulled else f"permit given to {asked.worker}"
    )
    leases = {row.id: next_lease(row, generation) for row in picked.rows}

    def leased(row: Work) -> Work:
        return msgspec.structs.replace(
            row,
            status=str(Status.RUNNING),
            lease=leases[row.id],
            claim=asked.operation,
            worker=asked.worker,
            execution=asked.execution,
            claimed=now,
            started=None,
            heartbeat=now,
            sweep_at=after_seconds(now, lane.sweep_after),
            due=None,
            step=step,
        )

    # Each attempt outside is journalled before it begins, not the first alone: a store that is put
    # back to the moment between two of them must not take the later one for never made.
    outside = [row for row in picked.rows if row.effect == Effect.EXTERNAL]
    inside = [row for row in picked.rows if row.effect != Effect.EXTERNAL]
    operations = [*picked.decisions]
    for number, row in enumerate(outside):
        report = Report(
            release=row.id,
            lease=leases[row.id],
            worker=asked.worker,
            execution=asked.execution,
        )
        decided = Decide(COMMITTED_ACTION, report)
        operations.append(operation_of(row, decided, None, _identity(asked, number)))
    taken = [leased(msgspec.structs.replace(row, attempts=row.attempts + 1)) for row in inside]
    statements: list[Statement | Rows] = [*picked.aside]
    if taken:
        statements.append(works.write_work(taken))
    count = len(picked.rows)
    for key, (tokens, at) in (await _tokens(record, ready, asked.lane, lane)).items():
        statements.append(works.write_budget(key, tokens - count, at))

    # This attempt has surely not been made yet; what is not known is about those before it.
    before = {row.id: row.maybe for row in outside}

    def begun(row: Work) -> Work:
        return leased(msgspec.structs.replace(row, maybe=before[row.id]))

    answers = await decide(record, ready, operations, Claim(statements, begun))
    commitments: dict[str, str] = {}
    holds: list[Statement] = []
    for row, answer in zip(outside, answers[len(picked.decisions) :], strict=True):
        if isinstance(answer, Acceptance):
            commitments[row.id] = answer.digest
        else:
            holds.append(works.hold(row.id, f"held: {answer.detail}", _HOLD))
    # A batch that a constraint refused is committed in halves, and without the claim.
    rows = await _running(record, leases, commitments)
    bare = [works.put_while(row, begun(row)) for row in rows if row.claim != asked.operation]
    if holds or bare:
        await write(record, [*holds, *bare])
        rows = await _running(record, leases, commitments)
    return [permit_of(record, row, lane, commitments.get(row.id)) for row in rows]


async def _running(
    record: Record, leases: Mapping[str, int], commitments: Mapping[str, str]
) -> list[Work]:
    """The rows that the store shows under these leases, in their order, as far as they may run."""
    if record.store is None:
        raise JournalUnavailable("the store went away")
    found = works.rows_of((await record.store.read([works.read_claims(leases.items())]))[0])
    rows = {row.id: row for row in found if row.effect != Effect.EXTERNAL or row.id in commitments}
    return [rows[identity] for identity in leases if identity in rows]


def next_lease(row: Work, generation: int) -> int:
    """The next claim's number: above every one before it, those of ended generations included."""
    return max(row.lease, generation << GENERATION_BITS) + 1


def permit_of(record: Record, row: Work, lane: Lane, commitment: str | None = None) -> Permit:
    """The permit of a row in progress."""
    contract = terms(record, row.lane).contract
    return Permit(
        id=row.id,
        lane=row.lane,
        effect=row.effect,
        name=row.name,
        lease=row.lease,
        attempt=row.attempts,
        entity=row.entity,
        revision=row.revision,
        operation=row.operation,
        version=row.version,
        recipient=row.recipient,
        digest=row.digest,
        corrects=row.corrects,
        contract=str(contract),
        key=row.id if contract is Contract.IDEMPOTENT else None,
        data=msgspec.Raw(row.data.encode()),
        until=after_seconds(row.heartbeat or row.claimed or row.created, lane.lease),
        beat_every=lane.lease / 3,
        commitment=commitment,
    )
