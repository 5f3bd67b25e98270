"""The one place that opens SQLite.

A ``Database`` is one file in WAL mode with ``synchronous=FULL``. Its calls block;
``journal.worker`` runs them in a thread. Errors of SQLite leave here as the project's own, by
their result code.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any
from urllib.parse import quote

from journal.errors import (
    ConstraintFailed,
    Damaged,
    DiskFailed,
    EngineError,
    FenceFailed,
    FileChanged,
    Unreachable,
)
from journal.sql import Batch, Projected, Result, Rows, Stamp, Statement

CHECKPOINT_PAGES = 4000
CACHE_KIB = 65_536
NAMELESS_KIB = 8192
BUSY_MS = 5000
CHUNK = 64
"""Rows in one INSERT. More gains nothing, and each size costs a prepared statement."""
_COPIES = 3
_BY_EFFECTIVE_ID = os.access in os.supports_effective_ids
SIDE_FILES = ("-wal", "-shm", "-journal")
_FAULTS_OF_STATEMENTS = frozenset(
    {
        sqlite3.SQLITE_ERROR,  # syntax, and tables or columns that are not there
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_RANGE,
    }
)
_PRAGMAS = (
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
    "PRAGMA recursive_triggers=ON",  # without it INSERT OR REPLACE slips past no-delete triggers
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
    "PRAGMA temp_store=MEMORY",
    f"PRAGMA cache_size=-{CACHE_KIB}",
    f"PRAGMA wal_autocheckpoint={CHECKPOINT_PAGES}",
)


_UNDECODABLE = "decode to UTF-8"
"""In what the driver says of text that is none; it has no code for it."""


def _decode_damaged(raw: bytes) -> str:
    return raw.decode(errors="replace")


def stamp_of(path: Path | str) -> Stamp | None:
    """The file's stamp (device, inode, size, times in ns), or None when there is no file."""
    try:
        found = os.stat(path)  # noqa: PTH116 - twice as fast as Path.stat, and called in each batch
    except OSError:
        return None
    return Stamp((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns))


def size_of(path: Path) -> int:
    """The file's size in bytes; 0 when there is no file."""
    stamp = stamp_of(path)
    return 0 if stamp is None else stamp.parts[2]


def in_memory() -> sqlite3.Connection:
    """An empty database that no file holds: for a thread that wants a connection of its own."""
    return sqlite3.connect(":memory:")


def nameless() -> sqlite3.Connection:
    """An empty database in a temporary file without a name: it is gone when closed or killed."""
    connection = sqlite3.connect("", isolation_level=None)
    connection.execute(f"PRAGMA cache_size=-{NAMELESS_KIB}")
    return connection


def sync_directory(path: Path) -> None:
    """Make a directory's entries durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_directory(path: Path) -> None:
    """A directory and those above it, as far as they are missing; their names are durable."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)
    path.mkdir(exist_ok=True)


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.resolve()))}?mode={mode}"


@lru_cache(maxsize=1024)
def _expand(sql: str, width: int, count: int) -> str:
    row = "(" + ",".join("?" * width) + ")"
    return sql.replace("{rows}", ",".join([row] * count))


