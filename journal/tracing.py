"""Tracing: an entity's chain as the journal has it, with everything that is wrong with it marked.

Answered in any stage, from the journal alone; what was abandoned is shown in its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from journal.control import Abandoned, ControlUnreadable
from journal.entry import MAX_INTEGER, check_entity
from journal.errors import EngineError, Invalid, JournalUnavailable, NotFound
from journal.feed import MAX_PAGE, clamp
from journal.gate import Standing
from journal.history import Flaw
from journal.lifecycle import lifecycle_of
from journal.log import FIRST_FLAW, FlawRow, Row
from journal.reading import ABANDONED, standing
from journal.record import Record


class Step(Struct, frozen=True):
    """One revision of a history; ``flaw`` is null where it is sound, `abandoned` where dropped."""

    revision: int
    action: str
    state: str
    operation: str
    version: str | None
    actor: str | None
    principal: str | None
    at: str
    recorded: str
    history: str
    generation: int
    sequence: int | None
    digest: str
    predecessor: str | None
    flaw: str | None = None


class HistoryView(Struct, frozen=True):
    """An entity's chain with its flaws, from revision ``first`` on; ``next`` continues it.

    ``abandoned`` says what was cut off from it, when and why; what that dropped is shown in place.
    """

    entity: str
    durable_through: int
    complete: bool
    revisions: list[Step]
    flaws: list[FlawRow]
    next: int | None
    abandoned: list[Abandoned] = []


async def read_history(record: Record, entity: str, first: int, limit: int | None) -> HistoryView:
    """An entity's chain with its gaps marked, in any stage. Raises NotFound."""
    size = clamp(limit)
    check_entity(entity)
    rows = await _rows(record, entity, first, MAX_INTEGER, size)
    if rows:
        # A page ends between two revisions, however many entries stand at the last one.
        last = rows[-1].revision
        rows = [row for row in rows if row.revision < last]
        rows += await _rows(record, entity, last, last, MAX_PAGE)
    try:
        known = await standing(record, entity, lifecycle_of(record.lifecycles, entity))
    except NotFound:
        if not rows:
            raise
        known = Standing(entity, 0, 0, "", complete=True)
    flaws = await record.journal().flaws(entity, FIRST_FLAW, MAX_PAGE)
    following = await _rows(record, entity, rows[-1].revision + 1, MAX_INTEGER, 1) if rows else []
    return HistoryView(
        entity,
        known.durable_through,
        known.complete,
        [_step(row, flaws) for row in rows],
        flaws,
        following[0].revision if following else None,
        await _cuts(record, entity),
    )


async def _rows(record: Record, entity: str, first: int, last: int, limit: int) -> list[Row]:
    try:
        return await record.journal().history(entity, first, last, limit, dropped=True)
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be read: {error}") from error


async def _cuts(record: Record, entity: str) -> list[Abandoned]:
    """What was abandoned of the entity; nothing where control cannot be read, which `status` says.

    Dropped entries are marked all the same: the journal has an index of them.
    """
    try:
        control = await record.current_control(await record.look())
    except ControlUnreadable:
        return []
    return list(control.abandoned.get(entity, ()))


def _step(row: Row, flaws: Sequence[FlawRow]) -> Step:
    step = _step_as_stored(row, flaws)
    return msgspec.structs.replace(step, flaw=ABANDONED) if row.dropped else step


def _step_as_stored(row: Row, flaws: Sequence[FlawRow]) -> Step:
    try:
        envelope = row.entry().envelope
    except Invalid:
        return Step(
            revision=row.revision,
            action="",
            state="",
            operation=row.operation,
            version=None,
            actor=None,
            principal=None,
            at="",
            recorded="",
            history=row.history,
            generation=0,
            sequence=row.sequence,
            digest=row.digest,
            predecessor=None,
            flaw=Flaw.MISMATCH,
        )
    flaw = next((flaw.flaw for flaw in flaws if flaw.first <= row.revision <= flaw.last), None)
    return Step(
        revision=envelope.revision,
        action=envelope.action,
        state=envelope.outcome.state,
        operation=envelope.operation,
        version=envelope.version,
        actor=envelope.actor,
        principal=envelope.principal,
        at=envelope.at,
        recorded=envelope.recorded,
        history=envelope.history,
        generation=envelope.generation,
        sequence=envelope.sequence,
        digest=row.digest,
        predecessor=None if envelope.predecessor is None else envelope.predecessor.digest,
        flaw=flaw,
    )
