"""The machine that the code runs on: clocks, processes, files and chance, as modules see them.

``install`` puts these in the place of `time`, `os`, `threading`, `secrets` and so on, in the
modules that use them. They do as they always do while no world runs.
"""

from __future__ import annotations

import importlib
import os
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any, Self

import httpx

import api.schedule
import journal.asking
import journal.clock
import journal.service
from journal import sqlite
from journal.entry import time_of
from tests.simulation.hub import Fiber, Hub, Process

START = datetime(2026, 3, 1, 9, 0, tzinfo=UTC)
_SLEEPING = (
    "journal.locks",
    "journal.witness",
    "journal.leading",
    "reconstruct.verification",
    "reconstruct.leaving",
    "api.opening",
    "api.carrier",
    "api.heart",
    "api.reconciling",
    "api.watching",
)
_HANDLING = (
    "journal.agreement",
    "journal.asking",
    "journal.files",
    "journal.leading",
    "journal.locks",
    "journal.sqlite",
    "journal.sweeping",
    "journal.witness",
    "reconstruct.copying",
    "reconstruct.evidence",
    "reconstruct.fencing",
    "reconstruct.snapshots",
)
_LOCKING = ("journal.record", "reconstruct.beginning", "reconstruct.snapshots")
_STAMPING = (
    "journal.sqlite",
    "journal.places",
    "reconstruct.exhibits",
    "reconstruct.served",
    "reconstruct.snapshots",
)
_CHOOSING = ("journal.clock", "journal.leading", "journal.tokens", "api.carrier")


_UNWANTED = ("trusted_schema", "synchronous", "cache_size")


class Machine:
    """What one world's code sees of its machine. ``skew`` and ``database_skew`` are in seconds."""

    def __init__(self, hub: Hub, seed: int | str, world: Any = None) -> None:
        self.hub, self.world = hub, world
        self.skew = 0.0
        self.database_skew = 0.0
        self.chance = Random(f"{seed}/chance")
        self.versions: dict[str, int] = {}
        self.lock: Callable[[Any], Any] | None = None
        """Makes turn locks, where they are not the file system's."""
        self.connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def wall(self) -> datetime:
        """The machine's clock."""
        return START + timedelta(seconds=self.hub.now + self.skew)

    def database_now(self) -> str:
        """The databases' clock, as SQLite reads a time."""
        now = START + timedelta(seconds=self.hub.now + self.database_skew)
        return now.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


_present: Machine | None = None


def present(made: Machine | None) -> None:
    """From now on the modules run on this machine; None: on the real one."""
    global _present  # noqa: PLW0603 - there is one at a time
    _present = made


def machine() -> Machine:
    """The machine of the world that runs."""
    if _present is None:
        raise RuntimeError("no world runs")
    return _present


def hub() -> Hub:
    """The hub of the world that runs."""
    return machine().hub


def process() -> Process:
    """The process whose fiber runs now."""
    fiber = hub().current
    if fiber is None:
        raise RuntimeError("no fiber runs")
    return fiber.process


def _inside() -> Fiber | None:
    """The fiber that runs; None: the caller is no part of a world."""
    return None if _present is None else _present.hub.current


class Overlay:
    """A module with some of its functions replaced."""

    def __init__(self, module: ModuleType, **replaced: Any) -> None:
        self.__dict__.update(vars(module))
        self.__dict__.update(replaced)


# Time.


def _sleep(seconds: float) -> None:
    if _inside() is None:
        time.sleep(seconds)
    else:
        hub().sleep(seconds)


def _monotonic(*_clock: Any) -> float:
    return time.monotonic() if _present is None else 1000.0 + hub().now


def _now(_self: object) -> str:
    return time_of(datetime.now(UTC) if _present is None else machine().wall())


# Processes and their handles.


def _getpid() -> int:
    fiber = _inside()
    return os.getpid() if fiber is None else fiber.process.pid


def _kill(pid: int, number: int) -> None:
    if _present is None or number:
        os.kill(pid, number)
    elif not hub().is_alive(pid):
        raise ProcessLookupError(f"no process {pid}")


def _open(path: Any, flags: int, mode: int = 0o777) -> int:
    fiber = _inside()
    if fiber is not None:
        hub().pause()
    handle = os.open(path, flags, mode)
    if fiber is not None:
        fiber.process.handles.add(handle)
    return handle


def _close(handle: int) -> None:
    fiber = _inside()
    if fiber is not None:
        fiber.process.handles.discard(handle)
    os.close(handle)


def _fsync(handle: int) -> None:
    """Nobody cuts this machine's power: what was written is there."""
    if _present is None:
        os.fsync(handle)
    else:
        hub().pause()


