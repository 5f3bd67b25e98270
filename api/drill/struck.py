"""A command of `unrewind` that is killed at one handoff.

    python -m api.drill.struck POINT ARGUMENTS…

The kill is in the ports that the command is given here, never in the code that uses them: a log, a
store and a caller that end their process with SIGKILL when their call comes. A point that never
comes lets the command end as usual.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from msgspec import Struct

MARK = "struck-"
"""How the operations begin at which a decision's points strike; the point's name follows."""


class Point(Struct, frozen=True):
    """A place between two ends: before or after the n-th call of a port that fits."""

    port: str
    call: str
    after: bool
    number: int
    sentence: str
    fits: str = ""


POINTS = {
    "stored": Point(
        "log", "append", False, 1, "after the store's commit, before the journal's append", "marked"
    ),
    "journalled": Point(
        "log", "append", True, 1, "after the journal's append, before the answer", "marked"
    ),
    "committed": Point(
        "log", "append", True, 1, "after a release's commitment, before its call", "commitment"
    ),
    "accepted": Point(
        "caller", "send", True, 1, "after the receiver accepted, before its receipt is stored"
    ),
    "begin": Point("log", "append", True, 1, "in begin: control has the generation, the store not"),
    "plan": Point("log", "look", True, 1, "in plan: after its first look"),
    "apply": Point("store", "batch", True, 2, "in apply: after its second commit"),
    "reconcile": Point("store", "batch", True, 1, "in reconcile: after its first commit"),
    "reopen": Point("log", "append", True, 1, "in reopen: after its first stage is journalled"),
}


class _Fuse:
    """Counts the calls that fit a point and ends the process at its own."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.point = POINTS[name]
        self.left = self.point.number

    def burn(self, port: str, call: str, argument: Any, *, after: bool) -> None:
        point = self.point
        if (port, call, after) != (point.port, point.call, point.after):
            return
        if not self._fits(argument):
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def _fits(self, argument: Any) -> bool:
        if not self.point.fits:
            return True
        envelopes = [entry.envelope for _, entry in getattr(argument, "entries", ())]
        if self.point.fits == "commitment":
            return any(envelope.action == "release.committed" for envelope in envelopes)
        mark = f"{MARK}{self.name}"
        return any(envelope.operation.startswith(mark) for envelope in envelopes)


def arm(name: str) -> None:
    """Give the commands of this process ports that strike at a point. Raises KeyError."""
    import journal.record
    from journal.log.sqlite import SqliteLog
    from journal.store.sqlite import SqliteStore

    fuse = _Fuse(name)

    class StruckLog(SqliteLog):
        """A journal in which a call may be the process's last."""

        async def append(self, append: Any, expects: Any) -> None:
            fuse.burn("log", "append", append, after=False)
            await super().append(append, expects)
            fuse.burn("log", "append", append, after=True)

        async def look(self) -> Any:
            found = await super().look()
            fuse.burn("log", "look", None, after=True)
            return found

    class StruckStore(SqliteStore):
        """A store in which a commit may be the process's last."""

        async def batch(self, statements: Any) -> None:
            fuse.burn("store", "batch", statements, after=False)
            await super().batch(statements)
            fuse.burn("store", "batch", statements, after=True)

    journal.record.SqliteLog = StruckLog  # type: ignore[attr-defined]
    journal.record.SqliteStore = StruckStore  # type: ignore[attr-defined]
    if fuse.point.port == "caller":
        _arm_caller(fuse)


def _arm_caller(fuse: _Fuse) -> None:
    import api.dispatcher
    from api.receivers import Caller

    class StruckCaller(Caller):
        """A caller whose process may not live to tell what the receiver said."""

        async def send(self, receiver: str, parcel: Any) -> Any:
            reply = await super().send(receiver, parcel)
            fuse.burn("caller", "send", None, after=True)
            return reply

    api.dispatcher.Caller = StruckCaller  # type: ignore[attr-defined]


def main(name: str, arguments: list[str]) -> None:
    """Run a command of `unrewind` with ports that strike."""
    from api.cli import main as program

    arm(name)
    program(arguments)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
