"""Where blocking engines run: one aiosqlite connection's thread, a whole coroutine at a time.

The write path is written once, as coroutines over ports. SQLite's ports never suspend, so such a
coroutine can be driven to its end inside one thread: read, judge, commit and append in a single hop
instead of one each. Engines that do suspend are awaited on the event loop as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiosqlite

from journal.driving import drive
from journal.sqlite import in_memory

__all__ = ["Worker", "drive"]

T = TypeVar("T")


class Worker(aiosqlite.Connection):
    """An aiosqlite connection whose thread runs whole coroutines over databases of its own.

    Work is done in the order in which it was given. The connection that aiosqlite itself holds is
    an empty one in memory: a tenant's files are opened, replaced and closed by its ``Record``.
    """

    def __init__(self) -> None:
        super().__init__(in_memory, iter_chunk_size=64)

    def submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in the thread; the future is done on the event loop."""
        if not self._running or self._connection is None:
            raise RuntimeError("the worker is closed")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._tx.put_nowait((future, function))
        return future

    def send(self, function: Callable[[], None]) -> None:
        """Run a function in the thread that tells by itself when it has ended."""
        if not self._running or self._connection is None:
            raise RuntimeError("the worker is closed")
        self._tx.put_nowait((None, function))

    def wanted(self) -> bool:
        """Whether more work waits for the thread."""
        return not self._tx.empty()

    async def run(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Drive ``function(*args)`` in the thread. A cancelled caller does not cancel the work."""
        return await asyncio.shield(self.submit(lambda: drive(function(*args))))
