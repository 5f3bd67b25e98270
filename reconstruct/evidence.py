"""Evidence: the store as it was found, with what was known then, in a bundle.

    <evidence>/<tenant>-<time>/
      store/           the database and what belongs to it, byte for byte; of a store on a server
                       its rows as of one moment
      *.json           control, the journal's place, the marker, work, gaps, settings, versions
      notes.txt, attached/, configuration/
      evidence.json    the manifest: each of these with its size and SHA-256

A bundle is copied before anything opens the store for writing, is made under another name and
renamed when it is whole, and is never changed. The manifest's hash goes into the control entry of
the recovery that it belongs to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, BinaryIO

import msgspec
from msgspec import Struct

from journal.driving import drive
from journal.errors import Refused, UnrewindError
from journal.files import compact
from journal.locks import Lock
from journal.places import StorePlace, place_of_store
from journal.record import Record
from journal.settings import Settings
from journal.sql import Stamp
from journal.sqlite import SIDE_FILES, sync_directory
from journal.standing import LOGGER, change_control
from journal.store.tables import Marker
from reconstruct.copying import Copied, copy_apart
from reconstruct.exhibits import EXHIBITS, Exhibit
from reconstruct.served import rows_of, standing_of

_CHUNK = 1 << 20
MANIFEST = "evidence.json"
SCHEMA = "unrewind-evidence/1"
PARTIAL = ".partial"
STORE = "store"
_ROOM = 16 * 1024 * 1024
"""Bytes that must be free beyond those of the files to copy."""
_READ_ONLY = 0o444
_PASSWORD = re.compile(rb"://[^/\s\"'@]*:[^/\s\"'@]+@|\bpassword=")


class Piece(Struct, frozen=True):
    """One file of a bundle: its name within, size in bytes and SHA-256."""

    name: str
    size: int
    sha256: str


class Manifest(Struct, frozen=True):
    """What a bundle holds. ``missing`` names what could not be read, and why.

    ``stamps`` are those of the store's database and its write-ahead log when they were copied. Of
    a server they change when it is started anew, not with each write: ``marker`` tells more.
    """

    schema: str
    tenant: str
    instance: str
    taken: str
    reason: str
    pieces: list[Piece]
    missing: dict[str, str]
    stamps: list[Stamp | None]
    marker: Marker | None = None


class Evidence(Struct, frozen=True):
    """A bundle that was kept: where, relative to the data directory if it lies within.

    ``sha256`` is that of its manifest.
    """

    directory: str
    taken: str
    pieces: list[Piece]
    missing: dict[str, str]
    sha256: str


class Given(Struct, frozen=True):
    """What whoever begins a recovery adds: a note, files, and the configuration file it used."""

    note: str | None = None
    attached: tuple[Path, ...] = ()
    configuration: Path | None = None


NOTHING = Given()


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


# Keeping.


def capture(
    settings: Settings, lock: Lock, now: str, reason: str = "", given: Given = NOTHING
) -> Evidence:
    """Make a bundle, under the turn lock so that none of ours writes.

    What cannot be read is named in the manifest. Raises LockHeld, or Refused where the bundle
    cannot be written: then nothing of it is left.
    """
    home = settings.evidence_home
    try:
        _require_room(settings, given)
        target = _free_name(home, f"{settings.tenant}-{compact(now)}")
        partial = target.with_name(target.name + PARTIAL)
        with lock.held():
            partial.mkdir(parents=True)
            try:
                evidence = _fill(settings, partial, target, now, reason, given)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
    except OSError as error:
        raise Refused(
            f"stopped, but no evidence could be kept in {home}: {error.strerror or error}; make "
            "room there or name another place with `evidence` in the settings, then begin again"
        ) from error
    return evidence


def _require_room(settings: Settings, given: Given) -> None:
    home = settings.evidence_home
    home.mkdir(parents=True, exist_ok=True)
    needed = _ROOM
    file = place_of_store(settings).file
    for path in (*(() if file is None else files_of(file)), *given.attached):
        with contextlib.suppress(OSError):
            needed += path.stat().st_size
    free = shutil.disk_usage(home).free
    if free < needed:
        raise Refused(
            f"stopped, but no evidence was kept: the copy needs {needed:,} bytes, and {home} has "
            f"{free:,} free; make room there or name another place with `evidence` in the "
            "settings, then begin again"
        )


def _free_name(home: Path, name: str) -> Path:
    number = 1
    while True:
        path = home / (name if number == 1 else f"{name}-{number}")
        if not path.exists() and not path.with_name(path.name + PARTIAL).exists():
            return path
        number += 1


def _fill(
    settings: Settings, partial: Path, target: Path, now: str, reason: str, given: Given
) -> Evidence:
    """Write everything into the new directory, the manifest last, and give it its name."""
    pieces: list[Piece] = []
    missing: dict[str, str] = {}
    place = place_of_store(settings)
    standing = standing_of(place)
    if place.file is None:
        _keep_rows(place, partial / STORE, pieces, missing)
    else:
        _copy(files_of(place.file), partial, STORE, pieces, missing)
    if not pieces and not missing:
        missing[STORE] = "there is no store"
    _exhibit(settings, partial, pieces, missing)
    _copy([settings.witness_file], partial, "witness", pieces, missing)
    if given.configuration is None:
        missing["configuration"] = "no file is known: settings.json has what was in force"
    elif _holds_password(given.configuration):
        missing["configuration"] = "it holds a password: settings.json has what was in force"
    else:
        _copy([given.configuration], partial, "configuration", pieces, missing)
    _attach(given, partial, pieces, missing)
    manifest = Manifest(
        schema=SCHEMA,
        tenant=settings.tenant,
        instance=settings.instance,
        taken=now,
        reason=reason,
        pieces=pieces,
        missing=missing,
        stamps=standing.stamps,
        marker=standing.marker,
    )
    content = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
    with _new_file(partial / MANIFEST) as out:
        out.write(content)
    sync_directory(partial)
    partial.rename(target)
    sync_directory(target.parent)
    return Evidence(_told_as(settings, target), now, pieces, missing, sha256(content).hexdigest())


def _told_as(settings: Settings, target: Path) -> str:
    try:
        return str(target.resolve().relative_to(settings.home.resolve()))
    except ValueError:
        return str(target)


def _copy(
    files: list[Path], partial: Path, name: str, pieces: list[Piece], missing: dict[str, str]
) -> None:
    """Copy files into a folder of the bundle; what cannot be read is named."""
    if not files:
        return
    folder = partial / name
    folder.mkdir(exist_ok=True)
    for file, copied in copy_apart(files, folder).items():
        _take(f"{name}/{file}", copied, pieces, missing)
    if any(folder.iterdir()):
        sync_directory(folder)
    else:
        folder.rmdir()


def _keep_rows(
    place: StorePlace, folder: Path, pieces: list[Piece], missing: dict[str, str]
) -> None:
    """The rows of a store on a server, as of one moment; why not, where they cannot be read."""
    why = rows_of(place, folder)
    if why is not None:
        missing[STORE] = why
        return
    for path in sorted(folder.iterdir()):
        path.chmod(_READ_ONLY)
        pieces.append(_piece(folder.parent, f"{STORE}/{path.name}"))
    sync_directory(folder)


def _holds_password(path: Path) -> bool:
    """Whether a file names a server with its password: it is not to be read by everybody."""
    try:
        return _PASSWORD.search(path.read_bytes()) is not None
    except OSError:
        return False


def _take(name: str, copied: Copied, pieces: list[Piece], missing: dict[str, str]) -> None:
    if isinstance(copied, str):
        missing[name] = copied
    else:
        pieces.append(Piece(name, *copied))


def _attach(given: Given, partial: Path, pieces: list[Piece], missing: dict[str, str]) -> None:
    """The operator's note and files; two files of one name get folders of their own."""
    if given.note is not None:
        with _new_file(partial / "notes.txt") as out:
            out.write(given.note.encode(errors="replace") + b"\n")
        pieces.append(_piece(partial, "notes.txt"))
    used: dict[str, int] = {}
    for path in given.attached:
        used[path.name] = count = used.get(path.name, 0) + 1
        if count == 1:
            _copy([path], partial, "attached", pieces, missing)
        else:
            (partial / "attached").mkdir(exist_ok=True)
            _copy([path], partial, f"attached/{count}", pieces, missing)


