"""Reconciling: what became of every release, by evidence that no rewind of ours has touched.

    apply ──► reconcile: look ──► page ──► (receivers are asked) ──► take ──► … ──► close ──► reopen

Each step runs under the turn lock by itself, so that nobody waits for a receiver. What a page's
answers lead to is committed with the findings about it: killed anywhere and run again, a
reconciliation goes on where it was, and makes no decision twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec
from msgspec import Struct

from journal.asking import Question, is_dead, is_of_earlier_boot
from journal.control import Abandoned, Doubt
from journal.doubting import is_doubtful
from journal.errors import (
    FenceFailed,
    FileChanged,
    JournalUnavailable,
    Refused,
    UnrewindError,
)
from journal.lanes import Contract, Effect
from journal.observing import decision_of, last_observed, observe
from journal.outcomes import Outcome, Put, Reported, Told
from journal.record import Record
from journal.reports import GENERATION_BITS, asks, has_ended, terms, write_ready
from journal.standing import LOGGER
from journal.store import reconciled
from journal.store import work as works
from journal.store.reconciled import Evidence, Found
from journal.work import Status, Work, after_seconds
from journal.writepath import Claim, Ready, decide, make_ready
from reconstruct.judging import (
    UNRESOLVED,
    Answer,
    Basis,
    Finding,
    Judgement,
    Past,
    Reading,
    by_itself,
    by_observation,
    contradicted,
    ended,
    of_command,
    stopped_action,
    told,
    unanswered,
    way_out,
)
from reconstruct.rederiving import derived
from reconstruct.settling import Batch

PAGE = 200
"""Rows of work in one page and one commit."""

_ATTEMPTS = 3
_ENTRIES = 1000
_POLL = 30.0
_UNLIMITED = 1 << 60

T = TypeVar("T")
Cursor = tuple[str, int]
START: Cursor = ("", 0)


class Run(Struct, frozen=True):
    """One reconciliation, begun with so many releases to judge in ``total``.

    ``again`` are the findings of this generation that are looked at anew. ``doubted`` is the loss
    that was accepted last, if one ever was.
    """

    generation: int
    began: str
    total: int
    again: tuple[Finding, ...]
    doubted: Doubt | None


class Seen(Struct, frozen=True):
    """A row as it stood when its page was read."""

    id: str
    status: str
    lease: int
    attempts: int


def seen_of(row: Work) -> Seen:
    """The row as it stands."""
    return Seen(row.id, row.status, row.lease, row.attempts)


class Page(Struct, frozen=True):
    """Rows to judge, the questions to put about them, and where the next page begins.

    ``spoiled`` are rows that cannot be read. Empty, it is the last page.
    """

    rows: list[Seen]
    questions: list[Question]
    spoiled: list[str]
    after: Cursor

    @property
    def empty(self) -> bool:
        """Whether there is nothing left."""
        return not self.rows and not self.spoiled


class Heard(Struct, frozen=True):
    """What a receiver answered to a question that was put at ``asked``.

    ``usable`` is false where it gave no answer that tells anything.
    """

    told: Told
    said: Reported
    asked: str
    usable: bool


@contextmanager
def _recovering(record: Record) -> Iterator[None]:
    """Let the record's turns decide in any stage, beside the stop file, for this step alone."""
    before = record.recovering
    record.recovering = True
    try:
        yield
    finally:
        record.recovering = before


async def steadily(record: Record, step: Callable[[], Awaitable[T]]) -> T:
    """One step under the turn lock, again where files were replaced meanwhile."""
    with _recovering(record), record.lock.held():
        for _ in range(_ATTEMPTS):
            try:
                return await step()
            except FileChanged as error:
                LOGGER.warning("%s; opening it anew", error)
                await record.open_files()
            except FenceFailed as error:
                LOGGER.warning("the store moved under a batch: %s", error)
    raise JournalUnavailable("the store is being replaced or moved again and again")


