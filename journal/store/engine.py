"""A store over an SQL database: what every engine shares."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from journal.errors import EngineError, Refused
from journal.formats import FIRST
from journal.sql import Batch, Database, Result, Stamp


class SqlStore(ABC):
    """A ``Store`` whose calls block and never suspend; run it in a ``Worker``."""

    weaker: Mapping[str, str] = {}
    """What this engine, as it is set up, promises less than ours; by name, with the reason."""

    _asked: Batch = ()
    _answers: Sequence[Result] = ()

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

    def ask_ahead(self, statements: Batch, *, idle: bool) -> None:
        """Ask now what ``read`` will be asked next, in this order, in one call or several.

        ``idle``: something else is on its way meanwhile. An engine that answers at once waits for
        nothing, and asks ahead only then. Raises nothing: who asks again finds out.
        """
        self.forget()
        if not idle:
            return
        try:
            self._answers = self.database.read(statements)
        except EngineError:
            return
        self._asked = statements

    def forget(self) -> None:
        """Want no answer to what was asked ahead."""
        self._asked = self._answers = ()

    def _answered(self, asked: Batch) -> list[Result] | None:
        """What was asked ahead, where it is these statements that come next; once."""
        count = len(asked)
        if not count or [*self._asked[:count]] != [*asked]:
            return None
        results, self._answers = self._answers[:count], self._answers[count:]
        self._asked = self._asked[count:]
        return [*results]

    def is_left_behind(self) -> bool:
        """Whether a newer store has taken this one's place, where opening anew leads to.

        Only a server can be left behind by its successor. Raises Unreachable.
        """
        return False

    async def read(self, statements: Batch) -> list[Result]:
        """See ``Store.read``."""
        self.database.check_identity()
        if self._asked:
            found = self._answered(statements)
            if found is not None:
                return found
            self.forget()
        return self.database.read(statements)

    async def batch(self, statements: Batch) -> None:
        """See ``Store.batch``."""
        self.forget()
        self.database.check_identity()
        self.database.batch(statements, fenced=True)

    def stamp(self) -> Stamp:
        """The database as it stands now. Raises FileChanged."""
        return self.database.check_identity()

    async def close(self) -> None:
        """See ``Store.close``."""
        self.database.close()
