"""The application's rows by an SQL query of its own, beside what unrewind has of each entity.

Both sides come from one statement and so from one moment: a decision that commits meanwhile is in
both or in neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from journal.acceptance import EntityHead
from journal.errors import ConstraintFailed, EngineError, Invalid, JournalUnavailable
from journal.inside.adopting import Pair, existing_of
from journal.record import Record
from journal.sql import Projected
from journal.sqlite import Database

_MINE = """
WITH mine (entity, state, version, data) AS (
{query}
)
"""
_PAIRS = """
SELECT CAST(m.entity AS {text}), CAST(m.state AS {text}), CAST(m.version AS {text}),
  CAST(m.data AS {text}), e.revision, e.state, e.version, e.data
FROM mine m LEFT JOIN {entities} e ON e.entity = CAST(m.entity AS {text}){collate}
"""
_EXTRA = """
SELECT e.entity FROM {entities} e WHERE e.entity NOT IN (
  SELECT CAST(m.entity AS {text}){collate} FROM mine m WHERE m.entity IS NOT NULL)
ORDER BY e.entity
"""


class Query:
    """A query that gives entity, state, version and data, over the store's own database.

    Made by ``opened``; it reads on a connection of its own, and writes nothing.
    """

    def __init__(self, database: Any, query: str) -> None:
        self._database = database
        embedded = isinstance(database, Database)
        schema = "" if embedded else f"{database.where.quoted}."
        self._words = {
            "text": "TEXT",
            "entities": f"{schema}unrewind_entities",
            "collate": "" if embedded else ' COLLATE "C"',
        }
        self._mine = _MINE.replace("{query}", query.strip().rstrip(";"))

    def _stream(self, sql: str) -> Iterator[tuple[Any, ...]]:
        whole = self._mine + sql.format(**self._words)
        try:
            yield from self._database.stream(Projected(whole))
        except (ConstraintFailed, EngineError) as error:
            raise Invalid(
                f"the query fails: {error.detail}; it must give exactly entity, state, version, "
                "data, where the last two may be NULL"
            ) from error

    def pairs(self) -> Iterator[Pair]:
        """Each row with what unrewind has of its entity."""
        for *row, revision, state, version, data in self._stream(_PAIRS):
            found = existing_of(row)
            head = None
            if revision is not None:
                head = EntityHead(str(row[0]), revision, "", "", 0, state, version, data)
            yield found, head

    def extra(self) -> Iterator[str]:
        """Entities of which no row tells."""
        for (entity,) in self._stream(_EXTRA):
            yield entity


@contextmanager
def opened(record: Record, query: str) -> Iterator[Query]:
    """The query over the record's store, on a connection that reads alone."""
    if not query.strip():
        raise Invalid("the query is empty", field="query")
    try:
        store = record.store_place.open(read_only=True)
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be read: {error}") from error
    try:
        yield Query(store.database, query)
    finally:
        store.database.close()
