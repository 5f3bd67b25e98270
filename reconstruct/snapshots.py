"""Snapshots of the store, and putting one back: a rewind to rehearse with.

Of an embedded store it is a copy of its file, with the application's tables. Of one on a server it
is the rows of unrewind's own tables; the application's are the server's to back up.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
from msgspec import Struct

from journal import files
from journal.acceptance import Place
from journal.clock import SystemClock
from journal.control import ControlUnreadable
from journal.driving import drive
from journal.errors import Damaged, EngineError, JournalUnavailable, Refused
from journal.files import SeenFile
from journal.locks import Presence
from journal.places import StorePlace, lock_of, place_of_store
from journal.projection import load_projections
from journal.record import Record
from journal.settings import Settings
from journal.sqlite import Database, stamp_of, sync_directory, sync_file
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.tables import Marker
from reconstruct.beside import note_apart, waiting_in
from reconstruct.evidence import copy_file, hash_file
from reconstruct.served import check_copy, copy_rows, list_in, marker_in, opened

MANIFEST = "snapshot.json"
FILE = "store.db"
ROWS = "store"
FORMAT = 1


class Snapshot(Struct, frozen=True):
    """A consistent copy of a store: whose it is, where it stands, and the copy's SHA-256.

    ``sound`` says that the store's rows had been compared with the journal's, and nobody but
    unrewind had written since: then a plan need not compare them again. ``rows`` says that it is of
    a server: without the application's own tables, and ``sha256`` is that of its list of files.
    """

    format: int
    tenant: str
    instance: str
    place: Place
    taken: str
    size: int
    sha256: str
    sound: bool = False
    rows: bool = False


class Restored(Struct, frozen=True):
    """What was put in place, and where what it replaced went (None: there was nothing)."""

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
    if record.store_place.file is None:
        taken = _of_rows(record, record.store, directory)
    else:
        taken = _of_file(record, record.store, directory)
    manifest = directory / MANIFEST
    manifest.write_bytes(msgspec.json.format(msgspec.json.encode(taken)))
    sync_file(manifest)
    return taken


def _of_file(record: Record, store: SqlStore, directory: Path) -> Snapshot:
    target = directory / FILE
    sound = not record.touched()
    store.copy_to(target)
    sound = sound and not record.touched()
    copy = Database(target, read_only=True)
    try:
        marker = tables.marker_of(copy.read([tables.READ_MARKER])[0])
    finally:
        copy.close()
    size, digest = target.stat().st_size, hash_file(target)
    return _taken(record, marker, size, digest, sound=sound)


def _of_rows(record: Record, store: SqlStore, directory: Path) -> Snapshot:
    folder = directory / ROWS
    copy_rows(store, folder)
    size = sum(path.stat().st_size for path in folder.iterdir())
    return _taken(record, marker_in(folder), size, hash_file(list_in(folder)), rows=True)


def _taken(
    record: Record,
    marker: Marker | None,
    size: int,
    digest: str,
    *,
    sound: bool = False,
    rows: bool = False,
) -> Snapshot:
    if marker is None:
        raise Refused("the store has no marker; it is not one of unrewind's")
    return Snapshot(
        FORMAT,
        marker.tenant,
        marker.instance,
        marker.place,
        record.clock.now(),
        size,
        digest,
        sound,
        rows,
    )


def read_manifest(directory: Path) -> Snapshot:
    """A snapshot's description, checked against its file. Raises Refused."""
    try:
        taken = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Snapshot)
        listed = list_in(directory / ROWS) if taken.rows else directory / FILE
        digest = hash_file(listed)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
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

    On a server only unrewind's own tables are put back, in one transaction, and a copy of what they
    held is kept in the data directory. Attempts that were under way in it are doubted from then on:
    their calls may have been made. ``tenant`` and ``history`` (the one in force) are named by the
    operator as a safeguard. Raises Refused when they are not this tenant's, when the snapshot is
    another's or damaged, or while a process has the tenant open; Unreachable where the server does
    not answer.
    """
    taken = read_manifest(directory)
    if taken.rows:
        check_copy(directory / ROWS)
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
    place = place_of_store(settings)
    if taken.rows is not (place.file is None):
        kind = "on a server" if taken.rows else "in a file"
        raise Refused(
            f"the snapshot is of a store {kind}, and this one is {place.label}: put it back where "
            "it was taken, then use `unrewind move`"
        )
    presence = Presence(settings.beside("presence"), exclusive=True)
    try:
        if place.file is None:
            replaced = put_rows_back(settings, place, directory / ROWS)
        else:
            replaced = _put_file_back(settings, place.file, directory / FILE, taken)
    finally:
        presence.close()
    return Restored(taken, replaced)


def _put_file_back(settings: Settings, file: Path, copy: Path, taken: Snapshot) -> str | None:
    replaced = move_aside(file)
    _put_in_place(copy, file)
    stamp = stamp_of(file)
    if stamp is not None and taken.sound:
        # Compared, and not watched: the copy may be of just before an attempt's call.
        SeenFile(settings.seen_file).note(stamp, watched=False)
    return None if replaced is None else str(replaced)


def put_rows_back(settings: Settings, place: StorePlace, copy: Path) -> str | None:
    """The rows of unrewind's tables, in one transaction; those that they replace are copied first.

    What the application keeps there stays as it is: the next apply replays it.
    """
    now = SystemClock().now()
    aside = settings.home / f"replaced-{settings.tenant}-{files.compact(now)}"
    lock = lock_of(settings)
    waiting: list[str] = []
    replaced: str | None = None
    try:
        with lock.held():
            if place.exists():
                try:
                    with opened(place) as store:
                        waiting = waiting_in(store, load_projections(settings.lifecycles))
                        copy_rows(store, aside)
                    replaced = str(aside)
                except Damaged:
                    shutil.rmtree(aside, ignore_errors=True)
                    replaced = place.set_aside(now)
            note_apart(settings, waiting)
            with place.created() as store:
                store.put_back(copy)
    finally:
        lock.close()
    return replaced


def move_aside(database: Path) -> Path | None:
    """Move a database and what belongs to it into a directory beside it; None: nothing there."""
    return files.move_aside(database, SystemClock().now())


def _put_in_place(source: Path, database: Path) -> None:
    database.parent.mkdir(parents=True, exist_ok=True)
    incoming = database.with_name(f"{database.name}.{os.getpid()}.incoming")
    incoming.unlink(missing_ok=True)
    copy_file(source, incoming)
    incoming.rename(database)
    sync_directory(database.parent)
