"""The writer: group commit for one tenant in one process.

Operations that arrive while a batch is under way wait and form the next one, which the writing
thread takes by itself: waiting for the event loop to hand it over cost milliseconds a batch under
load. The first operation of an idle writer goes at once; lingering to fill a batch was measured and
gains nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from journal.acceptance import Operation
from journal.errors import JournalUnavailable, Overloaded, UnrewindError
from journal.record import Record
from journal.worker import Worker, drive
from journal.writepath import Answer, turn

MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Bodies that may wait for the writer; a single request is taken whatever its size."""


class _Waiting(Struct, gc=False):
    operations: Sequence[Operation]
    answer: asyncio.Future[list[Answer]]
    weight: int


class Writer:
    """Collects operations and runs turns in the worker's thread, one at a time.

    Everything here runs on the event loop but ``_run`` and ``_take``, which the thread runs. What
    they share needs no lock: a deque, whose appends and pops are atomic, and counts of operations
    and bytes that only ever rise, ``_queued`` written by the loop and ``_taken`` by the thread.
    """

    def __init__(self, record: Record, worker: Worker) -> None:
        self._record = record
        self._worker = worker
        self._waiting: deque[_Waiting] = deque()
        self._queued = self._queued_bytes = 0
        self._taken = self._taken_bytes = 0
        self._running = False
        self._delivered: asyncio.Future[None] | None = None
        self._closed = False

    def submit(self, operations: Sequence[Operation]) -> asyncio.Future[list[Answer]]:
        """Queue operations; the future has one answer or refusal for each, in order.

        The future fails as a whole with Recovering, JournalUnavailable, WriterStopped or LockHeld.
        A caller that is cancelled does not cancel the batch. Raises Overloaded when too much waits.
        """
        if self._closed:
            raise Overloaded("the service is stopping")
        waiting = self._queued - self._taken
        if waiting and waiting + len(operations) > self._record.settings.max_waiting:
            raise Overloaded(f"{waiting} operations wait already", waiting=waiting)
        weight = _weight(operations)
        if waiting and self._queued_bytes - self._taken_bytes + weight > MAX_WAITING_BYTES:
            raise Overloaded("too many bytes of bodies wait already", waiting=waiting)
        answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(operations, answer, weight))
        self._queued += len(operations)
        self._queued_bytes += weight
        if not self._running:
            self._start()
        return answer

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._running = True
        try:
            self._worker.send(partial(self._run, loop))
        except RuntimeError as error:
            ended = JournalUnavailable(f"the writer has ended: {error}")
            while taken := self._take():
                self._deliver(taken, [], ended, last=not self._waiting)

    # In the thread.

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run turns while operations wait and nobody else wants the thread.

        Whatever a turn raises, even what asks the process to end, is told to its callers: none is
        left waiting, and the writer goes on. The loop is woken once a turn: each wake-up is a
        system call there and here, and takes the interpreter lock from whoever has it.
        """
        last = False
        try:
            while not last and (taken := self._take()):
                operations = [operation for waiting in taken for operation in waiting.operations]
                answers: list[Answer] = []
                error: BaseException | None = None
                try:
                    answers = drive(turn(self._record, operations))
                except BaseException as fault:  # noqa: BLE001 - see above
                    error = fault
                last = not self._waiting or self._worker.wanted()
                loop.call_soon_threadsafe(self._deliver, taken, answers, error, last)
        finally:
            if not last:
                loop.call_soon_threadsafe(self._rest)

    def _take(self) -> list[_Waiting]:
        """The next batch: what waits, as far as the limits go."""
        limit = self._record.settings.max_batch
        taken: list[_Waiting] = []
        count = size = 0
        while self._waiting:
            first = self._waiting[0]
            more = len(first.operations)
            if taken and (count + more > limit or size + first.weight > MAX_BATCH_BYTES):
                break
            taken.append(self._waiting.popleft())
            count += more
            size += first.weight
        self._taken += count
        self._taken_bytes += size
        return taken

    # On the loop again.

    def _deliver(
        self,
        taken: Sequence[_Waiting],
        answers: Sequence[Answer],
        error: BaseException | None,
        last: bool,
    ) -> None:
        start = 0
        for waiting in taken:
            stop = start + len(waiting.operations)
            if not waiting.answer.done():
                if error is not None:
                    waiting.answer.set_exception(_copy(error))
                else:
                    waiting.answer.set_result([*answers[start:stop]])
            start = stop
        self._tell()
        if last:
            self._rest()

    def _rest(self) -> None:
        self._running = False
        self._tell()
        if self._waiting:
            self._start()

    def _tell(self) -> None:
        """Wake whoever waits for the batch to be answered."""
        if self._delivered is not None:
            self._delivered.set_result(None)
            self._delivered = None

    async def drain(self) -> None:
        """Take nothing more and wait until everything that waits has its answer."""
        self._closed = True
        while self._running:
            await self.turned()
            await asyncio.sleep(0)

    async def turned(self) -> None:
        """Wait until the batch that is under way, if one is, has been answered."""
        if not self._running:
            return
        if self._delivered is None:
            self._delivered = asyncio.get_running_loop().create_future()
        await asyncio.wait([self._delivered])


def _weight(operations: Sequence[Operation]) -> int:
    if len(operations) == 1:
        return len(operations[0].body)
    return sum([len(operation.body) for operation in operations])


def _copy(error: BaseException) -> Exception:
    """An exception of its own for each caller: one object raised in many tasks grows tracebacks."""
    if isinstance(error, UnrewindError):
        return type(error)(error.detail, **error.members)
    if isinstance(error, Exception):
        return error
    return JournalUnavailable(f"the turn was ended by {type(error).__name__}: {error}")
