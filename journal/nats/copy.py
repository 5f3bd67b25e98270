"""The copy: a SQLite file that holds what the stream says, and answers every question.

It is derived. Thrown away it is built again from the stream, so it need not be synced: after a
power failure it may be behind, and is fed again. The copies of one machine's processes are one
file, named by the data directory; whoever sees a newer message puts it in, in stream order, each
message in the one transaction that also notes how far the copy is. A lock beside the file keeps
writers apart, as SQLite before 3.51.3 needs; nobody who holds it waits for the network, but for a
moment whoever puts in an append of its own while the servers take it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from journal.clock import SystemClock
from journal.errors import (
    Damaged,
    DiskFailed,
    EngineError,
    FileChanged,
    JournalUnavailable,
    LockHeld,
    Unreachable,
)
from journal.locks import TurnLock
from journal.log.sqlite import schema
from journal.log.writing import statements_of
from journal.nats.message import START, Void, decode, link_of, read
from journal.sql import Rows, Statement
from journal.sqlite import CHUNK, SIDE_FILES, Database, sync_directory


@contextmanager
def _opened_anew() -> Iterator[None]:
    """A disk that fails under the copy is none of the journal's: the file is opened anew."""
    try:
        yield
    except DiskFailed as error:
        raise FileChanged(f"this machine's copy of the stream: {error}") from error


FORMAT = 1
LOCK_SECONDS = 5.0
REFUSED = "it cannot be stored"
"""How the reason begins for an append that a constraint refuses."""
_TABLES = """
-- How far the stream was read. All of this file is derived from the stream.
CREATE TABLE IF NOT EXISTS fed (
  one      INTEGER PRIMARY KEY CHECK (one = 1),
  format   INTEGER NOT NULL,
  created  TEXT    NOT NULL,          -- when the stream was made: which one it is
  sequence INTEGER NOT NULL,          -- of the last message that was read
  link     BLOB    NOT NULL           -- and the SHA-256 of it
);
-- Parts of an append whose last part was not read yet.
CREATE TABLE IF NOT EXISTS parts (
  part INTEGER PRIMARY KEY,
  data BLOB NOT NULL
);
-- Messages that mean nothing, and why.
CREATE TABLE IF NOT EXISTS voids (
  sequence INTEGER PRIMARY KEY,
  reason   TEXT NOT NULL
);
"""
_FED = Statement("SELECT format, created, sequence, link FROM fed")
_SAVE, _BACK, _KEEP = (
    Statement(f"{words} append") for words in ("SAVEPOINT", "ROLLBACK TO", "RELEASE")
)
_POSITION = Statement("SELECT coalesce(max(position), 0) FROM entries")


class Fed(Struct, frozen=True):
    """How far a copy is: of the stream made at ``created``, through ``sequence``."""

    created: str
    sequence: int
    link: bytes


class Written(Struct, frozen=True):
    """An append as statements, and how many entries it adds."""

    statements: Sequence[Statement | Rows]
    entries: int


class Own(Struct, frozen=True):
    """An append of our own, which is known without being read: at ``sequence`` its last part."""

    sequence: int
    written: Written


class _File(Database):
    """A copy's file, under the name of its stream."""

    def __init__(self, path: Path, label: str, *, write: bool) -> None:
        self.closing: Callable[[], None] | None = None
        super().__init__(path, schema=schema() + _TABLES if write else None, read_only=not write)
        self.label = label
        if write:
            # Derived, and consistent whatever is lost: see above.
            self.connection.execute("PRAGMA synchronous=NORMAL")

    def close(self) -> None:
        """Close the file and whatever hangs on it."""
        closing, self.closing = self.closing, None
        if closing is None:
            super().close()
        else:
            closing()


