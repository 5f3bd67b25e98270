"""Snapshots of the embedded store, and putting one back: a rewind to rehearse with."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.acceptance import Place
from journal.clock import SystemClock
from journal.control import ControlUnreadable
from journal.driving import drive
from journal.errors import EngineError, JournalUnavailable, Refused
from journal.files import SeenFile
from journal.locks import Presence
from journal.record import Record
from journal.settings import Settings
from journal.sqlite import Database, stamp_of, sync_directory, sync_file
from journal.store import tables
from reconstruct.evidence import copy_file, files_of, hash_file

MANIFEST = "snapshot.json"
FILE = "store.db"
FORMAT = 1


class Snapshot(Struct, frozen=True):
    """A consistent copy of a store: whose it is, where it stands, and the copy's SHA-256.

    ``sound`` says that the store's rows had been compared with the journal's, and nobody but
    unrewind had written since: then a plan need not compare them again.
    """

    format: int
    tenant: str
    instance: str
    place: Place
    taken: str
    size: int
    sha256: str
    sound: bool = False


class Restored(Struct, frozen=True):
    """What was put in place, and where the files that it replaced went (None: there were none)."""

    snapshot: Snapshot
    replaced: str | None


async def snapshot(record: Record, directory: Path) -> Snapshot:
    """Copy the store as of one moment into a new directory, beside a live server or with none.

    Raises Refused when the directory is not empty or there is no readable store.
    """
    if record.store is None:
        raise Refused("there is no readable store to copy")
    if directory.exists() and any(directory.iterdir()):
        raise Refused(f"{directory} is not empty; name a new directory")
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / FILE
    sound = not record.touched()
    record.store.copy_to(target)
    sound = sound and not record.touched()
    copy = Database(target, read_only=True)
    try:
        marker = tables.marker_of(copy.read([tables.READ_MARKER])[0])
    finally:
        copy.close()
    if marker is None:
        raise Refused("the store has no marker; it is not one of unrewind's")
    taken = Snapshot(
        FORMAT,
        marker.tenant,
        marker.instance,
        marker.place,
        record.clock.now(),
        target.stat().st_size,
        hash_file(target),
        sound,
    )
    manifest = directory / MANIFEST
    manifest.write_bytes(msgspec.json.format(msgspec.json.encode(taken)))
    sync_file(manifest)
    return taken


def read_manifest(directory: Path) -> Snapshot:
    """A snapshot's description, checked against its file. Raises Refused."""
    try:
        taken = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Snapshot)
        digest = hash_file(directory / FILE)
    except (OSError, msgspec.MsgspecError) as error:
        raise Refused(f"{directory} is not a snapshot: {error}") from None
    if taken.format != FORMAT:
        raise Refused(f"{directory}: snapshot format {taken.format} is not known here")
    if digest != taken.sha256:
        raise Refused(f"{directory}: the copy does not hash to what its manifest says")
    return taken


def current_history(settings: Settings) -> str | None:
    """The history that the journal has in force; None when it cannot be read."""
    record = Record(settings, read_only=True)
    try:
        drive(record.open_files())
        return drive(record.read_control()).authority.history
    except (EngineError, JournalUnavailable, ControlUnreadable):
        return None
    finally:
        drive(record.close())


def restore(settings: Settings, directory: Path, tenant: str, history: str) -> Restored:
    """Put a snapshot in the store's place; what stood there is moved aside, all of it together.

    Attempts that were under way in it are doubted from then on: their calls may have been made.
    ``tenant`` and ``history`` (the one in force) are named by the operator as a safeguard. Raises
    Refused when they are not this tenant's, when the snapshot is another's or damaged, or while a
    process has the tenant open.
    """
    taken = read_manifest(directory)
    if tenant != settings.tenant:
        raise Refused(f"this is tenant {settings.tenant}, not {tenant}")
    if (taken.tenant, taken.instance) != (settings.tenant, settings.instance):
        raise Refused(
            f"the snapshot belongs to tenant {taken.tenant}, instance {taken.instance}; "
            f"this is {settings.tenant}, {settings.instance}"
        )
    known = current_history(settings) or taken.place.history
    if history != known:
        raise Refused(f"the history in force is {known}, not {history}; see unrewind status")
    presence = Presence(settings.beside("presence"), exclusive=True)
    try:
        replaced = move_aside(settings.store_file)
        _put_in_place(directory / FILE, settings.store_file)
        stamp = stamp_of(settings.store_file)
        if stamp is not None and taken.sound:
            # Compared, and not watched: the copy may be of just before an attempt's call.
            SeenFile(settings.journal_file.with_suffix(".seen")).note(stamp, watched=False)
    finally:
        presence.close()
    return Restored(taken, None if replaced is None else str(replaced))


def move_aside(database: Path) -> Path | None:
    """Move a database and what belongs to it into a directory beside it; None: nothing there."""
    found = files_of(database)
    if not found:
        return None
    now = SystemClock().now().replace(":", "").replace("-", "").replace(".", "")
    aside = database.parent / f"replaced-{database.stem}-{now}"
    aside.mkdir()
    for path in found:
        path.rename(aside / path.name)
    sync_directory(aside)
    sync_directory(database.parent)
    return aside


def _put_in_place(source: Path, database: Path) -> None:
    database.parent.mkdir(parents=True, exist_ok=True)
    incoming = database.with_name(f"{database.name}.{os.getpid()}.incoming")
    incoming.unlink(missing_ok=True)
    copy_file(source, incoming)
    incoming.rename(database)
    sync_directory(database.parent)
