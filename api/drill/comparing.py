"""Comparing two files row by row, in the order of an index of each: memory stays flat."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

from api.drill import facts
from api.drill.notebook import moment
from journal.sql import Statement
from journal.sqlite import Database

MOST = 1000
"""Rows that are named at most."""

_JOURNALLED = (
    "SELECT sequence, lower(hex(digest)), operation FROM entries WHERE stream = 'decisions'"
    " AND position NOT IN (SELECT position FROM dropped) ORDER BY sequence"
)
_STORED = "SELECT sequence, lower(hex(digest)) FROM unrewind_decisions ORDER BY sequence"
_RELEASES = "SELECT id FROM unrewind_work WHERE effect = 'external' ORDER BY id"
_WAITING = (
    "SELECT count(*) FROM unrewind_work WHERE lane IN (SELECT value FROM json_each(?))"
    " AND finished IS NULL AND (status = 'running' OR due <= ?)"
)
_OWNED = (
    "SELECT coalesce(owner, ''), count(*) FROM unrewind_work WHERE finished IS NULL GROUP BY owner"
)


def decisions_lacking(journal: Path, store: Path) -> list[str]:
    """Operations of decisions that the journal holds in force and the store does not."""
    found = _only_in(journal, _JOURNALLED, store, _STORED, width=2)
    return [row[2] for row in found]


def releases_lacking(before: Path, store: Path) -> list[str]:
    """Releases that an earlier copy of the store has and the store does not."""
    return [row[0] for row in _only_in(before, _RELEASES, store, _RELEASES, width=1)]


def _only_in(
    one: Path, wanted: str, other: Path, held: str, *, width: int
) -> list[tuple[Any, ...]]:
    """Rows of one file whose first columns are not in the other one's; both in their order."""
    found: list[tuple[Any, ...]] = []
    with _rows(one, wanted) as first, _rows(other, held) as second:
        at = next(second, None)
        for row in first:
            key = row[:width]
            while at is not None and at[0] < key[0]:
                at = next(second, None)
            if at is None or at[:width] != key:
                found.append(row)
            if len(found) == MOST:
                break
    return found


@contextmanager
def _rows(path: Path, sql: str) -> Iterator[Iterator[tuple[Any, ...]]]:
    """The rows of a query, let go of before their file is."""
    with closing(Database(path, read_only=True)) as database:
        rows = cast("Generator[tuple[Any, ...], None, None]", database.stream(Statement(sql)))
        with closing(rows):
            yield rows


def waiting(store: Path, lanes: str) -> int:
    """How much work goes on by itself now, in lanes whose names are a JSON array."""
    found: int = facts.rows_of(store, _WAITING, lanes, moment())[0][0]
    return found


def unfinished(store: Path) -> dict[str, int]:
    """How much has not ended, by owner; nobody is the empty name."""
    return dict(facts.rows_of(store, _OWNED))


def done_before(store: Path, releases: set[str]) -> list[str]:
    """Those of these releases that an earlier copy of the store knew to be done."""
    sql = "SELECT status FROM unrewind_work WHERE id = ?"
    return sorted(name for name in releases if facts.rows_of(store, sql, name) == [("done",)])
