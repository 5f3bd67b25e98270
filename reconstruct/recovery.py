"""Recovery: stop, plan, apply, reopen.

    begin ──► (the operator restores the store) ──► plan ──► apply ──► reopen

Each step can be interrupted anywhere and run again. ``begin`` fences: it puts the stop file up and
raises the generation. ``apply`` brings the store to what the journal holds and starts a new
history.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from journal.acceptance import Place, beginning
from journal.clock import SystemClock
from journal.control import Authority, Control, Stage
from journal.detection import Verdict
from journal.entry import GENESIS
from journal.errors import EngineError, FileChanged, JournalUnavailable, Recovering, Refused
from journal.locks import StopFile, TurnLock
from journal.log import Append, FlawRow
from journal.record import Record
from journal.settings import Settings
from journal.sqlite import stamp_of
from journal.standing import LOGGER, change_control, compare_heads, examine
from journal.store import tables
from journal.writepath import hand_off
from reconstruct.applying import (
    commit,
    rebuild_entity,
    rebuild_together,
    the_marker,
    undo,
    walk,
)
from reconstruct.evidence import Evidence, capture
from reconstruct.planning import Plan, Progress, Survey, is_embedded, silent, survey
from reconstruct.replay import Replay
from reconstruct.snapshots import move_aside

GAP_BETWEEN_HISTORIES = 65_537
"""A new history's first sequence is this far beyond the highest known one (R2)."""

_NOT_FENCED = "stopped, not fenced: do not restore"


class Stopped(Struct, frozen=True):
    """The stop file stands; what was found is kept as evidence."""

    evidence: Evidence | None


class Begun(Struct, frozen=True):
    """A recovery has begun: nothing older than ``generation`` can decide any more."""

    generation: int
    history: str
    verdict: str
    detail: str
    resumed: bool
    safe_to_restore: bool


class Applied(Struct, frozen=True):
    """What ``apply`` did. ``history`` is the new one, ``first_sequence`` where it starts."""

    plan: str
    replayed: int
    rebuilt: int
    undone: int
    incomplete: list[str]
    history: str
    parent: str
    generation: int
    first_sequence: int


class Reopened(Struct, frozen=True):
    """The tenant decides again."""

    stage: str
    history: str
    generation: int


# Begin.


def stop(settings: Settings, reason: str) -> Stopped:
    """Put the stop file up at once, then copy the store's files before anything opens them.

    The first step of `recover begin`: it needs neither the store nor the journal nor a lock to
    stop. Raises LockHeld when a process hangs inside a turn (the stop stands all the same).
    """
    clock = SystemClock()
    StopFile(settings.beside("stop")).put_up(reason, clock.now())
    if stamp_of(settings.store_file) is None:
        return Stopped(None)
    lock = TurnLock(settings.beside("lock"), settings.lock_timeout)
    try:
        return Stopped(capture(settings, lock, clock.now()))
    finally:
        lock.close()


async def begin(record: Record, reason: str, principal: str | None = None) -> Begun:
    """Close the tenant and raise its generation, in control and then in a readable store.

    When this returns, work that carries an older generation makes no decision in the journal. Run
    again it resumes. Raises Refused when the journal was rewound or is another's ("stopped, not
    fenced: do not restore"), LockHeld or JournalUnavailable; the stop file stands in every case.
    """
    record.stop.put_up(reason, record.clock.now())
    with record.lock.held():
        await _open_anew(record)
        try:
            finding, seen = await examine(record)
        except JournalUnavailable as error:
            raise Refused(f"{_NOT_FENCED}. {error.detail}") from error
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
            raise Refused(f"{_NOT_FENCED}. {finding.detail}")
        if finding.verdict is Verdict.CRASHED:
            try:
                await hand_off(record, seen)
            except Recovering as error:
                LOGGER.warning("what waits cannot be handed off and will be undone: %s", error)
        control = await record.read_control()
        resumed = control.begun is not None or control.last == "history"
        known = 0 if seen.marker is None else seen.marker.place.generation
        generation = max(control.authority.generation, known) + (0 if resumed else 1)
        if not resumed:
            control = await change_control(
                record,
                "begin",
                lambda now: _authority(now, generation),
                {"reason": reason, "verdict": str(finding.verdict)},
                principal=principal,
            )
        await _raise_in_store(record, generation)
    return Begun(
        generation,
        control.authority.history,
        str(finding.verdict),
        finding.detail,
        resumed,
        safe_to_restore=True,
    )


