"""A guest on a ``psycopg.Connection``."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import Format, TransactionStatus

from journal.errors import FenceFailed, JournalUnavailable, Refused, Unreachable
from journal.postgres.checks import ASYNC_COMMIT
from journal.postgres.database import PostgresDatabase
from journal.postgres.dialect import translated
from journal.postgres.where import STORE, Where, where
from journal.postgres.wire import Failed, Sent, Wire, register
from journal.record import Record
from journal.settings import Settings
from journal.sql import Batch, Result, Stamp
from journal.store import tables
from journal.store.postgres import tables as tables_of
from journal.store.tables import Marker

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02
_SAVEPOINT = "unrewind_inside"
_TRY = "SELECT pg_try_advisory_xact_lock($1)"
_HOLDER = """
SELECT pid FROM pg_catalog.pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND ((classid::bigint << 32) | objid::bigint) = $1
"""
_PLACED = """
SELECT c.oid, c.relfilenode,
  (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()),
  CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint),
  current_setting('synchronous_commit')
FROM pg_catalog.pg_class c WHERE c.oid = to_regclass($1)
"""
_MISSING = frozenset({"42P01", "3F000"})
_CLASHES = frozenset({"40001", "40P01"})
_DURABLE = frozenset({"on", "remote_apply"})


class _Context(Struct, frozen=True):
    """Converters of our own for a connection of the application's, which keeps its own."""

    adapters: AdaptersMap
    connection: psycopg.Connection[Any]


class GuestWire(Wire):
    """The application's connection, on which nothing is prepared and no converter is changed."""

    def __init__(self, connection: psycopg.Connection[Any], label: str) -> None:
        self.label = label
        self.connection = connection
        self._pg = connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        adapters = AdaptersMap(psycopg.adapters)
        register(adapters)
        self._loading = Transformer(_Context(adapters, connection))
        self._fresh = []
        self._unreplicated = None

    def _put(self, statement: Sent, values: Sequence[Buffer | None], formats: Sequence[int]) -> int:
        self._pg.send_query_params(statement.sql.encode(), values, None, formats, Format.BINARY)
        return 1


class PostgresGuest(PostgresDatabase):
    """The application's connection to the store's server, inside its transaction."""

    def __init__(self, connection: psycopg.Connection[Any], settings: Settings) -> None:
        self.where: Where = where(settings.store or "", STORE, settings.tenant)
        self.label = self.where.label
        self.read_only = False
        self.tolerant = False
        self.turn = None
        self._settings = settings
        self._application = connection
        self._tables = tables_of(self.where.quoted)
        self._landmark = f"{self.where.quoted}.{self._tables.landmark}"
        self._unmade = False
        self._inside = True
        self._streams = []
        self._stamp = None
        self._wire = None

    @property
    def _sure(self) -> Wire:
        if self._wire is None:
            raise Refused("the connection is used outside of decide_in")
        return self._wire

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """See ``Guest.borrowed``. Begins where the driver would with the next statement."""
        self._begin()
        self._wire = GuestWire(self._application, self.label)
        try:
            self._do(self._wire, [Sent(f"SAVEPOINT {_SAVEPOINT}")], settle=False)
            try:
                yield
            except BaseException:
                with suppress(Failed, Unreachable):
                    self._sure.send(
                        [
                            Sent(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}"),
                            Sent(f"RELEASE SAVEPOINT {_SAVEPOINT}"),
                        ]
                    )
                raise
            self._do(self._wire, [Sent(f"RELEASE SAVEPOINT {_SAVEPOINT}")], settle=False)
        finally:
            self._wire = None

    def _begin(self) -> None:
        connection = self._application
        if connection.closed:
            raise Refused("the connection is closed")
        if connection.info.encoding != "utf-8":
            raise Refused("the connection's client_encoding is not UTF8")
        if connection.pgconn.pipeline_status != pq.PipelineStatus.OFF:
            raise Refused("the connection is in a pipeline: end that first")
        status = connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise Refused("a statement of this transaction failed before: roll it back first")
        if status == TransactionStatus.IDLE:
            if connection.autocommit:
                raise Refused(
                    "no transaction is open in this connection: open one first, so that the "
                    "decision commits with the rows it is about"
                )
            psycopg.Cursor(connection).execute("SELECT 1")

    def lock(self) -> Marker:
        """See ``Guest.lock``."""
        self._take()
        sql = f"{tables.READ_MARKER.sql} FOR UPDATE"
        try:
            rows = self._sure.send([Sent(translated(sql, self.where.quoted))])[0]
        except Failed as error:
            if error.state in _CLASHES:
                raise FenceFailed(error.message) from None
            if error.state in _MISSING:
                raise self._strange(error.message) from None
            raise self._error(error) from None
        marker = tables.marker_of(rows)
        if marker is None:
            raise self._strange("its marker is missing")
        return marker

    def _take(self) -> None:
        """The writers' lock, which ends with the transaction. No session setting is touched."""
        deadline = time.monotonic() + self._settings.lock_timeout
        pause = _FIRST_PAUSE
        while not self._ask_one(_TRY, self.where.key)[0]:
            if time.monotonic() > deadline:
                holders = self._do(self._sure, [Sent(_HOLDER, (self.where.key,))], settle=False)[0]
                named = ", ".join(str(pid) for (pid,) in holders) or "another one"
                raise JournalUnavailable(
                    f"session {named} of the store's server is in a transaction with a decision "
                    f"for over {self._settings.lock_timeout:g} s: roll back and repeat later, with "
                    "the same operation ID"
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _ask_one(self, sql: str, *parameters: Any) -> tuple[Any, ...]:
        return self._do(self._sure, [Sent(sql, parameters)], settle=False)[0][0]

    def _strange(self, why: str) -> Refused:
        return Refused(
            f"this connection's database is not the tenant's store ({why}): connect to {self.label}"
        )

    def check_place(self, record: Record) -> None:
        """See ``Guest.check_place``: the same run of the same server, and the same table."""
        if record.store is None:
            raise JournalUnavailable("the store went away")
        known = record.store.stamp()
        _, base, table, _, started, node = known.parts
        rows = self._do(self._sure, [Sent(_PLACED, (self._landmark,))], settle=False)[0]
        if not rows or rows[0][:4] != (table, node, base, started):
            raise self._strange("it is another server, another run of it, or another table")
        commits = rows[0][4]
        if commits not in _DURABLE and ASYNC_COMMIT not in self._settings.accept:
            raise Refused(
                f"synchronous_commit is {commits} in this session, so a crash would rewind the "
                f'store: leave it on, or accept that by name: accept = ["{ASYNC_COMMIT}"]'
            )
        self._stamp = known

    def check_identity(self) -> Stamp:
        """The tenant's own, once the place was checked."""
        return self._stamp or Stamp((0,) * 6)

    def read(self, statements: Batch) -> list[Result]:
        """Run queries in the application's transaction; one result each, in one round trip."""
        sent = [self._sent(statement)[0] for statement in statements]
        return self._do(self._sure, sent, settle=False)

    def batch(self, statements: Batch, *, fenced: bool = False) -> None:
        """Run statements in the application's transaction, in one round trip."""
        sent = [one for statement in statements for one in self._sent(statement)]
        self._do(self._sure, sent, fenced=fenced, settle=False)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """The application's own."""
        yield

    def close(self) -> None:
        """Nothing: the connection is the application's."""