def _exhibit(
    settings: Settings, partial: Path, pieces: list[Piece], missing: dict[str, str]
) -> None:
    """The documents that tell what was known, read from the files as they are."""
    try:
        record = Record(settings, read_only=True)
    except UnrewindError as error:
        missing.update(dict.fromkeys(EXHIBITS, error.detail))
        return
    try:
        drive(record.open_files())
        for name, exhibit in EXHIBITS.items():
            why = _write_exhibit(record, exhibit, partial / name)
            if why is None:
                pieces.append(_piece(partial, name))
            else:
                missing[name] = why
    except UnrewindError as error:
        missing.update({name: error.detail for name in EXHIBITS if name not in missing})
    finally:
        drive(record.close())


def _write_exhibit(record: Record, exhibit: Exhibit, path: Path) -> str | None:
    """Write one document; why that failed where it did."""
    try:
        with _new_file(path) as out:
            drive(_run(exhibit, record, out))
    except UnrewindError as error:
        why = error.detail
    except msgspec.MsgspecError as error:
        why = str(error)
    else:
        return None
    path.unlink()
    return why


async def _run(exhibit: Exhibit, record: Record, out: BinaryIO) -> None:
    await exhibit(record, out)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[BinaryIO]:
    """A new file, read-only and durable when the block has ended."""
    out: IO[bytes]
    with path.open("xb") as out:
        yield out
        out.flush()
        os.fchmod(out.fileno(), _READ_ONLY)
        os.fsync(out.fileno())


