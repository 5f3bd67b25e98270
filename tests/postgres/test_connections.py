"""Connections and servers that go away: what breaks, what comes back, what promises less."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from journal.errors import (
    FileChanged,
    Unreachable,
)
from journal.log import Append
from journal.log.postgres import PostgresLog
from journal.postgres.checks import same_server
from journal.postgres.database import PostgresDatabase
from journal.sql import Projected
from journal.store import tables
from journal.store.postgres import PostgresStore
from journal.worker import drive
from tests.support.engines import Postgres
from tests.support.postgres import PostgresServer
from tests.support.servers import require_postgres
from tests.support.sessions import (
    FENCE,
    MARKER,
    SECONDS,
    at_once,
    cut,
    marker_of,
    until,
)

pytestmark = pytest.mark.engines


@pytest.fixture(scope="module")
def fragile() -> Iterator[PostgresServer]:
    """A server that tests stop and start."""
    require_postgres()
    with PostgresServer() as made:
        made.configure(fsync="off")
        made.reload()
        yield made


@pytest.fixture
def engine(postgres_stores: PostgresServer) -> Postgres:
    return Postgres(postgres_stores)


@pytest.fixture
def store(engine: Postgres) -> Iterator[PostgresStore]:
    made = engine.store(MARKER)
    assert isinstance(made, PostgresStore)
    made.database.batch([Projected("CREATE TABLE app (id bigint PRIMARY KEY, name text)")])
    yield made
    made.database.close()


def test_a_read_goes_on_when_its_connection_was_cut(engine: Postgres, store: PostgresStore) -> None:
    stamp = store.stamp()
    cut(engine)
    assert marker_of(store) == MARKER
    assert store.stamp() == stamp
    cut(engine)
    with pytest.raises(Unreachable):
        drive(store.batch([FENCE]))
    # Its outcome is looked at before anything else; the server is the same, so the next one goes.
    assert marker_of(store) == MARKER
    drive(store.batch([FENCE]))


def test_p8_a_restart_of_the_server_changes_the_stamp_and_holds_up_a_write(
    fragile: PostgresServer,
) -> None:
    engine = Postgres(fragile)
    store, log = engine.store(MARKER), drive(engine.log())
    stamp, look = store.stamp(), drive(log.look())
    fragile.restart()
    # The connection turns out to be broken, or is a new one to a server that was not looked at.
    with pytest.raises((Unreachable, FileChanged)):
        drive(store.batch([FENCE]))
    assert tables.marker_of(drive(store.read([tables.READ_MARKER]))[0]) == MARKER
    assert store.stamp() != stamp
    drive(store.batch([FENCE]))
    assert drive(log.look()) == look
    for one in (store, log):
        one.database.close()


def test_a_server_that_does_not_answer_is_unreachable_until_it_does(
    fragile: PostgresServer,
) -> None:
    engine = Postgres(fragile)
    store, log = engine.store(MARKER), drive(engine.log())
    look = drive(log.look())
    fragile.stop("immediate")
    calls: list[Callable[[], Any]] = [
        lambda: drive(store.read([tables.READ_MARKER])),
        lambda: drive(store.batch([FENCE])),
        lambda: drive(log.look()),
        lambda: drive(log.append(Append(), look)),
        lambda: drive(log.feed(0, 9)),
        engine.same_store,
        engine.same_log,
        lambda: PostgresStore.exists(engine.url, engine.tenant),
        lambda: PostgresLog.exists(engine.url, engine.tenant),
    ]
    for call in calls:
        with pytest.raises(Unreachable):
            call()
    fragile.start()
    assert tables.marker_of(drive(store.read([tables.READ_MARKER]))[0]) == MARKER
    assert drive(log.look()) == look
    assert PostgresStore.exists(engine.url, engine.tenant)
    for one in (store, log):
        one.database.close()


def test_a_commit_that_no_standby_confirmed_is_no_success(fragile: PostgresServer) -> None:
    engine = Postgres(fragile)
    store = engine.store(MARKER)
    fragile.query("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    fragile.reload()
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    try:
        until("it is reloaded", lambda: fragile.query("SHOW synchronous_standby_names")[0][0])
        results: list[Any] = []
        writer = threading.Thread(
            target=lambda: results.extend(at_once(lambda: drive(store.batch([FENCE]))))
        )
        writer.start()
        until("the commit waits", lambda: fragile.query(waits))
        fragile.query("SELECT pg_cancel_backend(%s)", fragile.query(waits)[0][0])
        writer.join(SECONDS)
        assert isinstance(results[0], Unreachable), results
    finally:
        fragile.query("ALTER SYSTEM RESET synchronous_standby_names")
        fragile.reload()
    # What became of it is seen by looking.
    assert tables.marker_of(drive(store.read([tables.READ_MARKER]))[0]) != MARKER
    store.database.close()


def test_a_server_without_fsync_promises_less(fragile: PostgresServer) -> None:
    engine = Postgres(fragile)
    store = engine.store(MARKER)
    assert list(store.weaker) == ["postgres-fsync-off"]
    assert store.facts()["fsync"] is False
    store.database.close()


def test_a_standby_is_no_place_for_either_until_it_is_promoted(fragile: PostgresServer) -> None:
    engine = Postgres(fragile)
    store = engine.store(MARKER)
    log = drive(engine.log())
    with fragile.standby() as standby:
        assert isinstance(store.database, PostgresDatabase)
        sql = f"SELECT count(*) FROM {store.database.where.quoted}.unrewind_marker"
        until("it has the marker", lambda: standby.query(sql)[0][0] == 1)
        for port in (PostgresStore, PostgresLog):
            with pytest.raises(Unreachable, match="standby"):
                port.exists(standby.url(), engine.tenant)
            for read_only in (True, False):
                with pytest.raises(Unreachable, match="standby"):
                    port(standby.url(), engine.tenant, read_only=read_only)
        standby.promote()
        other = PostgresStore(standby.url(), engine.tenant, read_only=True)
        assert tables.marker_of(drive(other.read([tables.READ_MARKER]))[0]) == MARKER
        assert other.stamp().parts[:3] == store.stamp().parts[:3]
        assert other.stamp() != store.stamp()
        assert same_server(store.database, other.database)
        other.database.close()
    for one in (store, log):
        one.database.close()
