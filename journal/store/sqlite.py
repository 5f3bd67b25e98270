"""The embedded store: one SQLite file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from journal.formats import FIRST, fence_of
from journal.sql import Batch, Result, Statement
from journal.sqlite import Database, Stamp


def schema() -> str:
    """The store's tables."""
    return files("journal.store").joinpath("schema.sql").read_text(encoding="utf-8")


_HAS_WORK = Statement(
    "SELECT count(*) FROM sqlite_master WHERE name GLOB 'unrewind_*'"
    " AND name NOT GLOB 'unrewind_needs_*'"
)
_TABLES = schema().count("IF NOT EXISTS unrewind_")


class SqliteStore:
    """A ``Store`` whose calls block and never suspend; run it in a ``Worker``."""

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        self.database = Database(path, schema=schema() if create else None, read_only=read_only)
        self.needs = FIRST

    def create_tables(self) -> None:
        """Add the tables that the file lacks. Nothing is written when it has them all."""
        if self.database.read([_HAS_WORK])[0][0][0] < _TABLES:
            self.database.connection.executescript(f"BEGIN IMMEDIATE;\n{schema()}\nCOMMIT;")

    def require(self, needs: int) -> None:
        """Refuse writers of earlier formats from now on. Raises EngineError."""
        name, trigger = fence_of(needs)
        if needs > FIRST:
            known = Statement("SELECT count(*) FROM sqlite_master WHERE name = ?", (name,))
            if not self.database.read([known])[0][0][0]:
                self.database.batch([Statement(trigger)])
        self.needs = needs

    async def read(self, statements: Batch) -> list[Result]:
        """See ``Store.read``."""
        self.database.check_identity()
        return self.database.read(statements)

    async def batch(self, statements: Batch) -> None:
        """See ``Store.batch``."""
        self.database.check_identity()
        self.database.batch(statements, fenced=True)

    def stamp(self) -> Stamp:
        """The file as it stands under the path now. Raises FileChanged."""
        return self.database.check_identity()

    async def close(self) -> None:
        """See ``Store.close``."""
        self.database.close()