# Threads.


class Thread:
    """``threading.Thread`` as a fiber of the present process."""

    def __init__(self, target: Callable[[], Any], name: str = "", daemon: bool = False) -> None:
        self._target, self._name, self.daemon = target, name, daemon
        self._fiber: Fiber | None = None

    def start(self) -> None:
        self._fiber = hub().spawn(process(), self._name, self._target)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.done

    def join(self) -> None:
        if self._fiber is not None:
            hub().join(self._fiber)


class Condition:
    """``threading.Condition`` between fibers, of which one runs at a time anyway."""

    def __init__(self) -> None:
        self._waiting: list[Fiber] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing was locked."""

    def wait(self, seconds: float | None = None) -> bool:
        fiber = _inside()
        if fiber is None:
            raise RuntimeError("no fiber runs")
        self._waiting.append(fiber)
        return hub().wait(seconds)

    def notify(self) -> None:
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            hub().wake(fiber)


def _thread(*args: Any, **named: Any) -> Any:
    return threading.Thread(*args, **named) if _present is None else Thread(*args, **named)


def _condition() -> Any:
    return threading.Condition() if _present is None else Condition()


def _get_ident() -> int:
    fiber = _inside()
    return threading.get_ident() if fiber is None else fiber.number


# Chance.


def _token_hex(size: int) -> str:
    return secrets.token_hex(size) if _present is None else machine().chance.randbytes(size).hex()


def _token_urlsafe(size: int) -> str:
    return secrets.token_urlsafe(size) if _present is None else _token_hex(size)


def _chance() -> float:
    return random.random() if _present is None else machine().chance.random()


# SQLite.


def _connect(*args: Any, **named: Any) -> sqlite3.Connection:
    return (sqlite3.connect if _present is None else machine().connect)(*args, **named)


def bump(path: str) -> None:
    """A file's content has changed, however little time has passed."""
    if _present is not None:
        _present.versions[path] = _present.versions.get(path, 0) + 1


def _set(names: tuple[str, ...], attribute: str, module: ModuleType, **replaced: Any) -> None:
    overlay = Overlay(module, **replaced)
    for name in names:
        setattr(importlib.import_module(name), attribute, overlay)


def install(worker: type, stamp_of: Callable[[Path], Any], schedule: type, transport: type) -> None:
    """Put all this in the modules' way; once in a process."""
    real = sqlite.stamp_of

    def stamp(path: Path) -> Any:
        return real(path) if _present is None else stamp_of(path)

    locks = importlib.import_module("journal.places").lock_of

    def lock_of(settings: Any) -> Any:
        made = None if _present is None else _present.lock
        return locks(settings) if made is None else made(settings)

    for name in _LOCKING:
        importlib.import_module(name).__dict__["lock_of"] = lock_of
    for name in _STAMPING:
        importlib.import_module(name).__dict__["stamp_of"] = stamp
    clocks = {"monotonic": _monotonic, "clock_gettime": _monotonic, "sleep": _sleep}
    _set(_SLEEPING, "time", time, **clocks)
    handles = {"open": _open, "close": _close, "kill": _kill, "getpid": _getpid, "fsync": _fsync}
    _set(_HANDLING, "os", os, **handles)
    threads = {"Thread": _thread, "Condition": _condition, "get_ident": _get_ident}
    _set(("api.heart", "api.handlers", "journal.locks"), "threading", threading, **threads)
    _set(_CHOOSING, "secrets", secrets, token_hex=_token_hex, token_urlsafe=_token_urlsafe)
    _set(("journal.reports",), "random", random, random=_chance)
    _set(("journal.sqlite",), "sqlite3", sqlite3, connect=_connect)
    setattr(journal.clock.SystemClock, "now", _now)  # noqa: B010 - not its type
    journal.asking.place = lambda: "machine/boot/1"
    setattr(api.schedule, "AsyncIOScheduler", schedule)  # noqa: B010 - not exported
    _set(("api.receivers",), "httpx", httpx, AsyncHTTPTransport=transport)
    setattr(journal.service, "Worker", worker)  # noqa: B010 - not exported
    # A built-in function of SQLite that is replaced may not be used in a trigger of a schema that
    # nobody trusts. And what the disk keeps is not simulated here: no commit waits for it.
    kept = [one for one in sqlite._PRAGMAS if not any(word in one for word in _UNWANTED)]
    pragmas = (*kept, "PRAGMA synchronous=OFF", "PRAGMA cache_size=-512")
    setattr(sqlite, "_PRAGMAS", pragmas)  # noqa: B010 - of another length
