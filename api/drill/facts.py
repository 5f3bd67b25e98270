"""Facts: store, journal and receiver's record as they are kept, past everything that judges them.

Plain SQL and plain hashes. What is read here is compared with what callers were told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct

from journal.driving import drive
from journal.errors import EngineError
from journal.log.engine import SqlLog
from journal.places import LogPlace, StorePlace
from journal.sql import Database, Statement
from journal.sqlite import Database as SqliteDatabase

_ENTRIES = (
    "SELECT stream, entity, revision, operation, lower(hex(digest)), CAST(envelope AS BLOB), body"
    " FROM entries ORDER BY position"
)
_WORK = (
    "SELECT id, lane, effect, entity, operation, status, owner, due, step, receipt, finished,"
    " version FROM unrewind_work"
)
Where = Path | StorePlace | LogPlace
"""A database file, or where a tenant's store or journal is."""
_OVER = frozenset({"done", "refused", "cancelled", "drained", "discarded"})


class Held(Struct, frozen=True):
    """An entry as the journal's file holds it; ``whole`` says that it hashes to its digest."""

    stream: str
    entity: str
    revision: int
    operation: str
    digest: str
    action: str
    release: str | None
    whole: bool


class Row(Struct, frozen=True):
    """A row of work."""

    id: str
    lane: str
    effect: str
    entity: str | None
    operation: str | None
    status: str
    owner: str | None
    due: str | None
    step: str
    receipt: str | None
    finished: str | None
    version: str | None

    @property
    def over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status in _OVER


@contextmanager
def opened(where: Where, *, read_only: bool = True) -> Iterator[Database]:
    """A database, past everything that judges it. Raises EngineError."""
    if isinstance(where, Path):
        database: Database = SqliteDatabase(where, read_only=read_only)
    else:
        engine = where.open(read_only=read_only)
        database = engine.database
        if isinstance(engine, SqlLog):
            drive(engine.look())  # a copy of a stream follows it when it is asked where that is
    try:
        yield database
    finally:
        database.close()


def rows_of(where: Where, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Rows of a database, opened read-only. Raises EngineError."""
    with opened(where) as database:
        return database.read([Statement(sql, parameters)])[0]


def alter(where: Where, *statements: str) -> None:
    """Change a database behind unrewind's back, as a faulty migration does."""
    with opened(where, read_only=False) as database:
        database.batch([Statement(sql) for sql in statements])


def copy(path: Path, target: Path) -> None:
    """A consistent copy of a database file, beside whoever writes to it."""
    database = SqliteDatabase(path, read_only=True)
    try:
        database.copy_to(target)
    finally:
        database.close()


def journal_holds(where: Where, digest: str) -> bool:
    """Whether an entry of this digest is in the journal's file now."""
    sql = "SELECT count(*) FROM entries WHERE digest = ?"
    return bool(rows_of(where, sql, bytes.fromhex(digest))[0][0])


def entries(where: Where) -> list[Held]:
    """Every entry of the journal, in its order."""
    return [_held(row) for row in rows_of(where, _ENTRIES)]


def _held(row: tuple[Any, ...]) -> Held:
    stream, entity, revision, operation, digest, text, body = row
    whole = sha256(b"\0" + bytes(text)).hexdigest() == digest
    try:
        action = str(json.loads(text)["action"])
    except (ValueError, KeyError, TypeError):
        action, whole = "unreadable", False
    release = None
    if action.startswith("release."):
        try:
            release = json.loads(body).get("release")
        except (ValueError, AttributeError):
            whole = False
    return Held(stream, entity, revision, operation, digest, action, release, whole)


def work(where: Where) -> dict[str, Row]:
    """Every row of work in the store, by ID."""
    return {row[0]: Row(*row) for row in rows_of(where, _WORK)}


def head(where: Where, entity: str) -> tuple[int, str, str] | None:
    """Revision, digest and state of an entity's row in the store."""
    sql = "SELECT revision, lower(hex(digest)), state FROM unrewind_entities WHERE entity = ?"
    rows = rows_of(where, sql, entity)
    return None if not rows else (rows[0][0], rows[0][1], rows[0][2])


def newest(where: Where) -> int:
    """The last sequence in the journal."""
    sql = "SELECT coalesce(max(sequence), 0) FROM entries WHERE stream = 'decisions'"
    found: int = rows_of(where, sql)[0][0]
    return found


def calls(record: Path, kind: str = "call") -> list[dict[str, Any]]:
    """The whole lines of the receiver's record of this kind."""
    return [line for line in _lines(record) if line["kind"] == kind]


def _lines(record: Path) -> Iterator[dict[str, Any]]:
    if record.exists():
        for line in record.read_bytes().rpartition(b"\n")[0].splitlines():
            yield json.loads(line)


def readable(where: Where) -> bool:
    """Whether a database can be read at all."""
    try:
        rows_of(where, "SELECT 1")
    except EngineError:
        return False
    return True
