"""The application's own connection as a store: unrewind is a guest in its transaction.

A guest never begins where the driver would not, never commits, and changes no setting of the
connection. What it writes goes into a savepoint of its own, so that a refusal leaves the
application's transaction as it was.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from journal.errors import Refused
from journal.inside.sqlite import SqliteGuest
from journal.record import Record
from journal.store.engine import SqlStore
from journal.store.tables import Marker

_WRAPPERS = 5
"""A session, its connection, the pool's proxy and an adapter lie around a driver's connection."""


class GuestStore(SqlStore):
    """A store that lives in somebody else's transaction."""

    def create_tables(self) -> None:
        """Nothing: the tenant's own record does."""

    def require(self, needs: int) -> None:
        """Nothing: the tenant's own record does."""

    def copy_to(self, target: Path) -> None:
        """Raises Refused: a copy is taken by a connection of its own."""
        raise Refused(f"no copy is made to {target} here: see `unrewind snapshot`")


class Guest(Protocol):
    """What ``deciding`` needs of a driver's connection besides reading and writing."""

    def borrowed(self) -> AbstractContextManager[None]:
        """Use the connection as unrewind reads it; it is as it was afterwards.

        Raises Refused when no transaction of the application's is open in it.
        """

    def lock(self) -> Marker:
        """Keep every other writer of decisions out until the transaction ends; the marker then.

        Waits no longer than the connection, or ``lock_timeout``, says. Raises JournalUnavailable
        when the lock cannot be had, FenceFailed when another transaction decided since this one
        began to read, Refused where the tenant has no tables in this database.
        """

    def check_place(self, record: Record) -> None:
        """Refuse a connection to another database than the one that the record has open."""


def driver_of(connection: Any) -> Any:
    """The driver's connection in what an application has in its hands.

    Takes a `sqlite3.Connection`, a `psycopg.Connection`, SQLAlchemy's `Connection` and `Session`
    and Django's `connection`, none of which is imported. Raises Refused for anything else.
    """
    found = connection
    for _ in range(_WRAPPERS):
        if SqliteGuest.fits(found) or _is_psycopg(found):
            return found
        found = _unwrapped(found)
        if found is None:
            break
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise Refused(
        f"decide_in takes a sqlite3 or psycopg connection, or SQLAlchemy's or Django's around one, "
        f"not {kind}; of an asynchronous one hand over the blocking connection below it"
    )


def guest_of(connection: Any, record: Record) -> tuple[Guest, GuestStore]:
    """The application's connection as a guest of this tenant's. Raises Refused."""
    driver = driver_of(connection)
    embedded = record.store_place.file
    if SqliteGuest.fits(driver):
        if embedded is None:
            raise Refused(
                f"the store is {record.store_place.label}, and this is a connection to SQLite"
            )
        guest = SqliteGuest(driver, embedded)
        return guest, GuestStore(guest)
    if embedded is not None:
        raise Refused(f"the store is {embedded}, and this is a connection to PostgreSQL")
    from journal.inside.postgres import PostgresGuest  # noqa: PLC0415 - needs the driver

    other = PostgresGuest(driver, record.settings)
    return other, GuestStore(other)


def _is_psycopg(found: Any) -> bool:
    psycopg = sys.modules.get("psycopg")
    return psycopg is not None and isinstance(found, psycopg.Connection)


def _unwrapped(found: Any) -> Any:
    """What a wrapper holds: a session's connection, a proxy's driver connection, Django's."""
    for name in ("driver_connection", "dbapi_connection"):
        inner = getattr(found, name, None)
        if inner is not None:
            return inner
    inner = getattr(found, "connection", None)
    if callable(inner) and not hasattr(inner, "cursor"):
        return inner()
    return inner
