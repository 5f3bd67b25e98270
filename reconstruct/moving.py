"""Moving a tenant to another place, or to another engine.

    drain ─► move (sealed here) ─► copy ─► compare ─► arrive (there) ─► registry

The control entry `move` is the journal's last at the old place: from then on nothing is read or
written there, by whoever has it open. Everything is copied with it, and `arrive` opens the copy in
a generation above. The registry's file is what makes the new place the tenant's; it changes last
and in one step. Killed anywhere and run again it ends the same. The old place is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct

from journal import decrees
from journal.clock import SystemClock
from journal.control import (
    ARRIVE,
    MOVE,
    Authority,
    Control,
    Opening,
    Stage,
    fold,
)
from journal.detection import Verdict
from journal.entry import Entry
from journal.errors import Refused, UnrewindError
from journal.lifecycle import Owner
from journal.locks import Presence
from journal.log import CONTROL, Append
from journal.log.engine import SqlLog
from journal.places import place_of_log, place_of_store
from journal.record import Record
from journal.registry import Earlier, Registered, Registry, lasting
from journal.settings import Settings
from journal.standing import LOGGER, compare_heads, detect, examine
from journal.store.engine import SqlStore
from journal.worker import drive
from journal.writepath import settle
from reconstruct.copied import (
    Progress,
    compare_journals,
    compare_stores,
    copy_journal,
    copy_store,
    raise_generation,
)
from reconstruct.fencing import alone, at_stage
from reconstruct.leaving import control_at, fresh_operation, last_facts, ports_of, seal, writable

USUAL_WAIT = 60.0

Sleep = Callable[[float], None]


class Moved(Struct, frozen=True):
    """A tenant that moved, and what was compared on the way.

    ``changed`` is False where it was there already. What is at ``before`` is kept, and closed.
    """

    tenant: str
    store: str
    journal: str
    before: str
    stage: str
    generation: int
    entries: int
    state_digest: str | None
    changed: bool


def silent(_done: int, _total: int, _what: str) -> None:
    """No progress shown."""


def move(
    settings: Settings,
    target: Settings,
    principal: str | None = None,
    *,
    wait: float = USUAL_WAIT,
    progress: Progress = silent,
) -> Moved:
    """Move a tenant from where ``settings`` has it to where ``target`` says.

    Waits up to ``wait`` seconds for calls that are under way. When this returns, every entry and
    every row was compared with what stands at the old place, which decides nothing any more.
    Raises Refused where the tenant is not sound, is in a recovery, has calls that do not end, or
    where another tenant's data stands in the new place.
    """
    if _where(settings) == _where(target):
        return _is_there(settings)
    with alone(settings):
        _check_here(settings)
        _check_alone(settings, target)
        _check_embedded(settings, target)
        record = Record(settings)
        try:
            drive(record.open(create=False))
            if not drive(_has_arrived(record, target)):
                seal(record, _where(target), principal, wait)
                _copy(record, target, progress)
            arrived = drive(_arrive(record, target, principal, progress))
            _register(settings, target, principal, arrived.generation)
        finally:
            drive(record.close())
    LOGGER.warning("tenant %s moved to %s", settings.tenant, _where(target))
    _look_at(target)
    return arrived


def go_back(settings: Settings, principal: str | None = None) -> Moved:
    """Give a move up that has not ended: the tenant goes on where it is.

    Raises Refused where none is under way.
    """
    with alone(settings):
        _check_here(settings)
        record = Record(settings)
        try:
            drive(record.open(create=False))
            log, _ = ports_of(record)
            drive(_open_up(log, writable(record), record, settings, principal))
        finally:
            drive(record.close())
    return _is_there(settings, changed=True)


def _look_at(target: Settings) -> None:
    """Compare as a start does, so that the next start need not, and the witness follows."""
    record = Record(target)
    try:
        drive(record.open(create=False))
        drive(detect(record, deep=True))
        drive(settle(record))
    except UnrewindError as error:
        LOGGER.warning("the tenant moved, and cannot be opened there now: %s", error)
    finally:
        drive(record.close())


def _where(settings: Settings) -> str:
    """Where a tenant is, without passwords: what a control entry may say."""
    return f"{place_of_store(settings).label} and {place_of_log(settings).label}"


def _is_there(settings: Settings, *, changed: bool = False) -> Moved:
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        control = drive(record.read_control())
        entries = drive(record.look()).position
    finally:
        drive(record.close())
    return Moved(
        settings.tenant,
        place_of_store(settings).label,
        place_of_log(settings).label,
        _where(settings),
        str(control.authority.stage),
        control.authority.generation,
        entries,
        None,
        changed,
    )


def _check_embedded(settings: Settings, target: Settings) -> None:
    """Refuse to leave tables behind that are the application's own."""
    here, there = place_of_store(settings), place_of_store(target)
    if here.label == there.label or (here.file is not None and there.file is not None):
        return
    owned = [
        kind for kind, lifecycle in settings.lifecycles.items() if lifecycle.owner is Owner.EMBEDDED
    ]
    if owned:
        raise Refused(
            f"the tables of {', '.join(owned)} are the application's own, and stand in the store: "
            f"from {here.label} to {there.label} unrewind copies its own alone"
        )


def _check_here(settings: Settings) -> None:
    """Refuse to move a tenant from where it is no more."""
    known = Registry(settings.home).read(settings.tenant)
    if known is None:
        return
    here = _where(msgspec.structs.replace(settings, store=known.store, journal=known.journal))
    if here != _where(_lastingly(settings)):
        raise Refused(
            f"the tenant {settings.tenant} is at {here}: these settings name another place"
        )