# Looking.


async def look(record: Record) -> Run:
    """What is to be reconciled.

    Raises Refused before the recovery has been applied, Recovering in a tenant that does not stand
    as it should, or JournalUnavailable.
    """
    control = await record.current_control(await record.look())
    if control.begun is not None:
        raise Refused(
            "a recovery has begun and was not applied: run `unrewind recover apply`, then reconcile"
        )

    async def step() -> Run:
        ready = await make_ready(record)
        control, generation = ready.control, ready.control.authority.generation
        now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
        complete = control.reconciled == generation
        again = UNRESOLVED if complete else (Finding.UNREACHABLE,)
        if complete and control.doubted is not None:
            again = (*again, Finding.CANCELLED)  # it may be permitted anew by now
        live = generation << GENERATION_BITS
        left, counted = await ready.store.read(
            [reconciled.count_left(generation, now, live), reconciled.count(generation)]
        )
        total = left[0][0] + sum(number for found, number, _ in counted if found in again)
        return Run(generation, now, total, again, control.doubted)

    return await steadily(record, step)


async def next_page(
    record: Record, run: Run, after: Cursor, limit: int = PAGE, again: bool = False
) -> Page:
    """A page of work after a cursor: what has no finding yet or, ``again``, what is unresolved.

    Raises Recovering, JournalUnavailable or LockHeld.
    """

    async def step() -> Page:
        ready = await make_ready(record)
        statement = (
            reconciled.read_again(run.generation, run.again, run.began, after[0], limit)
            if again
            else reconciled.read_fresh(run.generation, run.began, after, limit)
        )
        found, now = await ready.store.read([statement, works.READ_NOW])
        rows, spoiled = reconciled.page_of(found)
        end = after
        if again:
            end = (max([after[0], *spoiled, *(row.id for _, row in rows)]), 0)
        elif rows:
            number, row = rows[-1]
            end = (row.entity or "", number)
        questions = [
            Question(row.id, row.receiver or "", row.digest, row.attempts, now[0][0])
            for _, row in rows
            if await _is_to_be_asked(record, ready, run, row)
        ]
        return Page([seen_of(row) for _, row in rows], questions, spoiled, end)

    return await steadily(record, step)


async def _is_to_be_asked(record: Record, ready: Ready, run: Run, row: Work) -> bool:
    if row.effect != Effect.EXTERNAL or row.over or _is_live(ready, row) or not asks(record, row):
        return False
    return row.status != Status.READY or await is_doubtful(record, row, run.doubted)


def _is_live(ready: Ready, row: Work) -> bool:
    """Whether an attempt of this very generation is under way: it will report by itself."""
    ended = has_ended(row.lease, ready.control.authority)
    return row.status == Status.RUNNING and row.lease > 0 and not ended


# Taking answers in.


async def take(
    record: Record,
    run: Run,
    page: Page,
    heard: Mapping[str, Heard],
    principal: str | None = None,
) -> list[Found]:
    """Judge a page by what its receivers answered, in one commit; the findings.

    A row that has moved since its page was read is left to the next run. Raises Recovering,
    JournalUnavailable, WriterStopped or LockHeld with nothing taken.
    """

    async def step() -> list[Found]:
        ready = await make_ready(record)
        batch = await _judge_page(record, ready, run, page, heard, principal)
        for said in batch.observed:
            await observe(record, said, "its entity's history is incomplete", principal)
        if batch.observed:
            ready = await make_ready(record)
        if batch.found:
            await _commit(record, ready, batch)
        return [*batch.found.values()]

    return await steadily(record, step)


async def _commit(record: Record, ready: Ready, batch: Batch) -> None:
    """Decisions, rows and findings in one batch of the store, then the journal."""
    answers = await decide(record, ready, batch.operations, Claim(batch.writes, _as_it_is))
    refused = [
        (operation, answer)
        for operation, answer in zip(batch.operations, answers, strict=True)
        if isinstance(answer, UnrewindError)
    ]
    if not refused:
        return
    for operation, error in refused:
        batch.refuse(operation, error)
    # A batch that a constraint refused is committed in halves, and without what was to go with it.
    await write_ready(record, await make_ready(record), batch.writes)


def _as_it_is(row: Work) -> Work:
    return row


async def _judge_page(
    record: Record,
    ready: Ready,
    run: Run,
    page: Page,
    heard: Mapping[str, Heard],
    principal: str | None,
) -> Batch:
    wanted = works.read_work([one.id for one in page.rows])
    found, clock = await ready.store.read([wanted, works.READ_NOW])
    now: str = clock[0][0]
    rows = {row.id: row for row in works.rows_of(found)}
    flawed = await record.journal().flawed() if ready.look.flawed else {}
    batch = Batch(record, run.generation, now, principal)
    for identity in page.spoiled:
        batch.found[identity] = _unreadable(record, run, identity, now)
    for seen in page.rows:
        row = rows.get(seen.id)
        if row is None or seen != seen_of(row) or _is_live(ready, row):
            continue
        past = await _past_of(record, row, ready.control.abandoned.get(row.entity or "", ()))
        doubtful = await is_doubtful(record, row, run.doubted)
        judged = await _judge(batch, row, past, heard.get(row.id), flawed, doubtful=doubtful)
        if judged is None:
            continue
        authority = None
        if row.effect == Effect.EXTERNAL and judged.found is not Finding.REMOVED:
            authority = past.wrong or stopped_action(row, ready.control.holds)
        batch.add(row, judged, authority)
    return batch


def _unreadable(record: Record, run: Run, identity: str, now: str) -> Found:
    evidence = Evidence(
        "its row cannot be read: rebuild the store with `recover begin` and `apply`",
        owner=record.settings.owner,
        deadline=after_seconds(now, record.settings.resolve_within),
    )
    return Found(identity, run.generation, str(Finding.HELD), now, evidence)


async def _past_of(record: Record, row: Work, cuts: Sequence[Abandoned]) -> Past:
    """What the journal holds of a row's entity, from the decision that asked for the row."""
    reading = Reading(row, record.lifecycles.get((row.entity or "").partition("/")[0]), cuts)
    first = row.revision or 1
    while rows := await record.journal().history(row.entity or "", first, _UNLIMITED, _ENTRIES):
        reading.take(rows)
        first = rows[-1].revision + 1
    return reading.past()


async def _judge(
    batch: Batch,
    row: Work,
    past: Past,
    heard: Heard | None,
    flawed: Mapping[str, int],
    *,
    doubtful: bool,
) -> Judgement | None:
    """What became of a row; None where there is nothing to find."""
    if row.over:
        return ended(row)
    removable = _is_untouched(row) and row.entity not in flawed and not doubtful
    if removable and not past.known:
        batch.statements.append(reconciled.remove_underived(row.id))
        return Judgement(
            Finding.REMOVED, f"the journal holds no decision {row.operation} of {row.entity}"
        )
    if row.effect != Effect.EXTERNAL:
        return None if row.entity in flawed else of_command(row, past, batch.now)
    if row.entity in flawed:
        return _of_incomplete(batch, row, heard)
    judged = by_itself(row, past, doubtful=doubtful)
    happened = heard is not None and heard.told is Told.DONE
    if judged is None or happened:
        judged = await _by_evidence(batch, row, heard, doubtful=doubtful)
    if past.wrong is not None and judged.found in {Finding.WAITING, Finding.UNDONE}:
        return await _mended(batch, row, past.wrong, doubtful=doubtful)
    return judged