class Copy:
    """A tenant's copy. ``database`` answers questions; in a reader it may not be written."""

    def __init__(self, path: Path, label: str, *, read_only: bool) -> None:
        self.path = path
        self.lock = TurnLock(path.with_name(f"{path.name}.lock"), LOCK_SECONDS)
        self._label = label
        self._position = 0
        try:
            with self.alone():
                self.writer = _File(path, label, write=True)
            self.database = _File(path, label, write=False) if read_only else self.writer
        except BaseException:
            self.close()
            raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Be the only writer of the file. Raises Unreachable, naming who holds it."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.lock.held())
            except (LockHeld, JournalUnavailable) as error:
                raise Unreachable(f"the copy {self.path}: {error.detail}") from None
            yield

    def fed(self) -> Fed | None:
        """How far it is; None: of no stream yet, or made by other code."""
        return self._fed_of(self.database)

    def _fed_of(self, database: Database) -> Fed | None:
        rows = database.read([_FED])[0]
        if not rows or rows[0][0] != FORMAT:
            return None
        return Fed(rows[0][1], rows[0][2], bytes(rows[0][3]))

    def is_new(self) -> bool:
        """Whether nothing was put into it."""
        return not self.database.read([Statement("SELECT 1 FROM fed")])[0]

    def begin(self, created: str) -> None:
        """Be the copy of a stream; nothing of it was read yet."""
        with self.alone(), self.writer.transaction():
            self.writer.run(
                Statement(
                    "INSERT INTO fed VALUES (1, ?, ?, 0, ?) ON CONFLICT DO NOTHING",
                    (FORMAT, created, START),
                )
            )

    # Feeding.

    def feed(
        self,
        created: str,
        messages: Sequence[tuple[int, bytes]],
        own: Own | None = None,
        taken: Callable[[], None] | None = None,
    ) -> None:
        """Put messages in, in stream order, all or none; those that are there are passed over.

        ``taken`` returns when the stream is known to hold them; where it raises nothing is put in.
        Raises FileChanged when the copy is not of the stream made at ``created`` any more, Damaged
        when a message is missing.
        """
        with self.alone(), _opened_anew():
            self.writer.check_identity()
            with self.writer.transaction():
                fed = self._fed_of(self.writer)
                if fed is None or fed.created != created:
                    raise FileChanged(f"{self.path}: it has become the copy of another stream")
                waiting = self.writer.run(Statement("SELECT count(*) FROM parts"))[0][0]
                self._position = self.writer.run(_POSITION)[0][0]
                sequence, link = fed.sequence, fed.link
                for number, payload in messages:
                    if number <= sequence:
                        continue
                    if number != sequence + 1:
                        raise Damaged(f"{self._label}: message {sequence + 1} is missing")
                    mine = own if own is not None and own.sequence == number else None
                    waiting = self._judge(number, payload, link, waiting, mine)
                    sequence, link = number, link_of(payload)
                self.writer.run(
                    Statement("UPDATE fed SET sequence = ?, link = ?", (sequence, link))
                )
                if taken is not None:
                    taken()

    def _judge(
        self, sequence: int, payload: bytes, link: bytes, waiting: int, own: Own | None
    ) -> int:
        """Take one message, or note why it is void; how many parts wait for their last now."""
        try:
            message = read(payload, link)
            _check_part(message.part, waiting)
            if message.part == 0 and waiting:
                self._drop_parts()  # of an append that nobody finished
            if not message.last:
                self.writer.run(
                    Statement("INSERT INTO parts VALUES (?, ?)", (message.part, message.data))
                )
                return message.part + 1
            data = message.data
            if message.part:
                parts = self.writer.run(Statement("SELECT data FROM parts ORDER BY part"))
                data = b"".join([*(bytes(part) for (part,) in parts), data])
                self._drop_parts()
            self._apply(_read_append(data, self._position) if own is None else own.written)
        except Void as reason:
            if waiting:
                self._drop_parts()
            self.writer.run(Statement("INSERT INTO voids VALUES (?, ?)", (sequence, str(reason))))
        return 0

    def _drop_parts(self) -> None:
        self.writer.run(Statement("DELETE FROM parts"))

    def _apply(self, written: Written) -> None:
        """Write an append. Raises Void when a constraint refuses it, leaving nothing of it."""
        statements = written.statements
        alone = len(statements) == 1 and written.entries <= CHUNK  # a statement leaves nothing
        if not alone:
            self.writer.run(_SAVE)
        try:
            for statement in statements:
                self.writer.run(statement)
        except (sqlite3.IntegrityError, OverflowError) as error:
            if not alone:
                self.writer.run(_BACK)
            raise Void(f"{REFUSED}: {error}") from None
        finally:
            if not alone:
                self.writer.run(_KEEP)
        self._position += written.entries

    def void(self, sequence: int) -> str | None:
        """Why the message at a sequence means nothing; None: it counts."""
        rows = self.database.read(
            [Statement("SELECT reason FROM voids WHERE sequence = ?", (sequence,))]
        )[0]
        return rows[0][0] if rows else None

    def close_file(self) -> None:
        """Let go of the file, whose lock is held: the last to close it checkpoints."""
        for name in ("database", "writer"):
            file: _File | None = self.__dict__.get(name)
            if file is not None:
                Database.close(file)

    def close(self) -> None:
        """Let go of everything. Raises Unreachable where the lock cannot be had."""
        try:
            with self.alone():
                self.close_file()
        finally:
            self.lock.close()


def _check_part(part: int, waiting: int) -> None:
    if part not in {0, waiting}:
        raise Void(f"it is part {part}, and {waiting} are there")


def _read_append(data: bytes, stands: int) -> Written:
    """An append that was read where the journal stands at a position. Raises Void."""
    position, append = decode(data)
    if position != stands:
        raise Void(f"it expects position {position}, not {stands}")
    try:
        return Written(statements_of(append, position), len(append.entries))
    except (ValueError, OverflowError) as error:  # such as a history that is not hexadecimal
        raise Void(f"{REFUSED}: {error}") from None


def put_aside(path: Path, why: str) -> Path:
    """Move a copy aside under a name with the reason and the time; it is evidence and is kept."""
    now = SystemClock().now().replace(":", "").replace("-", "").replace(".", "")
    aside = path.with_name(f"{path.stem}-{why}-{now}{path.suffix}")
    try:
        for suffix in (*SIDE_FILES, ""):
            beside = path.with_name(path.name + suffix)
            if beside.exists():
                beside.rename(aside.with_name(aside.name + suffix))
        sync_directory(path.parent)
    except OSError as error:
        raise EngineError(f"the copy {path} cannot be moved aside: {error}") from None
    return aside
