"""The writer: group commit, one turn at a time, an answer for each caller and in order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

import journal
from journal.acceptance import Acceptance, Operation
from journal.errors import (
    DiskFailed,
    Invalid,
    JournalUnavailable,
    LockHeld,
    NotFound,
    OperationReused,
    Overloaded,
    Recovering,
    Refused,
    TransitionRefused,
    Unreachable,
    UnrewindError,
    WriterStopped,
)
from journal.locks import Presence, TurnLock
from journal.log import Append, Look
from journal.record import Record
from journal.worker import Worker, drive
from journal.writer import Writer
from tests.support.faults import FaultyLog, fail_log
from tests.support.tenants import operation


class Gated(FaultyLog):
    """A journal whose appends wait until the test opens the gate."""

    gate: threading.Event
    entered: threading.Event
    sizes: list[int]

    async def append(self, append: Append, expects: Look) -> None:
        self.entered.set()
        assert self.gate.wait(30)
        self.sizes.append(len(append.entries))
        await super().append(append, expects)


@asynccontextmanager
async def gated(settings: journal.Settings) -> AsyncIterator[tuple[Writer, Gated, Worker]]:
    """A writer over real files whose first append stands still."""
    record, worker = Record(settings), Worker()
    await worker
    await worker.run(record.open)

    async def put_in() -> Gated:
        assert record.log is not None
        record.log.database.close()
        log = Gated(settings.journal_file)
        log.before, log.after, log.sizes = [], [], []
        log.gate, log.entered = threading.Event(), threading.Event()
        record.log = log
        return log

    log = await worker.run(put_in)
    writer = Writer(record, worker)
    try:
        yield writer, log, worker
    finally:
        log.gate.set()
        await writer.drain()
        await worker.run(record.close)
        await worker.close()


async def entered(log: Gated) -> None:
    assert await asyncio.to_thread(log.entered.wait, 30)


def case(number: int) -> Operation:
    return operation(f"case/{number}", "opened", id=f"op-{number}")


async def test_what_waits_forms_one_batch_and_is_answered_in_order(
    settings: journal.Settings,
) -> None:
    async with gated(settings) as (writer, log, _):
        order: list[int] = []

        def done(number: int) -> Callable[[object], None]:
            return lambda _: order.append(number)

        first = writer.submit([case(0)])
        await entered(log)
        rest = [writer.submit([case(number), case(number + 100)]) for number in range(1, 20)]
        for number, future in enumerate([first, *rest]):
            future.add_done_callback(done(number))
        assert not any(future.done() for future in (first, *rest))
        log.gate.set()
        answers = await asyncio.gather(first, *rest)
        assert order == list(range(20))
        assert log.sizes == [1, 38]
        made = [answer for group in answers for answer in group]
        sequences = [answer.sequence for answer in made if isinstance(answer, Acceptance)]
        assert sequences == list(range(1, 40))


async def test_p1_no_answer_before_the_append(settings: journal.Settings) -> None:
    async with gated(settings) as (writer, log, _):
        future = writer.submit([case(0)])
        await entered(log)
        done, _ = await asyncio.wait([future], timeout=0.05)
        assert not done
        log.gate.set()
        assert isinstance((await future)[0], Acceptance)


async def test_a_cancelled_caller_does_not_cancel_its_batch(settings: journal.Settings) -> None:
    async with gated(settings) as (writer, log, _):
        first = writer.submit([case(0)])
        await entered(log)
        second, third = writer.submit([case(1)]), writer.submit([case(2)])
        first.cancel()
        second.cancel()
        log.gate.set()
        assert isinstance((await third)[0], Acceptance)
        again = await writer.submit([case(0), case(1)])
        assert [answer.outcome for answer in again if isinstance(answer, Acceptance)] == [
            "duplicate",
            "duplicate",
        ]


async def test_too_much_that_waits_is_refused_at_once(settings: journal.Settings) -> None:
    narrow = msgspec.structs.replace(settings, max_waiting=3)
    async with gated(narrow) as (writer, log, _):
        first = writer.submit([case(0)])
        await entered(log)
        waiting = [writer.submit([case(1)]), writer.submit([case(2), case(3)])]
        with pytest.raises(Overloaded) as refused:
            writer.submit([case(4)])
        assert refused.value.members == {"waiting": 3}
        log.gate.set()
        await asyncio.gather(first, *waiting)
        assert isinstance((await writer.submit([case(4)]))[0], Acceptance)


async def test_a_group_larger_than_the_limit_is_taken_when_nothing_waits(
    settings: journal.Settings,
) -> None:
    narrow = msgspec.structs.replace(settings, max_waiting=3, max_batch=2)
    async with gated(narrow) as (writer, log, _):
        log.gate.set()
        assert len(await writer.submit([case(n) for n in range(10)])) == 10
        assert log.sizes == [10]


async def test_batches_keep_to_their_limit(settings: journal.Settings) -> None:
    narrow = msgspec.structs.replace(settings, max_batch=4)
    async with gated(narrow) as (writer, log, _):
        first = writer.submit([case(0)])
        await entered(log)
        rest = [writer.submit([case(number)]) for number in range(1, 11)]
        log.gate.set()
        await asyncio.gather(first, *rest)
        assert log.sizes == [1, 4, 4, 2]


async def test_draining_answers_what_waits_and_takes_nothing_more(
    settings: journal.Settings,
) -> None:
    async with gated(settings) as (writer, log, _):
        futures = [writer.submit([case(0)])]
        await entered(log)
        futures += [writer.submit([case(number)]) for number in range(1, 6)]
        draining = asyncio.ensure_future(writer.drain())
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            writer.submit([case(9)])
        log.gate.set()
        await draining
        assert all(future.done() for future in futures)
        assert [isinstance(future.result()[0], Acceptance) for future in futures] == [True] * 6


async def test_errors_of_a_shared_turn_are_not_shared_objects(settings: journal.Settings) -> None:
    async with gated(settings) as (writer, log, _):
        first = writer.submit([case(0)])
        await entered(log)
        rest = [writer.submit([case(1)]), writer.submit([case(2)])]
        log.after = [Unreachable("busy")] * 2
        log.gate.set()
        errors = await asyncio.gather(first, *rest, return_exceptions=True)
        assert [type(error) for error in errors] == [JournalUnavailable] * 3
        assert len({id(error) for error in errors}) == 3


# Through the service.


async def test_h7_the_same_operation_in_flight_twice_is_one_decision(
    service: journal.Journal,
) -> None:
    wanted = operation("document/7", "submit", {"a": 1})
    answers = await asyncio.gather(*(service.accept(wanted) for _ in range(50)))
    assert len({answer.digest for answer in answers}) == 1
    assert sorted(answer.outcome for answer in answers) == ["accepted"] + ["duplicate"] * 49


async def test_h7_another_body_in_flight_is_refused_once_the_first_is_journalled(
    service: journal.Journal,
) -> None:
    wanted = operation("document/7", "submit", {"a": 1})
    other = msgspec.structs.replace(wanted, body=b'{"a":2}')
    first, second = await asyncio.gather(
        service.accept(wanted), service.accept(other), return_exceptions=True
    )
    assert isinstance(first, Acceptance)
    assert isinstance(second, OperationReused)
    assert (await service.operation(wanted.operation)).digest == first.digest


async def test_concurrent_callers_of_one_entity_make_one_unbroken_chain(
    service: journal.Journal,
) -> None:
    answers = await asyncio.gather(
        *(service.accept(operation("case/1", f"step-{n}")) for n in range(200))
    )
    assert sorted(answer.revision for answer in answers) == list(range(1, 201))
    assert sorted(answer.sequence or 0 for answer in answers) == list(range(1, 201))


async def test_accept_many_answers_each_item_on_its_own(service: journal.Journal) -> None:
    wanted = [
        operation("document/1"),
        operation("invoice/1"),
        operation("document/2", "approve"),
        operation("contract/1"),
        operation("document/1", "approve"),
    ]
    answers = await service.accept_many(wanted)
    kinds = [type(answer) for answer in answers]
    assert kinds == [Acceptance, Invalid, TransitionRefused, Invalid, Acceptance]
    nothing = await service.accept_many([operation("invoice/1")])
    assert isinstance(nothing[0], Invalid)
    for wrong in ([], [operation()] * 1001):
        with pytest.raises(Invalid):
            await service.accept_many(wrong)


async def test_a_cancelled_accept_is_still_decided(service: journal.Journal) -> None:
    wanted = operation("document/7")
    task = asyncio.ensure_future(service.accept(wanted))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await service.accept(wanted)).outcome == "duplicate"


async def test_p1_reads_never_show_a_decision_that_is_not_journalled(
    settings: journal.Settings,
) -> None:
    async with journal.open(settings) as opened:
        first = await opened.accept(operation("document/7", "submit"))
        wanted = operation("document/7", "approve")
        await opened.write(_fail_next)
        with pytest.raises(JournalUnavailable):
            await opened.accept(wanted)
        with pytest.raises(NotFound):
            await opened.operation(wanted.operation)
        assert (await opened.history("document/7")).durable_through == 1
        assert (await opened.gate("document/7", 2)).gate == "held"
        assert (await opened.status()).pending == 1
        reading = asyncio.ensure_future(opened.entity("document/7"))
        again = await opened.accept(wanted)
        view = await reading
        assert (view.revision, view.state, view.digest) == (2, "approved", again.digest)
        assert first.digest != view.digest


async def _fail_next(record: Record) -> None:
    fail_log(record, before=[Unreachable("busy")])


async def _poison_next(record: Record) -> None:
    fail_log(record, before=[DiskFailed("EIO")])


async def test_r15_a_poisoned_service_refuses_and_its_next_start_recovers(
    settings: journal.Settings,
) -> None:
    wanted = operation("document/7")
    async with journal.open(settings) as opened:
        await opened.write(_poison_next)
        with pytest.raises(WriterStopped):
            await opened.accept(wanted)
        with pytest.raises(WriterStopped):
            await opened.accept(operation("document/8"))
    async with journal.open(settings) as opened:
        assert (await opened.accept(wanted)).outcome == "duplicate"


async def test_two_services_share_one_tenant(settings: journal.Settings) -> None:
    async with journal.open(settings) as one, journal.open(settings) as other:
        answers = await asyncio.gather(
            *(
                (one, other)[n % 2].accept(operation(f"case/{n % 3}", f"step-{n}"))
                for n in range(60)
            )
        )
        assert sorted(answer.sequence or 0 for answer in answers) == list(range(1, 61))
        for service in (one, other):
            assert (await service.entity("case/0")).revision == 20


async def test_a_stopped_service_decides_nothing_more(settings: journal.Settings) -> None:
    async with journal.open(settings) as opened:
        await opened.accept(operation("document/7"))
    with pytest.raises((UnrewindError, RuntimeError)):
        await opened.accept(operation("document/7"))


async def test_a_closed_service_still_tells_its_history(settings: journal.Settings) -> None:
    async with journal.open(settings) as opened:
        await opened.accept(operation("document/7"))
        await opened.write(_stop)
        with pytest.raises(Recovering):
            await opened.accept(operation("document/7"))
        with pytest.raises(Recovering):
            await opened.entity("document/7")
        assert len((await opened.history("document/7")).revisions) == 1
        assert (await opened.gate("document/7")).gate == "held"
        assert (await opened.status()).stage == "closed"
        await opened.write(_go_on)
        assert (await opened.entity("document/7")).revision == 1


async def _stop(record: Record) -> None:
    record.stop.put_up("an operator", record.clock.now())


async def _go_on(record: Record) -> None:
    record.stop.take_down()


def test_a_coroutine_that_suspends_is_no_work_for_a_thread() -> None:
    async def suspends() -> None:
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="suspended"):
        drive(suspends())


async def test_a_closed_worker_takes_no_work() -> None:
    worker = Worker()
    await worker
    assert await worker.run(_answer) == 42
    await worker.close()
    with pytest.raises(RuntimeError, match="closed"):
        worker.submit(lambda: None)


async def _answer() -> int:
    return 42


async def test_an_open_that_is_refused_leaves_no_thread_behind(
    settings: journal.Settings,
) -> None:
    """A thread that is left would keep the process from ending."""
    before = set(threading.enumerate())
    restoring = Presence(settings.beside("presence"), exclusive=True)
    with pytest.raises(Refused):
        async with journal.open(settings):
            pass
    restoring.close()
    hanging = TurnLock(settings.beside("lock"), 1.0)
    impatient = msgspec.structs.replace(settings, lock_timeout=0.05)
    with hanging.held(), pytest.raises(LockHeld):
        async with journal.open(impatient):
            pass
    hanging.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
    async with journal.open(settings) as opened:
        assert (await opened.accept(operation("document/7"))).revision == 1


async def test_a_writer_whose_thread_has_ended_leaves_nobody_waiting(
    settings: journal.Settings,
) -> None:
    record, worker = Record(settings), Worker()
    await worker
    await worker.close()
    writer = Writer(record, worker)
    with pytest.raises(JournalUnavailable):
        await writer.submit([operation("document/1")])
    await asyncio.wait_for(writer.turned(), 10)
    await asyncio.wait_for(writer.drain(), 10)
    record.lock.close()


async def test_other_work_on_the_thread_gets_its_turn_between_batches(
    settings: journal.Settings,
) -> None:
    """Under a load that never pauses, a token or a recovery's step is not starved."""
    async with journal.open(settings) as tenant:
        stop = asyncio.Event()

        async def client(name: str) -> int:
            number = 0
            while not stop.is_set():
                number += 1
                await tenant.accept(operation(f"case/{name}", "set", f"{name}-{number}"))
            return number

        clients = [asyncio.ensure_future(client(f"c{number}")) for number in range(8)]
        for _ in range(5):
            await asyncio.wait_for(tenant.detect(deep=True), 30)
            await asyncio.wait_for(tenant.write(Record.read_control), 30)
        stop.set()
        assert min(await asyncio.gather(*clients)) > 0


