"""One connection: statements sent together, so that however many they are it is one round trip.

psycopg connects and converts; the statements go through libpq's pipeline directly, which costs a
third of the time of a cursor for each. Waiting gives up the interpreter lock. Not for two threads.
"""

from __future__ import annotations

import select
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from msgspec import Struct
from psycopg import pq
from psycopg.abc import Buffer
from psycopg.adapt import AdaptersMap, Loader, Transformer
from psycopg.conninfo import make_conninfo
from psycopg.errors import Diagnostic
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.types.numeric import NumericBinaryLoader

from journal.errors import Unreachable
from journal.postgres import newest, silence
from journal.postgres.faults import NO_NUL
from journal.sql import Result

_KEPT = 400
"""Prepared statements of a connection; what comes after them is parsed each time."""
_CHUNK = 256
"""Rows of a stream that are in memory at once."""
LIMIT = 90.0
"""Seconds without an answer, after which the server counts as gone: more than its own limit for a
statement. A dead machine is noticed sooner, by the system's keepalives."""
_SILENT = 5.0
"""Seconds without an answer, after which another connection asks whether the server is there."""
_HASTY = 0.5
"""The same where it is known that a moment ago it was not."""
_LAST_WORDS = 8
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


class Flight:
    """Statements on their way: how many answers each will have."""

    def __init__(self, slots: Sequence[int]) -> None:
        self.slots = slots


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

    _flying: Flight | None = None
    _conninfo: str | None = None
    _server = ""
    _gives_up = False
    limit: float | None = LIMIT

    def __init__(self, conninfo: str, label: str, *, limit: float | None = LIMIT) -> None:
        self.label = label
        self.limit = limit
        self._conninfo, self._server = conninfo, silence.server_of(conninfo)
        if silence.is_noted(self._server):
            raise Unreachable(f"{label}: the server did not answer a moment ago")
        try:
            self.connection = psycopg.connect(newest.towards(conninfo), autocommit=True)
        except psycopg.Error as error:
            if isinstance(error, psycopg.errors.ConnectionTimeout):
                silence.note(self._server)
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
        self._ended: str | None = None
        self.connection.add_notice_handler(self._hear)

    def _hear(self, notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "FATAL":
            self._ended = notice.message_primary
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

    def send(self, statements: Sequence[Sent]) -> list[Result]:
        """Run statements in order, in one round trip; the rows of each.

        The first that fails ends it, and those behind it are not run. Raises Failed; Unreachable
        when the connection broke, and nobody knows what was done.
        """
        with self._whole():
            self._drop()
            slots = self._queue(statements)
            found = self._collect(slots)
            self._pg.exit_pipeline_mode()
        self._check_replicated(len(slots))
        return self._sorted(found)

    def start(self, statements: Sequence[Sent]) -> Flight:
        """Send statements and go on; ``finish`` reads what they answer.

        What is sent before that reads the answers and drops them. Raises as ``send`` does.
        """
        with self._whole():
            self._drop()
            self._flying = Flight(self._queue(statements))
            self._pg.flush()
        return self._flying

    def finish(self, flight: Flight) -> list[Result] | None:
        """The rows of what was started; None where they were dropped. Raises as ``send`` does."""
        if self._flying is not flight:
            return None
        self._flying = None
        with self._whole():
            found = self._collect(flight.slots)
            self._pg.exit_pipeline_mode()
        self._check_replicated(len(found))
        return self._sorted(found)

    def check(self) -> None:
        """Raises Unreachable where the server is known to have ended the connection."""
        with self._whole():
            for _ in range(_LAST_WORDS):
                self._pg.is_busy()  # which hears what was said
                if not self._poll.poll(0):
                    break
                self._pg.consume_input()
            if self._ended is not None:
                raise psycopg.OperationalError(self._ended)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except (psycopg.Error, OSError) as error:
            self.close()
            raise Unreachable(f"{self.label}: {' '.join(str(error).split())}") from None
        except Failed:
            raise
        except BaseException:
            self.close()  # half an answer waits in it
            raise

    def _drop(self) -> None:
        """Read what was started and is not wanted any more."""
        flight, self._flying = self._flying, None
        if flight is None:
            return
        found = self._collect(flight.slots)
        self._pg.exit_pipeline_mode()
        self._unreplicated = None
        if any(answer.status in _BAD for answer in found):
            self._unlearn()
        self._fresh.clear()

    def _queue(self, statements: Sequence[Sent]) -> list[int]:
        """Hand statements to libpq; how many answers each will have."""
        ready = [encoded(index, statement) for index, statement in enumerate(statements)]
        self._pg.enter_pipeline_mode()
        slots = [
            self._put(statement, *parts) for statement, parts in zip(statements, ready, strict=True)
        ]
        self._pg.pipeline_sync()
        return slots

    def _collect(self, slots: Sequence[int]) -> list[pq.abc.PGresult]:
        found = [self._take(expected) for expected in slots]
        last = self._next()
        if last is None or last.status != ExecStatus.PIPELINE_SYNC:
            raise psycopg.OperationalError("the connection ended")
        return found

    def _check_replicated(self, statements: int) -> None:
        if self._unreplicated is not None:
            why, self._unreplicated = self._unreplicated, None
            raise Failed(statements - 1, _NO_REPLICA, why)

    def attempt(self, statement: Sent, seconds: float) -> None:
        """Run a statement that may as well not be run: what takes longer is given up.

        The server is told so, and keeps no session for it. Raises Failed or Unreachable.
        """
        limit, self.limit, self._gives_up = self.limit, seconds, True
        try:
            self.send([statement])
        finally:
            self.limit, self._gives_up = limit, False

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
            first = _HASTY if silence.is_noted(self._server) else _SILENT
            first = first if self.limit is None else min(first, self.limit)
            if not self._poll.poll(first * 1000):
                self._outwait(first)
            self._pg.consume_input()

    def _outwait(self, waited: float) -> None:
        """Wait on for as long as the server answers others, or until the limit."""
        pause = waited
        while self.limit is None or waited < self.limit:
            if not self._is_alive():
                raise psycopg.OperationalError(
                    f"no answer for {waited:g} s, nor to another connection"
                )
            if self.limit is not None:
                pause = min(pause, self.limit - waited)
            if self._poll.poll(pause * 1000):
                return
            waited, pause = waited + pause, pause * 2
        if self._gives_up:
            with suppress(psycopg.Error, OSError):
                self.connection.cancel_safe(timeout=_SILENT)
        raise psycopg.OperationalError(f"no answer for {waited:g} s")

    def _is_alive(self) -> bool:
        """Whether the server that this connection leads to answers another one."""
        if self._conninfo is None:
            return True
        info = self.connection.info
        here = make_conninfo(
            self._conninfo,
            host=info.host,
            hostaddr=info.hostaddr or None,
            port=info.port,
            target_session_attrs="any",
        )
        return silence.answers(here, self._server)

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

    def _sorted(self, found: Sequence[pq.abc.PGresult]) -> list[Result]:
        rows: list[Result] = []
        for index, answer in enumerate(found):
            if answer.status in _BAD:
                self._unlearn()
                raise failure(index, answer)
            rows.append(self._rows(answer))
        self._fresh.clear()
        return rows

    def _unlearn(self) -> None:
        """What was prepared in a pipeline that failed was perhaps not."""
        for sql in self._fresh:
            self._names.pop(sql, None)
        self._fresh.clear()

    def _rows(self, answer: pq.abc.PGresult) -> Result:
        if not answer.ntuples:
            return []
        self._loading.set_pgresult(answer)
        return self._loading.load_rows(0, answer.ntuples, tuple)

    # One statement alone.

    def script(self, sql: str) -> None:
        """Run several statements without parameters. Raises Failed or Unreachable."""
        try:
            self._pg.send_query(sql.encode())
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


_TEXT, _BINARY = int(Format.TEXT), int(Format.BINARY)
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
    value_is, format_is = values.append, formats.append
    text, binary = (_TEXT if statement.plain else _BINARY), _BINARY
    try:
        for value in statement.parameters:  # many: the usual types first, and no call for them
            kind = type(value)
            if kind is str:
                if "\0" in value:
                    raise Failed(index, _NO_TEXT, NO_NUL)
                value_is(value.encode())
                format_is(text)
            elif kind is bytes:
                value_is(value)
                format_is(binary)
            elif kind is int:
                value_is(b"%d" % value)
                format_is(_TEXT)
            elif value is None:
                value_is(None)
                format_is(_TEXT)
            else:
                other, how = _other(index, value)
                value_is(other)
                format_is(text if how is None else how)
    except UnicodeEncodeError:
        raise Failed(index, _NO_TEXT, NO_NUL) from None
    return values, formats


def _other(index: int, value: Any) -> tuple[bytes, int | None]:
    """A value of a rarer type; without a format it is text."""
    if isinstance(value, str):
        if "\0" in value:
            raise Failed(index, _NO_TEXT, NO_NUL)
        return value.encode(), None
    if isinstance(value, int):
        return b"%d" % value, _TEXT
    if isinstance(value, float):
        return repr(value).encode(), _TEXT
    if isinstance(value, bytearray | memoryview):
        return bytes(value), _BINARY
    kind = type(value).__name__
    raise Failed(index, _MISMATCH, f"a parameter of type {kind} is none that SQL here takes")
