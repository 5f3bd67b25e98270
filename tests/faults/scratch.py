"""Where thousands of copies of a tenant are put: in memory where the system offers that."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_MEMORY = Path("/dev/shm")  # noqa: S108 - a fresh directory of our own is made in it


@contextmanager
def scratch() -> Iterator[Path]:
    """A directory that is gone when the block ends."""
    usable = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK)
    with TemporaryDirectory(prefix="unrewind-", dir=_MEMORY if usable else None) as folder:
        yield Path(folder).resolve()


def fresh(folder: Path) -> Path:
    """The same directory, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder
