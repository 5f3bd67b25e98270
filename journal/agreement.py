"""Agreement: processes of one tenant that do its work declare the same lanes and receivers.

Two that differ would count one rate budget twice, sweep what the other still holds, or take a
receiver for another one. Whoever runs for long holds the agreement, a shared lock, for its life;
the declaration stands beside it. It ends with its last holder, however that one ends. Processes of
several machines, which share no file, are compared by ``journal.leading``.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.errors import Refused, SettingsInvalid
from journal.lanes import fingerprint
from journal.locks import TurnLock
from journal.settings import Settings


class Declared(Struct, frozen=True):
    """What a process declares: the fingerprint of all, and a hash of each lane and receiver."""

    fingerprint: str
    parts: dict[str, str]
    process: int


class Agreement:
    """The right to do the tenant's work under these settings. Made by ``agree``."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def close(self) -> None:
        """Leave. The last to leave lets the next one declare something else."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def agree(settings: Settings) -> Agreement:
    """Join the processes that do this tenant's work, as the first of them or on their terms.

    Raises SettingsInvalid where a live process declares other lanes, Refused where what it declares
    cannot be read, or LockHeld.
    """
    lock = TurnLock(settings.beside("lock"), settings.lock_timeout)
    try:
        with lock.held():
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            handle = os.open(settings.beside("agreement"), flags, 0o644)
            try:
                if _alone(handle):
                    _declare(settings)
                else:
                    _compare(settings)
                # On the way from alone to shared nobody holds it for a moment, but for the turn.
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BaseException:
                os.close(handle)
                raise
        return Agreement(handle)
    finally:
        lock.close()


def check_agreement(settings: Settings) -> None:
    """Refuse where a live process declares other lanes; for whoever only passes by.

    Leaves nothing behind and, where nothing differs, waits for nobody. Raises as ``agree`` does.
    """
    found = _read(settings)
    if found is not None and found.fingerprint == _fingerprint(settings):
        return
    if not settings.beside("agreement").exists():
        return
    lock = TurnLock(settings.beside("lock"), settings.lock_timeout)
    try:
        # Let go of within the turn: whoever agrees next must not take this look for a process.
        with lock.held(), _looking(settings) as handle:
            if not _alone(handle):
                _compare(settings)
    finally:
        lock.close()


@contextmanager
def _looking(settings: Settings) -> Iterator[int]:
    handle = os.open(settings.beside("agreement"), os.O_RDWR | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _alone(handle: int) -> bool:
    """Whether no other process holds the agreement; then this handle does. Needs the turn lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compare(settings: Settings) -> None:
    found = _read(settings)
    ours = declaration(settings)
    if found is None:
        raise Refused(
            f"what a running process declares cannot be read from {_path(settings)}: stop every "
            "server and dispatcher of this tenant, then start them again"
        )
    if found.fingerprint == ours.fingerprint:
        return
    raise contradiction(settings, found.fingerprint, found.parts, found.process)


def contradiction(
    settings: Settings, running: str, parts: Mapping[str, str], process: int | str
) -> SettingsInvalid:
    """What is said where a live process declares other lanes: which, and what to do."""
    ours = declaration(settings)
    names = sorted(parts.keys() | ours.parts.keys())
    differing = [name for name in names if parts.get(name) != ours.parts.get(name)]
    return SettingsInvalid(
        f"a running process declares other lanes or receivers for tenant {settings.tenant}; they "
        f"differ in: {', '.join(differing) or 'their format'}. Use its configuration file, or stop "
        f"every server and dispatcher and start them with this one (running {running}, "
        f"here {ours.fingerprint})",
        differing=differing,
        running=running,
        here=ours.fingerprint,
        process=process,
    )


def _declare(settings: Settings) -> None:
    path = _path(settings)
    aside = path.with_name(f"{path.name}.new")
    aside.write_bytes(msgspec.json.encode(declaration(settings)))
    aside.replace(path)


def _read(settings: Settings) -> Declared | None:
    try:
        return msgspec.json.decode(_path(settings).read_bytes(), type=Declared)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None


def _path(settings: Settings) -> Path:
    return settings.beside("lanes")


def _fingerprint(settings: Settings) -> str:
    return fingerprint(settings.lanes, settings.receiver)


def declaration(settings: Settings) -> Declared:
    """What this process declares under these settings."""
    parts = {f"lane {name}": _hash(lane) for name, lane in settings.lanes.items()}
    parts |= {f"receiver {name}": _hash(one) for name, one in settings.receiver.items()}
    return Declared(_fingerprint(settings), parts, os.getpid())


def _hash(declared: Struct) -> str:
    return sha256(msgspec.json.encode(declared, order="deterministic")).hexdigest()[:16]
