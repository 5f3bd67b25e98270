"""Copying a tenant into a directory, where damage can be tried and nothing of it is in use."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from api.drill import facts
from journal.clock import SystemClock
from journal.driving import drive
from journal.errors import Refused
from journal.places import (
    LogFile,
    LogPlace,
    StoreFile,
    StorePlace,
    place_of_log,
    place_of_store,
)
from journal.settings import Settings
from reconstruct.copied import copy_journal, copy_store

_DATABASES = shutil.ignore_patterns("*.db", "*.db-*", "copies")


def embedded(settings: Settings, folder: Path) -> Settings:
    """The tenant as files in a new directory: every entry, every row, and its small files.

    Raises Refused or EngineError where store or journal cannot be read.
    """
    copied = msgspec.structs.replace(
        settings, data=str(folder), store=None, journal=None, witness=None, evidence=None
    )
    if settings.home.exists():
        shutil.copytree(settings.home, folder, ignore=_DATABASES)
    copied.store_file.parent.mkdir(parents=True, exist_ok=True)
    copied.journal_file.parent.mkdir(parents=True, exist_ok=True)
    store, journal = place_of_store(settings), place_of_log(settings)
    if store.file is None:
        take_store(store, copied.store_file)
    else:
        facts.copy(store.file, copied.store_file)
    if journal.file is None:
        take_journal(journal, copied.journal_file, settings.tenant)
    else:
        facts.copy(journal.file, copied.journal_file)
    return copied


def take_store(place: StorePlace, target: Path) -> None:
    """The rows of a server's store as a file, beside whoever goes on. Raises Refused."""
    _check_there(place)
    store = place.open(read_only=True)
    try:
        copy_store(store, place, StoreFile(target), SystemClock().now(), _silent)
    finally:
        drive(store.close())


def take_journal(place: LogPlace, target: Path, tenant: str) -> None:
    """The entries of a server's journal as a file, beside whoever goes on. Raises Refused."""
    _check_there(place)
    log = place.open(read_only=True)
    try:
        drive(log.look())
        drive(copy_journal(log, LogFile(target), tenant, _silent))
    finally:
        drive(log.close())


def _check_there(place: StorePlace | LogPlace) -> None:
    if not place.exists():
        raise Refused(f"there is nothing to copy at {place.label}")


def _silent(_done: int, _total: int, _what: str) -> None:
    """The steps of a drill are told, not how far each is."""
