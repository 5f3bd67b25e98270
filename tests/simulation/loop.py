"""An event loop in virtual time, and the thread beside it that a tenant's work runs in."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Any, TypeVar

from aiosqlite.core import _connection_worker_thread

from journal.worker import Worker
from tests.simulation import machine
from tests.simulation.hub import Fiber

T = TypeVar("T")


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that waits by letting other fibers run; it belongs to the one that runs it."""

    def __init__(self) -> None:
        super().__init__()
        self._fiber: Fiber | None = None
        self._selector = self
        self._tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _loop, _context: None)

    def time(self) -> float:
        """See ``AbstractEventLoop.time``."""
        return machine.hub().now

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end in the present fiber."""
        self._fiber = machine.hub().current
        return self.run_until_complete(work)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any] | Generator[Any]
    ) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=loop)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)  # the loop alone does not keep what waits
        if len(self._tasks) > 64:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    # What BaseEventLoop asks of a selector.

    def select(self, timeout: float | None) -> list[Any]:
        """Wait for so long, or until another fiber calls."""
        if timeout is not None and timeout <= 0:
            machine.hub().pause()
        else:
            machine.hub().wait(timeout)
        return []

    def _process_events(self, _events: list[Any]) -> None:
        """There are none: nothing here is a socket."""

    def _write_to_self(self) -> None:
        if self._fiber is not None:
            machine.hub().wake(self._fiber)

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """See ``AbstractEventLoop.run_in_executor``: in a fiber of its own."""
        future: asyncio.Future[T] = self.create_future()

        def run() -> None:
            carry_out(self, future, lambda: function(*args))

        hub = machine.hub()
        hub.spawn(machine.process(), "executor", run)
        return future


def carry_out(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[T], function: Callable[[], T]
) -> None:
    """Run a function, and tell the loop how it ended."""
    try:
        result = function()
    except Exception as error:  # noqa: BLE001 - told to who waits
        loop.call_soon_threadsafe(_fail, future, error)
    else:
        loop.call_soon_threadsafe(_succeed, future, result)


def _fail(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


class _Queue:
    """``queue.SimpleQueue`` between fibers."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self._waiting: Fiber | None = None

    def put_nowait(self, item: Any) -> None:
        self._items.append(item)
        if self._waiting is not None:
            machine.hub().wake(self._waiting)

    def get(self) -> Any:
        while not self._items:
            self._waiting = machine.hub().current
            machine.hub().wait()
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items


class FiberWorker(Worker):
    """A tenant's thread as a fiber; everything else of it is as it is."""

    def __init__(self) -> None:
        super().__init__()
        self._tx = _Queue()  # type: ignore[assignment]
        run = partial(_connection_worker_thread, self._tx)
        self._thread = machine.Thread(run, "worker")  # type: ignore[assignment]
