"""Connections of the simulated machine to its databases: SQLite's own, where anything may happen.

At every statement the fiber may be left, the process killed, or the call fail as the engines
declare it: refused before it had any effect, failed with a disk, or carried out and never answered.
"""

from __future__ import annotations

import os
import sqlite3
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote
from weakref import ref

from journal.sql import Stamp
from journal.sqlite import FAILURES
from tests.simulation import machine
from tests.simulation.hub import Process

_BUSY_SECONDS = 5.0
_BUSY_PAUSE = 0.02
_RECENT = 16
_TIMES = sqlite3.connect(":memory:", isolation_level=None)


class Ports(Protocol):
    """What is asked before each statement, and told after it. Both may raise."""

    def before(self, connection: Connection, sql: str) -> None:
        """The statement has not begun."""

    def after(self, connection: Connection, sql: str, parameters: Any) -> None:
        """The statement has had its effect."""

    def opening(self, role: str) -> None:
        """A connection is about to be made."""


_ports: list[Ports] = []


def guard(ports: Ports | None) -> None:
    """Ask these about each statement from now on."""
    _ports[:] = [] if ports is None else [ports]


class Connection(sqlite3.Connection):
    """A connection of one process to one file. ``role`` says to what: store, journal or other."""

    path: str
    role: str
    inode: int
    held: Process | None
    cursors: deque[ref[sqlite3.Cursor]]

    def execute(self, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        """See ``sqlite3.Connection.execute``."""
        machine.hub().pause()
        for ports in _ports:
            ports.before(self, sql)
        found = self._patiently(sql, parameters)
        self.cursors.append(ref(found))
        try:
            for ports in _ports:
                ports.after(self, sql, parameters)
        except sqlite3.Error:
            found.close()  # as the driver does when a statement fails
            raise
        if sql == "COMMIT":
            machine.bump(f"{self.path}-wal")
        return found

    def _patiently(self, sql: str, parameters: Any) -> sqlite3.Cursor:
        """As SQLite's busy handler waits, but in virtual time."""
        deadline = 0.0
        while True:
            try:
                return super().execute(sql, parameters)
            except sqlite3.OperationalError as error:
                hub = machine.hub()
                deadline = deadline or hub.now + _BUSY_SECONDS
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or hub.now > deadline:
                    raise
                hub.sleep(_BUSY_PAUSE)

    def executescript(self, script: str) -> sqlite3.Cursor:
        """See ``sqlite3.Connection.executescript``: one step."""
        machine.hub().pause()
        return super().executescript(script)

    def close(self) -> None:
        """See ``sqlite3.Connection.close``; the last one puts the log into the file."""
        if self.held is not None:
            self.held.connections.pop(id(self), None)
            self.held = None
            self.let_go()

    def let_go(self) -> None:
        """See ``hub.Closes``."""
        wal = f"{self.path}-wal"
        waits = os.path.exists(wal) and os.path.getsize(wal) > 0  # noqa: PTH110, PTH202 - hot
        with suppress(*FAILURES):
            # What a killed fiber still holds would keep the connection, and its locks, alive.
            for cursor in [found for known in self.cursors if (found := known()) is not None]:
                cursor.close()
            if self.in_transaction:
                super().execute("ROLLBACK")
            super().close()
        if waits and not os.path.exists(wal):  # noqa: PTH110 - hot
            machine.bump(self.path)


def connect(place: Any, **named: Any) -> sqlite3.Connection:
    """What ``sqlite3.connect`` is to the journal's code; ``roles`` tells files apart by folder."""
    named.pop("timeout", None)
    text = str(place)
    path = unquote(text.removeprefix("file:").partition("?")[0])
    role = _role_of(path)
    for ports in _ports:
        ports.opening(role)
    made = sqlite3.connect(place, **named, factory=Connection, timeout=0)
    made.path, made.role = path, role
    made.inode = os.stat(path).st_ino if role != "other" else 0  # noqa: PTH116 - hot
    made.cursors = deque(maxlen=_RECENT)
    made.held = machine.process()
    made.held.connections[id(made)] = made
    made.create_function("strftime", -1, _strftime)
    made.create_function("julianday", -1, _julianday)
    return made


def _role_of(path: str) -> str:
    parts = path.rpartition("/")
    folder = parts[0].rpartition("/")[2]
    return folder if parts[2] == "main.db" and folder in {"store", "journal"} else "other"


def _strftime(form: str, *values: str) -> Any:
    return _time("strftime", form, *values)


def _julianday(*values: str) -> Any:
    return _time("julianday", *values)


def _time(function: str, *values: str) -> Any:
    now = machine.machine().database_now()
    given = [now if value == "now" else value for value in values]
    marks = ",".join("?" * len(given))
    return _TIMES.execute(f"SELECT {function}({marks})", given).fetchone()[0]


def stamp_of(path: Path) -> Stamp | None:
    """``journal.sqlite.stamp_of``, of which two that differ differ however soon they follow."""
    try:
        found = os.stat(path)  # noqa: PTH116 - hot
    except OSError:
        return None
    versions = machine.machine().versions
    version = versions.get(str(path), 0)
    return Stamp((found.st_dev, found.st_ino, found.st_size, version, 0))


def failure(code: int, why: str) -> sqlite3.OperationalError:
    """An error as SQLite raises it."""
    error = sqlite3.OperationalError(why)
    error.sqlite_errorcode = code
    error.sqlite_errorname = why
    return error


def rolled_back(connection: sqlite3.Connection) -> None:
    """As SQLite does by itself after some errors of a commit."""
    with suppress(sqlite3.Error):
        sqlite3.Connection.execute(connection, "ROLLBACK")


__all__: Sequence[str] = ("Connection", "connect", "failure", "guard", "rolled_back", "stamp_of")