def _authority(control: Control, generation: int, stage: Stage = Stage.CLOSED) -> Authority:
    before = control.authority
    return Authority(before.history, generation, stage, before.first, before.digest)


async def _open_anew(record: Record) -> None:
    """Let go of pages that a connection has cached of a file that somebody else wrote to."""
    try:
        touched = record.store is not None and record.touched()
    except FileChanged:
        touched = True
    if touched:
        with record.lock.held():
            await record.open_files()


async def _raise_in_store(record: Record, generation: int) -> None:
    """Second fence, where the store can be read; control alone is enough without it."""
    settings = record.settings
    try:
        marker = await record.marker()
        if marker is None or record.store is None or marker.place.generation == generation:
            return
        if (marker.tenant, marker.instance) != (settings.tenant, settings.instance):
            return
        trusted = not record.touched()
        place = marker.place
        raised = Place(place.history, generation, place.sequence, place.digest)
        await record.store.batch([tables.fence(marker, raised, marker.journalled)])
        if trusted:
            record.saw()
    except EngineError as error:
        LOGGER.warning("the generation stands in control alone, the store refused: %s", error)


# Plan.


async def plan(record: Record) -> Plan:
    """What ``apply`` would do now; changes nothing. Raises Refused or JournalUnavailable."""
    return (await survey(record)).plan


# Apply.


async def apply(
    record: Record,
    plan_id: str | None = None,
    principal: str | None = None,
    progress: Progress = silent,
) -> Applied:
    """Bring the store to what the journal holds, then start a new history.

    Does what the plan says, or refuses when ``plan_id`` names another one. Progress is committed
    with the rows it describes; interrupted anywhere and run again it ends in the same state (P11).
    Raises Refused when no recovery has begun, another apply runs, or the plan has changed.
    """
    with _alone(record.settings):
        await _open_anew(record)
        found = await survey(record, progress)
        control = await _require_begun(record)
        if plan_id is not None and plan_id != found.plan.plan:
            raise Refused(
                f"the plan is now {found.plan.plan}, not {plan_id}: look at it again and name it"
            )
        # From here on the file is trusted no more, until `reopen` has compared every head.
        record.distrust()
        if found.plan.fresh_store:
            await _fresh_store(record)
        with record.lock.held():
            await _raise_in_store(record, control.authority.generation)
        replay = Replay(record.lifecycles)
        rebuild = found.plan.rebuild
        await undo(record, found.base, rebuild)
        anew = _fresh_mark(record.settings).exists()
        replayed = await walk(
            record,
            found.base.common,
            set(rebuild),
            replay,
            progress,
            found.plan.missing,
            anew=anew,
        )
        embedded = {entity for entity in rebuild if is_embedded(record, entity)}
        for number, entity in enumerate(rebuild, 1):
            if entity not in embedded:
                await rebuild_entity(record, entity, replay)
            progress(number, len(rebuild), "rebuilt")
        if embedded:
            await rebuild_together(record, embedded, replay, progress)
        await _note_flaws(record, replay, found.faulty)
        control = await _start_history(record, found, principal)
        await _finish(record, control)
        _fresh_mark(record.settings).unlink(missing_ok=True)
    authority = control.authority
    return Applied(
        plan=found.plan.plan,
        replayed=replayed,
        rebuilt=len(rebuild),
        undone=len(found.base.local_only),
        incomplete=sorted(replay.stops),
        history=authority.history,
        parent=control.histories[-1].parent or "",
        generation=authority.generation,
        first_sequence=authority.first,
    )


@contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    path = settings.beside("recovery")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused("another recovery of this tenant is being applied right now") from None
        yield
    finally:
        os.close(handle)


async def _require_begun(record: Record) -> Control:
    control = await record.current_control(await record.look())
    started = control.last == "history"
    if control.begun is None and not started:
        raise Refused("no recovery has begun: run `unrewind recover begin` first")
    return control


def _fresh_mark(settings: Settings) -> Path:
    """Stands while a store is rebuilt from nothing, so that an interrupted apply knows it too."""
    return settings.beside("fresh")


async def _fresh_store(record: Record) -> None:
    """A new store file; what is left of the old one is moved aside, never overwritten."""
    _fresh_mark(record.settings).touch()
    with record.lock.held():
        if record.store is not None:
            with suppress(EngineError):
                await record.store.close()
            record.store = None
        move_aside(record.settings.store_file)
        await record.create_store()


async def _note_flaws(record: Record, replay: Replay, before: Sequence[FlawRow]) -> None:
    """Keep the index of incomplete histories: what stopped now stands, what was mended goes."""
    settled = sorted({*replay.stops, *(flaw.entity for flaw in before)})
    if not settled:
        return
    known = {(flaw.entity, flaw.flaw, flaw.first): flaw.since for flaw in before}
    with record.lock.held():
        append = Append(settled=settled, flaws=replay.flaws(record.clock.now(), known))
        await record.journal().append(append, await record.look())


async def _start_history(record: Record, found: Survey, principal: str | None) -> Control:
    """The control entry that ends the old history; once for each recovery."""
    with record.lock.held():
        look = await record.look()
        control = await record.current_control(look)
        if control.begun is None:
            return control
        marker = await the_marker(record)
        last = look.last
        known = [
            control.authority.first - 1,
            marker.place.sequence,
            0 if last is None else last.sequence,
            *(item.sequence for item in found.base.local_only),
        ]
        first = max(known) + GAP_BETWEEN_HISTORIES
        digest = GENESIS if last is None else last.digest
        history = record.clock.fresh()
        return await change_control(
            record,
            "history",
            lambda now: Authority(history, now.authority.generation, Stage.CLOSED, first, digest),
            {
                "first": first,
                "digest": digest,
                "parent": control.authority.history,
                "plan": found.plan.plan,
                "reason": control.reason,
            },
            principal=principal,
        )


async def _finish(record: Record, control: Control) -> None:
    """Put the store at the beginning of the history in force."""
    with record.lock.held():
        marker = await the_marker(record)
        force = control.authority
        place = beginning(force.history, force.generation, force.first, force.digest)
        if marker.place == place:
            return
        await commit(record, [tables.fence(marker, place, place.sequence)])


# Reopen.


async def reopen(record: Record, principal: str | None = None) -> Reopened:
    """Let the tenant decide again, once every head of the store is what the journal says.

    Raises Refused with what is missing.
    """
    with record.lock.held():
        finding, seen = await examine(record)
        if finding.verdict is Verdict.CRASHED:
            await hand_off(record, seen)
            finding, seen = await examine(record)
        control = record.control
        if control is None:
            raise Refused(f"control cannot be read: {finding.detail}")
        if control.begun is not None:
            raise Refused("a recovery has begun and was not applied: run `unrewind recover apply`")
        if finding.verdict is not Verdict.CLEAN:
            raise Refused(f"{finding.verdict}: {finding.detail}; run `unrewind recover begin`")
        finding = await compare_heads(record, finding)
        if finding.verdict is not Verdict.CLEAN:
            raise Refused(f"{finding.verdict}: {finding.detail}; run `unrewind recover begin`")
        control = await change_control(
            record,
            "reopen",
            lambda now: _authority(now, now.authority.generation, Stage.OPEN),
            {"reason": "reopened", "verdict": str(finding.verdict)},
            principal=principal,
            unless=lambda now: now.authority.stage is Stage.OPEN,
        )
        record.stop.take_down()
    return Reopened(
        str(control.authority.stage), control.authority.history, control.authority.generation
    )
