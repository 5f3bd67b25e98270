"""Applications with a table of their own, each by another way to its database."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

import django
import psycopg
import sqlalchemy
from django.conf import settings as django_settings
from django.db import connections, transaction

import journal
from journal.settings import Settings

PAYOUTS = (
    "CREATE TABLE payouts (id VARCHAR(40) PRIMARY KEY, state VARCHAR(40) NOT NULL,"
    " revision INTEGER NOT NULL)"
)
NOTES = (
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, payout VARCHAR(40) NOT NULL"
    " REFERENCES payouts (id) DEFERRABLE INITIALLY DEFERRED)"
)
TABLES = (PAYOUTS, NOTES)


class App(Protocol):
    """An application: its transactions, and what it hands to ``decide_in``."""

    connection: Any

    def transaction(self) -> AbstractContextManager[Any]:
        """Commits at its end, or rolls back when it raises."""

    def nested(self) -> AbstractContextManager[Any]:
        """A savepoint in the transaction."""

    def run(self, sql: str) -> None:
        """A statement in the transaction."""

    def close(self) -> None:
        """Let go of the connection."""


def put(app: App, payout: str, state: str, revision: int) -> None:
    """The application's own row of a payout, as its decision is."""
    app.run(f"DELETE FROM payouts WHERE id = '{payout}'")
    app.run(f"INSERT INTO payouts (id, state, revision) VALUES ('{payout}', '{state}', {revision})")


class Plain:
    """The driver alone: sqlite3 as it is shipped, or psycopg."""

    def __init__(self, settings: Settings) -> None:
        self.connection: Any
        if settings.store:
            self.connection = psycopg.connect(settings.store)
        else:
            self.connection = sqlite3.connect(settings.store_file)
            self.connection.execute("PRAGMA foreign_keys=ON")
            self.connection.row_factory = sqlite3.Row
            self.connection.text_factory = bytes

    def transaction(self) -> AbstractContextManager[Any]:
        if isinstance(self.connection, psycopg.Connection):
            return self.connection.transaction()
        return self._whole()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        with self.connection:
            yield

    @contextmanager
    def nested(self) -> Iterator[None]:
        self.run("SAVEPOINT mine")
        try:
            yield
        except BaseException:
            self.run("ROLLBACK TO SAVEPOINT mine")
            raise
        self.run("RELEASE SAVEPOINT mine")

    def run(self, sql: str) -> None:
        self.connection.execute(sql)

    def close(self) -> None:
        self.connection.close()


class Alchemy:
    """SQLAlchemy's session; ``begin`` is emitted as its manual says for SQLite."""

    def __init__(self, settings: Settings) -> None:
        url = settings.store
        if url:
            self._engine = sqlalchemy.create_engine(
                url.replace("postgresql://", "postgresql+psycopg://")
            )
        else:
            self._engine = sqlalchemy.create_engine(f"sqlite:///{settings.store_file}")
            sqlalchemy.event.listen(self._engine, "connect", _as_it_is)
            sqlalchemy.event.listen(self._engine, "begin", _begin)
        from sqlalchemy.orm import Session

        self._session = Session(self._engine)
        self.connection: Any = self._session

    def transaction(self) -> AbstractContextManager[Any]:
        return self._session.begin()

    def nested(self) -> AbstractContextManager[Any]:
        return self._session.begin_nested()

    def run(self, sql: str) -> None:
        self._session.execute(sqlalchemy.text(sql))

    def close(self) -> None:
        self._session.close()
        self._engine.dispose()


def _as_it_is(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys=ON")


def _begin(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


class Django:
    """Django's `atomic()` on a database alias of its own."""

    alias = "inside"

    def __init__(self, settings: Settings) -> None:
        if not django_settings.configured:
            django_settings.configure(DATABASES={"default": {}}, LOGGING_CONFIG=None, USE_TZ=True)
            django.setup()
        connections.databases[self.alias] = connections.configure_settings(
            {"default": {}, self.alias: _django(settings)}
        )[self.alias]
        self.connection: Any = connections[self.alias]

    def transaction(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self.alias)

    def nested(self) -> AbstractContextManager[Any]:
        return transaction.atomic(using=self.alias)

    def run(self, sql: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(sql)

    def close(self) -> None:
        self.connection.close()
        del connections[self.alias]
        del connections.databases[self.alias]


def _django(settings: Settings) -> dict[str, Any]:
    if settings.store is None:
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(settings.store_file)}
    where = psycopg.conninfo.conninfo_to_dict(settings.store)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": where["dbname"],
        "USER": where.get("user"),
        "PASSWORD": where.get("password"),
        "HOST": where["host"],
        "PORT": where["port"],
    }


APPS: dict[str, Callable[[Settings], App]] = {
    "plain": Plain,
    "sqlalchemy": Alchemy,
    "django": Django,
}


def rows_of(settings: Settings, sql: str = "SELECT id, state, revision FROM payouts") -> list[Any]:
    """What is committed of the application's rows, by a connection of its own."""
    if settings.store:
        with psycopg.connect(settings.store) as found:
            return sorted(found.execute(sql).fetchall())
    with closing(sqlite3.connect(Path(settings.store_file))) as base:
        return sorted(base.execute(sql).fetchall())


def operation(action: str, payout: str = "7", **fields: Any) -> journal.Operation:
    """An operation about a payout, whose ID names both."""
    fields.setdefault("operation", f"{payout}-{action}")
    return journal.Operation(entity=f"payout/{payout}", action=action, **fields)
