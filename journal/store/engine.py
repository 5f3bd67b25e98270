"""A store over an SQL database: what every engine shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from journal.errors import Refused
from journal.formats import FIRST
from journal.sql import Batch, Database, Result, Stamp


class SqlStore(ABC):
    """A ``Store`` whose calls block and never suspend; run it in a ``Worker``."""

    weaker: Mapping[str, str] = {}
    """What this engine, as it is set up, promises less than ours; by name, with the reason."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.needs = FIRST

    def facts(self) -> dict[str, Any]:
        """What `status` shows of the engine."""
        return {"engine": "sqlite"}

    @abstractmethod
    def create_tables(self) -> None:
        """Add the tables that the database lacks. Nothing is written when it has them all."""

    @abstractmethod
    def require(self, needs: int) -> None:
        """Refuse writers of earlier formats from now on. Raises EngineError."""

    @abstractmethod
    def copy_to(self, target: Path) -> None:
        """A consistent, durable copy of the database as of one moment."""

    def put_back(self, source: Path) -> None:
        """Replace every row by those of a copy, in one transaction. Raises Refused for a file."""
        raise Refused(f"{self.database.label} is a file: a copy takes its place, {source} does not")

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
