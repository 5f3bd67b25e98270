"""What the contract suite needs of an engine besides its port: making, breaking, looking.

A second engine is a second class here; where it differs by nature it says so in ``differences``,
and the tests of those clauses assert the difference instead of skipping.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from journal.control import fold
from journal.decrees import founding
from journal.log import CONTROL, Append, Look
from journal.log.engine import SqlLog
from journal.log.postgres import PostgresLog
from journal.log.sqlite import SqliteLog
from journal.postgres.database import PostgresDatabase
from journal.postgres.dialect import translated
from journal.postgres.wire import Sent
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.postgres import PostgresStore
from journal.store.sqlite import SqliteStore
from journal.store.tables import Marker
from tests.support.postgres import PostgresServer
from tests.support.sealing import HISTORY, MOMENT

NO_LOOK = Look(0, None, None, 0, flawed=False)

TYPED = "typed columns"
"""A column holds nothing of another type than its own, so no row can be spoiled that way."""
BYTES = "envelopes as bytes"
"""A damaged envelope is kept as the bytes it is, where others keep text."""
FIRST_RELEASE = "no release before"
"""There is no journal without the index of what was dropped; one that lacks it is damaged."""


class Engine(Protocol):
    """An engine under test: the two ports, opened over something of its own."""

    differences: frozenset[str]
    changes: Mapping[str, str]
    """Every way in which SQL could change evidence, with `{table}` and its `{key}`."""

    def store(self, marker: Marker) -> SqlStore:
        """A new store that stands at ``marker``."""

    def same_store(self, *, read_only: bool = False) -> SqlStore:
        """The same store by another connection."""

    async def log(self) -> SqlLog:
        """A new log that holds its founding."""

    def same_log(self, *, read_only: bool = False) -> SqlLog:
        """The same log by another connection."""

    def replace_store(self) -> None:
        """Put a copy in the store's place, as a restore does."""

    def replace_log(self) -> None:
        """Put a copy in the log's place."""

    def drop_table(self, port: SqlStore | SqlLog, table: str) -> None:
        """Take one of our tables away, as an earlier release did not have it."""

    def unguard(self, log: SqlLog) -> None:
        """Take away what keeps entries as they are: the next change is a flipped bit."""

    def run(self, port: SqlStore | SqlLog, sql: str, *parameters: Any) -> list[Any]:
        """SQL behind the port's back."""


class Sqlite:
    """SQLite for store and log: a file each."""

    differences: frozenset[str] = frozenset()
    changes: Mapping[str, str] = {
        "update": "UPDATE {table} SET envelope = '{{}}'",
        "update of a column": "UPDATE {table} SET digest = x'00'",
        "delete": "DELETE FROM {table}",
        "insert or replace": "INSERT OR REPLACE INTO {table} SELECT * FROM {table}",
        "replace": "REPLACE INTO {table} SELECT * FROM {table}",
        "upsert": "INSERT INTO {table} SELECT * FROM {table} WHERE true"
        " ON CONFLICT DO UPDATE SET envelope = '{{}}'",
        "update or replace": "UPDATE OR REPLACE {table} SET envelope = 'x'",
    }

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
        await found(made)
        return made

    def same_log(self, *, read_only: bool = False) -> SqliteLog:
        return SqliteLog(self.log_file, read_only=read_only)

    def replace_store(self) -> None:
        _replace(self.store_file)

    def replace_log(self) -> None:
        _replace(self.log_file)

    def drop_table(self, port: SqlStore | SqlLog, table: str) -> None:
        self.run(port, f"DROP TABLE {table}")

    def unguard(self, log: SqlLog) -> None:
        for (trigger,) in self.run(log, "SELECT name FROM sqlite_master WHERE type = 'trigger'"):
            self.run(log, f"DROP TRIGGER {trigger}")

    def run(self, port: SqlStore | SqlLog, sql: str, *parameters: Any) -> list[Any]:
        assert isinstance(port, SqliteStore | SqliteLog)
        return port.database.connection.execute(sql, parameters).fetchall()


