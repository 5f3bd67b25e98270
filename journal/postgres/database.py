"""A schema of a PostgreSQL server as a ``Database``.

Statements in SQLite's dialect are translated, and those of one call go out together. The
connection is made anew by itself when it broke: a read is then repeated once, a write never, since
nobody knows what became of it. Before a write on a new connection its caller looks again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any

from msgspec import Struct

from journal.errors import EngineError, FileChanged, Unreachable
from journal.postgres.ddl import FOUND, lacking
from journal.postgres.dialect import expanded, key_columns, numbered, translated
from journal.postgres.faults import error_of
from journal.postgres.greeting import confirm, greet
from journal.postgres.where import Where
from journal.postgres.wire import LIMIT, Failed, Sent, Wire
from journal.sql import Batch, Fence, Projected, Result, Rows, Stamp, Statement

SIZES = (64, 32, 16, 8, 4, 2, 1)
"""Rows in one INSERT: few sizes, so that each is prepared once."""
_BEGIN_READ = Sent("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_BEGIN_PROJECTED = Sent("BEGIN ISOLATION LEVEL REPEATABLE READ")
BEGIN = Sent("BEGIN ISOLATION LEVEL READ COMMITTED")
COMMIT = Sent("COMMIT")
ROLLBACK = Sent("ROLLBACK")
_REPLAN = Sent("DISCARD PLANS")
_COUNTING = "count(*)"
_PATIENTLY = Sent("SET LOCAL statement_timeout = 0")
"""Counting reads everything, and takes as long as there is to count; the server is alive then."""
_HERE = "SELECT oid, relfilenode FROM pg_catalog.pg_class WHERE oid = to_regclass($1)"
_PLANNED = 10.0
"""Seconds for which a plan is kept: it was made for tables of the size that they had then."""
_SAME = 3
"""How many parts of a stamp say which database it is; the others, whether it was put back."""


class Tables(Struct, frozen=True):
    """What stands in the schema: its DDL, and the table by which the schema is recognised."""

    ddl: str
    landmark: str
    fence: str


class PostgresDatabase:
    """One schema, opened for reading and writing or read-only.

    With ``create`` the schema may be missing: the first write makes it, in its own transaction, so
    that there is never a schema without its first rows. Without, it must be there. ``confirmed``:
    what is read here shall stand on the synchronous standbys too, also what was written before a
    restart. Raises Unreachable or Damaged.
    """

    _session: Mapping[str, int] = {}

    def __init__(
        self,
        where: Where,
        tables: Tables,
        *,
        create: bool = False,
        read_only: bool = False,
        confirmed: bool = False,
    ) -> None:
        self.where = where
        self.label = where.label
        self.read_only = read_only
        self.tolerant = False
        self._tables = tables
        self._landmark = f"{where.quoted}.{tables.landmark}"
        mode = {"default_transaction_read_only": "on"} if read_only else {}
        self._streaming = where.connecting(**mode, statement_timeout=0)
        # Every statement of ours has an index; what is known of a young table says otherwise.
        self._conninfo = where.connecting(**mode, **self._session, enable_seqscan="off")
        self._wire: Wire | None = None
        self._streams: list[Wire] = []
        self._confirmed = confirmed
        self._planned = monotonic()
        self._inside = False
        self._server: tuple[int, ...] = ()
        self._stamp: Stamp | None = None
        self._unmade = False
        self.turn: int | None = None
        self._connect()
        self._unmade = self._stamp is None
        if self._unmade and not create:
            self.close()
            raise Unreachable(f"{self.label}: there is no such schema")

    @classmethod
    def is_made(cls, where: Where, tables: Tables) -> bool:
        """Whether there is anything: the landmark's first row.

        Raises Unreachable when the server does not answer.
        """
        found = cls(where, tables, create=True, read_only=True)
        try:
            first = f"SELECT EXISTS (SELECT FROM {found.landmark})"
            return not found.unmade and bool(found.ask(first)[0][0])
        finally:
            found.close()

    # Connecting, and whether it is still the same database.

    def _open(self, *, streaming: bool = False) -> tuple[Wire, tuple[int, ...]]:
        """A new connection, and what is constant while it lasts."""
        if streaming:  # the first row may take its time
            wire = Wire(self._streaming, self.label, limit=None)
        else:
            wire = Wire(self._conninfo, self.label)
        try:
            server = greet(wire, self._conninfo)
            if self._confirmed:
                confirm(wire)
        except Failed as error:
            wire.close()
            raise self._error(error) from None
        except BaseException:
            wire.close()
            raise
        return wire, server

    def _connect(self) -> Wire:
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        wire, server = self._open()
        try:
            rows = wire.send([self._here()])[0]
            if rows or self._stamp is not None:
                self._compare(rows, server)
        except BaseException as error:
            wire.close()
            if isinstance(error, Failed):
                raise self._error(error) from None
            raise
        self._server, self._wire = server, wire
        return wire

    def _here(self) -> Sent:
        return Sent(_HERE, (self._landmark,))

    def _compare(self, rows: Result, server: tuple[int, ...] | None = None) -> None:
        """Take the stamp from the rows of ``_HERE``. Raises FileChanged."""
        system, base, timeline, started = server or self._server
        known = self._stamp
        if not rows:
            raise FileChanged(f"{self.label}: the tables are not there any more")
        table, node = rows[0]
        now = Stamp((system, base, table, timeline, started, node))
        if known is not None and known.parts[:_SAME] != now.parts[:_SAME]:
            raise FileChanged(f"{self.label}: another database stands here than was opened")
        self._stamp = now

    def check_identity(self) -> Stamp:
        """The stamp as the last call saw it; each call looks again, in its own round trip."""
        if self._stamp is None:  # the first write is yet to make the tables
            system, base, timeline, started = self._server
            return Stamp((system, base, 0, timeline, started, 0))
        return self._stamp

    def _reading(self) -> Wire:
        if self._wire is None or self._wire.closed:
            return self._connect()
        now = monotonic()
        if now > self._planned + _PLANNED:
            self._planned = now
            with suppress(Unreachable, Failed):  # whoever reads next finds that out too
                self._wire.send([_REPLAN])
        return self._wire

    def _writing(self) -> Wire:
        """The connection to write on.

        Raises FileChanged where it is a new one and the server is not as its caller saw it.
        """
        if self.read_only:
            raise Unreachable(f"{self.label}: it was opened read-only")
        if self._wire is not None and not self._wire.closed:
            return self._wire
        before = self._stamp
        wire = self._connect()
        if before is not None and before != self._stamp:
            raise FileChanged(f"{self.label}: the server was started anew since it was looked at")
        return wire

    def _error(
        self,
        failed: Failed,
        sent: Sequence[Sent] = (),
        *,
        fenced: bool = False,
        write: bool = False,
    ) -> Exception:
        projected = failed.index < len(sent) and sent[failed.index].plain
        return error_of(
            self.label,
            failed.state,
            failed.message,
            projected=projected,
            fenced=fenced,
            write=write,
        )

    # Reading.

    def read(self, statements: Batch) -> list[Result]:
        """Run queries in one transaction; one result each."""
        if self._inside:
            return [self.run(statement) for statement in statements]
        sent = [self._sent(statement)[0] for statement in statements]
        plain = any(one.plain for one in sent)
        counting = any(_COUNTING in one.sql for one in sent)
        before = [_BEGIN_PROJECTED if plain else _BEGIN_READ] if len(sent) > 1 or counting else []
        after = [COMMIT] if before else []
        if counting:
            before.append(_PATIENTLY)
        whole = [*before, self._here(), *sent, *after]
        results = self._ask(whole, limit=None if counting else LIMIT)
        first = len(before)
        self._compare(results[first])
        return results[first + 1 : first + 1 + len(sent)]

    def _ask(self, sent: Sequence[Sent], *, limit: float | None = LIMIT) -> list[Result]:
        """Send what only reads; once more where the connection turns out to be broken."""
        for last in (False, True):
            wire = self._reading()
            wire.limit = limit
            try:
                return wire.send(sent)
            except Unreachable:
                if last:
                    raise
            except Failed as error:
                self._settle(wire)
                known = self._error(error, sent)
                if last or not isinstance(known, Unreachable) or not wire.closed:
                    raise known from None
            finally:
                wire.limit = LIMIT
        raise AssertionError  # the loop returns or raises

    def stream(self, statement: Statement) -> Iterator[tuple[Any, ...]]:
        """Rows of one query as they are read; memory does not grow with their number."""
        if self._inside:
            yield from self.run(statement)
            return
        wire = self._stream_wire()
        try:
            yield from wire.stream(self._sent(statement)[0])
        except Failed as error:
            raise self._error(error) from None
        finally:
            if not wire.closed:
                self._streams.append(wire)

    def _stream_wire(self) -> Wire:
        """A connection that nothing else is read on meanwhile, to the same database."""
        while self._streams:
            wire = self._streams.pop()
            try:
                self._compare(wire.send([self._here()])[0])
            except Unreachable:
                continue
            except Failed as error:
                wire.close()
                raise self._error(error) from None
            return wire
        wire, server = self._open(streaming=True)
        try:
            self._compare(wire.send([self._here()])[0], server)
        except Failed as error:
            wire.close()
            raise self._error(error) from None
        except BaseException:
            wire.close()
            raise
        if server != self._server and self._wire is not None:
            self._wire.close()  # it leads to a server that another one has replaced
        self._server = server
        return wire

    # Writing.

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A write transaction. Nothing is left behind when the block or the commit fails."""
        wire = self._writing()
        self._do(wire, [BEGIN, *self._guard()])
        self._inside = True
        try:
            self._make(wire)
            yield
            self._commit(wire)
        except BaseException:
            self._settle(wire)
            raise
        finally:
            self._inside = False
        self._made()

    def _commit(self, wire: Wire) -> None:
        """Commit. Of a transaction in which a statement failed the server would take it as undo."""
        if wire.failed:
            raise EngineError(f"{self.label}: a statement of this transaction failed before")
        self._do(wire, [COMMIT])

    def batch(self, statements: Batch, *, fenced: bool = False) -> None:
        """Run statements in one transaction; all or none. In one round trip."""
        if self._unmade:
            with self.transaction():
                for statement in statements:
                    self.run(statement)
            return
        wire = self._writing()
        begins_with_fence = fenced and bool(statements) and isinstance(statements[0], Fence)
        sent = [BEGIN] if begins_with_fence else [BEGIN, *self._guard()]
        for statement in statements:
            sent += self._sent(statement)
        sent.append(COMMIT)
        self.turn, turn = None, self.turn
        done = self._do(wire, sent, fenced=fenced)
        # Nobody else has written since, or the fence had failed.
        self.turn = done[1][0][0] if begins_with_fence else turn

    def run(self, statement: Statement | Rows) -> Result:
        """Run one statement inside the caller's ``transaction``."""
        if self._wire is None or not self._inside:
            raise EngineError(f"{self.label}: no transaction is open")
        sent = self._sent(statement)
        return self._do(self._wire, sent, settle=False)[-1] if sent else []

    def call(self, function: str, *parameters: Any) -> Sent:
        """A call of one of our functions, for ``write``; it checks first where it is."""
        places = ",".join(f"${number}" for number in range(1, len(parameters) + 4))
        return Sent(
            f"SELECT {self.where.quoted}.{function}({places})",
            (self.where.key, *self._place(), *parameters),
        )

    def write(self, first: Sent, statements: Batch) -> None:
        """A transaction that begins with a call; in one round trip."""
        wire = self._writing()
        sent = [BEGIN, first]
        for statement in statements:
            sent += self._sent(statement)
        self._do(wire, [*sent, COMMIT])

    @property
    def unmade(self) -> bool:
        """Whether the schema is yet to be made by the first write."""
        return self._unmade

    @property
    def server(self) -> tuple[int, int, int, int]:
        """The server: its system's identifier, the database, the timeline, when it was started."""
        system, base, timeline, started = self._server
        return system, base, timeline, started

    @property
    def landmark(self) -> str:
        """The table by which the schema is recognised, as SQL names it."""
        return self._landmark

    @property
    def ddl(self) -> str:
        """The SQL that makes the schema."""
        return self._tables.ddl

    def ask(self, sql: str) -> Result:
        """Rows of a query in PostgreSQL's own words."""
        return self._ask([Sent(sql)])[0]

    def _place(self) -> tuple[int, int]:
        stamp = self.check_identity()
        return stamp.parts[2], stamp.parts[5]

    def _guard(self) -> list[Sent]:
        """What keeps other writers out, and makes sure of where it is."""
        if self._unmade:
            return [Sent("SELECT pg_advisory_xact_lock($1)", (self.where.key,))]
        return [self.call("unrewind_guard")]

    def _make(self, wire: Wire) -> None:
        """Make the schema, unless another process did meanwhile."""
        if not self._unmade:
            return
        try:
            wire.script(self._tables.ddl)
        except Failed as error:
            raise self._error(error) from None

    def complete(self) -> None:
        """Add what the schema lacks, or has as an earlier version made it; mostly nothing.

        Raises EngineError, naming what the role may not change.
        """
        missing = [] if self._unmade else self._lacking()
        if not missing:
            return
        wire = self._writing()
        self._do(wire, [BEGIN, Sent("SELECT pg_advisory_xact_lock($1)", (self.where.key,))])
        try:
            wire.script(self._tables.ddl)
            self._do(wire, [COMMIT])
        except Failed as error:
            self._settle(wire)
            raise EngineError(
                f"{self.label}: it lacks {', '.join(missing)} as this version has it, and cannot "
                f"be given that: {error.message}; its owner can run the SQL of `unrewind engine "
                "ddl`"
            ) from None
        except BaseException:
            self._settle(wire)
            raise

    def _lacking(self) -> list[str]:
        found = self._ask([Sent(FOUND, (self.where.quoted,))])[0]
        try:
            return lacking(self._tables.ddl, found)
        except EngineError as error:
            raise EngineError(f"{self.label}: {error.detail}") from None

    def _made(self) -> None:
        """After the first commit: the schema has a stamp from now on."""
        if self._unmade:
            self._unmade = False
            self._compare(self._ask([self._here()])[0])

    def _do(
        self, wire: Wire, sent: Sequence[Sent], *, fenced: bool = False, settle: bool = True
    ) -> list[Result]:
        try:
            return wire.send(sent)
        except Failed as error:
            if settle:
                self._settle(wire)
            raise self._error(error, sent, fenced=fenced, write=True) from None

    def _settle(self, wire: Wire) -> None:
        """Leave no transaction open; a connection on which that cannot be done is closed."""
        if wire.closed or wire.idle:
            return
        try:
            wire.send([ROLLBACK])
        except (Failed, Unreachable):
            wire.close()

    # Statements.

    def _sent(self, statement: Statement | Rows) -> list[Sent]:
        """What goes to the server for one statement."""
        if isinstance(statement, Rows):
            return self._sent_rows(statement)
        if isinstance(statement, Projected):
            return [Sent(numbered(statement.sql), statement.parameters, plain=True)]
        if isinstance(statement, Fence):
            return [
                self.call(self._tables.fence, self.turn, *statement.expected, *statement.becomes)
            ]
        return [Sent(translated(statement.sql, self.where.quoted), statement.parameters)]

    def _sent_rows(self, statement: Rows) -> list[Sent]:
        rows = statement.rows
        keys = key_columns(statement.sql) if len(rows) > 1 else ()
        if keys:
            rows = [*{tuple(row[key] for key in keys): row for row in rows}.values()]
        sent: list[Sent] = []
        at = 0
        for size in SIZES:
            while len(rows) - at >= size:
                part = rows[at : at + size]
                at += size
                sql = expanded(statement.sql, len(part[0]), size, self.where.quoted)
                sent.append(Sent(sql, [value for row in part for value in row]))
        return sent

    def tolerate(self) -> None:
        """Nothing changes: a server gives no text that is none."""
        self.tolerant = True

    def close(self) -> None:
        """Let go of the connections."""
        for wire in (self._wire, *self._streams):
            if wire is not None:
                wire.close()
        self._wire = None
        self._streams.clear()