async def _mended(batch: Batch, row: Work, wrong: str, *, doubtful: bool) -> Judgement:
    """A row that contradicts its permission, made anew from the journal; held where it cannot be.

    Only one with which nothing can have begun is made anew.
    """
    if _is_untouched(row) and not doubtful:
        anew = await derived(batch.record, row)
        if anew is not None:
            return Judgement(Finding.WAITING, f"made anew from its permission: {wrong}", Put(anew))
    return contradicted(row, wrong, _basis_of(batch.record, row, batch.now, doubtful=doubtful))


def _is_untouched(row: Work) -> bool:
    """Whether nothing can have left the house on the strength of a row."""
    waits = row.status == Status.READY and row.committed is None and row.lease == 0
    return waits or row.effect != Effect.EXTERNAL


_OBSERVED = {Told.DONE: Outcome.CONFIRMED, Told.REFUSED: Outcome.REFUSED}


def _of_incomplete(batch: Batch, row: Work, heard: Heard | None) -> Judgement:
    """Nothing is decided about it; what its receiver says is kept as an observation."""
    why = f"the history of {row.entity} is incomplete"
    if heard is not None and heard.told in _OBSERVED:
        said = msgspec.structs.replace(heard.said, outcome=_OBSERVED[heard.told], lease=None)
        batch.observed.append(said)
        why = f"{why}; {said.evidence}"
    return Judgement(Finding.INCOMPLETE, why)


async def _by_evidence(
    batch: Batch, row: Work, heard: Heard | None, *, doubtful: bool
) -> Judgement:
    """What its receiver and what was observed say of a release that may have happened."""
    record = batch.record
    basis = _basis_of(record, row, batch.now, doubtful=doubtful)
    judged = _by_answer(record, row, heard, basis)
    if judged.found not in UNRESOLVED:
        return judged
    observed = await last_observed(record, row.id)
    if observed is None:
        return judged
    if doubtful and row.committed is None and observed.outcome == Outcome.CONFIRMED:
        said = Reported(row.id, Outcome.CONFIRMED, None, observed.evidence, observed.receipt)
        said = msgspec.structs.replace(said, digest=observed.digest)
        return told(row, Answer(Told.DONE, said, batch.now), basis)
    if doubtful:
        # A refusal of the attempt that is known says nothing of one that the journal has lost.
        row = msgspec.structs.replace(row, maybe=1, attempts=row.attempts + 1)
    decided = decision_of(observed, row, ask=asks(record, row))
    if decided is None or decided.report.maybe:
        return judged
    return by_observation(decided)


def _by_answer(record: Record, row: Work, heard: Heard | None, basis: Basis) -> Judgement:
    if heard is None:
        if asks(record, row):
            return unanswered(row, "its receiver was not asked", basis, ask=True)
        why = f"{_why_not_asked(record, row)}; {way_out(row, basis.terms, basis.now)}"
        return unanswered(row, why, basis, ask=False)
    if not heard.usable:
        why = f"{row.receiver}: {heard.said.evidence}"
        return unanswered(row, why, basis, ask=True)
    worker = row.worker or ""
    dead = is_dead(worker) or is_of_earlier_boot(worker, record.settings)
    return told(row, Answer(heard.told, heard.said, heard.asked, ended=dead), basis)


def _basis_of(record: Record, row: Work, now: str, *, doubtful: bool) -> Basis:
    receiver = record.settings.receiver.get(row.receiver or "")
    poll = _POLL if receiver is None else receiver.poll
    names = receiver is not None and receiver.returns_digest
    return Basis(terms(record, row.lane), now, poll, names, doubtful)


def _why_not_asked(record: Record, row: Work) -> str:
    if row.receiver is None:
        return "workers carry it out, and nobody else can be asked"
    receiver = record.settings.receiver.get(row.receiver)
    if receiver is None:
        return f"receiver {row.receiver} is declared no more"
    if terms(record, row.lane).contract is Contract.OPAQUE:
        return f"receiver {row.receiver} is opaque"
    return f"receiver {row.receiver} has no lookup"
