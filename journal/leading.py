"""Leading: of several processes of a tenant, one does the jobs of the schedule.

Sweeping, comparing every head and watching the lanes may be done twice and by anybody, so leading
saves work and repeated alerts, and decides nothing: a job is left out only where another process is
known to lead. On a store that is a file, the leader holds a lock of the file system, and a leader
that stands still is told by the age of its last sweep. On a server's store each process has a row
with a lease, by the database's clock; what it declares stands there too, so that processes which
share no file still agree on lanes and receivers.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from journal.agreement import contradiction, declaration
from journal.asking import is_dead, worker_name
from journal.errors import EngineError, SettingsInvalid, UnrewindError
from journal.files import someone_has
from journal.record import Record
from journal.reports import write_ready
from journal.settings import Settings, scheme_of
from journal.store import processes as table
from journal.store import work as works
from journal.store.processes import Process
from journal.sweeping import last_sweep
from journal.writepath import make_ready

LOGGER = logging.getLogger("unrewind")
T = TypeVar("T")

SIGNS = 3
"""Signs of life in a lease: two may be late."""

_FORGOTTEN = 3600.0
_OVERDUE = 2.0
_AHEAD = 1.0


class Runs(Protocol):
    """Runs a coroutine over a record in the record's own thread."""

    async def __call__(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run it."""


class Found(Struct, frozen=True):
    """What a sign of life found: who leads (None: nobody), and who declares other lanes."""

    leader: str | None
    other: Process | None


class Alive(Struct, frozen=True):
    """A process of the tenant as `status` shows it; ``age`` is of its last sign of life."""

    name: str
    kind: str
    since: str | None
    age: float | None
    leads: bool


# The rule.


def find(rows: Sequence[Process], me: Process, *, schedules: bool) -> Found:
    """Who leads, and who contradicts this process, as of ``me.seen``."""
    live = [row for row in rows if row.name != me.name and is_live(row, me.seen)]
    mine = [row for row in rows if row.name == me.name and row.leads and is_live(row, me.seen)]
    leaders = [*mine, *(row for row in live if row.leads)]
    other = next((row for row in live if row.declared != me.declared), None)
    if leaders:
        return Found(leaders[0].name, other)
    return Found(me.name if schedules and other is None else None, other)


def is_live(row: Process, now: float) -> bool:
    """Whether a process may still be at work: its lease runs, and nothing proves it dead."""
    # One from a time that is yet to come is of another run of the clock, or of another store.
    return row.until > now and row.seen <= now + _AHEAD and not is_dead(_place_of(row.name))


def _place_of(name: str) -> str:
    return name.partition("#")[0]


# Over a record.


async def give_sign(record: Record, me: Process, seconds: float, schedules: bool) -> Found:
    """Say that this process lives and what it declares, and lead where nobody does.

    Who contradicts a live process says nothing and leads nothing. Raises Recovering in a tenant
    that is closed, JournalUnavailable or LockHeld.
    """
    with record.lock.held():
        ready = await make_ready(record)
        rows, clock = await ready.store.read([table.READ, works.UNIX_NOW])
        now: float = clock[0][0]
        me = msgspec.structs.replace(me, seen=now, until=now + seconds)
        found = find(table.processes_of(rows), me, schedules=schedules)
        leads = found.leader == me.name and found.other is None
        statements = [table.forget(now - _FORGOTTEN)]
        if found.other is None:
            statements.append(table.write(msgspec.structs.replace(me, leads=int(leads))))
        else:
            statements.append(table.remove(me.name))
        if leads:
            statements.append(table.depose(me.name))
        await write_ready(record, ready, statements)
    return found


async def leave(record: Record, name: str) -> None:
    """This process ends: another one leads at once."""
    with record.lock.held():
        ready = await make_ready(record)
        await write_ready(record, ready, [table.remove(name)])


async def processes(record: Record) -> list[Alive]:
    """The tenant's processes, as far as they are known; the leader alone where a file tells it."""
    if not shares_server(record.settings):
        path = record.settings.beside("leader")
        with suppress(OSError, UnicodeDecodeError):
            name = path.read_text(encoding="utf-8")
            if name and someone_has(path):
                return [Alive(_place_of(name), name.partition(":")[0], None, None, leads=True)]
        return []
    if record.store is None:
        return []
    try:
        rows, clock = await record.store.read([table.READ, works.UNIX_NOW])
    except EngineError:
        return []
    now: float = clock[0][0]
    return [
        Alive(_place_of(row.name), row.kind, row.joined, max(0.0, now - row.seen), bool(row.leads))
        for row in table.processes_of(rows)
        if is_live(row, now)
    ]


async def check_declared(record: Record) -> None:
    """Refuse where a live process of a shared store declares other lanes.

    Raises SettingsInvalid.
    """
    if not shares_server(record.settings) or record.store is None:
        return
    try:
        rows, clock = await record.store.read([table.READ, works.UNIX_NOW])
    except EngineError:
        return  # what comes next says so
    me = myself(record.settings, "command")
    me = msgspec.structs.replace(me, seen=clock[0][0])
    other = find(table.processes_of(rows), me, schedules=False).other
    if other is not None:
        raise contradicted(record.settings, other)


def shares_server(settings: Settings) -> bool:
    """Whether the tenant's store is on a server, so that other machines may have it open."""
    return scheme_of(settings.store) is not None


def myself(settings: Settings, kind: str) -> Process:
    """A row for this process, by a name that no other one has."""
    declared = declaration(settings)
    parts = msgspec.json.encode(declared.parts).decode()
    name = f"{worker_name(kind)}#{secrets.token_hex(4)}"
    return Process(name, kind, declared.fingerprint, parts, "", 0.0, 0.0, 0)


def contradicted(settings: Settings, other: Process) -> SettingsInvalid:
    """What is said where a live process declares other lanes."""
    parts = msgspec.json.decode(other.parts, type=dict[str, str])
    return contradiction(settings, other.declared, parts, _place_of(other.name))


# In an event loop.


class Leading(ABC):
    """Whether this process does the jobs of the schedule now. Made by ``leading_of``."""

    @abstractmethod
    async def join(self) -> None:
        """Begin. Raises SettingsInvalid where a live process declares other lanes."""

    @abstractmethod
    async def is_ours(self) -> bool:
        """Whether to do a job now: nobody else is known to lead. Raises nothing."""

    @abstractmethod
    async def differs(self) -> str | None:
        """Why this process may give out no work: what others declare; None: nothing."""

    @abstractmethod
    async def leave(self) -> None:
        """End; what leads next need not wait. Raises nothing."""


def leading_of(
    settings: Settings, write: Runs, read: Runs, kind: str, *, schedules: bool
) -> Leading:
    """The way of leading that fits the store. ``schedules``: this process has a schedule."""
    if shares_server(settings):
        # Commands that only look need no event loop, and importing one takes longer than they do.
        from journal.leasing import LeadingByLease  # noqa: PLC0415 - see above

        return LeadingByLease(settings, write, kind, schedules=schedules)
    return LeadingByFile(settings, read, kind, schedules=schedules)


class LeadingByFile(Leading):
    """The leader holds the lock of a file; its end, however it comes, lets the next one have it."""

    def __init__(self, settings: Settings, read: Runs, kind: str, *, schedules: bool) -> None:
        self._path = settings.beside("leader")
        self._longest = _OVERDUE * settings.sweep_every
        self._read = read
        self._kind = kind
        self._schedules = schedules
        self._handle: int | None = None

    async def join(self) -> None:
        """See ``Leading.join``. What is declared is compared by ``journal.agreement``."""
        self._take()

    def _take(self) -> bool:
        if self._handle is not None or not self._schedules:
            return self._handle is not None
        try:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:
            return True  # nobody can tell
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            os.pwrite(handle, worker_name(self._kind).encode(), 0)
        except OSError:
            os.close(handle)
            return False
        self._handle = handle
        return True

    async def is_ours(self) -> bool:
        """See ``Leading.is_ours``. A leader that stands still sweeps no more."""
        if self._take():
            return True
        try:
            last = await self._read(last_sweep)
        except UnrewindError:
            return True
        return last is None or last.age > self._longest

    async def differs(self) -> str | None:
        """See ``Leading.differs``: who differs holds no agreement, and is not started."""
        return None

    async def leave(self) -> None:
        """See ``Leading.leave``."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
