"""The write path: store, then journal, then the answer.

    operations ──► judge ──► store: one transaction ──► journal: one append ──► answers

Everything here runs under the tenant's turn lock, in one thread, against one ``Record``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import msgspec
from msgspec import Struct

from journal import ahead
from journal.abandonment import Cuts, abandoned_operation
from journal.acceptance import (
    COMMITTED_ACTION,
    Acceptance,
    Context,
    Decision,
    Judged,
    Operation,
    Place,
    View,
    judge,
)
from journal.admission import MEASURED_OVER, Door, Load
from journal.concerning import by_entity
from journal.control import Control, tip_of
from journal.detection import Finding, Seen, Verdict
from journal.entry import Entry
from journal.errors import (
    ConstraintFailed,
    Damaged,
    DiskFailed,
    EngineError,
    FenceFailed,
    FileChanged,
    HistoryIncomplete,
    Invalid,
    JournalUnavailable,
    Recovering,
    UnrewindError,
    WriterStopped,
)
from journal.handoff import append_of, catch_up, hand_off, journal_entries
from journal.holding import limits_of
from journal.lifecycle import Owner, is_baseline
from journal.log import Look, Moved, Row
from journal.projection import refusal_of, statements_of
from journal.record import Record
from journal.release import report_of
from journal.sql import Result, Rows, Statement
from journal.standing import LOGGER, close_tenant, compare_heads, examine, lift, not_written, poison
from journal.store import tables
from journal.store import work as works
from journal.store.engine import SqlStore
from journal.store.tables import Marker
from journal.work import FINISHED, Status, Work

Answer = Acceptance | UnrewindError

_ATTEMPTS = 3


class Ready(Struct, frozen=True):
    """A tenant that may decide: store and journal agree through ``tip``."""

    look: Look
    control: Control
    store: SqlStore
    marker: Marker
    tip: Place


async def turn(record: Record, operations: Sequence[Operation]) -> list[Answer]:
    """Judge, commit and journal a batch; one answer or refusal for each operation, in order.

    An acceptance MUST NOT be in the result before its decision is committed in the store *and* the
    journal holds it and everything it rests on (P1). Answers to known operations and refusals rest
    on journalled decisions too: the turn begins by handing off whatever an earlier one left. A
    batch that a constraint of the application refuses is judged again in halves, down to the one
    at fault.

    Raises Recovering, JournalUnavailable or WriterStopped when nothing could be decided; a caller
    that gets one of these repeats the operation ID later and learns its fate.
    """
    ahead.ask(record, operations)
    try:
        for _ in range(_ATTEMPTS):
            with record.lock.held():
                if record.lock.waited:
                    ahead.forget(record)
                try:
                    return await decide(record, await make_ready(record), operations)
                except FileChanged as error:
                    LOGGER.warning("%s; opening it anew", error)
                    await record.open_files()
                except FenceFailed as error:
                    # Whoever stood still may have lost the lock meanwhile: the next try takes it.
                    LOGGER.warning("the store moved under a batch: %s", error)
                ahead.forget(record)
    finally:
        ahead.forget(record)
    raise JournalUnavailable("the store is being replaced or moved again and again")


async def make_ready(record: Record) -> Ready:
    """The tenant, compared and with nothing pending.

    A record that is ``recovering`` decides in any stage, in the history that its recovery started.
    Raises Recovering, after closing the tenant where the verdict asks for it, JournalUnavailable or
    WriterStopped.
    """
    if not record.recovering and record.stop.stands():
        await lift(record)
        record.stop.check()
    _check_writer(record)
    seen = await make_clean(record)
    if record.guarded:
        await record.open_for_writing()
        if await record.marker() != seen.marker:
            raise FenceFailed("the store moved while it was opened for writing")
    if record.store is not None and record.control is not None:
        _require(record, record.store, record.control.needs)
    control = check_stage(record)
    if record.store is None or seen.marker is None:
        raise Recovering("store or control went away")
    tip = tip_of(control.authority, seen.look.last)
    ready = Ready(seen.look, control, record.store, seen.marker, tip)
    if record.doubtful:
        await _doubt_steps(record, ready)
    return ready


def check_door(record: Record) -> None:
    """Raises Recovering while the tenant is stopped, WriterStopped once the writer is."""
    if not record.recovering:
        record.stop.check()
    _check_writer(record)


def _check_writer(record: Record) -> None:
    if record.poisoned is not None:
        raise WriterStopped(record.poisoned)


async def make_clean(record: Record) -> Seen:
    """Compare store and journal, and hand off what waits; nothing is written to a sound store.

    Under the turn lock. Raises Recovering, after closing the tenant where the verdict asks for it,
    or JournalUnavailable.
    """
    finding, seen = await examine(record)
    for _ in range(_ATTEMPTS):
        if finding.verdict is Verdict.CRASHED:
            with suppress(Moved):  # then another process is at it
                await hand_off(record, seen)
            finding, seen = await examine(record)
    if finding.verdict is Verdict.CRASHED:
        raise JournalUnavailable("decisions wait for their handoff, and the journal keeps moving")
    if finding.verdict is Verdict.CLEAN and record.touched():
        record.doubtful = True
        finding = await compare_heads(record, finding)
        if finding.verdict is Verdict.CRASHED:
            raise JournalUnavailable("another process has left decisions that wait: repeat it")
    record.finding = finding
    if finding.verdict is not Verdict.CLEAN:
        await close_tenant(record, finding)
        raise Recovering(f"the tenant is closed: {finding.detail}", verdict=str(finding.verdict))
    return seen


def check_stage(record: Record) -> Control:
    """Control, where it lets the record decide. Raises Recovering."""
    control = record.control
    if control is None:
        raise Recovering("store or control went away")
    if record.recovering and control.begun is not None:
        raise Recovering("a recovery has begun anew: run `unrewind recover apply` first")
    if not (control.authority.stage.decides or record.recovering):
        raise Recovering(
            f"the tenant's stage is {control.authority.stage}: {control.reason}",
            stage=str(control.authority.stage),
        )
    return control


def _require(record: Record, store: SqlStore, needs: int) -> None:
    """Let the store refuse writers of earlier formats too, once the data needs a newer one."""
    if store.needs >= needs:
        return
    try:
        store.require(needs)
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    except EngineError as error:
        raise not_written(record, error) from error
    record.saw()


async def _doubt_steps(record: Record, ready: Ready) -> None:
    """In a file that somebody else may have put here, assume of every attempt that it went out.

    Steps do not move the marker, so a file of the moment between a commitment and its step looks
    like the newest one.
    """
    fence = tables.fence(ready.marker, ready.marker.place, ready.tip.sequence)
    try:
        if (await ready.store.read([works.COUNT_PICKED_UP]))[0][0][0]:
            await ready.store.batch([fence, works.DOUBT_STEPS])
            record.saw()
    except (FenceFailed, FileChanged):
        raise
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    except EngineError as error:
        raise not_written(record, error) from error
    record.doubtful = False
    record.seen.watch(record.stamp)


async def decide(
    record: Record, ready: Ready, operations: Sequence[Operation], claim: Claim | None = None
) -> list[Answer]:
    """The turn's middle: judge, commit, journal. Under the turn lock, after ``make_ready``.

    What a ``claim`` adds is committed in the same batch as the decisions.
    """
    if not operations and claim is None:
        return []
    judged = await judge_now(record, ready, operations)
    if judged.decisions or claim is not None:
        try:
            await _commit(record, ready, judged, claim)
        except ConstraintFailed as error:
            return await _in_halves(record, operations, judged, error)
    if judged.decisions:
        entries = [decision.entry for decision in judged.decisions]
        try:
            await journal_entries(record, entries, ready.look)
        except Moved:
            await catch_up(record, entries)
    return list(judged.answers)


async def judge_now(
    record: Record,
    ready: Ready,
    operations: Sequence[Operation],
    waiting: Mapping[str, Entry] | None = None,
) -> Judged:
    """Judge operations against what store and journal hold.

    ``waiting`` has, by operation ID, decisions that the store holds and the journal does not yet.
    """
    view = await _view(record, ready, operations)
    if waiting:
        view = msgspec.structs.replace(view, known={**view.known, **waiting})
    limits = limits_of(ready.control)
    context = Context(
        record.rules,
        record.clock.now(),
        await _door(record, ready, view),
        limits.check_action,
        limits.check_commitment,
    )
    return judge(operations, view, context)


class Claim(Struct, frozen=True):
    """What a claim adds to a batch: statements, and how a row looks that it has committed."""

    statements: Sequence[Statement | Rows]
    leased: Callable[[Work], Work]


async def _door(record: Record, ready: Ready, view: View) -> Callable[[Sequence[Work]], None]:
    """What admits new work, by the lanes' counters; asked only where a batch may make some."""
    if not view.work:
        return _let_in
    counts, flow = await ready.store.read([works.READ_COUNTS, works.read_flow(MEASURED_OVER)])
    loads, outstanding = loads_of(counts, flow)
    return Door(record.rules.lanes, loads, outstanding, record.settings.max_outstanding).admit


