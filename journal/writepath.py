"""The write path: store, then journal, then the answer.

    operations ──► judge ──► store: one transaction ──► journal: one append ──► answers

Everything here runs under the tenant's turn lock, in one thread, against one ``Record``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
from msgspec import Struct

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
from journal.control import Control, tip_of
from journal.detection import Finding, Seen, Verdict
from journal.entry import Entry, admit
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
    TransitionRefused,
    UnrewindError,
    WriterStopped,
)
from journal.holding import limits_of
from journal.lifecycle import Owner
from journal.log import DECISIONS, Append, Look, Row
from journal.projection import statements_of
from journal.record import Record
from journal.release import is_report, report_of
from journal.sql import Result, Rows, Statement
from journal.standing import LOGGER, close_tenant, compare_heads, examine, poison
from journal.store import tables
from journal.store import work as works
from journal.store.engine import SqlStore
from journal.store.tables import Marker
from journal.work import FINISHED, Status, Work

Answer = Acceptance | UnrewindError

_HANDOFF = 500
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
    with record.lock.held():
        for _ in range(_ATTEMPTS):
            try:
                return await decide(record, await make_ready(record), operations)
            except FileChanged as error:
                LOGGER.warning("%s; opening it anew", error)
                await record.open_files()
            except FenceFailed as error:
                LOGGER.warning("the store moved under a batch: %s", error)
    raise JournalUnavailable("the store is being replaced or moved again and again")


async def make_ready(record: Record) -> Ready:
    """The tenant, compared and with nothing pending.

    A record that is ``recovering`` decides in any stage, in the history that its recovery started.
    Raises Recovering, after closing the tenant where the verdict asks for it, JournalUnavailable or
    WriterStopped.
    """
    if not record.recovering:
        record.stop.check()
    if record.poisoned is not None:
        raise WriterStopped(record.poisoned)
    finding, seen = await examine(record)
    if finding.verdict is Verdict.CRASHED:
        await hand_off(record, seen)
        finding, seen = await examine(record)
    if finding.verdict is Verdict.CLEAN and record.touched():
        record.doubtful = True
        finding = await compare_heads(record, finding)
    record.finding = finding
    if finding.verdict is not Verdict.CLEAN:
        await close_tenant(record, finding)
        raise Recovering(f"the tenant is closed: {finding.detail}", verdict=str(finding.verdict))
    await record.open_for_writing()
    if record.store is not None and record.control is not None:
        _require(record, record.store, record.control.needs)
    if record.control is None or record.store is None or seen.marker is None:
        raise Recovering("store or control went away")
    authority = record.control.authority
    if record.recovering and record.control.begun is not None:
        raise Recovering("a recovery has begun anew: run `unrewind recover apply` first")
    if not (authority.stage.decides or record.recovering):
        raise Recovering(
            f"the tenant's stage is {authority.stage}: {record.control.reason}",
            stage=str(authority.stage),
        )
    tip = tip_of(authority, seen.look.last)
    ready = Ready(seen.look, record.control, record.store, seen.marker, tip)
    if record.doubtful:
        await _doubt_steps(record, ready)
    return ready


def _require(record: Record, store: SqlStore, needs: int) -> None:
    """Let the store refuse writers of earlier formats too, once the data needs a newer one."""
    if store.needs >= needs:
        return
    try:
        store.require(needs)
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be written: {error}") from error
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
        raise JournalUnavailable(f"the store cannot be read or written: {error}") from error
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
    view = await _view(record, ready, operations)
    limits = limits_of(ready.control)
    context = Context(
        record.rules,
        record.clock.now(),
        await _door(record, ready, view),
        limits.check_action,
        limits.check_commitment,
    )
    judged = judge(operations, view, context)
    if judged.decisions or claim is not None:
        try:
            await _commit(record, ready, judged, claim)
        except ConstraintFailed as error:
            return await _in_halves(record, operations, judged, error)
    if judged.decisions:
        await journal_entries(record, [decision.entry for decision in judged.decisions], ready.look)
    return list(judged.answers)


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
    statement = tables.read_heads({operation.entity for operation in operations})
    try:
        found, *others = await ready.store.read([statement, *_work_wanted(record, operations)])
        heads = tables.heads_of(found)
        work = _by_entity(operations, others) if others else {}
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


def _work_wanted(record: Record, operations: Sequence[Operation]) -> list[Statement]:
    """The reads for what work a batch may change; none where no operation has to do with any."""
    concerned: list[Operation] = []
    named: list[str] = []
    for operation in operations:
        lifecycle = record.lifecycles.get(operation.entity.partition("/")[0])
        if is_report(operation.action, operation.body_type):
            concerned.append(operation)
            named.append(report_of(operation.body).release)
        elif lifecycle is not None and lifecycle.works:
            concerned.append(operation)
            action = lifecycle.actions.get(operation.action)
            if action is not None and action.corrects:
                named += _named_in(operation.body)
    if not concerned:
        return []
    versions = [(each.entity, each.version) for each in concerned if each.version is not None]
    wanted = [works.read_of_entities([each.entity for each in concerned], versions)]
    return [*wanted, works.read_work(named)] if named else wanted


def _named_in(body: bytes) -> list[str]:
    try:
        found = msgspec.json.decode(body)
    except msgspec.MsgspecError:
        return []
    corrects = found.get("corrects") if isinstance(found, dict) else None
    return [corrects] if isinstance(corrects, str) else []


def _by_entity(
    operations: Sequence[Operation], results: Sequence[Result]
) -> dict[str, Mapping[str, Work]]:
    grouped: dict[str, dict[str, Work]] = {operation.entity: {} for operation in operations}
    for result in results:
        for row in works.rows_of(result):
            if row.entity in grouped:
                grouped[row.entity][row.id] = row
    return dict(grouped)


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
    statements: list[Statement | Rows] = [
        tables.fence(ready.marker, judged.tip, ready.tip.sequence)
    ]
    if judged.decisions:
        statements += tables.write_decisions(judged.decisions)
    if judged.work:
        statements.append(works.write_work(_as_they_run(judged, claim)))
    statements += project(record, judged.decisions)
    if claim is not None:
        statements += claim.statements
    try:
        await ready.store.batch(statements)
    except (ConstraintFailed, FenceFailed, FileChanged):
        raise
    except DiskFailed as error:
        raise poison(record, f"the store's commit failed: {error}") from error
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be written: {error}") from error
    record.saw()


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
            return [_refusal(operations[0].entity, error)]
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


def _refusal(entity: str, error: ConstraintFailed) -> TransitionRefused:
    """What the caller is told; a fault of the projection itself is logged too."""
    if error.members.get("projection"):
        LOGGER.error("%s: a projection failed: %s", entity, error, exc_info=error)
        return TransitionRefused(
            f"{entity}: the application's projection failed: {error}", entity=entity
        )
    return TransitionRefused(
        f"{entity}: the application's own constraint refused it: {error}",
        entity=entity,
        constraint=str(error),
    )


async def journal_entries(record: Record, entries: Sequence[Entry], look: Look) -> None:
    """Append decisions that the store has committed. Until this returns they are obligations.

    Raises JournalUnavailable (they stay pending), WriterStopped, or Recovering when another
    decision already stands at one of their places.
    """
    append = Append(entries=[(DECISIONS, entry) for entry in entries])
    try:
        await record.journal().append(append, look)
    except ConstraintFailed as error:
        finding = Finding(Verdict.FORKED, f"the journal holds another decision there: {error}")
        await close_tenant(record, finding)
        raise Recovering(f"the tenant is closed: {finding.detail}", verdict="forked") from error
    except DiskFailed as error:
        raise poison(record, f"the journal's commit failed: {error}") from error
    except EngineError as error:
        raise JournalUnavailable(
            f"the decision is committed but not yet in the journal: {error}"
        ) from error


async def hand_off(record: Record, seen: Seen) -> None:
    """Append the decisions that a crash left in the store alone; identical bytes, in order."""
    if record.store is None or record.control is None or seen.marker is None:
        return
    tip = tip_of(record.control.authority, seen.look.last)
    look = seen.look
    after = tip.sequence
    while after < seen.marker.place.sequence:
        limit = min(_HANDOFF, seen.marker.place.sequence - after)
        rows = (await record.store.read([tables.read_decisions(after, limit)]))[0]
        stored = tables.decisions_of(rows)
        sequences = [decision.sequence for decision in stored]
        if not stored or sequences != [*range(after + 1, after + 1 + len(stored))]:
            raise await _unfit(record, f"the store lacks its own decision after sequence {after}")
        try:
            entries = [admit(decision.text, decision.body) for decision in stored]
        except Invalid as error:
            raise await _unfit(record, f"a decision that waits is damaged: {error}") from error
        if [entry.digest for entry in entries] != [decision.digest for decision in stored]:
            raise await _unfit(record, "a decision that waits does not hash to its digest")
        await journal_entries(record, entries, look)
        look = await record.look()
        after = stored[-1].sequence
    LOGGER.info("handed off the decisions through sequence %d", after)


async def _unfit(record: Record, detail: str) -> Recovering:
    """Close the tenant: what waits was never acknowledged and cannot be handed off."""
    finding = Finding(Verdict.REPLACED, detail)
    await close_tenant(record, finding)
    return Recovering(f"the tenant is closed: {detail}", verdict=str(finding.verdict))


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