def _lastingly(settings: Settings) -> Settings:
    return msgspec.structs.replace(
        settings, store=lasting(settings.store), journal=lasting(settings.journal)
    )


def _check_alone(settings: Settings, target: Settings) -> None:
    """Refuse to move a store away from under a journal that stays, while a process has both open.

    The journal would tell such a process that its store was rewound, not that the tenant moved.
    """
    if place_of_log(settings).label != place_of_log(target).label:
        return
    try:
        Presence(settings.beside("presence"), exclusive=True).close()
    except Refused:
        raise Refused(
            "the store alone is moved only while no process has the tenant open: stop them, or "
            "move the journal too"
        ) from None


async def _has_arrived(record: Record, target: Settings) -> bool:
    """Whether everything was copied, compared and opened up there, and only not registered yet."""
    place = place_of_log(target)
    if not place.exists():
        return False
    ours, theirs = record.journal(), place.open(read_only=True)
    try:
        facts = await last_facts(theirs, ARRIVE)
        if facts is None or facts["to"] != _where(target):
            return False
        if facts["from"] != _where(record.settings):
            return False
        if place.label == place_of_log(record.settings).label:
            return True
        end, there = (await ours.look()).position, (await theirs.look()).position
        last, copy = await ours.at(end), await theirs.at(end)
        return there == end + 1 and last is not None and last == copy
    finally:
        theirs.database.close()


def _copy(record: Record, target: Settings, progress: Progress) -> None:
    settings = record.settings
    log, store = ports_of(record)
    log_to, store_to = place_of_log(target), place_of_store(target)
    if log_to.label != place_of_log(settings).label:
        drive(copy_journal(log, log_to, settings.tenant, progress))
    if store_to.label != place_of_store(settings).label:
        copy_store(store, place_of_store(settings), store_to, record.clock.now(), progress)


# Arriving.


async def _arrive(
    record: Record, target: Settings, principal: str | None, progress: Progress
) -> Moved:
    """Compare what arrived, open it up, and compare it as a start does."""
    ours, rows = ports_of(record)
    log, store = place_of_log(target).open(), place_of_store(target).open()
    try:
        control = await control_at(log, target.tenant)
        entries = (await log.look()).position
        digest = None
        if control.moved is not None:
            entries = await compare_journals(ours, log, progress)
            digest = compare_stores(rows, store)
        await _open_up(log, store, record, target, principal)
    finally:
        store.database.close()
        log.database.close()
    control = await _check_arrived(target)
    return Moved(
        tenant=target.tenant,
        store=place_of_store(target).label,
        journal=place_of_log(target).label,
        before=_where(record.settings),
        stage=str(control.authority.stage),
        generation=control.authority.generation,
        entries=entries,
        state_digest=digest,
        changed=True,
    )


async def _open_up(
    log: SqlLog, store: SqlStore, record: Record, target: Settings, principal: str | None
) -> None:
    """The control entry that puts in force again what was, in a new generation.

    Again it changes nothing. Raises Refused where no move is under way.
    """
    tenant = record.settings.tenant
    entries = [row.entry() for row in await log.control()]
    control = fold(entries, tenant, moved=True)
    if control.moved is not None:
        entry, force = await _arrival(log, control, record, target, principal)
        await log.append(Append([(CONTROL, entry)], becomes=force), await log.look())
        entries.append(entry)
        control = fold(entries, tenant)
    elif control.last != ARRIVE:
        raise Refused("no move of this tenant is under way")
    await raise_generation(store, control.authority.generation, entries, control.sequence)


async def _arrival(
    log: SqlLog, control: Control, record: Record, target: Settings, principal: str | None
) -> tuple[Entry, Authority]:
    was = await last_facts(log, MOVE)
    if was is None:
        raise Refused("the journal's last control entry is no move: see unrewind verify")
    force = at_stage(control, control.authority.generation + 1, Stage(was["stage"]))
    here = _where(record.settings)
    facts: dict[str, Any] = {
        "reason": f"moved here from {here}" if here != _where(target) else "the move was given up",
        "from": here,
        "to": _where(target),
        "reconciled": was["was_reconciled"],
    }
    if was["opening"] is not None:
        facts["opening"] = msgspec.to_builtins(msgspec.convert(was["opening"], Opening))
    entry = decrees.change(
        control, ARRIVE, force, facts, fresh_operation(record), record.clock.now(), principal
    )
    return entry, force


async def _check_arrived(target: Settings) -> Control:
    """Compare store and journal at the new place as a start does. Raises Refused."""
    record = Record(target, read_only=True)
    try:
        await record.open()
        finding, _ = await examine(record, witness=True)
        if finding.verdict is Verdict.CLEAN:
            finding = await compare_heads(record, finding)
        if finding.verdict is not Verdict.CLEAN:
            raise Refused(
                f"what arrived at {_where(target)} is {finding.verdict}, {finding.detail}: the "
                "tenant is still where it was; run the move again, or `unrewind move --back`"
            )
        return await record.read_control()
    finally:
        await record.close()


def _register(settings: Settings, target: Settings, by: str | None, generation: int) -> None:
    """Say where the tenant is from now on: the one step that everything else leads to."""
    registry = Registry(settings.home)
    known = registry.read(settings.tenant)
    now = SystemClock().now()
    before = Earlier(lasting(settings.store), lasting(settings.journal), now, generation)
    registry.write(
        Registered(
            settings.tenant,
            lasting(target.store),
            lasting(target.journal),
            lasting(target.witness),
            now if known is None else known.created,
            by if known is None else known.by,
            [*([] if known is None else known.earlier), before],
        )
    )
