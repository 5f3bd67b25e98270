"""What the contract suite needs of an engine besides its port: making, breaking, looking.

A second engine is a second class here; where it differs by nature it says so in ``differences``,
and the tests of those clauses assert the difference instead of skipping.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from journal.control import fold
from journal.decrees import founding
from journal.log import CONTROL, Append, Look
from journal.log.sqlite import SqliteLog
from journal.store import tables
from journal.store.sqlite import SqliteStore
from journal.store.tables import Marker
from tests.support.sealing import HISTORY, MOMENT

NO_LOOK = Look(0, None, None, 0, flawed=False)


class Engine(Protocol):
    """An engine under test: the two ports, opened over something of its own."""

    differences: frozenset[str]

    def store(self, marker: Marker) -> SqliteStore:
        """A new store that stands at ``marker``."""

    def same_store(self, *, read_only: bool = False) -> SqliteStore:
        """The same store by another connection."""

    async def log(self) -> SqliteLog:
        """A new log that holds its founding."""

    def same_log(self, *, read_only: bool = False) -> SqliteLog:
        """The same log by another connection."""

    def replace_store(self) -> None:
        """Put a copy in the store's place, as a restore does."""

    def replace_log(self) -> None:
        """Put a copy in the log's place."""

    def run(self, port: SqliteStore | SqliteLog, sql: str, *parameters: Any) -> list[Any]:
        """SQL behind the port's back."""


class Sqlite:
    """SQLite for store and log: a file each."""

    differences: frozenset[str] = frozenset()

    def __init__(self, folder: Path) -> None:
        self.store_file = folder / "store" / "main.db"
        self.log_file = folder / "journal" / "main.db"

    def store(self, marker: Marker) -> SqliteStore:
        made = SqliteStore(self.store_file, create=True)
        made.database.batch([tables.found(marker)])
        return made

    def same_store(self, *, read_only: bool = False) -> SqliteStore:
        return SqliteStore(self.store_file, read_only=read_only)

    async def log(self) -> SqliteLog:
        made = SqliteLog(self.log_file, create=True)
        entry = founding("main", "production", "j" * 32, HISTORY, "control-1", MOMENT)
        force = fold([entry], "main").authority
        await made.append(Append(entries=[(CONTROL, entry)], becomes=force), NO_LOOK)
        return made

    def same_log(self, *, read_only: bool = False) -> SqliteLog:
        return SqliteLog(self.log_file, read_only=read_only)

    def replace_store(self) -> None:
        _replace(self.store_file)

    def replace_log(self) -> None:
        _replace(self.log_file)

    def run(self, port: SqliteStore | SqliteLog, sql: str, *parameters: Any) -> list[Any]:
        return port.database.connection.execute(sql, parameters).fetchall()


def _replace(file: Path) -> None:
    copy = file.with_name("copy.db")
    shutil.copyfile(file, copy)
    copy.replace(file)


ENGINES: dict[str, Callable[[Path], Engine]] = {"sqlite": Sqlite}