async def test_a_turn_that_asks_the_process_to_end_is_told_and_the_writer_goes_on(
    settings: journal.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journal.open(settings) as tenant:
        with monkeypatch.context() as patch:

            async def ends(*_: object) -> list[object]:
                raise SystemExit(1)

            patch.setattr("journal.writer.turn", ends)
            with pytest.raises(JournalUnavailable, match="SystemExit"):
                await asyncio.wait_for(tenant.accept(operation("document/1")), 10)
        assert (await asyncio.wait_for(tenant.accept(operation("document/1")), 10)).revision == 1


async def test_one_body_that_is_no_bytes_is_refused_at_the_door(settings: journal.Settings) -> None:
    async with journal.open(settings) as tenant:
        wrong = Operation("op-x", "case/1", "opened", body="text")  # type: ignore[arg-type]
        answers = await asyncio.gather(
            *(tenant.accept(found) for found in (case(1), wrong, case(2))), return_exceptions=True
        )
    assert [type(answer) for answer in answers] == [Acceptance, Invalid, Acceptance]


async def test_bodies_that_wait_are_bounded_in_bytes(
    settings: journal.Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal.writer.MAX_WAITING_BYTES", 100)
    async with gated(settings) as (writer, log, _):
        under_way = writer.submit([case(1)])
        await entered(log)
        large = operation("case/2", "opened", "x" * 90, id="op-2")
        waits = writer.submit([large])
        with pytest.raises(Overloaded, match="bytes"):
            writer.submit([operation("case/3", "opened", "x" * 90, id="op-3")])
        log.gate.set()
        assert isinstance((await under_way)[0], Acceptance)
        assert isinstance((await waits)[0], Acceptance)
