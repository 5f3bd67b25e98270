"""The embedded journal: one SQLite file, in another directory than the store's."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from journal.errors import EngineError
from journal.log.engine import DROPPED, SqlLog
from journal.sql import Statement
from journal.sqlite import Database

_HAS_INDEX = Statement("SELECT count(*) FROM sqlite_master WHERE name = 'dropped'")
_HAS_CALLERS = Statement("SELECT EXISTS (SELECT 1 FROM chains)")
_IN_ORDER = "FROM entries WHERE sequence IS NOT NULL AND stream"


def schema() -> str:
    """The journal's tables."""
    return files("journal.log").joinpath("schema.sql").read_text(encoding="utf-8")


class SqliteLog(SqlLog):
    """One file."""

    database: Database

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        super().__init__(Database(path, schema=schema() if create else None, read_only=read_only))
        self._indexed = create
        if not (create or read_only):
            self._create_tables()

    def _create_tables(self) -> None:
        """Add the tables that a journal of an earlier release lacks, where it can be written."""
        with suppress(EngineError):
            if self._dropped() != DROPPED:
                with self.database.transaction():
                    for statement in schema().split(";\n\n"):
                        if "TABLE IF NOT EXISTS dropped" in statement:
                            self.database.run(Statement(statement))

    def _dropped(self) -> str:
        """Whether an entry is dropped, in SQL; a journal without that index has none."""
        if not self._indexed:
            self._indexed = bool(self.database.read([_HAS_INDEX])[0][0][0])
        return DROPPED if self._indexed else "0"

    async def count_decisions(self, through: int) -> int:
        """See ``Log.count_decisions``.

        By what is left out, where that is little: SQLite counts a whole table by its pages, without
        a look at any row. Entries without a sequence, which no index tells, are callers' alone.
        """
        self.database.check_identity()
        callers, last = self.database.read(
            [
                _HAS_CALLERS,
                Statement(f"SELECT coalesce(max(sequence), 0) {_IN_ORDER} = 'decisions'"),
            ]
        )
        if callers[0][0] or last[0][0] > 2 * through:
            return await super().count_decisions(through)
        every, *others = self.database.read(
            [
                Statement("SELECT count(*) FROM entries"),
                Statement(f"SELECT count(*) {_IN_ORDER} < 'decisions'"),
                Statement(f"SELECT count(*) {_IN_ORDER} > 'decisions'"),
                Statement(
                    f"SELECT count(*) {_IN_ORDER} = 'decisions' AND sequence > ?", (through,)
                ),
            ]
        )
        left: int = every[0][0] - sum(rows[0][0] for rows in others)
        return left
