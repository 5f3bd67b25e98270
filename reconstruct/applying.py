"""Applying a plan: the store's rows brought to what the journal holds, page by page.

Each page is one batch of the store, its marker with the rows that it describes, so that a kill
leaves a place from which the next ``apply`` goes on (P11).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from itertools import islice

from journal.acceptance import Decision, Place, beginning
from journal.errors import ConstraintFailed, DiskFailed, Refused
from journal.history import Flaw
from journal.lifecycle import Owner
from journal.log import DECISIONS, PAGE_BYTES, Row
from journal.projection import clearing
from journal.record import Record
from journal.sql import Rows, Statement
from journal.standing import LOGGER, poison
from journal.store import tables
from journal.store import work as works
from journal.store.engine import SqlStore
from journal.store.tables import Marker
from journal.writepath import project
from reconstruct.planning import Base, Progress, silent
from reconstruct.replay import Replay
from reconstruct.working import work_of

PAGE = 8000
"""Decisions a commit. Each writes the rows of the entities that it met once, so more are better;
``PAGE_BYTES`` keeps a page of large ones from filling memory."""


def the_store(record: Record) -> SqlStore:
    """The store. Raises Refused when it went away."""
    if record.store is None:
        raise Refused("the store went away during the recovery")
    return record.store


async def the_marker(record: Record) -> Marker:
    """The store's marker. Raises Refused when it went away."""
    marker = await record.marker()
    if marker is None:
        raise Refused("the store lost its marker during the recovery")
    return marker


async def commit(record: Record, statements: Sequence[Statement | Rows]) -> None:
    """One batch, foreign keys deferred; the first statement is the fence."""
    fence, *rest = statements
    await record.open_for_writing()
    try:
        await the_store(record).batch([fence, tables.DEFER_FOREIGN_KEYS, *rest])
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error


async def undo(record: Record, base: Base, rebuild: Sequence[str]) -> None:
    """Drop everything above the base, and the rows of every entity that will be rebuilt."""
    with record.lock.held():
        marker = await the_marker(record)
        back = await _back_to(record, base, marker)
        for start in range(0, max(len(rebuild), 1), PAGE):
            part = rebuild[start : start + PAGE]
            statements: list[Statement | Rows] = [
                tables.fence(marker, back, min(back.sequence, marker.journalled)),
                tables.delete_heads(part),
                works.delete_derived(part, base.common),
            ]
            if start == 0:
                statements.append(tables.delete_decisions_above(base.common))
            try:
                await commit(record, [*statements, *_clear(record, part)])
            except ConstraintFailed as error:
                LOGGER.warning("rows of the application stay until their rebuild: %s", error)
                await commit(record, statements)
            marker = await the_marker(record)


async def _back_to(record: Record, base: Base, marker: Marker) -> Place:
    """Where the marker stands once everything above the base is dropped."""
    place = marker.place
    if base.common == place.sequence and not base.local_only:
        return place
    at = await record.journal().place(base.common)
    if at is not None:
        return Place(at.history, place.generation, at.sequence, at.digest)
    first = (await record.current_control(await record.look())).histories[0]
    return beginning(first.history, place.generation)


def _clear(record: Record, entities: Sequence[str]) -> list[Statement]:
    statements: list[Statement] = []
    for entity in entities:
        projection = record.projections.get(entity.partition("/")[0])
        if projection is not None:
            statements += clearing(projection, entity)
    return statements


async def walk(
    record: Record,
    after: int,
    rebuild: set[str],
    replay: Replay,
    progress: Progress = silent,
    total: int = 0,
    *,
    anew: bool = False,
) -> int:
    """Replay, in sequence order, what the store lacks above ``after``; how many decisions.

    Its cost follows what was lost. Entities in ``rebuild`` only have their bytes kept. ``anew``
    says that the store is rebuilt from nothing (``reconstruct.working``).
    """
    keep = partial(_keep, anew=anew)
    done = 0
    log = record.journal()
    while rows := await log.decisions(after, PAGE):
        with record.lock.held():
            statement = tables.read_heads({row.entity for row in rows} - rebuild)
            replay.load(tables.heads_of((await the_store(record).read([statement]))[0]))
            await _replay_page(record, rows, rebuild, replay, keep)
        replay.forget()
        after = rows[-1].sequence or after
        done += len(rows)
        progress(done, max(total, done), "replayed")
    return done


Keep = Callable[[Record, Sequence[Row], Sequence[Decision]], Awaitable[None]]


async def _replay_page(
    record: Record, rows: Sequence[Row], left_out: Collection[str], replay: Replay, keep: Keep
) -> None:
    """Commit a page, or as much of it at a time as memory should hold."""
    start = 0
    while start < len(rows):
        before = replay.copy()
        end, decisions = _run(rows, start, left_out, replay)
        try:
            await keep(record, rows[start:end], decisions)
        except ProjectionFailed as error:
            LOGGER.warning("replaying a page decision by decision: %s", error)
            replay.become(before)
            await _one_by_one(record, rows[start:end], left_out, replay, keep)
        start = end