def _piece(partial: Path, name: str) -> Piece:
    path = partial / name
    return Piece(name, path.stat().st_size, hash_file(path))


# Knowing what was kept.


def bundles(settings: Settings) -> list[Path]:
    """This tenant's bundles, oldest first, unfinished ones among them."""
    home = settings.evidence_home
    if not home.is_dir():
        return []
    name = re.compile(rf"{re.escape(settings.tenant)}-\d{{8}}T\d+Z(-\d+)?({re.escape(PARTIAL)})?")
    return sorted(path for path in home.iterdir() if name.fullmatch(path.name) and path.is_dir())


def kept_of_this(settings: Settings) -> Evidence | None:
    """The newest bundle, if the store is still the one that it holds."""
    whole = [path for path in bundles(settings) if not path.name.endswith(PARTIAL)]
    if not whole:
        return None
    try:
        content = (whole[-1] / MANIFEST).read_bytes()
        manifest = msgspec.json.decode(content, type=Manifest)
    except (OSError, msgspec.MsgspecError, RecursionError):
        return None
    standing = standing_of(place_of_store(settings))
    if (manifest.stamps, manifest.marker) != standing or manifest.tenant != settings.tenant:
        return None
    return Evidence(
        _told_as(settings, whole[-1]),
        manifest.taken,
        manifest.pieces,
        manifest.missing,
        sha256(content).hexdigest(),
    )


def named(kept: Evidence) -> dict[str, str]:
    """How a control entry names a bundle."""
    return {"directory": kept.directory, "sha256": kept.sha256}


async def name_in_control(record: Record, kept: Evidence, principal: str | None = None) -> None:
    """Name a bundle that was made later in a recovery, once, until its history has started.

    From then on control's last word is what the recovery ended with, and is left as it is.
    """
    control = await record.read_control()
    known = kept.sha256.encode()
    rows = await record.journal().control()
    if control.begun is None or any(known in row.body for row in rows):
        return
    await change_control(
        record,
        "evidence",
        lambda now: now.authority,
        {"reason": control.reason, "verdict": control.verdict, "evidence": named(kept)},
        principal=principal,
    )


async def keep_unseen(record: Record, generation: int) -> None:
    """Keep the bytes of a store that was put here after the last begin, before it is written to.

    One that carries the ``generation`` in force is the one that a begin has seen. Raises LockHeld
    or Refused.
    """
    marker = await record.marker()
    seen = marker is not None and marker.place.generation == generation
    if seen or not record.guarded or kept_of_this(record.settings) is not None:
        return
    evidence = capture(
        record.settings, record.lock, record.clock.now(), "put here after the last begin"
    )
    await name_in_control(record, evidence)
    LOGGER.warning("the store was not seen by `begin`: kept in %s", evidence.directory)