async def found(log: SqlLog) -> None:
    entry = founding("main", "production", "j" * 32, HISTORY, "control-1", MOMENT)
    force = fold([entry], "main").authority
    await log.append(Append(entries=[(CONTROL, entry)], becomes=force), NO_LOOK)


def _replace(file: Path) -> None:
    copy = file.with_name("copy.db")
    shutil.copyfile(file, copy)
    copy.replace(file)


_numbers = itertools.count(1)


class Postgres:
    """PostgreSQL for store and log: a schema each, and one for the application's tables."""

    differences = frozenset({TYPED, BYTES, FIRST_RELEASE})
    changes: Mapping[str, str] = {
        "update": "UPDATE {table} SET body = ''",
        "update of a row that there is not": "UPDATE {table} SET body = '' WHERE false",
        "delete": "DELETE FROM {table}",
        "truncate": "TRUNCATE {schema}.{table}",
        "upsert": "INSERT INTO {table} SELECT * FROM {table}"
        " ON CONFLICT ({key}) DO UPDATE SET body = ''",
        "merge": "MERGE INTO {table} AS t USING (SELECT 1) AS o ON true WHEN MATCHED THEN DELETE",
        "delete in a query": "WITH gone AS (DELETE FROM {table} RETURNING 1)"
        " SELECT count(*) FROM gone",
    }

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.tenant = f"t{os.getpid()}-{next(_numbers)}"
        application = f"app_{self.tenant.replace('-', '_')}"
        server.query(f"CREATE SCHEMA {application}")
        self.url = f"{server.url()}?options=-csearch_path%3D{application}"

    def store(self, marker: Marker) -> SqlStore:
        made = PostgresStore(self.url, self.tenant, create=True)
        try:
            made.database.batch([tables.found(marker)])
        except BaseException:
            made.database.close()
            raise
        return made

    def same_store(self, *, read_only: bool = False) -> SqlStore:
        return PostgresStore(self.url, self.tenant, read_only=read_only)

    async def log(self) -> SqlLog:
        made = PostgresLog(self.url, self.tenant, create=True)
        try:
            await found(made)
        except BaseException:
            made.database.close()
            raise
        return made

    def same_log(self, *, read_only: bool = False) -> SqlLog:
        return PostgresLog(self.url, self.tenant, read_only=read_only)

    def replace_store(self) -> None:
        self._replace(PostgresStore)

    def replace_log(self) -> None:
        self._replace(PostgresLog)

    def _replace(self, port: type[PostgresStore | PostgresLog]) -> None:
        """As a restored dump does."""
        opened = port(self.url, self.tenant)
        with TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            opened.copy_to(copy)
            opened.database.close()
            self.server.query(f"DROP SCHEMA {opened.database.where.quoted} CASCADE")
            made = port(self.url, self.tenant, create=True)
            made.put_back(copy)
            made.database.close()

    def drop_table(self, port: SqlStore | SqlLog, table: str) -> None:
        self.run(port, f"DROP TABLE {{schema}}.{table}")

    def unguard(self, log: SqlLog) -> None:
        self.run(log, "ALTER TABLE {schema}.entries DISABLE TRIGGER USER")

    def run(self, port: SqlStore | SqlLog, sql: str, *parameters: Any) -> list[Any]:
        database = port.database
        assert isinstance(database, PostgresDatabase)
        schema = database.where.quoted
        sql = translated(sql.replace("{schema}", schema), schema)
        return database._reading().send([Sent(sql, parameters)])[0]


ENGINES: dict[str, Callable[[Path, Callable[[], PostgresServer]], Engine]] = {
    "sqlite": lambda folder, _: Sqlite(folder),
    "postgresql": lambda _, server: Postgres(server()),
}
"""The engines that the contract suite runs against; a server is started for those that want it."""