def _let_in(_: Sequence[Work]) -> None:
    """A batch that makes no work needs no door."""


def loads_of(counts: Result, flow: Result) -> tuple[dict[str, Load], float]:
    """Each lane's load, and the weight of all that is outstanding, from the store's counters."""
    waiting: dict[str, float] = {}
    outstanding = 0.0
    for row in works.counts_of(counts):
        if row.status not in FINISHED and row.status != Status.DEAD:
            waiting[row.lane] = waiting.get(row.lane, 0.0) + row.weight
            outstanding += row.weight
    rates = {lane: (arrived, done, max(span, 1)) for lane, arrived, done, span in flow}
    loads = {
        lane: Load(
            waiting.get(lane, 0.0),
            rates.get(lane, (0, 0, 1))[0] / rates.get(lane, (0, 0, 1))[2],
            rates.get(lane, (0, 0, 1))[1] / rates.get(lane, (0, 0, 1))[2],
        )
        for lane in waiting.keys() | rates.keys()
    }
    return loads, outstanding


async def _view(record: Record, ready: Ready, operations: Sequence[Operation]) -> View:
    log = record.journal()
    with _journal_errors():
        rows = await log.operations([operation.operation for operation in operations])
        flawed = await log.flawed() if ready.look.flawed else {}
    try:
        found, *others = await ready.store.read(ahead.questions(record, operations))
        heads = tables.heads_of(found)
        work = by_entity(operations, others) if others else {}
        if ready.store.database.tolerant:
            raise Damaged("it holds text that is not UTF-8")  # noqa: TRY301 - handled as any other
    except Damaged as error:
        finding = Finding(Verdict.REPLACED, f"the store is damaged: {error}")
        await close_tenant(record, finding)
        raise Recovering(f"the tenant is closed: {finding.detail}") from error
    except FileChanged:
        raise
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be read: {error}") from error
    known = {row.operation: _known(row, ready.control.abandoned) for row in rows}
    return View(ready.tip, heads, known, flawed, work)


