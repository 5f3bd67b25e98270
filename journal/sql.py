"""Statements, and the database that runs them: D1's prepared statements, plus many rows in one.

A ``Statement`` is SQL text with its parameters. ``Rows`` is one INSERT over many rows, written once
with ``{rows}`` where its VALUES stand; the engine decides how many rows go into one call. The
language is SQLite's, which D1 shares; another engine translates it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from msgspec import Struct

Value = str | bytes | int | float | None


class Statement(Struct, frozen=True):
    """One SQL statement with its positional parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class Projected(Statement, frozen=True):
    """A statement of the application's: what is wrong with it is no fault of the database."""


class Fence(Statement, frozen=True):
    """A batch's first statement: moves the marker from ``expected`` to ``becomes``, or fails.

    ``sql`` says it in one statement, as D1 needs it; an engine may say it in another way.
    ``expected`` is history, generation, sequence, digest, instance, format, as they have to stand;
    ``becomes`` the writer's format, then history, generation, sequence, digest, journalled.
    """

    expected: tuple[Any, ...] = ()
    becomes: tuple[Any, ...] = ()


class Rows(Struct, frozen=True):
    """One INSERT of many rows; ``sql`` holds `{rows}` where the VALUES go."""

    sql: str
    rows: Sequence[tuple[Any, ...]]


Batch = Sequence[Statement | Rows]
Result = list[tuple[Any, ...]]


class Stamp(Struct, frozen=True):
    """A database as its system sees it: equal stamps mean that nobody put another in its place.

    Of a file: device, inode, size, times; equal ones mean too that nobody wrote to it. Of a server:
    what only a restart of the server, or new tables, change.
    """

    parts: tuple[int, ...]


class Database(Protocol):
    """An SQL engine. Its calls block; ``journal.worker`` runs them in a thread.

    All errors are the project's own. A commit whose outcome is unknown is DiskFailed where nobody
    can learn it before the file is opened anew, and Unreachable where the next look tells.
    """

    label: str
    read_only: bool
    tolerant: bool

    def check_identity(self) -> Stamp:
        """The stamp. Raises FileChanged when another database stands where one was opened."""

    def read(self, statements: Batch) -> list[Result]:
        """Run queries in one transaction; one result each."""

    def stream(self, statement: Statement) -> Iterator[tuple[Any, ...]]:
        """Rows of one query as they are read; memory does not grow with their number."""

    def transaction(self) -> AbstractContextManager[None]:
        """A write transaction that no other writer shares; all or nothing."""

    def batch(self, statements: Batch, *, fenced: bool = False) -> None:
        """Run statements in one transaction; all or none.

        With ``fenced`` the first statement is the fence: its failure is FenceFailed, any other one
        is ConstraintFailed.
        """

    def run(self, statement: Statement | Rows) -> Result:
        """Run one statement inside the caller's ``transaction``."""

    def tolerate(self) -> None:
        """From now on show damaged text instead of failing."""

    def close(self) -> None:
        """Let go of the database."""
