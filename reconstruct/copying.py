"""Copying files byte for byte, hashed and durable, and away from the locks that SQLite holds.

POSIX drops every lock that a process has on a file when the process closes any descriptor of it.
So a database that is open in this process is copied by a child, for which this file is run alone:
it imports nothing of the project.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

_CHUNK = 1 << 20
_READ_ONLY = 0o444
_OPEN_FILES = "/proc/self/fd"

Copied = tuple[int, str] | str
"""Size in bytes and SHA-256 of what was copied, or why it could not be read."""


def copy_apart(sources: Sequence[Path], folder: Path) -> dict[str, Copied]:
    """Copy files into a folder under their own names; what became of each, by name.

    The copies are read-only and durable. What cannot be read is told and not copied. Raises OSError
    when a copy cannot be written.
    """
    pairs = [(os.fspath(source), os.fspath(folder / source.name)) for source in sources]
    told = _by_a_child(pairs) if _is_open(sources) else [copy_one(*pair) for pair in pairs]
    return {source.name: one for source, one in zip(sources, told, strict=True)}


def copy_one(source: str, target: str) -> Copied:
    """Copy one file. Raises OSError when the copy cannot be written."""
    try:
        reader = open(source, "rb")  # noqa: PTH123, SIM115 - run alone, where only paths are known
    except OSError as error:
        return error.strerror or str(error)
    with reader, open(target, "xb") as writer:  # noqa: PTH123
        found = _copy(reader, writer)
    if isinstance(found, str):
        os.unlink(target)  # noqa: PTH108
    return found


def _copy(reader: BinaryIO, writer: BinaryIO) -> Copied:
    digest, size = hashlib.sha256(), 0
    while True:
        try:
            chunk = reader.read(_CHUNK)
        except OSError as error:
            return error.strerror or str(error)
        if not chunk:
            break
        digest.update(chunk)
        size += len(chunk)
        writer.write(chunk)
    writer.flush()
    os.fchmod(writer.fileno(), _READ_ONLY)
    os.fsync(writer.fileno())
    return size, digest.hexdigest()


def _is_open(sources: Sequence[Path]) -> bool:
    """Whether this process has one of the files open; where nobody can tell, it has."""
    wanted = set()
    for source in sources:
        try:
            found = source.stat()
        except OSError:
            continue
        wanted.add((found.st_dev, found.st_ino))
    try:
        names = os.listdir(_OPEN_FILES)  # noqa: PTH208
    except OSError:
        return True
    for name in names:
        try:
            found = os.stat(f"{_OPEN_FILES}/{name}")  # noqa: PTH116
        except OSError:
            continue
        if (found.st_dev, found.st_ino) in wanted:
            return True
    return False


def _by_a_child(pairs: Sequence[tuple[str, str]]) -> list[Copied]:
    done = subprocess.run(  # noqa: S603 - this file, run by this interpreter
        [sys.executable, "-I", "-S", __file__],
        input=json.dumps(pairs).encode(),
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise OSError(done.returncode, done.stderr.decode(errors="replace").strip())
    return [one if isinstance(one, str) else tuple(one) for one in json.loads(done.stdout)]


def _main() -> int:
    """Copy the pairs of paths that stdin names; the exit code is the error number."""
    try:
        told = [copy_one(source, target) for source, target in json.load(sys.stdin)]
    except OSError as error:
        sys.stderr.write(error.strerror or str(error))
        return error.errno or 1
    json.dump(told, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(_main())
