"""One connection: statements sent together, so that however many they are it is one round trip.

psycopg connects and converts; the statements go through libpq's pipeline directly, which costs a
third of the time of a cursor for each. Waiting gives up the interpreter lock. Not for two threads.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.types.numeric import NumericBinaryLoader

from journal.errors import Unreachable
from journal.postgres.faults import NO_NUL
from journal.sql import Result

_KEPT = 400
"""Prepared statements of a connection; what comes after them is parsed each time."""
_CHUNK = 256
"""Rows of a stream that are in memory at once."""
_LIMIT = 90.0
"""Seconds without an answer, after which the server counts as gone: more than its own limit for a
statement. A dead machine is noticed sooner, by the system's keepalives."""
_LATER = select.POLLIN | select.POLLERR | select.POLLHUP
_MISMATCH = "42804"
_NO_TEXT = "22021"
_WAITED = "SyncRepWaitForLSN"
_NO_REPLICA = "57000"


class Sent(Struct, frozen=True, gc=False):
    """A statement as it goes out. ``plain``: the application's, with types as it may have any."""

    sql: str
    parameters: Sequence[Any] = ()
    plain: bool = False


class Failed(Exception):
    """A statement of a pipeline failed: which one, how, and what the server said of it."""

    def __init__(self, index: int, state: str | None, message: str) -> None:
        super().__init__(message)
        self.index = index
        self.state = state
        self.message = message


class _Text(Loader):
    """JSON as its text: whoever wants it decoded does so once."""

    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


class _Number(NumericBinaryLoader):
    """A sum: an integer where it is one."""

    def load(self, data: Buffer) -> Any:
        found = super().load(data)
        whole = found.is_finite() and found == found.to_integral_value()
        return int(found) if whole else float(found)


def register(adapters: AdaptersMap) -> None:
    """Let these converters give what our statements expect."""
    adapters.register_loader("json", _Text)
    adapters.register_loader("numeric", _Number)


class Wire:
    """A connection to a server, and the statements prepared on it.

    Raises Unreachable when the server cannot be reached.
    """

    _posted: tuple[int, ...] = ()
    _limit: float | None = _LIMIT

    def __init__(self, conninfo: str, label: str, *, limit: float | None = _LIMIT) -> None:
        self.label = label
        self._limit = limit
        try:
            self.connection = psycopg.connect(conninfo, autocommit=True)
        except psycopg.Error as error:
            raise Unreachable(f"{label}: {' '.join(str(error).split())}") from None
        self._pg = self.connection.pgconn
        self._poll = select.poll()
        self._poll.register(self._pg.socket, _LATER)
        register(self.connection.adapters)
        self._loading = Transformer(self.connection)
        self._names: dict[str, bytes] = {}
        self._fresh: list[str] = []
        self._count = 0
        self._unreplicated: str | None = None
        self.connection.add_notice_handler(self._hear)

    def _hear(self, notice: Diagnostic) -> None:
        if notice.source_function == _WAITED:
            self._unreplicated = f"{notice.message_primary}: {notice.message_detail}"

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        return self._pg.status != pq.ConnStatus.OK

    @property
    def idle(self) -> bool:
        """Whether no transaction is open."""
        return self._pg.transaction_status == TransactionStatus.IDLE

    @property
    def failed(self) -> bool:
        """Whether the open transaction cannot commit any more."""
        return self._pg.transaction_status == TransactionStatus.INERROR

    def close(self) -> None:
        """Let go of the connection."""
        with suppress(psycopg.Error, OSError):
            self.connection.close()

    # Statements together.

    def post(self, statement: Sent) -> None:
        """Send a statement whose answer nobody waits for; the next call reads it, and drops it."""
        try:
            ready = encoded(0, statement)
            self._pg.enter_pipeline_mode()
            self._posted = (self._put(statement, *ready),)
            self._pg.pipeline_sync()
            self._pg.flush()
        except (psycopg.Error, OSError) as error:
            self.close()
            raise Unreachable(f"{self.label}: {' '.join(str(error).split())}") from None

    def _read_posted(self) -> None:
        slots, self._posted = self._posted, ()
        for expected in slots:
            self._take(expected)
        if slots:
            self._finish()

    def send(self, statements: Sequence[Sent]) -> list[Result]:
        """Run statements in order, in one round trip; the rows of each.

        The first that fails ends it, and those behind it are not run. Raises Failed; Unreachable
        when the connection broke, and nobody knows what was done.
        """
        try:
            self._read_posted()
            ready = [encoded(index, statement) for index, statement in enumerate(statements)]
            self._pg.enter_pipeline_mode()
            slots = [
                self._put(statement, *parts)
                for statement, parts in zip(statements, ready, strict=True)
            ]
            self._pg.pipeline_sync()
            found = [self._take(expected) for expected in slots]
            self._finish()
        except (psycopg.Error, OSError) as error:
            self.close()
            raise Unreachable(f"{self.label}: {' '.join(str(error).split())}") from None
        except Failed:
            raise
        except BaseException:
            self.close()  # half an answer waits in it
            raise
        if self._unreplicated is not None:
            why, self._unreplicated = self._unreplicated, None
            raise Failed(len(statements) - 1, _NO_REPLICA, why)
        return self._sorted(found)

    def _put(self, statement: Sent, values: Sequence[Buffer | None], formats: Sequence[int]) -> int:
        """Queue one statement; how many answers it will have."""
        if statement.plain:
            self._pg.send_query_params(statement.sql.encode(), values, None, formats, Format.BINARY)
            return 1
        name = self._names.get(statement.sql)
        if name is not None:
            self._pg.send_query_prepared(name, values, formats, Format.BINARY)
            return 1
        if len(self._names) >= _KEPT:
            self._pg.send_query_params(statement.sql.encode(), values, None, formats, Format.BINARY)
            return 1
        self._count += 1
        name = b"u%d" % self._count
        self._pg.send_prepare(name, statement.sql.encode())
        self._pg.send_query_prepared(name, values, formats, Format.BINARY)
        self._names[statement.sql] = name
        self._fresh.append(statement.sql)
        return 2

    def _wait(self) -> None:
        """Wait until libpq has an answer whole, sending what is left to be sent."""
        waiting = None
        while True:
            unsent = self._pg.flush()
            if not self._pg.is_busy():
                return
            flags = _LATER | select.POLLOUT if unsent else _LATER
            if flags != waiting:
                self._poll.modify(self._pg.socket, flags)
                waiting = flags
            if not self._poll.poll(self._limit and self._limit * 1000):
                raise psycopg.OperationalError(f"no answer for {self._limit:g} s")
            self._pg.consume_input()

    def _next(self) -> pq.abc.PGresult | None:
        self._wait()
        return self._pg.get_result()

    def _take(self, expected: int) -> pq.abc.PGresult:
        """The answer to one statement; to the first half of it, where that failed."""
        answers: list[pq.abc.PGresult] = []
        for _ in range(expected):
            answer = self._next()
            if answer is None:
                raise psycopg.OperationalError("the connection ended")
            while self._next() is not None:
                continue
            answers.append(answer)
        bad = [answer for answer in answers if answer.status in _BAD]
        return bad[0] if bad else answers[-1]

    def _finish(self) -> None:
        last = self._next()
        if last is None or last.status != ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError("the connection ended")
        self._pg.exit_pipeline_mode()

    def _sorted(self, found: Sequence[pq.abc.PGresult]) -> list[Result]:
        rows: list[Result] = []
        for index, answer in enumerate(found):
            if answer.status in _BAD:
                for sql in self._fresh:  # it was perhaps not prepared
                    self._names.pop(sql, None)
                self._fresh.clear()
                raise failure(index, answer)
            rows.append(self._rows(answer))
        self._fresh.clear()
        return rows

    def _rows(self, answer: pq.abc.PGresult) -> Result:
        if not answer.ntuples:
            return []
        self._loading.set_pgresult(answer)
        return self._loading.load_rows(0, answer.ntuples, tuple)

    # One statement alone.

    def script(self, sql: str) -> None:
        """Run several statements without parameters. Raises Failed or Unreachable."""
        self._pg.send_query(sql.encode())
        try:
            bad = None
            while (answer := self._next()) is not None:
                if bad is None and answer.status in _BAD:
                    bad = answer
        except (psycopg.Error, OSError) as error:
            self.close()
            raise Unreachable(f"{self.label}: {' '.join(str(error).split())}") from None
        if bad is not None:
            raise failure(0, bad)

    def stream(self, statement: Sent) -> Iterator[tuple[Any, ...]]:
        """The rows of one query, as many at a time as are kept in memory.

        Left before its end the connection is closed, as the rest would have to be read first.
        """
        values, formats = encoded(0, statement)
        done = False
        try:
            self._pg.send_query_params(statement.sql.encode(), values, None, formats, Format.BINARY)
            self._pg.set_chunked_rows_mode(_CHUNK)
            while (answer := self._next()) is not None:
                if answer.status in _BAD:
                    while self._next() is not None:
                        continue
                    done = True
                    raise failure(0, answer)
                yield from self._rows(answer)
            done = True
        except (psycopg.Error, OSError) as error:
            raise Unreachable(f"{self.label}: {' '.join(str(error).split())}") from None
        finally:
            if not done:
                self.close()


