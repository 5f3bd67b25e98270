"""Engines that fail at a chosen moment: real files, with an error put in around a real commit."""

from __future__ import annotations

from collections.abc import Callable

from journal.errors import EngineError
from journal.log import Append, Look
from journal.log.sqlite import SqliteLog
from journal.record import Record
from journal.sql import Batch, Result
from journal.store.sqlite import SqliteStore


class FaultyLog(SqliteLog):
    """A journal whose next appends raise, ``before`` their commit or ``after`` it."""

    before: list[EngineError]
    after: list[EngineError]

    async def append(self, append: Append, expects: Look) -> None:
        if self.before:
            raise self.before.pop(0)
        await super().append(append, expects)
        if self.after:
            raise self.after.pop(0)


class FaultyStore(SqliteStore):
    """A store whose next batches raise, ``before`` their commit or ``after`` it.

    ``reads`` holds what the next reads raise, None for nothing; ``meanwhile`` holds what others do
    between a batch's read and its commit.
    """

    before: list[EngineError]
    after: list[EngineError]
    reads: list[EngineError | None]
    meanwhile: list[Callable[[], object]]

    async def read(self, statements: Batch) -> list[Result]:
        error = self.reads.pop(0) if self.reads else None
        if error is not None:
            raise error
        return await super().read(statements)

    async def batch(self, statements: Batch) -> None:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        if self.before:
            raise self.before.pop(0)
        await super().batch(statements)
        if self.after:
            raise self.after.pop(0)


def fail_log(
    record: Record,
    *,
    before: list[EngineError] | None = None,
    after: list[EngineError] | None = None,
) -> FaultyLog:
    """Put a faulty journal in the place of the record's own, over the same file."""
    assert record.log is not None
    record.log.database.close()
    log = FaultyLog(record.settings.journal_file)
    log.before, log.after = before or [], after or []
    record.log = log
    return log


def fail_store(
    record: Record,
    *,
    before: list[EngineError] | None = None,
    after: list[EngineError] | None = None,
) -> FaultyStore:
    """Put a faulty store in the place of the record's own, over the same file."""
    assert record.store is not None
    record.store.database.close()
    store = FaultyStore(record.settings.store_file)
    store.before, store.after = before or [], after or []
    store.reads, store.meanwhile = [], []
    record.store = store
    return store
