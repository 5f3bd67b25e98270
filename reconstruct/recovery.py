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

from journal.acceptance import beginning
from journal.control import Authority, Control, Stage
from journal.entry import GENESIS
from journal.errors import EngineError, Refused
from journal.log import Append, FlawRow
from journal.record import Record
from journal.settings import Settings
from journal.standing import change_control
from journal.store import tables
from reconstruct.applying import (
    commit,
    rebuild_entity,
    rebuild_together,
    the_marker,
    undo,
    walk,
)
from reconstruct.beginning import Begun, Stopped, begin, stop
from reconstruct.fencing import open_anew, raise_in_store
from reconstruct.planning import Plan, Progress, Survey, is_embedded, silent, survey
from reconstruct.reopening import Reopened, reopen
from reconstruct.replay import Replay
from reconstruct.snapshots import move_aside

__all__ = [
    "Applied",
    "Begun",
    "Reopened",
    "Stopped",
    "apply",
    "begin",
    "plan",
    "reopen",
    "stop",
]

GAP_BETWEEN_HISTORIES = 65_537
"""A new history's first sequence is this far beyond the highest known one (R2)."""


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
        await open_anew(record)
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
            await raise_in_store(record, control.authority.generation)
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
