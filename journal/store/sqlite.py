"""The embedded store: one SQLite file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from journal.formats import FIRST, fence_of
from journal.sql import Statement
from journal.sqlite import Database
from journal.store.engine import SqlStore


def schema() -> str:
    """The store's tables."""
    return files("journal.store").joinpath("schema.sql").read_text(encoding="utf-8")


_HAS_WORK = Statement(
    "SELECT count(*) FROM sqlite_master WHERE name GLOB 'unrewind_*'"
    " AND name NOT GLOB 'unrewind_needs_*'"
)
_TABLES = schema().count("IF NOT EXISTS unrewind_")


class SqliteStore(SqlStore):
    """One file."""

    database: Database

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        super().__init__(Database(path, schema=schema() if create else None, read_only=read_only))

    def create_tables(self) -> None:
        """See ``SqlStore.create_tables``."""
        if self.database.read([_HAS_WORK])[0][0][0] < _TABLES:
            self.database.connection.executescript(f"BEGIN IMMEDIATE;\n{schema()}\nCOMMIT;")

    def require(self, needs: int) -> None:
        """See ``SqlStore.require``."""
        name, trigger = fence_of(needs)
        if needs > FIRST:
            known = Statement("SELECT count(*) FROM sqlite_master WHERE name = ?", (name,))
            if not self.database.read([known])[0][0][0]:
                self.database.batch([Statement(trigger)])
        self.needs = needs

    def copy_to(self, target: Path) -> None:
        """See ``SqlStore.copy_to``: a file."""
        self.database.copy_to(target)
