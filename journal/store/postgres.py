"""A store in a PostgreSQL database: one schema a tenant, beside the application's own tables."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from journal.formats import FIRST
from journal.postgres.ahead import EagerDatabase
from journal.postgres.aside import rename_schema
from journal.postgres.checks import Checks, check
from journal.postgres.copies import copy_to, put_back
from journal.postgres.database import Tables
from journal.postgres.ddl import filled, granted
from journal.postgres.newest import is_left_behind
from journal.postgres.where import STORE, schema_of, where
from journal.sql import Batch, Result, Statement
from journal.store.engine import SqlStore
from journal.store.tables import READ_MARKER

LANDMARK = "unrewind_marker"
_MARKER = Statement(READ_MARKER.sql.replace(" FROM ", ", CAST(CAST(xmin AS TEXT) AS BIGINT) FROM "))
_NEEDS = Statement("SELECT coalesce(max(format), 1) FROM unrewind_needs")


def schema() -> str:
    """The store's tables, with ``{schema}`` for the schema's name."""
    return files("journal.store").joinpath("postgres.sql").read_text(encoding="utf-8")


def tables(quoted: str) -> Tables:
    """What stands in the schema of a store."""
    return Tables(filled(schema(), quoted, LANDMARK), LANDMARK, "unrewind_fence")


class PostgresStore(SqlStore):
    """One schema of a server.

    With ``create`` its tables are made with the first rows, in one transaction. Raises
    SettingsInvalid for a URL that is none, Unreachable when the server does not answer or has no
    such schema.
    """

    database: EagerDatabase

    def __init__(
        self, url: str, tenant: str, *, create: bool = False, read_only: bool = False
    ) -> None:
        place = where(url, STORE, tenant)
        super().__init__(
            EagerDatabase(place, tables(place.quoted), create=create, read_only=read_only)
        )
        self._checks: Checks | None = None

    @classmethod
    def exists(cls, url: str, tenant: str) -> bool:
        """Whether there is such a store. Raises Unreachable when the server does not answer."""
        place = where(url, STORE, tenant)
        return EagerDatabase.is_made(place, tables(place.quoted))

    @classmethod
    def set_aside(cls, url: str, tenant: str, now: str) -> str | None:
        """Give the schema another name, whatever is in it; which. None: there is none.

        The role has to own it. Raises Unreachable or EngineError.
        """
        return rename_schema(where(url, STORE, tenant), now)

    @classmethod
    def ddl(cls, tenant: str, owner: str, writer: str) -> str:
        """The SQL by which an administrator makes a store's schema, with its owner kept apart."""
        schema = f'"{schema_of(STORE, tenant)}"'
        return granted(tables(schema).ddl, schema, owner, writer)

    @property
    def checks(self) -> Checks:
        """How the server is set up, as it was when this was first asked."""
        if self._checks is None:
            self._checks = check(self.database)
        return self._checks

    @property
    def weaker(self) -> Mapping[str, str]:  # type: ignore[override]
        """See ``SqlStore.weaker``."""
        return self.checks.weaker()

    def facts(self) -> dict[str, Any]:
        """See ``SqlStore.facts``."""
        return self.checks.facts()

    def is_left_behind(self) -> bool:
        """See ``SqlStore.is_left_behind``."""
        system, _, timeline, _ = self.database.server
        place = self.database.where
        return is_left_behind(place.connecting(), place.label, system, timeline)

    def create_tables(self) -> None:
        """See ``SqlStore.create_tables``."""
        self.database.complete()

    def require(self, needs: int) -> None:
        """See ``SqlStore.require``."""
        if needs > FIRST and self.database.read([_NEEDS])[0][0][0] < needs:
            self.database.batch(
                [
                    Statement(
                        "INSERT INTO unrewind_needs VALUES (?) ON CONFLICT DO NOTHING", (needs,)
                    )
                ]
            )
        self.needs = needs

    async def read(self, statements: Batch) -> list[Result]:
        """See ``Store.read``. Each call makes sure of the database in its own round trip.

        Whoever reads the marker begins a turn: the next fence holds for what no batch has changed
        since, also where it changed work alone.
        """
        asked = [_MARKER if statement is READ_MARKER else statement for statement in statements]
        results = self._answered(asked) if self._asked else None
        if results is None:
            self.forget()
            results = self.database.read(asked)
        for number, statement in enumerate(asked):
            if statement is _MARKER and results[number]:
                *marker, turn = results[number][0]
                results[number] = [tuple(marker)]
                self.database.turn = turn
        return results

    def ask_ahead(self, statements: Batch, *, idle: bool) -> None:  # noqa: ARG002
        """See ``SqlStore.ask_ahead``: they are on their way.

        The marker comes first: what changes after it was read makes the fence fail, so the rest
        need not be of the same moment.
        """
        self.forget()
        asked = [_MARKER if statement is READ_MARKER else statement for statement in statements]
        if self.database.ask_ahead(asked):
            self._asked = asked

    def _answered(self, asked: Batch) -> list[Result] | None:
        if not self._answers:
            answers = self.database.answers()
            if answers is None:
                return None
            self._answers = answers
        return super()._answered(asked)

    def copy_to(self, target: Path) -> None:
        """See ``SqlStore.copy_to``: a directory with a text file for each table."""
        copy_to(self.database, target)

    def put_back(self, source: Path) -> None:
        """Replace every row by those of such a copy, in one transaction."""
        put_back(self.database, source)
