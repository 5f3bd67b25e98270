"""Served: how a store is known again by whoever kept it, and copies of one on a server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from journal.errors import Damaged, EngineError, Refused, SettingsInvalid, Unreachable
from journal.places import StorePlace
from journal.sql import Stamp
from journal.sqlite import size_of, stamp_of
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.tables import Marker


class Standing(NamedTuple):
    """A store as it stood: stamps of its file and its log, or of the server, and then its marker.

    Equal ones mean that it is the same store, and a file's that nobody wrote to it. None: there is
    nothing, or nobody can tell.
    """

    stamps: list[Stamp | None]
    marker: Marker | None = None


@contextmanager
def opened(place: StorePlace) -> Iterator[SqlStore]:
    """A store, to look at by itself. Raises what ``StorePlace.open`` does."""
    store = place.open(read_only=True)
    try:
        yield store
    finally:
        store.database.close()


def standing_of(place: StorePlace) -> Standing:
    """How a store stands now."""
    if place.file is not None:
        beside = place.file.with_name(f"{place.file.name}-wal")
        return Standing([_unless_empty(path) for path in (place.file, beside)])
    try:
        if not place.exists():
            return Standing([None])
        with opened(place) as store:
            marker = tables.marker_of(store.database.read([tables.READ_MARKER])[0])
            return Standing([store.stamp()], marker)
    except (EngineError, SettingsInvalid):
        return Standing([None])


def _unless_empty(path: Path) -> Stamp | None:
    """Readers leave an empty write-ahead log behind, which is none."""
    return stamp_of(path) if size_of(path) else None


def rows_of(place: StorePlace, folder: Path) -> str | None:
    """Copy a server's rows into a new folder; why not, where that cannot be. Raises OSError."""
    try:
        if not place.exists():
            return "there is no store"
        with opened(place) as store:
            copy_rows(store, folder)
    except Unreachable as error:
        why = f"the store's server does not answer: {error.detail}"
    except (EngineError, Refused, SettingsInvalid) as error:
        why = error.detail
    else:
        return None
    shutil.rmtree(folder, ignore_errors=True)
    return why


def copy_rows(store: SqlStore, folder: Path) -> None:
    """Unrewind's own tables, as of one moment, as files of a new folder. The rest is the server's.

    Raises what the engine does.
    """
    folder.mkdir()
    store.copy_to(folder)


# A copy of rows, read without its server.

_LIST = "copy.json"
_MARKER = "unrewind_marker"
_NAMES = tables.MARKER_COLUMNS.split(", ")
_NUMBERS = frozenset({"format", "generation", "sequence", "journalled"})


class _Table(Struct):
    columns: list[str]


class _List(Struct):
    tables: dict[str, _Table]


def list_in(folder: Path) -> Path:
    """The list of a copy's files with their hashes."""
    return folder / _LIST


def check_copy(folder: Path) -> None:
    """Raises Refused for a copy that is not whole, or not what was copied."""
    from journal.postgres.copies import manifest_of  # noqa: PLC0415 - where a server is named

    try:
        manifest_of(folder)
    except Damaged as error:
        raise Refused(error.detail) from None


def marker_in(folder: Path) -> Marker | None:
    """The marker of a copy; None: there is none. Raises Refused, NewerFormat."""
    try:
        listed = msgspec.json.decode(list_in(folder).read_bytes(), type=_List)
        lines = (folder / f"{_MARKER}.copy").read_text(encoding="utf-8").splitlines()
        values = dict(zip(listed.tables[_MARKER].columns, lines[0].split("\t"), strict=True))
        row = [int(values[name]) if name in _NUMBERS else values[name] for name in _NAMES]
    except IndexError:
        return None
    except (OSError, msgspec.MsgspecError, RecursionError, KeyError, ValueError) as error:
        raise Refused(f"{folder} is no copy of a store: {error}") from None
    return tables.marker_of([tuple(row)])