class Database:
    """One SQLite file, opened for reading and writing or read-only.

    ``schema`` is applied when the file is created or empty; without one the file must exist. A
    reader that may not write beside the file, as SQLite's readers do, reads a copy of it instead.
    Raises Unreachable, Damaged or DiskFailed.
    """

    def __init__(self, path: Path, *, schema: str | None = None, read_only: bool = False) -> None:
        self.path = path
        self.label = f"{path.parent.name}/{path.name}"
        self.read_only = read_only
        created = not path.exists()
        if created and schema is None:
            raise Unreachable(f"{path}: no such file")
        if created:
            make_directory(path.parent)
        self._copy: TemporaryDirectory[str] | None = None
        mode = "ro" if read_only else "rwc" if schema is not None else "rw"
        try:
            self._connect(path, mode, schema, created=created)
        except Unreachable:
            if not read_only or os.access(path.parent, os.W_OK, effective_ids=_BY_EFFECTIVE_ID):
                raise
            self._connect_copy()
        found = stamp_of(path)
        if found is None:
            self.connection.close()
            raise FileChanged(f"{path}: the file went away while it was opened")
        self._identity = found.parts[:2]
        self._name = str(path)  # for `stat`, which takes it without a call back into Python
        self.failed: str | None = None
        self.tolerant = False

    def _connect(self, file: Path, mode: str, schema: str | None, *, created: bool) -> None:
        with translated(self.path):
            self.connection = sqlite3.connect(
                _uri(file, mode),
                uri=True,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=4 * CHUNK,
                timeout=BUSY_MS / 1000,
            )
            try:
                self._prepare(schema, created=created)
            except BaseException:
                self.connection.close()
                raise

    def _connect_copy(self) -> None:
        """Read a copy in a directory of our own, as the file and its log were at one moment.

        The directory goes with this object. Raises Unreachable when they keep changing meanwhile.
        """
        wal = self.path.with_name(self.path.name + "-wal")
        for _ in range(_COPIES):
            copy = TemporaryDirectory(prefix="unrewind-")
            target = Path(copy.name) / self.path.name
            before = (stamp_of(self.path), stamp_of(wal))
            try:
                shutil.copyfile(self.path, target)
                if before[1] is not None:
                    shutil.copyfile(wal, target.with_name(wal.name))
                if before == (stamp_of(self.path), stamp_of(wal)):
                    self._connect(target, "ro", None, created=False)
                    self._copy = copy
                    return
            except OSError as error:
                raise Unreachable(f"{self.path}: it cannot be copied to be read: {error}") from None
            finally:
                if self._copy is None:
                    copy.cleanup()
        raise Unreachable(f"{self.path}: it changes while it is copied to be read")

    def _prepare(self, schema: str | None, *, created: bool) -> None:
        for pragma in _PRAGMAS:
            self.connection.execute(pragma)
        if self.read_only:
            self.connection.execute("PRAGMA query_only=ON")
            self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return
        self.connection.execute("PRAGMA journal_mode=WAL")
        if schema is not None:
            self.connection.executescript(f"BEGIN IMMEDIATE;\n{schema}\nCOMMIT;")
        if created:
            sync_directory(self.path.parent)

    def check_identity(self) -> Stamp:
        """The file's stamp. Raises FileChanged when the path names another file than was opened."""
        found = stamp_of(self._name)
        if found is None or found.parts[:2] != self._identity:
            raise FileChanged(f"{self.path}: another file stands under this path than was opened")
        return found

    def read(self, statements: Batch) -> list[Result]:
        """Run queries in one transaction; one result each."""
        with translated(self.path):
            if len(statements) == 1 or self.connection.in_transaction:
                return [self.run(statement) for statement in statements]
            connection = self.connection
            connection.execute("BEGIN")
            try:
                return [self.run(statement) for statement in statements]
            finally:
                # After an I/O error SQLite has rolled back by itself, and its error is the cause.
                if connection.in_transaction:
                    connection.execute("COMMIT")

    def stream(self, statement: Statement) -> Iterator[tuple[Any, ...]]:
        """Rows of one query as they are read; memory does not grow with their number."""
        with translated(self.path):
            yield from self.connection.execute(statement.sql, statement.parameters)

    def seen_through(self) -> tuple[int, int]:
        """Equal ones mean that nobody wrote to the file in between: others, or this connection.

        What others wrote is told by the same counter by which SQLite lets go of the pages that it
        has cached, so a query in between would have had the same answer.
        """
        with translated(self.path):
            version: int = self.connection.execute("PRAGMA data_version").fetchone()[0]
        return version, self.connection.total_changes

    def transaction(self) -> AbstractContextManager[None]:
        """A write transaction. Nothing is left behind when the block or the commit fails.

        After a DiskFailed there is no other one until the file is opened anew.
        """
        return _Transaction(self)

    def batch(self, statements: Batch, *, fenced: bool = False) -> None:
        """Run statements in one transaction; all or none.

        With ``fenced`` the first statement is the fence: its constraint failing is FenceFailed, any
        other is ConstraintFailed.
        """
        index = 0
        try:
            with self.transaction():
                for index, statement in enumerate(statements):  # noqa: B007 - read below
                    self.run(statement)
                index = len(statements)
        except ConstraintFailed as error:
            if fenced and index == 0:
                raise FenceFailed(str(error)) from None
            raise

    def run(self, statement: Statement | Rows) -> Result:
        """Run one statement inside the caller's ``transaction``.

        Raises ConstraintFailed when the application's own statement is at fault.
        """
        if isinstance(statement, Projected):
            return self._run_projected(statement)
        if isinstance(statement, Statement):
            try:
                return self.connection.execute(statement.sql, statement.parameters).fetchall()
            except sqlite3.OperationalError as error:
                if _UNDECODABLE not in str(error):
                    raise
                self.tolerate()
                return self.connection.execute(statement.sql, statement.parameters).fetchall()
        rows = statement.rows
        # One call for each CHUNK rows and one for the rest: in a busy server each call may wait for
        # the interpreter lock, and the statements of every size are prepared once and kept.
        for start in range(0, len(rows), CHUNK):
            part = rows[start : start + CHUNK]
            sql = _expand(statement.sql, len(part[0]), len(part))
            self.connection.execute(sql, tuple(chain.from_iterable(part)))
        return []

    def tolerate(self) -> None:
        """From now on show text that is not UTF-8: a flipped bit is to be named, not to stop us."""
        self.connection.text_factory = _decode_damaged
        self.tolerant = True

    def _run_projected(self, statement: Projected) -> Result:
        try:
            return self.connection.execute(statement.sql, statement.parameters).fetchall()
        except (sqlite3.Error, ArithmeticError, TypeError, ValueError) as error:
            code = getattr(error, "sqlite_errorcode", None)
            if isinstance(error, UnicodeDecodeError) or (
                code is not None and code & 0xFF not in _FAULTS_OF_STATEMENTS
            ):
                raise
            raise ConstraintFailed(str(error), projection=True) from error

    def roll_back(self) -> None:
        """End a transaction, if one is open, with nothing written."""
        if self.connection.in_transaction:
            try:
                self.connection.execute("ROLLBACK")
            except FAILURES:
                # SQLite has rolled back by itself after an I/O error; the first error is the news.
                return

    def copy_to(self, target: Path) -> None:
        """A consistent, synced copy of the file as of one moment."""
        with translated(self.path):
            copy = sqlite3.connect(target, isolation_level=None)
            try:
                self.connection.backup(copy)
                copy.execute("PRAGMA journal_mode=DELETE")
            finally:
                copy.close()
        sync_file(target)

    def close(self) -> None:
        """Close the file; a writer's close may checkpoint, so hold the tenant's lock."""
        with translated(self.path):
            self.connection.close()
        if self._copy is not None:
            self._copy.cleanup()


