"""Recovery: stop, plan, apply, reopen.

    begin ──► (the operator restores the store) ──► plan ──► apply ──► reopen

Each step can be interrupted anywhere and run again. ``begin`` fences: it puts the stop file up and
raises the generation. ``apply`` brings the store to what the journal holds and starts a new history.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from journal.acceptance import Decision, Place, beginning
from journal.clock import SystemClock
from journal.control import Authority, Control, Stage
from journal.detection import Verdict
from journal.entry import GENESIS
from journal.errors import (
    ConstraintFailed,
    DiskFailed,
    EngineError,
    Refused,
)
from journal.history import Flaw
from journal.locks import StopFile, TurnLock
from journal.log import FIRST_FLAW, Append, Row
from journal.record import Record
from journal.settings import Settings
from journal.sql import Rows, Statement
from journal.sqlite import stamp_of
from journal.standing import LOGGER, change_control, compare_heads, examine
from journal.store import tables
from journal.store.sqlite import SqliteStore
from journal.store.tables import Marker
from journal.writepath import hand_off, poison, project
from reconstruct.evidence import Evidence, capture
from reconstruct.planning import PAGE, Plan, Progress, Survey, silent, survey
from reconstruct.replay import Replay
from reconstruct.snapshots import move_aside

GAP_BETWEEN_HISTORIES = 65_537
"""A new history's first sequence is this far beyond the highest known one (R2)."""

_FAULTY = frozenset({Flaw.PROJECTION, Flaw.DIVERGENT, Flaw.MISMATCH, Flaw.ORPHAN, Flaw.GAP})


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
        finding, seen = await examine(record)
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
            raise Refused(f"stopped, not fenced: do not restore. {finding.detail}")
        control = await record.current_control(seen.look)
        if finding.verdict is Verdict.CRASHED:
            await hand_off(record, seen)
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


async def _raise_in_store(record: Record, generation: int) -> None:
    """Second fence, where the store can be read; control alone is enough without it."""
    try:
        marker = await record.marker()
        if marker is None or record.store is None or marker.place.generation == generation:
            return
        place = marker.place
        raised = Place(place.history, generation, place.sequence, place.digest)
        await record.store.batch([tables.fence(marker, raised, marker.journalled)])
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
        found = await survey(record, progress)
        control = await _require_begun(record)
        if plan_id is not None and plan_id != found.plan.plan:
            raise Refused(
                f"the plan is now {found.plan.plan}, not {plan_id}: look at it again and name it"
            )
        if found.plan.fresh_store:
            await _fresh_store(record)
        with record.lock.held():
            await _raise_in_store(record, control.authority.generation)
        replay = Replay(record.lifecycles)
        faulty = await _faulty(record)
        rebuild = sorted({*found.plan.rebuild, *faulty})
        await _undo(record, found, rebuild)
        replayed = await walk(
            record, found.base.common, set(rebuild), replay, progress, found.plan.missing
        )
        for number, entity in enumerate(rebuild, 1):
            await _rebuild(record, entity, replay)
            progress(number, len(rebuild), "rebuilt")
        await _note_flaws(record, replay, faulty)
        control = await _start_history(record, found, principal)
        await _finish(record, control)
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


async def _fresh_store(record: Record) -> None:
    """A new store file; what is left of the old one is moved aside, never overwritten."""
    with record.lock.held():
        if record.store is not None:
            await record.store.close()
            record.store = None
        move_aside(record.settings.store_file)
        await record.create_store()


async def _faulty(record: Record) -> list[str]:
    """Managed entities that an earlier replay left incomplete: tried again from the first."""
    flaws = await record.journal().flaws(None, FIRST_FLAW, 100_000)
    entities = {flaw.entity for flaw in flaws if flaw.flaw in _FAULTY}
    chained = [name for name in entities if await record.journal().chain(name) is None]
    return sorted(chained)


def _store(record: Record) -> SqliteStore:
    if record.store is None:
        raise Refused("the store went away during the recovery")
    return record.store


async def _marker(record: Record) -> Marker:
    marker = await record.marker()
    if marker is None:
        raise Refused("the store lost its marker during the recovery")
    return marker


async def _batch(record: Record, statements: Sequence[Statement | Rows]) -> None:
    fence, *rest = statements
    try:
        await _store(record).batch([fence, tables.DEFER_FOREIGN_KEYS, *rest])
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    record.saw()


def _clear(record: Record, entity: str) -> Sequence[Statement]:
    projection = record.projections.get(entity.partition("/")[0])
    return [] if projection is None else projection.clear(entity)


async def _undo(record: Record, found: Survey, rebuild: Sequence[str]) -> None:
    """Drop what only the store has, and the rows of every entity that will be rebuilt."""
    with record.lock.held():
        marker = await _marker(record)
        base = found.base
        generation = marker.place.generation
        at = await record.journal().place(base.common)
        back = marker.place
        if base.local_only or base.common < marker.place.sequence:
            first = (await record.current_control(await record.look())).histories[0]
            back = beginning(first.history, generation)
            if at is not None:
                back = Place(at.history, generation, at.sequence, at.digest)
        for start in range(0, max(len(rebuild), 1), PAGE):
            part = rebuild[start : start + PAGE]
            statements: list[Statement | Rows] = [
                tables.fence(marker, back, min(back.sequence, marker.journalled)),
                tables.delete_heads(part),
            ]
            for entity in part:
                statements.extend(_clear(record, entity))
            if start == 0:
                statements.append(
                    tables.delete_decisions(item.sequence for item in base.local_only)
                )
            await _batch(record, statements)
            marker = await _marker(record)


