"""Locks and the stop file: how processes on one machine agree without talking.

The *turn lock* is held from a batch's read to its commit, for each checkpoint, and while a writing
connection closes. SQLite before 3.51.3 can lose a WAL reset when two processes write or checkpoint
at once; and it makes read, judge, commit and append one step. It is never held for a lifetime, so a
hung server does not keep its rescuer out, and one that was stopped inside a turn is named by its
PID. The *presence lock* is shared by everyone who has the tenant open and tells `restore` that its
target is live. The *stop file* says closed when the journal cannot.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from journal.errors import JournalUnavailable, LockHeld, Recovering, Refused
from journal.sqlite import make_directory, sync_directory

_FIRST_PAUSE = 0.0005
_LONGEST_PAUSE = 0.02
_PID_BYTES = 20
_STOP_SECONDS = 1.0


class Lock(Protocol):
    """A tenant's turn lock, wherever it is. Reentrant within one object; one object per thread.

    ``waited`` says whether somebody else had it when it was asked for last.
    """

    waited: bool

    def held(self) -> AbstractContextManager[None]:
        """Hold the lock. Raises LockHeld or JournalUnavailable."""

    def close(self) -> None:
        """Let go of it."""


class TurnLock(AbstractContextManager[None]):
    """The tenant's advisory write lock. Reentrant within one object; one object per thread."""

    def __init__(self, path: Path, timeout: float) -> None:
        self._path = path
        self._handle: int | None = None
        self._timeout = timeout
        self._depth = 0
        self.waited = False
        self._pid = str(os.getpid()).ljust(_PID_BYTES).encode()

    def held(self) -> AbstractContextManager[None]:
        """Hold the lock.

        Raises LockHeld with the holder's PID after the timeout, JournalUnavailable when the disk
        refuses the lock file.
        """
        return self

    def __enter__(self) -> None:
        """See ``held``."""
        if self._depth == 0:
            self._take()
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """See ``held``."""
        self._depth -= 1
        if self._depth == 0 and self._handle is not None:
            fcntl.flock(self._handle, fcntl.LOCK_UN)

    def _opened(self) -> int:
        """The lock file, made when it is first needed: who only looks leaves no trace."""
        if self._handle is None:
            make_directory(self._path.parent)
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        return self._handle

    def _take(self) -> None:
        handle = self._opened()
        pause = _FIRST_PAUSE
        deadline = 0.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EWOULDBLOCK, errno.EINTR}:
                    raise JournalUnavailable(f"the tenant's lock cannot be had: {error}") from error
            else:
                self._sign(handle)
                self.waited = deadline > 0
                return
            now = time.monotonic()
            deadline = deadline or now + self._timeout
            if now > deadline:
                pid = os.pread(handle, _PID_BYTES, 0).decode("ascii", "replace").strip()
                raise LockHeld(
                    f"process {pid} has held the tenant's lock for over {self._timeout:g} s; "
                    f"if it hangs, end it with: kill -9 {pid}",
                    pid=int(pid) if pid.isdigit() else None,
                )
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _sign(self, handle: int) -> None:
        """Leave our PID in the lock. Unsigned it would name whoever held it before us."""
        try:
            if os.pread(handle, _PID_BYTES, 0) != self._pid:
                os.pwrite(handle, self._pid, 0)
        except OSError as error:
            fcntl.flock(handle, fcntl.LOCK_UN)
            raise JournalUnavailable(f"the tenant's lock cannot be signed: {error}") from error

    def close(self) -> None:
        """Let go of the lock file."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class Presence:
    """A shared lock that everyone who has the tenant open holds.

    Raises Refused where another one excludes it, JournalUnavailable when the disk refuses it.
    """

    def __init__(self, path: Path, *, exclusive: bool = False) -> None:
        make_directory(path.parent)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
            fcntl.flock(self._handle, kind | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._handle)
            if error.errno != errno.EWOULDBLOCK:
                raise JournalUnavailable(f"the presence lock cannot be had: {error}") from error
            raise Refused(
                "the store is in use by a running process; stop it first"
                if exclusive
                else "the store is being replaced right now; try again when that has ended"
            ) from None

    def close(self) -> None:
        """Leave."""
        os.close(self._handle)


class Standing(Struct, frozen=True):
    """One stop file as it was seen; whoever stops again puts up another one."""

    inode: int
    mtime_ns: int
    ctime_ns: int


class StopFile:
    """Says *closed*, whatever the journal says. Its existence counts, not its content."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def stands(self) -> bool:
        """Whether the tenant is stopped; also when the file cannot be looked at (P9)."""
        try:
            os.stat(self.path)  # noqa: PTH116 - in every batch and call
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def facts(self) -> dict[str, Any]:
        """Why it stands; empty when it does not or cannot be read."""
        try:
            facts = msgspec.json.decode(self.path.read_bytes())
        except (OSError, msgspec.MsgspecError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def check(self) -> None:
        """Raises Recovering while it stands."""
        if self.stands():
            facts = self.facts()
            reason = facts.get("reason", "it was stopped by an operator")
            raise Recovering(f"the tenant is closed: {reason}", verdict=facts.get("verdict"))

    def put_up(self, reason: str, now: str, **facts: Any) -> None:
        """Stop the tenant; durable when this returns.

        Where a stop stands its words are kept, in a file that takes its place: what takes down the
        one before does not take this one.
        """
        make_directory(self.path.parent)
        words = msgspec.json.encode({"reason": reason, "at": now, **facts})
        try:
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            self._put_up_anew(words)
        else:
            self._write(handle, words)
        sync_directory(self.path.parent)

    @staticmethod
    def _write(handle: int, words: bytes) -> None:
        try:
            os.write(handle, words)
            os.fsync(handle)
        finally:
            os.close(handle)

    def _put_up_anew(self, words: bytes) -> None:
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with suppress(OSError):
                words = self.path.read_bytes() or words
            self._write(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), words)
            with self._alone():
                aside.replace(self.path)
        except OSError:
            # Another one cannot be made: one must stand all the same, if that was taken just now.
            aside.unlink(missing_ok=True)
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))

    def carry(self, sequence: int) -> None:
        """Note that control says the same since its entry ``sequence``: that ends this stop too.

        Without the note a stop ends where it stands, by hand. Nothing is made where none stands.
        """
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}-{threading.get_ident()}")
        with suppress(OSError), self._alone():
            facts = self.facts()
            if facts.get("carried") == sequence or not self.path.exists():
                return
            words = msgspec.json.encode({**facts, "carried": sequence})
            self._write(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), words)
            aside.replace(self.path)
            sync_directory(self.path.parent)

    def standing(self) -> Standing | None:
        """The stop as it stands now; None: there is none. Raises JournalUnavailable."""
        try:
            return _standing(self.path.stat())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise JournalUnavailable(f"the stop file cannot be looked at: {error}") from error

    def take_down(self, seen: Standing | None = None) -> bool:
        """Let the journal's stage speak alone again; whether it does.

        With ``seen`` that stop alone is taken down: one that was put up since stays.
        """
        with self._alone():
            stands = self.standing()
            if stands is None:
                return True
            if seen not in {None, stands}:
                return False
            self.path.unlink(missing_ok=True)
        sync_directory(self.path.parent)
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One change at a time of the file that stands; a hung process keeps nobody for long."""
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            try:
                handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                yield  # nothing stands, or nobody may look at it
                return
            try:
                same = self._holds(handle, deadline)
                if same or time.monotonic() > deadline:
                    yield
                    return
            finally:
                os.close(handle)

    def _holds(self, handle: int, deadline: float) -> bool:
        """Wait for the lock of an open stop file; whether that is the one that stands."""
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_FIRST_PAUSE)
            else:
                return _standing(os.fstat(handle)) == self.standing()


def _standing(found: os.stat_result) -> Standing:
    return Standing(found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
