"""The writer: group commit for one tenant in one process.

Operations that arrive while a batch is under way wait and form the next one. The first of an idle
writer goes at once: lingering to fill a batch was measured and gains nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from journal.acceptance import Operation
from journal.errors import JournalUnavailable, Overloaded, UnrewindError
from journal.record import Record
from journal.worker import Worker, drive
from journal.writepath import Answer, turn

MAX_BATCH_BYTES = 16 * 1024 * 1024


class _Waiting(Struct):
    operations: Sequence[Operation]
    answer: asyncio.Future[list[Answer]]


class Writer:
    """Collects operations and runs turns in the worker's thread, one at a time."""

    def __init__(self, record: Record, worker: Worker) -> None:
        self._record = record
        self._worker = worker
        self._waiting: deque[_Waiting] = deque()
        self._count = 0
        self._busy: asyncio.Future[list[Answer]] | None = None
        self._closed = False

    def submit(self, operations: Sequence[Operation]) -> asyncio.Future[list[Answer]]:
        """Queue operations; the future has one answer or refusal for each, in order.

        The future fails as a whole with Recovering, JournalUnavailable, WriterStopped or LockHeld.
        A caller that is cancelled does not cancel the batch. Raises Overloaded when too much waits.
        """
        settings = self._record.settings
        if self._closed:
            raise Overloaded("the service is stopping")
        if self._count + len(operations) > settings.max_waiting and self._count:
            raise Overloaded(f"{self._count} operations wait already", waiting=self._count)
        answer: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(operations, answer))
        self._count += len(operations)
        if self._busy is None:
            self._start()
        return answer

    def _start(self) -> None:
        limit = self._record.settings.max_batch
        taken: list[_Waiting] = []
        operations: list[Operation] = []
        size = 0
        while self._waiting:
            group = self._waiting[0].operations
            weight = sum(len(operation.body) for operation in group)
            full = len(operations) + len(group) > limit or size + weight > MAX_BATCH_BYTES
            if taken and full:
                break
            size += weight
            taken.append(self._waiting.popleft())
            operations.extend(group)
        self._count -= len(operations)
        try:
            self._busy = self._worker.submit(lambda: drive(turn(self._record, operations)))
        except RuntimeError as error:
            for waiting in taken:
                waiting.answer.set_exception(JournalUnavailable(f"the writer ended: {error}"))
            return
        self._busy.add_done_callback(lambda done: self._finish(done, taken))

    def _finish(self, done: asyncio.Future[list[Answer]], taken: Sequence[_Waiting]) -> None:
        self._busy = None
        error = done.exception()
        answers = [] if error is not None else done.result()
        if self._waiting:
            self._start()
        start = 0
        for waiting in taken:
            stop = start + len(waiting.operations)
            if not waiting.answer.done():
                if error is not None:
                    waiting.answer.set_exception(_copy(error))
                else:
                    waiting.answer.set_result(answers[start:stop])
            start = stop

    async def drain(self) -> None:
        """Take nothing more and wait until everything that waits has its answer."""
        self._closed = True
        await self.idle()

    async def idle(self) -> None:
        """Wait until no batch is under way."""
        while self._busy is not None:
            await asyncio.wait([self._busy])
            await asyncio.sleep(0)


def _copy(error: BaseException) -> BaseException:
    """An exception of its own for each caller: one object raised in many tasks grows tracebacks."""
    if isinstance(error, UnrewindError):
        return type(error)(error.detail, **error.members)
    return error