def _known(row: Row, cuts: Cuts) -> Entry | UnrewindError:
    if row.dropped:
        return abandoned_operation(row, cuts)
    try:
        return row.entry()
    except Invalid as error:
        return HistoryIncomplete(
            f"the journal's entry of operation {row.operation} is damaged: {error}",
            entity=row.entity,
            revision=row.revision,
        )


async def _commit(record: Record, ready: Ready, judged: Judged, claim: Claim | None) -> None:
    """Commit in the store. What goes into the journal is got ready there meanwhile."""
    statements = batch_of(record, ready.marker, judged, ready.tip.sequence, claim)
    log, done = record.journal(), False
    if judged.decisions:
        log.prepare(append_of([decision.entry for decision in judged.decisions]), ready.look)
    try:
        await ready.store.batch(statements)
        done = True
    except (ConstraintFailed, FenceFailed, FileChanged):
        raise
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    except EngineError as error:
        raise not_written(record, error) from error
    finally:
        if not done:
            log.forget()
    record.saw()


def batch_of(
    record: Record,
    marker: Marker,
    judged: Judged,
    journalled: int,
    claim: Claim | None = None,
    *,
    projected: bool = True,
) -> list[Statement | Rows]:
    """What commits a batch: the fence from ``marker``, the decisions, and what goes with them.

    A baseline takes the application's rows as they stand, so no projection writes them.
    Raises ConstraintFailed when a projection fails.
    """
    statements: list[Statement | Rows] = [tables.fence(marker, judged.tip, journalled)]
    if judged.decisions:
        statements += tables.write_decisions(judged.decisions)
    if judged.work:
        statements.append(works.write_work(_as_they_run(judged, claim)))
    if projected:
        acted = [one for one in judged.decisions if not is_baseline(one.entry.envelope.action)]
        statements += project(record, acted)
    if claim is not None:
        statements += claim.statements
    return statements


