"""The embedded journal: one SQLite file, in another directory than the store's."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from journal.acceptance import Place
from journal.control import Authority, Stage
from journal.entry import read
from journal.errors import Damaged
from journal.history import Flaw, Head, Link, link_of
from journal.log import (
    PAGE_BYTES,
    Append,
    EntityChain,
    FlawKey,
    FlawRow,
    HeadPage,
    JournalHead,
    Look,
    Moved,
    Rival,
    Row,
)
from journal.sql import Result, Rows, Statement
from journal.sqlite import Database

_COLUMNS = (
    "position, stream, sequence, lower(hex(history)), entity, revision, operation,"
    " lower(hex(digest)), CAST(envelope AS BLOB), body"  # a flipped bit may leave no text
)
_FROM = f"SELECT {_COLUMNS} FROM entries"
_LOOK = Statement(
    "SELECT coalesce((SELECT max(position) FROM entries), 0),"
    " a.history, a.generation, a.stage, a.first, a.digest,"
    " lower(hex(t.history)), t.sequence, lower(hex(t.digest)),"
    " coalesce((SELECT max(sequence) FROM entries WHERE stream = 'control'"
    "   AND sequence IS NOT NULL), 0),"
    " EXISTS (SELECT 1 FROM flaws)"
    " FROM (SELECT 1) LEFT JOIN authority a LEFT JOIN (SELECT history, sequence, digest"
    "   FROM entries WHERE stream = 'decisions' AND sequence IS NOT NULL"
    "   ORDER BY sequence DESC LIMIT 1) t"
)
_HEADS = """
WITH RECURSIVE named (entity) AS (
  SELECT min(entity) FROM entries WHERE entity > ?
  UNION ALL
  SELECT (SELECT min(entity) FROM entries WHERE entity > named.entity)
    FROM named WHERE named.entity IS NOT NULL LIMIT ?
)
SELECT e.entity, e.revision, lower(hex(e.digest)),
  CASE WHEN json_valid(e.envelope) THEN json_extract(e.envelope, '$.outcome.data') END, e.stream
FROM named JOIN entries e ON e.position = (
  SELECT position FROM entries WHERE entity = named.entity
  ORDER BY revision DESC, position DESC LIMIT 1)
ORDER BY e.entity
"""


def schema() -> str:
    """The journal's tables."""
    return files("journal.log").joinpath("schema.sql").read_text(encoding="utf-8")


def row_of(row: tuple[Any, ...]) -> Row:
    """A ``Row`` from the columns of ``_FROM``."""
    position, stream, sequence, history, entity, revision, operation, digest, text, body = row
    return Row(
        position,
        stream,
        sequence,
        history,
        entity,
        revision,
        operation,
        digest,
        bytes(text),
        bytes(body),
    )


def look_of(rows: Result) -> Look:
    """A ``Look`` from the row of ``_LOOK``."""
    (
        position,
        history,
        generation,
        stage,
        first,
        base,
        last_history,
        last_sequence,
        last_digest,
        control,
        flawed,
    ) = rows[0]
    authority = None
    if history is not None:
        authority = Authority(history, generation, Stage(stage), first, base)
    last = None
    if last_sequence is not None:
        last = Place(last_history, 0, last_sequence, last_digest)
    return Look(position, authority, last, control, bool(flawed))