def sync_file(path: Path) -> None:
    """Make a file's content and its directory entry durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    sync_directory(path.parent)


class _Transaction:
    """See ``Database.transaction``. A class: a generator costs a turn thrice as much."""

    __slots__ = ("_database",)

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> None:
        if self._database.failed is not None:
            raise DiskFailed(f"not written to since this: {self._database.failed}")
        self._run("BEGIN IMMEDIATE")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        database = self._database
        if error is None:
            self._run("COMMIT")
            return
        database.roll_back()
        if isinstance(error, DiskFailed):
            database.failed = error.detail
        elif isinstance(error, FAILURES):
            raise self._told(error) from error

    def _run(self, sql: str) -> None:
        try:
            self._database.connection.execute(sql)
        except FAILURES as error:
            self._database.roll_back()
            raise self._told(error) from error
        except BaseException:
            self._database.roll_back()
            raise

    def _told(self, error: sqlite3.Error | UnicodeDecodeError) -> EngineError:
        told = _error_of(self._database.path, error)
        if isinstance(told, DiskFailed):
            self._database.failed = told.detail
        return told


class _Translated:
    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, FAILURES):
            raise _error_of(self._path, error) from error


def translated(path: Path) -> AbstractContextManager[None]:
    """Errors of SQLite as the project's own."""
    return _Translated(path)


FAILURES = (sqlite3.Error, UnicodeDecodeError)
"""What a call of SQLite's raises: the latter where its message quotes a name that is no text."""


def _error_of(path: Path, error: sqlite3.Error | UnicodeDecodeError) -> EngineError:
    if isinstance(error, UnicodeDecodeError):
        quoted = error.object.decode(errors="backslashreplace")
        return Damaged(f"{path.parent.name}/{path.name}: {quoted}", file=str(path))
    code = getattr(error, "sqlite_errorcode", None)
    primary = None if code is None else code & 0xFF
    detail = f"{path.parent.name}/{path.name}: {error}"
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return ConstraintFailed(str(error))
    if primary in {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL}:
        return DiskFailed(f"{detail} ({getattr(error, 'sqlite_errorname', '')})")
    if primary in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB} or (
        primary is None and _UNDECODABLE in detail  # the driver's own, without a code
    ):
        return Damaged(detail, file=str(path))
    if primary in {
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_AUTH,
        sqlite3.SQLITE_PROTOCOL,
    }:
        return Unreachable(detail)
    if primary == sqlite3.SQLITE_ERROR and "no such table" in str(error):
        return Damaged(detail, file=str(path))
    return EngineError(detail)