def _run(
    rows: Sequence[Row], start: int, left_out: Collection[str], replay: Replay
) -> tuple[int, list[Decision]]:
    """Replay from a row on, until the data that the decisions leave is a page's worth."""
    decisions: list[Decision] = []
    size = 0
    for number, row in enumerate(islice(rows, start, None), start):
        if left_out and row.entity in left_out:
            continue
        decision = replay.step(row)
        if decision is None:
            continue
        decisions.append(decision)
        size += len(decision.data)
        if size >= PAGE_BYTES:
            return number + 1, decisions
    return len(rows), decisions


async def _one_by_one(
    record: Record, rows: Sequence[Row], left_out: Collection[str], replay: Replay, keep: Keep
) -> None:
    """Commit decision by decision: where a projection fails, one entity stops."""
    for row in rows:
        previous = replay.heads.get(row.entity)
        single = [] if row.entity in left_out else replay.run([row])
        try:
            await keep(record, [row], single)
        except ProjectionFailed as error:
            replay.put_back(row.entity, previous)
            replay.stop(row.entity, Flaw.PROJECTION, row.revision, _refused(row, error))
            await keep(record, [row], [])


class ProjectionFailed(Exception):
    """The application's own statements were refused, or its code raised."""


async def _keep(
    record: Record, rows: Sequence[Row], decisions: Sequence[Decision], *, anew: bool
) -> None:
    """The rows' bytes, the decisions that they led to, and the marker at the last of them."""
    marker = await the_marker(record)
    last = rows[-1]
    place = Place(last.history, marker.place.generation, last.sequence or 0, last.digest)
    rest: Sequence[Row] = ()
    if len(decisions) < len(rows):
        replayed = {decision.entry.digest for decision in decisions}
        rest = [row for row in rows if row.digest not in replayed]
    fence = tables.fence(marker, place, place.sequence)
    kept = tables.keep_decisions(rest)
    work = await work_of(record, decisions, anew=anew)
    await _project(record, [fence, *tables.write_decisions(decisions), kept, *work], decisions)


async def _project(
    record: Record, statements: Sequence[Statement | Rows], decisions: Sequence[Decision]
) -> None:
    """Commit with what the projections add. Raises ProjectionFailed when that is at fault."""
    try:
        await commit(record, [*statements, *project(record, decisions)])
    except ConstraintFailed as error:
        if any(decision.owner is Owner.EMBEDDED for decision in decisions):
            raise ProjectionFailed(error.detail) from error
        raise


def _refused(row: Row, error: Exception) -> str:
    return f"{row.entity} revision {row.revision}: its projection was refused: {error}"


async def rebuild_entity(record: Record, entity: str, replay: Replay) -> None:
    """Replay a managed entity from its first revision, page by page.

    Killed in between, its row lacks revisions that the order has passed: it is rebuilt anew.
    """
    log = record.journal()
    first = 1
    replay.put_back(entity, None)
    with record.lock.held():
        await _rewrite(record, [], [], tables.delete_heads([entity]))
    while page := await log.history(entity, first, 1 << 60, PAGE):
        rows = [row for row in page if row.stream == DECISIONS]
        first = page[-1].revision + 1
        with record.lock.held():
            await _replay_page(record, rows, (), replay, _rewrite)
    replay.put_back(entity, None)


async def rebuild_together(
    record: Record, entities: Collection[str], replay: Replay, progress: Progress = silent
) -> None:
    """Replay embedded entities from their first revisions, all in sequence order.

    Constraints of the application reach across entities: a title that one gave up and another took
    can only be replayed in the order in which that happened. Their rows are gone already
    (``undo``), and stay so until this ends.
    """
    log = record.journal()
    after = done = 0
    while rows := await log.decisions(after, PAGE):
        after = rows[-1].sequence or after
        wanted = [row for row in rows if row.entity in entities]
        done += len(wanted)
        if not wanted:
            continue
        with record.lock.held():
            statement = tables.read_heads({row.entity for row in wanted})
            replay.load(tables.heads_of((await the_store(record).read([statement]))[0]))
            await _replay_page(record, wanted, (), replay, _rewrite)
        replay.forget()
        progress(done, done, "replayed anew")


async def _rewrite(
    record: Record, _: Sequence[Row], decisions: Sequence[Decision], *first: Statement
) -> None:
    """The rows that decisions lead to, where their bytes stand already and the marker stays."""
    marker = await the_marker(record)
    fence = tables.fence(marker, marker.place, marker.journalled)
    work = await work_of(record, decisions, anew=True)
    await _project(record, [fence, *first, *tables.write_heads(decisions), *work], decisions)
