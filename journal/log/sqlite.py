"""The embedded journal: one SQLite file, in another directory than the store's."""

from __future__ import annotations

from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from journal.acceptance import Place
from journal.errors import EngineError
from journal.log import DECISIONS, Append, Look
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
        self._seen: tuple[tuple[int, int], Look] | None = None
        self._next: tuple[tuple[int, int], Look] | None = None
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

    def _look(self) -> Look:
        """See ``SqlLog._look``: what the look before found, while nobody has written since."""
        through = self.database.seen_through()
        if self._seen is None or self._seen[0] != through:
            self._seen = through, super()._look()
        return self._seen[1]

    async def append(self, append: Append, expects: Look) -> None:
        """See ``Log.append``."""
        await super().append(append, expects)
        self._seen = self._next

    def _wrote(self, append: Append, before: Look) -> None:
        after = look_after(append, before)
        self._next = None if after is None else (self.database.seen_through(), after)

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


def look_after(append: Append, before: Look) -> Look | None:
    """Where a log stands after decisions alone were added; None: it has to be looked at."""
    streams = {stream for stream, _ in append.entries}
    if streams != {DECISIONS} or append != Append(entries=append.entries):
        return None
    envelope, digest = append.entries[-1][1].envelope, append.entries[-1][1].digest
    last = 0 if before.last is None else before.last.sequence
    if envelope.sequence is None or envelope.sequence <= last:
        return None
    place = Place(envelope.history, 0, envelope.sequence, digest)
    return Look(
        before.position + len(append.entries),
        before.authority,
        place,
        before.control,
        before.flawed,
    )
