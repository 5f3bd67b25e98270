"""A store over an SQL database: what every engine shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from journal.formats import FIRST
from journal.sql import Batch, Database, Result, Stamp


class SqlStore(ABC):
    """A ``Store`` whose calls block and never suspend; run it in a ``Worker``."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.needs = FIRST

    @abstractmethod
    def create_tables(self) -> None:
        """Add the tables that the database lacks. Nothing is written when it has them all."""

    @abstractmethod
    def require(self, needs: int) -> None:
        """Refuse writers of earlier formats from now on. Raises EngineError."""

    @abstractmethod
    def copy_to(self, target: Path) -> None:
        """A consistent, durable copy of the database as of one moment."""

    async def read(self, statements: Batch) -> list[Result]:
        """See ``Store.read``."""
        self.database.check_identity()
        return self.database.read(statements)

    async def batch(self, statements: Batch) -> None:
        """See ``Store.batch``."""
        self.database.check_identity()
        self.database.batch(statements, fenced=True)

    def stamp(self) -> Stamp:
        """The database as it stands now. Raises FileChanged."""
        return self.database.check_identity()

    async def close(self) -> None:
        """See ``Store.close``."""
        self.database.close()
