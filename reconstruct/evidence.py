"""Evidence: the store's files as they were found, copied before anything opens them for writing."""

from __future__ import annotations

import os
import shutil
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.locks import TurnLock
from journal.settings import Settings
from journal.sqlite import SIDE_FILES, sync_directory, sync_file

_CHUNK = 1 << 20
MANIFEST = "evidence.json"


class Piece(Struct, frozen=True):
    """One copied file: its name, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


class Evidence(Struct, frozen=True):
    """What was kept and where, relative to the data directory."""

    directory: str
    taken: str
    pieces: list[Piece]


def hash_file(path: Path) -> str:
    """SHA-256 of a file's bytes, lowercase hex."""
    digest = sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def copy_file(source: Path, target: Path) -> None:
    """Copy bytes and make the copy durable."""
    with source.open("rb") as reader, target.open("xb") as writer:
        shutil.copyfileobj(reader, writer, _CHUNK)
        writer.flush()
        os.fsync(writer.fileno())
    sync_directory(target.parent)


def files_of(database: Path) -> list[Path]:
    """A database file and those beside it that belong to it, as far as they exist."""
    names = [database, *(database.with_name(database.name + suffix) for suffix in SIDE_FILES)]
    return [path for path in names if path.exists()]


def capture(settings: Settings, lock: TurnLock, now: str) -> Evidence:
    """Copy the store's files as they are, under the turn lock so that none of ours writes.

    Raises LockHeld, or OSError when there is no room.
    """
    stamp = now.replace(":", "").replace("-", "").replace(".", "")
    target = settings.home / "evidence" / f"{settings.tenant}-{stamp}"
    pieces = []
    with lock.held():
        target.mkdir(parents=True)
        for path in files_of(settings.store_file):
            copy_file(path, target / path.name)
            piece = target / path.name
            pieces.append(Piece(path.name, piece.stat().st_size, hash_file(piece)))
    evidence = Evidence(str(target.relative_to(settings.home)), now, pieces)
    manifest = target / MANIFEST
    manifest.write_bytes(msgspec.json.format(msgspec.json.encode(evidence)))
    sync_file(manifest)
    return evidence