_BAD = frozenset({ExecStatus.FATAL_ERROR, ExecStatus.BAD_RESPONSE, ExecStatus.PIPELINE_ABORTED})


def failure(index: int, answer: pq.abc.PGresult) -> Failed:
    """What an answer says went wrong."""
    state = answer.error_field(pq.DiagnosticField.SQLSTATE)
    primary = answer.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or answer.error_message
    return Failed(
        index, None if state is None else state.decode(), (primary or b"").decode(errors="replace")
    )


def encoded(index: int, statement: Sent) -> tuple[list[Buffer | None], list[int]]:
    """Parameters as bytes with their formats. Their types are left to the server to infer.

    So one prepared statement serves whatever is NULL. Text of ours goes as binary, which text and
    bytea columns both take as it is; the application's as text, which any type can read. Raises
    Failed, by the statement's ``index``, for what no column can take.
    """
    values: list[Buffer | None] = []
    formats: list[int] = []
    text = Format.TEXT if statement.plain else Format.BINARY
    for value in statement.parameters:
        if isinstance(value, str):
            values.append(_bytes_of(index, value))
            formats.append(text)
        elif value is None:
            values.append(None)
            formats.append(Format.TEXT)
        elif isinstance(value, int):
            values.append(b"%d" % value)
            formats.append(Format.TEXT)
        elif isinstance(value, float):
            values.append(repr(value).encode())
            formats.append(Format.TEXT)
        elif isinstance(value, bytes | bytearray | memoryview):
            values.append(bytes(value))
            formats.append(Format.BINARY)
        else:
            kind = type(value).__name__
            raise Failed(
                index, _MISMATCH, f"a parameter of type {kind} is none that SQL here takes"
            )
    return values, formats


def _bytes_of(index: int, value: str) -> bytes:
    if "\0" in value:
        raise Failed(index, _NO_TEXT, NO_NUL)
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise Failed(index, _NO_TEXT, NO_NUL) from None
