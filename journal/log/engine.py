"""A log over an SQL database: what every engine shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from journal.acceptance import Place
from journal.control import Abandoned, Authority, Stage
from journal.entry import read
from journal.errors import Damaged, Invalid
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
from journal.log.writing import dropped_by, statements_of
from journal.sql import Database, Result, Statement

_COLUMNS = (
    "position, stream, sequence, history, entity, revision, operation,"
    " digest, CAST(envelope AS BLOB), body"  # a flipped bit may leave no text
)
DROPPED = (
    "CASE WHEN (SELECT EXISTS (SELECT 1 FROM dropped))"  # once a query, and mostly that is all
    " THEN EXISTS (SELECT 1 FROM dropped WHERE dropped.position = entries.position)"
    " ELSE false END"
)
LOOK = Statement(
    "SELECT coalesce((SELECT max(position) FROM entries), 0),"
    " a.history, a.generation, a.stage, a.first, a.digest,"
    " lower(hex(t.history)), t.sequence, lower(hex(t.digest)),"
    " coalesce((SELECT max(sequence) FROM entries WHERE stream = 'control'"
    "   AND sequence IS NOT NULL), 0),"
    " EXISTS (SELECT 1 FROM flaws)"
    " FROM (SELECT 1 AS one) AS o LEFT JOIN authority a ON true"
    " LEFT JOIN (SELECT history, sequence, digest FROM entries"
    "   WHERE stream = 'decisions' AND sequence IS NOT NULL ORDER BY sequence DESC LIMIT 1) t"
    " ON true"
)
_STAGES = frozenset(Stage)
_HEADS = """
WITH RECURSIVE named (entity) AS (
  SELECT min(entity) FROM entries WHERE entity > ?
  UNION ALL
  SELECT (SELECT min(entity) FROM entries WHERE entity > named.entity)
    FROM named WHERE named.entity IS NOT NULL LIMIT ?
)
SELECT named.entity, e.revision, lower(hex(e.digest)),
  CASE WHEN json_valid(e.envelope) THEN json_extract(e.envelope, '$.outcome.data') END, e.stream
FROM named LEFT JOIN entries e ON e.position = (
  SELECT position FROM entries WHERE entity = named.entity AND NOT {dropped}
  ORDER BY revision DESC, position DESC LIMIT 1)
