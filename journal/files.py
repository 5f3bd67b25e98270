"""A tenant's files around their databases: made whole or not at all, and known again later."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from journal.sqlite import SIDE_FILES, Stamp, stamp_of, sync_directory


@contextlib.contextmanager
def whole_or_absent(path: Path) -> Iterator[Path]:
    """Where to build a new file that a kill must not leave half-made under its own name."""
    aside = path.with_name(f"{path.name}.new")
    for suffix in ("", *SIDE_FILES):
        aside.with_name(aside.name + suffix).unlink(missing_ok=True)
    yield aside
    aside.replace(path)
    sync_directory(path.parent)


def has_content(path: Path) -> bool:
    """Whether a file is there that holds something."""
    stamp = stamp_of(path)
    return stamp is not None and stamp.size > 0


def someone_has(path: Path) -> bool:
    """Whether a process holds the lock file at a path."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def read_seen(path: Path) -> Stamp | None:
    """The stamp that ``write_seen`` left; None when there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Stamp)
    except (OSError, msgspec.MsgspecError):
        return None


def write_seen(path: Path, stamp: Stamp) -> None:
    """Remember a store file's stamp beside the journal: it was written by us and is consistent."""
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(msgspec.json.encode(stamp))
        aside.replace(path)
    except OSError:
        # Only a shortcut is lost: the next start compares every head.
        aside.unlink(missing_ok=True)
        return
    with contextlib.suppress(OSError):
        sync_directory(path.parent)
