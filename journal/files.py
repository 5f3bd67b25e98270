"""A tenant's files around their databases: made whole or not at all, and known again later."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from journal.sql import Stamp
from journal.sqlite import SIDE_FILES, size_of, sync_directory

HEALING = (".healing", ".healed")
"""A journal that is healed, beside the one whose place it takes: while it is built, and whole."""


@contextlib.contextmanager
def whole_or_absent(path: Path) -> Iterator[Path]:
    """Where to build a new file that a kill must not leave half-made under its own name."""
    aside = path.with_name(f"{path.name}.new")
    remove_database(aside)
    yield aside
    aside.replace(path)
    sync_directory(path.parent)


def remove_database(path: Path) -> None:
    """Remove a database with what belongs to it. Raises OSError."""
    for suffix in ("", *SIDE_FILES):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def move_aside(database: Path, now: str) -> Path | None:
    """Move a database and what belongs to it into a directory beside it; None: nothing there."""
    names = [database, *(database.with_name(database.name + suffix) for suffix in SIDE_FILES)]
    found = [path for path in names if path.exists()]
    if not found:
        return None
    aside = database.parent / f"replaced-{database.stem}-{compact(now)}"
    aside.mkdir()
    for path in found:
        path.rename(aside / path.name)
    sync_directory(aside)
    sync_directory(database.parent)
    return aside


def compact(now: str) -> str:
    """A time as part of a file's name."""
    return now.replace(":", "").replace("-", "").replace(".", "")


def has_content(path: Path) -> bool:
    """Whether a file is there that holds something."""
    return size_of(path) > 0


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


class Seen(Stamp, frozen=True):
    """The stamp of a store file that is consistent.

    ``watched`` says that nobody put the file there. In one that was put there steps of work may be
    older than its marker tells, which they do not move.
    """

    watched: bool = True


class SeenFile:
    """What is known of a store file, noted beside the journal. To lose it costs a comparison."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> Seen | None:
        """What was noted; None when nothing was."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Seen)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None

    def names(self, stamp: Stamp | None) -> bool:
        """Whether a file with this stamp is the one that was noted."""
        seen = self.read()
        if seen is None or stamp is None:
            return False
        return seen == _seen(stamp, watched=seen.watched)

    def watched(self) -> bool:
        """Whether the file that was noted is a watched one."""
        seen = self.read()
        return seen is not None and seen.watched

    def note(self, stamp: Stamp, *, watched: bool = True) -> None:
        """Note that the file with this stamp is consistent."""
        aside = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        try:
            aside.write_bytes(msgspec.json.encode(_seen(stamp, watched=watched)))
            aside.replace(self.path)
        except OSError:
            # Only a shortcut is lost: the next start compares every head.
            aside.unlink(missing_ok=True)
            return
        with contextlib.suppress(OSError):
            sync_directory(self.path.parent)

    def watch(self, stamp: Stamp | None) -> None:
        """Note that every step in the file was doubted that had to be."""
        if stamp is not None and not self.watched():
            self.note(stamp)

    def forget(self) -> None:
        """Nothing is known of the file any more."""
        self.path.unlink(missing_ok=True)


def _seen(stamp: Stamp, *, watched: bool) -> Seen:
    return Seen(stamp.parts, watched=watched)
