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
    from journal.places import LogFile, LogServer, LogStream, StoreFile, StoreServer

    fuse = _Fuse(name)
    for log_place in (LogFile, LogServer, LogStream):
        _arm_place(log_place, fuse, _arm_log)
    for store_place in (StoreFile, StoreServer):
        _arm_place(store_place, fuse, _arm_store)
    if fuse.point.port == "caller":
        _arm_caller(fuse)


def _arm_place(place: Any, fuse: _Fuse, give: Any) -> None:
    real = place.open

    def opened(self: Any, *, read_only: bool = False) -> Any:
        engine = real(self, read_only=read_only)
        give(engine, fuse)
        return engine

    place.open = opened


def _arm_log(log: Any, fuse: _Fuse) -> None:
    """A journal in which a call may be the process's last."""
    real_append, real_look = log.append, log.look

    async def append(given: Any, expects: Any) -> None:
        fuse.burn("log", "append", given, after=False)
        await real_append(given, expects)
        fuse.burn("log", "append", given, after=True)

    async def look() -> Any:
        found = await real_look()
        fuse.burn("log", "look", None, after=True)
        return found

    log.append, log.look = append, look


def _arm_store(store: Any, fuse: _Fuse) -> None:
    """A store in which a commit may be the process's last."""
    real_batch = store.batch

    async def batch(statements: Any) -> None:
        fuse.burn("store", "batch", statements, after=False)
        await real_batch(statements)
        fuse.burn("store", "batch", statements, after=True)

    store.batch = batch


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
