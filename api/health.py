"""Readiness: whether a decision would be taken now, shown by a write (R13)."""

from __future__ import annotations

import asyncio
import time

from journal import Journal
from journal.errors import DiskFailed, EngineError, JournalUnavailable, UnrewindError
from journal.record import Record
from journal.standing import poison
from journal.store import tables
from journal.writepath import make_ready

_SECONDS = 1.0


class Health:
    """Checks readiness at most once a second, however many ask: asking needs no token."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._checking: asyncio.Task[UnrewindError | None] | None = None
        self._until = 0.0

    async def check(self) -> None:
        """Raises Recovering, JournalUnavailable, WriterStopped or LockHeld when it is not ready."""
        if self._checking is None or (self._checking.done() and time.monotonic() >= self._until):
            self._checking = asyncio.create_task(self._check())
        fault = await asyncio.shield(self._checking)
        if fault is not None:
            raise type(fault)(fault.detail, **fault.members)

    async def _check(self) -> UnrewindError | None:
        try:
            await self._journal.write(try_write)
        except UnrewindError as error:
            return error
        finally:
            self._until = time.monotonic() + _SECONDS
        return None


async def try_write(record: Record) -> None:
    """Do what every batch does around its decisions: compare, and move the marker, to where it is.

    Raises what ``make_ready`` does, WriterStopped or JournalUnavailable.
    """
    with record.lock.held():
        ready = await make_ready(record)
        try:
            await ready.store.batch(
                [tables.fence(ready.marker, ready.marker.place, ready.tip.sequence)]
            )
        except DiskFailed as error:
            raise poison(record, f"the store's commit failed: {error}") from error
        except EngineError as error:
            raise JournalUnavailable(f"the store cannot be written: {error}") from error
        record.saw()
