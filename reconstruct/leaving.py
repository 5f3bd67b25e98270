"""Leaving: what is done at the place that a tenant moves away from.

    drain ─► move

The control entry `move` is the journal's last here. With it control says only where the tenant
went, and whatever is read or appended reads control first: decisions, tokens and observations too.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

from journal import decrees
from journal.control import MOVE, TENANT, Control, Stage, fold
from journal.detection import Verdict
from journal.errors import Refused
from journal.handoff import hand_off
from journal.lanes import Effect
from journal.log import CONTROL, Append
from journal.log.engine import SqlLog
from journal.record import Record
from journal.standing import change_control, detect, examine
from journal.store.engine import SqlStore
from journal.worker import drive
from journal.writepath import settle
from reconstruct.copied import raise_generation
from reconstruct.fencing import at_stage
from reconstruct.inflight import InFlight, describe, pending, under_way

DRAIN = "drain"
BACK = "back"

_PAUSE = 0.1
_NAMED = 5


def ports_of(record: Record) -> tuple[SqlLog, SqlStore]:
    """Journal and store. Raises Refused where one of them is not there."""
    log, store = record.log, record.store
    if log is None or store is None:
        raise Refused("store or journal is not there: see unrewind status")
    return log, store


def writable(record: Record) -> SqlStore:
    """The store of a tenant that was found sound before it was sealed."""
    with record.lock.held():
        drive(record.open_for_writing())
    _, store = ports_of(record)
    if store.database.read_only:
        raise Refused("the store cannot be written: see unrewind status")
    return store


def seal(record: Record, to: str, principal: str | None, wait: float) -> None:
    """Put the last control entry into the journal here. Again it changes nothing."""
    control = drive(control_at(record.journal(), record.settings.tenant))
    if control.moved is None:
        drive(_check_sound(record))
        _drain(record, principal, wait)
        control = drive(_leave(record, to, principal))
    elif control.moved != to:
        raise Refused(
            f"the tenant is on its way to {control.moved}: run that move again, or give it up with "
            "`unrewind move --back`"
        )
    store = writable(record)
    with record.lock.held():
        entries = [row.entry() for row in drive(record.journal().control())]
        generation = control.authority.generation
        drive(raise_generation(store, generation, entries, control.sequence))


async def control_at(log: SqlLog, tenant: str) -> Control:
    """Control of a journal, also of one that the tenant moved away from."""
    return fold([row.entry() for row in await log.control()], tenant, moved=True)


async def _check_sound(record: Record) -> None:
    finding = await detect(record, deep=True)
    if finding.verdict is Verdict.CRASHED:
        await settle(record)
        finding = await detect(record, deep=True)
    if not finding.verdict.sound:
        raise Refused(
            f"the tenant is {finding.verdict}, {finding.detail}: recover it before it moves; see "
            "unrewind recover plan"
        )
    control = await record.read_control()
    if control.begun is not None:
        raise Refused(
            "a recovery of this tenant has begun: end it before it moves; see unrewind recover plan"
        )


def _drain(record: Record, principal: str | None, wait: float) -> None:
    """Let no more releases out, and wait for the calls that are under way.

    Raises Refused, in the stage as it was, when some of them do not end in time.
    """
    drive(_hold_back(record, principal))
    until = time.monotonic() + wait
    while left := drive(_under_way(record)):
        if time.monotonic() > until:
            drive(_give_up_draining(record, principal))
            named = "; ".join(describe(call) for call in left[:_NAMED])
            raise Refused(
                f"{len(left)} calls are under way, and the tenant goes on here: {named}. Run the "
                "move again when they have ended, or have it wait longer with --wait"
            )
        time.sleep(_PAUSE)


async def _under_way(record: Record) -> list[InFlight]:
    calls = await under_way(record, record.clock.now())
    return [call for call in pending(calls) if call.effect == Effect.EXTERNAL]


async def _hold_back(record: Record, principal: str | None) -> None:
    control = await record.read_control()
    if control.authority.stage.effects:
        facts = {"reason": "the tenant is about to move", **_standing(control)}
        await change_control(
            record,
            DRAIN,
            lambda now: at_stage(now, now.authority.generation, Stage.INTERNAL),
            facts,
            principal=principal,
        )


async def _give_up_draining(record: Record, principal: str | None) -> None:
    facts = await last_facts(record.journal(), DRAIN)
    if facts is not None:
        stage = Stage(facts["stage"])
        await change_control(
            record,
            BACK,
            lambda now: at_stage(now, now.authority.generation, stage),
            {"reason": "the tenant stays where it is", "opening": facts["opening"]},
            principal=principal,
        )


def _standing(control: Control) -> dict[str, Any]:
    """What is to be in force again where the tenant arrives."""
    opening = control.opening
    return {
        "stage": str(control.authority.stage),
        "opening": None if opening is None else msgspec.to_builtins(opening),
    }


async def last_facts(log: SqlLog, action: str) -> dict[str, Any] | None:
    """The facts of the tenant's last control entry, if that is of this action."""
    entries = [row.entry() for row in await log.control()]
    last = next(entry for entry in reversed(entries) if entry.envelope.entity == TENANT)
    if last.envelope.action != action:
        return None
    facts: dict[str, Any] = msgspec.json.decode(last.body)
    return facts


async def _leave(record: Record, to: str, principal: str | None) -> Control:
    with record.lock.held():
        finding, seen = await examine(record)
        if finding.verdict is Verdict.CRASHED:
            await hand_off(record, seen)
            finding, seen = await examine(record)
        if finding.verdict is not Verdict.CLEAN:
            raise Refused(f"the tenant is {finding.verdict} now, {finding.detail}: run it again")
        await record.open_for_writing()
        look = await record.look()
        control = await record.current_control(look)
        was = await last_facts(record.journal(), DRAIN) or _standing(control)
        generation = control.authority.generation
        reconciled = generation in {control.reconciled, control.histories[0].generation}
        facts = {
            "reason": f"moved to {to}",
            "to": to,
            "stage": was["stage"],
            "opening": was["opening"],
            "was_reconciled": reconciled,
        }
        force = at_stage(control, generation + 1)
        entry = decrees.change(
            control, MOVE, force, facts, fresh_operation(record), record.clock.now(), principal
        )
        await record.journal().append(Append([(CONTROL, entry)], becomes=force), look)
    return await control_at(record.journal(), record.settings.tenant)


def fresh_operation(record: Record) -> str:
    """An operation ID for a control entry."""
    return f"control-{record.clock.fresh()}"
