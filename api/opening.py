"""Opening a tenant for one command: to look, to write, or to decide."""

from __future__ import annotations

import contextlib
import getpass
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from journal.agreement import check_agreement
from journal.driving import drive
from journal.errors import (
    FenceFailed,
    FileChanged,
    JournalUnavailable,
    Refused,
    Unreachable,
    UnrewindError,
)
from journal.leading import check_declared
from journal.migrating import check_format
from journal.places import place_of_log, place_of_store
from journal.reading import Pending
from journal.record import Record
from journal.settings import Settings
from journal.standing import detect
from journal.writepath import settle

T = TypeVar("T")

_ATTEMPTS = 100
_PAUSE = 0.02


def principal() -> str:
    """Who runs this command, as entries name them: nobody authenticated but the system."""
    try:
        return f"os-user:{getpass.getuser()}"
    except (KeyError, OSError):
        return f"os-user:{os.getuid()}"


def check_known(settings: Settings) -> None:
    """Refuse where there is no tenant, before anything is created there."""
    if not is_known(settings):
        raise Refused(
            f"there is no tenant {settings.tenant} under {settings.data}; "
            "name its directory with --data, or found one with `unrewind serve`"
        )


def is_known(settings: Settings) -> bool:
    """Whether there is anything of the tenant; a server that does not answer may have it."""
    if settings.beside("stop").exists():
        return True
    for place in (place_of_store(settings), place_of_log(settings)):
        try:
            if place.exists() if place.file is None else place.file.exists():
                return True
        except Unreachable:
            return True
    return False


def ask(settings: Settings, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
    """Answer a question from the files alone, beside a live server, a hung one, or none.

    Raises Refused when there is no tenant to ask about.
    """
    check_known(settings)
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        drive(check_format(record))
        return _patiently(record, function, args)
    finally:
        drive(record.close())


def _patiently(
    record: Record, function: Callable[..., Coroutine[Any, Any, T]], args: tuple[Any, ...]
) -> T:
    """Ask again while a decision is under way, or while the files are being replaced."""
    for _ in range(_ATTEMPTS):
        try:
            return drive(function(record, *args))
        except Pending:
            time.sleep(_PAUSE)
        except FileChanged:
            drive(record.open_files())
    raise JournalUnavailable("the entity's newest decision is still not in the journal")


@contextmanager
def writing(settings: Settings, *, create: bool = False) -> Iterator[Record]:
    """A record that writes control; ``create`` founds the tenant where there is none."""
    if not create:
        check_known(settings)
    record = Record(settings)
    try:
        drive(record.open(create=create))
        drive(check_format(record))
        yield record
        _leave(record)
    except FenceFailed as error:
        raise JournalUnavailable(f"another process was quicker: run it again ({error})") from None
    finally:
        drive(record.close())


@contextmanager
def deciding(settings: Settings, *, create: bool = True) -> Iterator[Record]:
    """A record that decides: store and journal are compared first, as at a server's start.

    A tenant that the comparison closes is opened all the same; its decisions raise Recovering.
    Raises SettingsInvalid where a live process declares other lanes.
    """
    check_agreement(settings)
    with writing(settings, create=create) as record:
        drive(check_declared(record))
        drive(detect(record, deep=not record.stopped_clean()))
        yield record


@contextmanager
def working(settings: Settings) -> Iterator[Record]:
    """A record that changes what stands in the lanes; it founds no tenant.

    Raises SettingsInvalid where a live process declares other lanes.
    """
    check_known(settings)
    check_agreement(settings)
    with writing(settings) as record:
        drive(check_declared(record))
        yield record


def _leave(record: Record) -> None:
    """Hand off what waits and bring the store's copy of control up to date."""
    with contextlib.suppress(UnrewindError):
        drive(settle(record))