def _as_they_run(judged: Judged, claim: Claim | None) -> list[Work]:
    """The rows as they are written: what this batch commits to runs under the claim's lease."""
    if claim is None:
        return [*judged.work.values()]
    committed = {
        report_of(decision.entry.body).release
        for decision in judged.decisions
        if decision.entry.envelope.action == COMMITTED_ACTION
    }
    return [claim.leased(row) if row.id in committed else row for row in judged.work.values()]


def project(record: Record, decisions: Sequence[Decision]) -> Iterator[Statement]:
    """The statements of the projections of embedded types, in the decisions' order.

    Raises ConstraintFailed when a projection fails.
    """
    for decision in decisions:
        if decision.owner is Owner.EMBEDDED:
            kind = decision.entry.envelope.entity.partition("/")[0]
            yield from statements_of(record.projections[kind], decision)


async def _in_halves(
    record: Record, operations: Sequence[Operation], judged: Judged, error: ConstraintFailed
) -> list[Answer]:
    """Give each half a batch of its own, so that in the end only the one at fault is refused."""
    if len(operations) <= 1:
        if judged.decisions and judged.decisions[0].owner is Owner.EMBEDDED:
            return [refusal_of(operations[0].entity, error)]
        if error.members.get("text"):
            return [Invalid(f"{operations[0].operation}: {error}")]
        finding = Finding(Verdict.REPLACED, f"the store contradicts itself: {error}")
        await close_tenant(record, finding)
        raise Recovering(f"the tenant is closed: {finding.detail}")
    answers: list[Answer] = []
    middle = len(operations) // 2
    for half in (operations[:middle], operations[middle:]):
        try:
            answers.extend(await turn(record, half))
        except UnrewindError as fault:
            answers.extend(type(fault)(fault.detail, **fault.members) for _ in half)
    return answers


async def settle(record: Record) -> None:
    """Bring the handed-off watermark and the store's copy of control up to date; idle-time work.

    Does nothing in a tenant that may not decide.
    """
    with record.lock.held():
        ready = await make_ready(record)
        copied = (await ready.store.read([tables.READ_CONTROL_SEQUENCE]))[0][0][0]
        missing = ready.control.sequence > copied
        if ready.marker.journalled >= ready.tip.sequence and not missing:
            return
        statements: list[Statement | Rows] = [
            tables.fence(ready.marker, ready.marker.place, ready.tip.sequence)
        ]
        if missing:
            rows = await record.journal().control()
            statements.append(tables.copy_control([row.entry() for row in rows]))
        try:
            await ready.store.batch(statements)
        except DiskFailed as error:
            raise poison(record, f"the store's commit failed: {error}") from error
        record.saw()


@contextmanager
def _journal_errors() -> Iterator[None]:
    try:
        yield
    except FileChanged:
        raise
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be read: {error}") from error