class SqliteLog:
    """A ``Log`` whose calls block and never suspend; run it in a ``Worker``."""

    def __init__(self, path: Path, *, create: bool = False, read_only: bool = False) -> None:
        self.database = Database(path, schema=schema() if create else None, read_only=read_only)

    def _query(self, sql: str, *parameters: Any) -> Result:
        self.database.check_identity()
        return self.database.read([Statement(sql, parameters)])[0]

    def _rows(self, sql: str, *parameters: Any) -> list[Row]:
        return [row_of(row) for row in self._query(sql, *parameters)]

    def _page(self, sql: str, *parameters: Any) -> list[Row]:
        """Rows as far as PAGE_BYTES go; the rest is never read."""
        self.database.check_identity()
        try:
            return self._fill(sql, parameters)
        except Damaged:
            if self.database.tolerant:
                raise
            self.database.tolerate()
            return self._fill(sql, parameters)

    def _fill(self, sql: str, parameters: tuple[Any, ...]) -> list[Row]:
        rows: list[Row] = []
        size = 0
        for found in self.database.stream(Statement(sql, parameters)):
            row = row_of(found)
            rows.append(row)
            size += len(row.text) + len(row.body)
            if size >= PAGE_BYTES:
                break
        return rows

    async def look(self) -> Look:
        """See ``Log.look``."""
        self.database.check_identity()
        return look_of(self.database.read([_LOOK])[0])

    async def append(self, append: Append, expects: Look) -> None:
        """See ``Log.append``."""
        self.database.check_identity()
        statements = _statements(append, expects.position)
        with self.database.transaction():
            found = look_of(self.database.read([_LOOK])[0])
            if found != expects:
                raise Moved(
                    f"the journal stands at position {found.position}, "
                    f"not {expects.position}, or its control has changed"
                )
            for statement in statements:
                self.database.run(statement)

    async def control(self) -> list[Row]:
        """See ``Log.control``."""
        return self._rows(
            f"{_FROM} WHERE stream = 'control' AND sequence IS NOT NULL ORDER BY sequence"
        )

    async def operations(self, ids: Sequence[str]) -> list[Row]:
        """See ``Log.operations``."""
        return self._rows(
            f"{_FROM} WHERE operation IN (SELECT value FROM json_each(?))",
            msgspec.json.encode(ids).decode(),
        )

    async def decisions(self, after: int, limit: int) -> list[Row]:
        """See ``Log.decisions``."""
        return self._page(
            f"{_FROM} WHERE stream = 'decisions' AND sequence > ? ORDER BY sequence LIMIT ?",
            after,
            limit,
        )

    async def count_decisions(self, through: int) -> int:
        """See ``Log.count_decisions``."""
        rows = self._query(
            "SELECT count(*) FROM entries WHERE stream = 'decisions' AND sequence <= ?", through
        )
        count: int = rows[0][0]
        return count

    async def place(self, sequence: int) -> Place | None:
        """See ``Log.place``."""
        rows = self._query(
            "SELECT lower(hex(history)), lower(hex(digest)) FROM entries"
            " WHERE stream = 'decisions' AND sequence = ?",
            sequence,
        )
        return Place(rows[0][0], 0, sequence, rows[0][1]) if rows else None

    async def history(self, entity: str, first: int, last: int, limit: int) -> list[Row]:
        """See ``Log.history``."""
        return self._page(
            f"{_FROM} WHERE entity = ? AND revision BETWEEN ? AND ?"
            " ORDER BY revision, position LIMIT ?",
            entity,
            first,
            last,
            limit,
        )

    async def links(self, entity: str, first: int, last: int) -> list[tuple[Link, str]]:
        """See ``Log.links``. One body at a time is in memory."""
        self.database.check_identity()
        sql = f"{_FROM} WHERE entity = ? AND revision BETWEEN ? AND ? ORDER BY revision, position"
        found: list[tuple[Link, str]] = []
        for values in self.database.stream(Statement(sql, (entity, first, last))):
            row = row_of(values)
            envelope = row.entry().envelope
            found.append((link_of(envelope, row.digest), envelope.outcome.state))
        return found

    async def newest(self, entity: str) -> Row | None:
        """See ``Log.newest``."""
        rows = self._rows(
            f"{_FROM} WHERE entity = ? ORDER BY revision DESC, position DESC LIMIT 1", entity
        )
        return rows[0] if rows else None

    async def heads(self, after: str, limit: int) -> HeadPage:
        """See ``Log.heads``."""
        rows = self._query(_HEADS, after, limit)
        heads = [
            JournalHead(entity, revision, digest, data)
            for entity, revision, digest, data, stream in rows
            if stream == "decisions"
        ]
        return HeadPage(heads, rows[-1][0] if len(rows) == limit else None)

    async def chain(self, entity: str) -> EntityChain | None:
        """See ``Log.chain``."""
        rows = self._query(
            "SELECT entity, revision, history, digest, state, newest FROM chains WHERE entity = ?",
            entity,
        )
        return _chain_of(rows[0]) if rows else None

    async def chains(self, kind: str | None, after: str, limit: int) -> list[EntityChain]:
        """See ``Log.chains``."""
        low, high = ("", "\U0010ffff") if kind is None else (f"{kind}/", f"{kind}0")
        rows = self._query(
            "SELECT entity, revision, history, digest, state, newest FROM chains"
            " WHERE entity > ? AND entity >= ? AND entity < ? ORDER BY entity LIMIT ?",
            after,
            low,
            high,
            limit,
        )
        return [_chain_of(row) for row in rows]

    async def flaws(self, entity: str | None, after: FlawKey, limit: int) -> list[FlawRow]:
        """See ``Log.flaws``."""
        rows = self._query(
            "SELECT entity, flaw, first, last, digests, through, holds, since, detail FROM flaws"
            " WHERE (entity, first, flaw, digests) > (?, ?, ?, ?)"
            + ("" if entity is None else " AND entity = ?")
            + " ORDER BY entity, first, flaw, digests LIMIT ?",
            *after,
            *(() if entity is None else (entity,)),
            limit,
        )
        return [
            FlawRow(
                name,
                Flaw(flaw),
                first,
                last,
                tuple(msgspec.json.decode(digests)),
                through,
                holds,
                since,
                detail,
            )
            for name, flaw, first, last, digests, through, holds, since, detail in rows
        ]

    async def count_flaws(self) -> int:
        """See ``Log.count_flaws``."""
        count: int = self._query("SELECT count(*) FROM flaws")[0][0]
        return count

    async def flawed(self) -> dict[str, int]:
        """See ``Log.flawed``."""
        return dict(self._query("SELECT entity, min(through) FROM flaws GROUP BY entity"))

    async def rivals(self, entity: str) -> list[Rival]:
        """See ``Log.rivals``."""
        return [
            Rival(read(text.encode(), bytes(body)), stored, seen)
            for text, body, stored, seen in self._query(
                "SELECT envelope, body, stored, seen FROM rivals WHERE entity = ? ORDER BY number",
                entity,
            )
        ]

    async def feed(self, after: int, limit: int) -> list[Row]:
        """See ``Log.feed``."""
        return self._page(f"{_FROM} WHERE position > ? ORDER BY position LIMIT ?", after, limit)

    async def at(self, position: int) -> Row | None:
        """See ``Log.at``."""
        rows = self._rows(f"{_FROM} WHERE position = ?", position)
        return rows[0] if rows else None

    async def place_in(self, stream: str, history: str, sequence: int) -> str | None:
        """See ``Log.place_in``."""
        rows = self._query(
            "SELECT lower(hex(digest)) FROM entries"
            " WHERE stream = ? AND sequence = ? AND history = ?",
            stream,
            sequence,
            bytes.fromhex(history),
        )
        return rows[0][0] if rows else None

    async def stream(self, stream: str, after: int, limit: int) -> list[Row]:
        """See ``Log.stream``."""
        return self._page(
            f"{_FROM} WHERE stream = ? AND sequence > ? ORDER BY sequence LIMIT ?",
            stream,
            after,
            limit,
        )

    async def last_in(self, stream: str) -> int:
        """See ``Log.last_in``."""
        rows = self._query(
            "SELECT coalesce(max(sequence), 0) FROM entries"
            " WHERE stream = ? AND sequence IS NOT NULL",
            stream,
        )
        last: int = rows[0][0]
        return last

    async def close(self) -> None:
        """See ``Log.close``."""
        self.database.close()


