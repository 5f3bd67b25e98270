"""Taking the drill's own tenant off the servers where it was rehearsed."""

from __future__ import annotations

from journal.errors import Refused
from journal.log.engine import SqlLog
from journal.places import NATS, place_of_log, place_of_store
from journal.settings import Settings, scheme_of
from journal.sql import Projected
from journal.store.engine import SqlStore

PREFIX = "drill-"
"""How the names of the drill's tenants begin on servers; nothing else is ever taken away."""


def clear(settings: Settings) -> None:
    """Take a drill's tenant away. Raises Refused for any other one, EngineError, Unreachable."""
    if not settings.tenant.startswith(PREFIX):
        raise Refused(f"tenant {settings.tenant} is none of a drill's: it is left where it is")
    store = place_of_store(settings)
    if store.file is None and store.exists():
        _drop(store.open())
    journal = place_of_log(settings)
    if journal.file is not None or not journal.exists():
        return
    if scheme_of(settings.journal) == NATS:
        _delete_stream(settings)
    else:
        _drop(journal.open())


def _drop(engine: SqlStore | SqlLog) -> None:
    from journal.postgres.database import PostgresDatabase

    database = engine.database
    try:
        if isinstance(database, PostgresDatabase):
            database.batch([Projected(f"DROP SCHEMA {database.where.quoted} CASCADE")])
    finally:
        database.close()


def _delete_stream(settings: Settings) -> None:
    from journal.nats.address import address_of
    from journal.nats.stream import Stream
    from journal.nats.wire import Wire

    wire = Wire.to(address_of(settings.journal or ""))
    try:
        wire.request(f"$JS.API.STREAM.DELETE.{Stream(wire, settings.tenant).name}")
    finally:
        wire.close()