WHERE named.entity IS NOT NULL
ORDER BY named.entity
"""


def row_of(row: tuple[Any, ...]) -> Row:
    """A ``Row`` from the columns of ``_from``."""
    (
        position,
        stream,
        sequence,
        history,
        entity,
        revision,
        operation,
        digest,
        text,
        body,
        dropped,
    ) = row
    if not (type(history) is type(digest) is type(text) is type(body) is bytes):
        history, digest, text, body = map(_as_bytes, (history, digest, text, body))
    return Row(
        position,
        stream,
        sequence,
        history.hex(),
        entity,
        revision,
        operation,
        digest.hex(),
        text,
        body,
        bool(dropped),
    )


def _as_bytes(value: Any) -> bytes:
    """A value as its bytes, where damage changed its type."""
    return value if isinstance(value, bytes) else str(value).encode()


def look_of(rows: Result) -> Look:
    """A ``Look`` from the row of ``LOOK``."""
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
        # A stage that this code does not know allows nothing; control then says why.
        known = Stage(stage) if stage in _STAGES else Stage.CLOSED
        authority = Authority(history, generation, known, first, base)
    last = None
    if last_sequence is not None:
        last = Place(last_history, 0, last_sequence, last_digest)
    return Look(position, authority, last, control, bool(flawed))


class SqlLog:
    """A ``Log`` whose calls block and never suspend; run it in a ``Worker``."""

    weaker: Mapping[str, str] = {}
    """What this engine, as it is set up, promises less than ours; by name, with the reason."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def facts(self) -> dict[str, Any]:
        """What `status` shows of the engine."""
        return {"engine": "sqlite"}

    def _dropped(self) -> str:
        """Whether an entry is dropped, in SQL."""
        return DROPPED

    def _from(self) -> str:
        return f"SELECT {_COLUMNS}, {self._dropped()} FROM entries"

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

    def ask_ahead(self, ids: Sequence[str]) -> bool:  # noqa: ARG002
        """Send for the next ``look``, and for ``operations`` of these right after it.

        Whether an answer is on its way: an engine that answers at once does nothing. Raises
        nothing: who asks again finds out.
        """
        return False

    def prepare(self, append: Append, expects: Look) -> None:
        """Get an append as far as it goes without counting; ``append`` makes it count.

        ``forget`` undoes it, and so does whatever else is asked of the log. Raises nothing.
        """

    def forget(self) -> None:
        """Undo what was prepared, and want no answer to what was asked ahead."""

    async def look(self) -> Look:
        """See ``Log.look``."""
        self.database.check_identity()
        return self._look()

    async def append(self, append: Append, expects: Look) -> None:
        """See ``Log.append``."""
        self.database.check_identity()
        statements = statements_of(append, expects.position)
        with self.database.transaction():
            found = self._look()
            if found != expects:
                raise Moved(
                    f"the journal stands at position {found.position}, "
                    f"not {expects.position}, or its control has changed"
                )
            for statement in statements:
                self.database.run(statement)
            self._wrote(append, expects)

    def _wrote(self, append: Append, before: Look) -> None:
        """Called at the end of an append, while nobody else can write."""

    def _look(self) -> Look:
        """Where the log stands, in the transaction that is open or in one of its own."""
        return look_of(self.database.read([LOOK])[0])

    async def control(self) -> list[Row]:
        """See ``Log.control``."""
        return self._rows(
            f"{self._from()} WHERE stream = 'control' AND sequence IS NOT NULL ORDER BY sequence"
        )

    async def operations(self, ids: Sequence[str]) -> list[Row]:
        """See ``Log.operations``."""
        self.database.check_identity()
        return [row_of(row) for row in self.database.read([self._named(ids)])[0]]

    def _named(self, ids: Sequence[str]) -> Statement:
        """What asks for ``operations``."""
        if len(ids) == 1:
            return Statement(f"{self._from()} WHERE operation = ?", (ids[0],))
        return Statement(
            f"{self._from()} WHERE operation IN (SELECT value FROM json_each(?))",
            (msgspec.json.encode(ids).decode(),),
        )

    async def decisions(self, after: int, limit: int) -> list[Row]:
        """See ``Log.decisions``."""
        return self._page(
            f"{self._from()} WHERE stream = 'decisions' AND sequence > ? ORDER BY sequence LIMIT ?",
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

    async def history(
        self, entity: str, first: int, last: int, limit: int, *, dropped: bool = False
    ) -> list[Row]:
        """See ``Log.history``."""
        kept = "" if dropped else f" AND NOT {self._dropped()}"
        return self._page(
            f"{self._from()} WHERE entity = ? AND revision BETWEEN ? AND ?{kept}"
            " ORDER BY revision, position LIMIT ?",
            entity,
            first,
            last,
            limit,
        )

    async def histories(self, firsts: Mapping[str, int], limit: int) -> list[Row]:
        """See ``Log.histories``."""
        entities = "json_each(?) v CROSS JOIN entries"
        return self._page(
            f"{self._from().replace('FROM entries', f'FROM {entities}')}"
            " ON entity = v.value ->> 0 AND revision >= CAST(v.value ->> 1 AS BIGINT)"
            f" WHERE NOT {self._dropped()} ORDER BY entity, revision, position LIMIT ?",
            msgspec.json.encode([*firsts.items()]).decode(),
            limit,
        )

    async def links(self, entity: str, first: int, last: int) -> list[tuple[Link, str]]:
        """See ``Log.links``. One body at a time is in memory."""
        self.database.check_identity()
        sql = (
            f"{self._from()} WHERE entity = ? AND revision BETWEEN ? AND ?"
            f" AND NOT {self._dropped()} ORDER BY revision, position"
        )
        found: list[tuple[Link, str]] = []
        for values in self.database.stream(Statement(sql, (entity, first, last))):
            row = row_of(values)
            envelope = row.entry().envelope
            found.append((link_of(envelope, row.digest), envelope.outcome.state))
        return found

    async def forks(self, entity: str) -> bool:
        """See ``Log.forks``."""
        rows = self._query(
            "SELECT EXISTS (SELECT 1 FROM entries WHERE entity = ?"
            f" AND NOT {self._dropped()} GROUP BY revision HAVING count(*) > 1)",
            entity,
        )
        return bool(rows[0][0])

    async def newest(self, entity: str) -> Row | None:
        """See ``Log.newest``."""
        rows = self._rows(
            f"{self._from()} WHERE entity = ? AND NOT {self._dropped()}"
            " ORDER BY revision DESC, position DESC LIMIT 1",
            entity,
        )
        return rows[0] if rows else None

    async def heads(self, after: str, limit: int) -> HeadPage:
        """See ``Log.heads``."""
        rows = self._query(_HEADS.format(dropped=self._dropped()), after, limit)
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
        return [_flaw_of(row) for row in rows]

    async def count_flaws(self) -> int:
        """See ``Log.count_flaws``."""
        count: int = self._query("SELECT count(*) FROM flaws")[0][0]
        return count

    async def flawed(self) -> dict[str, int]:
        """See ``Log.flawed``."""
        return dict(self._query("SELECT entity, min(through) FROM flaws GROUP BY entity"))

    async def rivals(self, entity: str) -> list[Rival]:
        """See ``Log.rivals``."""
        found: list[Rival] = []
        for digest, text, body, stored, seen in self._query(
            "SELECT digest, CAST(envelope AS BLOB), body, stored, seen FROM rivals"
            " WHERE entity = ? ORDER BY number",
            entity,
        ):
            try:
                found.append(Rival(read(bytes(text), bytes(body)), stored, seen))
            except Invalid as error:
                raise Damaged(f"a rival kept of {entity}, {digest[:12]}: {error}") from None
        return found

    async def feed(self, after: int, limit: int) -> list[Row]:
        """See ``Log.feed``."""
        return self._page(
            f"{self._from()} WHERE position > ? ORDER BY position LIMIT ?", after, limit
        )

    async def at(self, position: int) -> Row | None:
        """See ``Log.at``."""
        rows = self._rows(f"{self._from()} WHERE position = ?", position)
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
            f"{self._from()} WHERE stream = ? AND sequence > ? ORDER BY sequence LIMIT ?",
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

    def is_indexed(self, cuts: Iterable[Abandoned]) -> bool:
        """Whether the index of dropped entries is what these abandonments make it."""
        wanted: set[int] = set()
        for cut in cuts:
            wanted.update(position for (position,) in self.database.read([dropped_by(cut)])[0])
        return wanted == set(self.dropped())

    def dropped(self) -> list[int]:
        """The positions in the index of dropped entries."""
        if self._dropped() != DROPPED:
            return []
        return [position for (position,) in self._query("SELECT position FROM dropped")]

    async def close(self) -> None:
        """See ``Log.close``."""
        self.database.close()


def _flaw_of(row: tuple[Any, ...]) -> FlawRow:
    """A row of the index of flaws. Raises Damaged."""
    entity, flaw, first, last, digests, through, holds, since, detail = row
    try:
        named = msgspec.json.decode(digests, type=tuple[str, ...])
        return FlawRow(entity, Flaw(flaw), first, last, named, through, holds, since, detail)
    except (ValueError, msgspec.MsgspecError) as error:
        raise Damaged(f"the journal's index of flaws is damaged at {entity}: {error}") from None


def _chain_of(row: tuple[Any, ...]) -> EntityChain:
    entity, revision, history, digest, state, newest = row
    return EntityChain(entity, Head(revision, history, digest), state, newest)