def _chain_of(row: tuple[Any, ...]) -> EntityChain:
    entity, revision, history, digest, state, newest = row
    return EntityChain(entity, Head(revision, history, digest), state, newest)


def _statements(append: Append, position: int) -> list[Statement | Rows]:
    statements: list[Statement | Rows] = []
    if append.entries:
        statements.append(_insert_entries(append, position))
    if append.rivals:
        statements.append(_insert_rivals(append))
    if append.becomes is not None:
        force = append.becomes
        statements.append(
            Statement(
                "INSERT INTO authority (one, history, generation, stage, first, digest)"
                " VALUES (1,?,?,?,?,?) ON CONFLICT (one) DO UPDATE SET history = excluded.history,"
                " generation = excluded.generation, stage = excluded.stage,"
                " first = excluded.first, digest = excluded.digest",
                (force.history, force.generation, str(force.stage), force.first, force.digest),
            )
        )
    if append.settled:
        statements.append(
            Statement(
                "DELETE FROM flaws WHERE entity IN (SELECT value FROM json_each(?))",
                (msgspec.json.encode(append.settled).decode(),),
            )
        )
    if append.flaws:
        statements.append(_insert_flaws(append))
    if append.chains:
        statements.append(_upsert_chains(append))
    return statements


def _insert_entries(append: Append, position: int) -> Rows:
    return Rows(
        "INSERT INTO entries (position, stream, sequence, history, entity, revision, operation,"
        " digest, envelope, body) VALUES {rows}",
        [
            (
                number,
                stream,
                entry.envelope.sequence,
                bytes.fromhex(entry.envelope.history),
                entry.envelope.entity,
                entry.envelope.revision,
                entry.envelope.operation,
                bytes.fromhex(entry.digest),
                entry.text.decode(),
                entry.body,
            )
            for number, (stream, entry) in enumerate(append.entries, position + 1)
        ],
    )


def _insert_rivals(append: Append) -> Rows:
    return Rows(
        "INSERT INTO rivals (entity, stored, seen, digest, envelope, body) VALUES {rows}"
        " ON CONFLICT (digest) DO NOTHING",
        [
            (
                rival.entry.envelope.entity,
                rival.stored,
                rival.seen,
                rival.entry.digest,
                rival.entry.text.decode(),
                rival.entry.body,
            )
            for rival in append.rivals
        ],
    )


def _insert_flaws(append: Append) -> Rows:
    return Rows(
        "INSERT INTO flaws (entity, flaw, first, last, digests, through, holds, since, detail)"
        " VALUES {rows} ON CONFLICT DO NOTHING",
        [
            (
                flaw.entity,
                str(flaw.flaw),
                flaw.first,
                flaw.last,
                msgspec.json.encode(flaw.digests).decode(),
                flaw.durable_through,
                flaw.holds,
                flaw.since,
                flaw.detail,
            )
            for flaw in append.flaws
        ],
    )


def _upsert_chains(append: Append) -> Rows:
    return Rows(
        "INSERT INTO chains (entity, revision, history, digest, state, newest) VALUES {rows}"
        " ON CONFLICT (entity) DO UPDATE SET revision = excluded.revision,"
        " history = excluded.history, digest = excluded.digest, state = excluded.state,"
        " newest = excluded.newest",
        [
            (
                chain.entity,
                chain.boundary.revision,
                chain.boundary.history,
                chain.boundary.digest,
                chain.state,
                chain.newest,
            )
            for chain in append.chains
        ],
    )
