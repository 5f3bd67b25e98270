"""A guest on a ``sqlite3.Connection``."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from journal.errors import Damaged, JournalUnavailable, Refused, Unreachable
from journal.record import Record
from journal.sql import Stamp, Statement
from journal.sqlite import Database, stamp_of, translated
from journal.store import tables
from journal.store.tables import Marker

_TAKE = Statement("DELETE FROM unrewind_marker WHERE 0")
"""Takes the file's write lock, and changes nothing."""

_OPENED = Statement("SELECT file FROM pragma_database_list WHERE name = 'main'")
_FULL = 2
_SAVEPOINT = "unrewind_inside"


class _Plain:
    """The connection with rows as tuples, whatever the application makes of its own."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor.execute(sql, parameters)

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction


class SqliteGuest(Database):
    """The application's connection to the store's file, inside its transaction."""

    def __init__(self, connection: sqlite3.Connection, file: Path) -> None:
        self.path = file
        self.label = f"{file.parent.name}/{file.name}"
        self.read_only = False
        self.tolerant = False
        self._application = connection
        self.connection = cast("sqlite3.Connection", _Plain(connection))

    @staticmethod
    def fits(found: Any) -> bool:
        """Whether this is a connection of the driver's."""
        return isinstance(found, sqlite3.Connection)

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """See ``Guest.borrowed``. Begins where the driver would with the first change."""
        before = self._application.text_factory
        self._application.text_factory = str
        try:
            with translated(self.path):
                self._begin()
                self.connection.execute(f"SAVEPOINT {_SAVEPOINT}")
            try:
                yield
            except BaseException:
                self._take_back()
                raise
            with translated(self.path):
                self.connection.execute(f"RELEASE {_SAVEPOINT}")
        finally:
            self._application.text_factory = before

    def _take_back(self) -> None:
        # After an I/O error SQLite has rolled back everything by itself.
        if self._application.in_transaction:
            with suppress(sqlite3.Error):
                self.connection.execute(f"ROLLBACK TO {_SAVEPOINT}")
                self.connection.execute(f"RELEASE {_SAVEPOINT}")

    def _begin(self) -> None:
        if not self._application.in_transaction:
            if self._application.isolation_level is None:
                raise Refused(
                    "no transaction is open in this connection: BEGIN IMMEDIATE first, so that the "
                    "decision commits with the rows it is about"
                )
            self.connection.execute("BEGIN IMMEDIATE")
        (level,) = self.connection.execute("PRAGMA synchronous").fetchone()
        if level < _FULL:
            raise Refused(
                "this connection commits without waiting for the disk, so a power failure would "
                "rewind the store: PRAGMA synchronous=FULL when it is opened"
            )

    def lock(self) -> Marker:
        """See ``Guest.lock``."""
        try:
            self.read([_TAKE])
            marker = tables.marker_of(self.read([tables.READ_MARKER])[0])
        except Unreachable as error:
            raise JournalUnavailable(
                f"the transaction cannot write: {error}; roll it back and run it again with the "
                "same operation ID (one that begins with BEGIN IMMEDIATE waits for its turn)"
            ) from error
        except Damaged as error:
            raise self._strange(str(error)) from error
        if marker is None:
            raise self._strange("its marker is missing")
        return marker

    def check_place(self, record: Record) -> None:
        """See ``Guest.check_place``: the file of the connection's path is the store's."""
        (opened,) = self.read([_OPENED])[0][0]
        found, wanted = stamp_of(Path(opened)), record.store_place.stamp()
        if not opened or found is None or wanted is None or found.parts[:2] != wanted.parts[:2]:
            raise self._strange(f"it is {opened or 'in memory'}")

    def _strange(self, why: str) -> Refused:
        return Refused(
            f"this connection's database is not the tenant's store ({why}): connect to "
            f"{self.path}, or let `unrewind adopt` put unrewind's tables into it"
        )

    def check_identity(self) -> Stamp:
        """Nothing to tell of a connection: the tenant's own record watches the file."""
        return stamp_of(self.path) or Stamp(())

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """The application's own."""
        with translated(self.path):
            yield

    def tolerate(self) -> None:
        """Nothing: the application's connection stays as it is."""
        self.tolerant = True

    def close(self) -> None:
        """Nothing: the connection is the application's."""
