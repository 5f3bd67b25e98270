"""The registry of tenants: those that a service has beside its own, and where each one is.

One small file a tenant, ``<data>/tenants/<name>.json``, made whole or not at all. Where there is
one, it says where store, journal and witness are, whatever the configuration says: a tenant that
moved is found where it is. The service's own tenant has a file only once it has moved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from journal.entry import check_tenant
from journal.errors import Invalid, SettingsInvalid
from journal.sqlite import make_directory, sync_directory

FOLDER = "tenants"
_SUFFIX = ".json"
_PLACES = ("store", "journal", "witness")


class Earlier(Struct, frozen=True):
    """Where a tenant was before it moved, and until when. What is there is kept, and closed."""

    store: str | None
    journal: str | None
    until: str
    generation: int


class Registered(Struct, frozen=True):
    """Where a tenant is: directories or URLs; None is the one under the data directory.

    ``created`` and ``by`` say when it was registered, and by whom; ``earlier`` where it was before.
    """

    tenant: str
    store: str | None
    journal: str | None
    witness: str | None
    created: str
    by: str | None = None
    earlier: list[Earlier] = []


class Mark(NamedTuple):
    """One version of a tenant's file: another one takes its place whenever it changes."""

    inode: int
    mtime_ns: int


class Registry:
    """The files of one data directory. Nothing is kept in memory: each question looks anew."""

    def __init__(self, data: str | Path) -> None:
        self.folder = Path(data) / FOLDER

    def path(self, name: str) -> Path:
        """The tenant's file. Raises Invalid for what is no tenant's name."""
        return self.folder / f"{check_tenant(name)}{_SUFFIX}"

    def names(self) -> list[str]:
        """Every tenant that has a file, by name."""
        try:
            found = os.listdir(self.folder)  # noqa: PTH208 - thousands of names, and no paths
        except FileNotFoundError:
            return []
        except OSError as error:
            raise SettingsInvalid(f"{self.folder} cannot be listed: {error}") from None
        return sorted(name[: -len(_SUFFIX)] for name in found if _is_file_of_one(name))

    def mark(self, name: str) -> Mark | None:
        """Which version of its file stands; None: it has none, or that is no tenant's name."""
        try:
            found = os.stat(self.path(name))  # noqa: PTH116 - in requests
        except (OSError, Invalid):
            return None
        return Mark(found.st_ino, found.st_mtime_ns)

    def read(self, name: str) -> Registered | None:
        """What its file says; None: it has none. Raises SettingsInvalid where it is damaged."""
        path = self.path(name)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=Registered)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            raise SettingsInvalid(f"{path} cannot be read: {error}; bring it back") from None
        if found.tenant != name:
            raise SettingsInvalid(f"{path} is of tenant {found.tenant}: bring its own back")
        return found

    def write(self, registered: Registered) -> None:
        """Put a tenant's file in place, whole or not at all; durable when this returns.

        Nobody else may read it: a URL may hold a password. Raises OSError.
        """
        path = self.path(registered.tenant)
        make_directory(path.parent)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        words = msgspec.json.format(msgspec.json.encode(registered)) + b"\n"
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(handle, words)
            os.fsync(handle)
        finally:
            os.close(handle)
        aside.replace(path)
        sync_directory(path.parent)


def _is_file_of_one(name: str) -> bool:
    try:
        return name.endswith(_SUFFIX) and bool(check_tenant(name[: -len(_SUFFIX)]))
    except Invalid:
        return False


def lasting(where: str | None) -> str | None:
    """A place that means the same in whatever directory it is read."""
    if where is None or "://" in where:
        return where
    return os.path.abspath(where)  # noqa: PTH100 - links stay as they are named


def placed(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings' values with the places that the tenant's file names, if it has one.

    What is ``given`` (flags, or an application's own words) stands. Raises SettingsInvalid.
    """
    merged = {**values, **given}
    try:
        data, tenant = merged.get("data", "data"), merged.get("tenant", "main")
        found = Registry(data).read(tenant)
    except (Invalid, TypeError):
        return merged  # what is wrong with it is said when it is converted
    if found is not None:
        for name in _PLACES:
            if name not in given:
                merged[name] = getattr(found, name)
    return merged
