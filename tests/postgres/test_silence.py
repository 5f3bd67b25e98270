"""A server that takes connections and never answers holds nobody up for long."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from journal.errors import EngineError, Unreachable
from journal.postgres import silence, wire
from journal.postgres.lock import ServerLock
from journal.postgres.wire import Sent, Wire
from journal.sql import Statement
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.postgres import PostgresStore
from journal.worker import drive
from tests.support.engines import Postgres
from tests.support.frozen import Frozen
from tests.support.postgres import PostgresServer
from tests.support.sessions import FENCE, MARKER, SECONDS, until

pytestmark = pytest.mark.engines

_SOON = "connect_timeout=2"


@pytest.fixture
def engine(postgres_stores: PostgresServer) -> Postgres:
    return Postgres(postgres_stores)


@pytest.fixture
def relay(engine: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Frozen]:
    """Before the server; what it does not answer is asked for again soon."""
    monkeypatch.setattr(wire, "_SILENT", 0.3)
    with Frozen(engine.server.port) as made:
        yield made
    silence._silent.clear()


@pytest.fixture
def store(engine: Postgres, relay: Frozen) -> Iterator[PostgresStore]:
    engine.store(MARKER).database.close()
    made = PostgresStore(relay.before(f"{engine.url}&{_SOON}"), engine.tenant)
    yield made
    made.database.close()


def result_of(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error that it raises; it does not wait for a statement's limit."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except EngineError as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(SECONDS)
    assert results, "it still waits"
    return results[0]


def read_of(store: SqlStore) -> Any:
    return tables.marker_of(drive(store.read([tables.READ_MARKER]))[0])


def test_a_silent_server_is_told_from_a_slow_one(store: PostgresStore, relay: Frozen) -> None:
    relay.freeze()
    for call in (lambda: read_of(store), lambda: drive(store.batch([FENCE]))):
        assert isinstance(result_of(call), Unreachable)
    relay.thaw()
    until(
        "it is asked again", lambda: not isinstance(result_of(lambda: read_of(store)), EngineError)
    )


def test_one_that_is_only_slow_is_waited_for(
    engine: Postgres, relay: Frozen, store: PostgresStore
) -> None:
    url = relay.before(engine.url)
    slow = Wire(url, "slow")
    before = relay.accepted
    assert slow.send([Sent("SELECT 1 FROM pg_sleep(1.5)")]) == [[(1,)]]
    assert relay.accepted > before, "nobody asked whether the server is there"
    slow.close()
    limited = Wire(url, "limited", limit=0.8)
    assert isinstance(result_of(lambda: limited.send([Sent("SELECT pg_sleep(600)")])), Unreachable)


def test_a_turn_does_not_wait_for_it_again_and_again(
    engine: Postgres, relay: Frozen, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "REMEMBERED", SECONDS)  # the turn takes less, however slow
    url = relay.before(f"{engine.url}&{_SOON}")
    lock = ServerLock(url, engine.tenant, 0.2)
    with lock.held():
        assert read_of(store) == MARKER
    relay.freeze()
    before = relay.accepted

    def turn() -> Any:
        with lock.held():
            try:
                return read_of(store)
            finally:
                for _ in range(5):
                    with pytest.raises(Unreachable, match="moment ago"):
                        PostgresStore.exists(url, engine.tenant)

    assert isinstance(result_of(turn), Unreachable)
    assert relay.accepted == before + 1
    lock.close()


def test_a_connection_that_is_never_answered_is_remembered(
    engine: Postgres, relay: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "REMEMBERED", SECONDS)
    relay.freeze()
    url = relay.before(f"{engine.url}&{_SOON}")
    for words in ("timeout", "moment ago"):
        error = result_of(lambda: PostgresStore.exists(url, engine.tenant))
        assert isinstance(error, Unreachable)
        assert words in str(error)
    assert relay.accepted == 1
    # Another server is asked all the same.
    assert PostgresStore.exists(engine.url, engine.tenant) is False


def test_a_refusal_is_an_answer(engine: Postgres, relay: Frozen) -> None:
    url = relay.before(engine.url).replace("postgres@", "nobody-here@")
    assert silence.answers(url, silence.server_of(url))
    assert silence.answers("postgresql://127.0.0.1:1/none", "127.0.0.1 None 1")


def test_no_foreign_error_leaves_the_lock_or_a_read(
    engine: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the server refuses at the side, it refuses as an error of ours or not at all."""
    monkeypatch.setattr("journal.postgres.lock._HOLDER", "SELECT no_such_function($1)")
    held, other = (ServerLock(engine.url, engine.tenant, timeout) for timeout in (20.0, 0.05))
    with held.held(), other.held():
        pass
    for lock in (held, other):
        lock.close()
    monkeypatch.setattr("journal.postgres.database._PLANNED", 0.0)
    monkeypatch.setattr("journal.postgres.database._REPLAN", Sent("SELECT no_such_function()"))
    assert read_of(store) == MARKER


def test_counting_takes_as_long_as_there_is_to_count(engine: Postgres) -> None:
    impatient = Postgres.__new__(Postgres)
    impatient.server, impatient.tenant = engine.server, engine.tenant
    impatient.url = f"{engine.url}%20-cstatement_timeout%3D200"
    store = impatient.store(MARKER)
    slow = "SELECT {what} FROM (SELECT pg_sleep(0.5) IS NULL AS slept OFFSET 0) s WHERE NOT slept"
    for several in ([], [tables.READ_MARKER]):
        counting = Statement(slow.format(what="count(*)"))
        assert drive(store.read([counting, *several]))[0] == [(1,)]
        with pytest.raises(Unreachable, match="statement timeout"):
            drive(store.read([Statement(slow.format(what="slept")), *several]))
    assert read_of(store) == MARKER
    store.database.close()