async def walk(
    record: Record,
    after: int,
    rebuild: set[str],
    replay: Replay,
    progress: Progress = silent,
    total: int = 0,
) -> int:
    """Replay, in sequence order, what the store lacks above ``after``; how many decisions.

    Its cost follows what was lost. Entities in ``rebuild`` only have their bytes kept.
    """
    done = 0
    log = record.journal()
    while rows := await log.decisions(after, PAGE):
        with record.lock.held():
            statement = tables.read_heads({row.entity for row in rows} - rebuild)
            replay.load(tables.heads_of((await _store(record).read([statement]))[0]))
            await _replay_page(record, rows, rebuild, replay)
        replay.forget()
        after = rows[-1].sequence or after
        done += len(rows)
        progress(done, max(total, done), "replayed")
    return done


async def _replay_page(
    record: Record, rows: Sequence[Row], rebuild: set[str], replay: Replay
) -> None:
    """Commit a page; when a projection fails in it, decision by decision, so that one entity stops."""
    before = dict(replay.heads)
    decisions = replay.run(row for row in rows if row.entity not in rebuild)
    kept = [row for row in rows if row.entity in rebuild]
    try:
        await _commit(record, rows[-1], decisions, kept)
    except ConstraintFailed:
        LOGGER.warning("a projection refused a page; replaying it decision by decision")
    else:
        return
    replay.heads.clear()
    replay.load(before)
    for row in rows:
        if row.entity in rebuild:
            await _commit(record, row, [], [row])
            continue
        if row.entity in replay.stops and replay.stops[row.entity].flaw is not Flaw.PROJECTION:
            continue
        single = replay.run([row])
        try:
            await _commit(record, row, single, [])
        except ConstraintFailed as error:
            previous = before.get(row.entity)
            if previous is None:
                replay.heads.pop(row.entity, None)
            else:
                replay.heads[row.entity] = previous
            replay.stop(row.entity, Flaw.PROJECTION, row.revision, _refused(row, error))
        else:
            before[row.entity] = replay.heads[row.entity]


def _refused(row: Row, error: ConstraintFailed) -> str:
    return f"{row.entity} revision {row.revision}: its projection was refused: {error}"


async def _commit(
    record: Record, last: Row, decisions: Sequence[Decision], kept: Sequence[Row]
) -> None:
    """One page of rows, and the marker at its last entry."""
    marker = await _marker(record)
    sequence = last.sequence or 0
    place = Place(last.history, marker.place.generation, sequence, last.digest)
    statements: list[Statement | Rows] = [
        tables.fence(marker, place, sequence),
        *tables.write_decisions(decisions),
        tables.keep_decisions(kept),
        *project(record, decisions),
    ]
    await _batch(record, statements)


async def _rebuild(record: Record, entity: str, replay: Replay) -> None:
    """Replay an entity from its first revision, in a batch of its own."""
    rows: list[Row] = []
    first = 1
    log = record.journal()
    while page := await log.history(entity, first, 1 << 60, PAGE):
        rows += [row for row in page if row.stream == "decisions"]
        first = page[-1].revision + 1
    with record.lock.held():
        replay.heads.pop(entity, None)
        decisions = replay.run(rows)
        marker = await _marker(record)
        statements: list[Statement | Rows] = [
            tables.fence(marker, marker.place, marker.journalled),
            *_clear(record, entity),
            tables.delete_heads([entity]),
            *tables.write_heads(decisions),
            *project(record, decisions),
        ]
        try:
            await _batch(record, statements)
        except ConstraintFailed as error:
            replay.heads.pop(entity, None)
            last = rows[-1]
            replay.stop(entity, Flaw.PROJECTION, last.revision, _refused(last, error))
            await _batch(
                record,
                [
                    tables.fence(marker, marker.place, marker.journalled),
                    *_clear(record, entity),
                    tables.delete_heads([entity]),
                ],
            )
        replay.heads.pop(entity, None)


async def _note_flaws(record: Record, replay: Replay, faulty: Sequence[str]) -> None:
    """Keep the index of incomplete histories: what stopped now stands, what was mended goes."""
    settled = sorted({*faulty, *replay.stops})
    if not settled:
        return
    with record.lock.held():
        append = Append(settled=settled, flaws=replay.flaws(record.clock.now()))
        await record.journal().append(append, await record.look())


async def _start_history(record: Record, found: Survey, principal: str | None) -> Control:
    """The control entry that ends the old history; once for each recovery."""
    with record.lock.held():
        look = await record.look()
        control = await record.current_control(look)
        if control.begun is None:
            return control
        marker = await _marker(record)
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
        marker = await _marker(record)
        force = control.authority
        place = beginning(force.history, force.generation, force.first, force.digest)
        if marker.place == place:
            return
        await _batch(record, [tables.fence(marker, place, place.sequence)])


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

