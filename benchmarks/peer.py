"""The peer: `eventsourcing` on SQLite, one aggregate an entity, one event a decision.

It gets what it needs to be at its best with the same durability: WAL, synchronous=FULL, the same
checkpoint interval, one connection for writing, event classes declared outright (a little faster
than its `@event` decorator), and one thread (two and four were slower).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
from eventsourcing.sqlite import SQLiteConnection, SQLiteConnectionPool, SQLiteFactory

from benchmarks import floors
from benchmarks.workload import Decision, Slice

SAVED_TOGETHER = 1000


class Case(Aggregate):
    """The entity: a decision sets its state and merges its body into its data."""

    class Opened(Aggregate.Created):
        entity: str
        operation: str
        action: str
        body: dict[str, Any]

    class Decided(Aggregate.Event):
        operation: str
        action: str
        body: dict[str, Any]

        def apply(self, aggregate: "Case") -> None:
            aggregate.state = self.action
            aggregate.data.update(self.body)

    def __init__(self, entity: str, operation: str, action: str, body: dict[str, Any]) -> None:
        del operation
        self.entity = entity
        self.state = action
        self.data = dict(body)

    @staticmethod
    def create_id(entity: str) -> UUID:
        return uuid5(NAMESPACE_URL, entity)

    def decide(self, operation: str, action: str, body: dict[str, Any]) -> None:
        self.trigger_event(self.Decided, operation=operation, action=action, body=body)


class DurablePool(SQLiteConnectionPool):
    """Connections whose commits are fsynced, whatever SQLite's compiled default."""

    def _create_connection(self) -> SQLiteConnection:
        connection = super()._create_connection()
        floors.durable(connection._sqlite_conn)  # noqa: SLF001 - it offers no setting for this
        return connection


class DurableFactory(SQLiteFactory):
    """The library's own recorder over durable connections."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        plain = self.datastore.pool
        self.datastore.pool = DurablePool(db_name=plain.db_name)
        plain.close()


@contextmanager
def application(path: Path, *, cached: bool) -> Iterator[Application]:
    """An application over the file; `cached` keeps each aggregate in memory once it is read.

    The cache is its fastest setting (no copy, no look for newer events) and is correct only while
    one process writes. Its default has none and replays an aggregate for each decision.
    """
    settings = {
        "PERSISTENCE_MODULE": "benchmarks.peer:DurableFactory",
        "SQLITE_DBNAME": str(path),
    }
    if cached:
        settings |= {
            "AGGREGATE_CACHE_MAXSIZE": "0",
            "AGGREGATE_CACHE_FASTFORWARD": "n",
            "DEEPCOPY_FROM_AGGREGATE_CACHE": "n",
        }
    app: Application = Application(settings)
    try:
        yield app
    finally:
        app.close()


def fill(path: Path, decisions: Slice) -> None:
    """Store the decisions, many a transaction. Not measured."""
    aggregates: dict[str, Case] = {}
    with application(path, cached=False) as app:
        changed: dict[str, Case] = {}
        for number, one in enumerate(decisions, 1):
            changed[one.entity] = _decided(aggregates, one)
            if number % SAVED_TOGETHER == 0:
                app.save(*changed.values())
                changed.clear()
        app.save(*changed.values())


def decide(path: Path, decisions: Slice, warm_up: int, *, cached: bool) -> float:
    """Seconds for the decisions on stored aggregates, one event a transaction.

    The first `warm_up` of them come before the clock starts.
    """
    given = [identified(one) for one in decisions]
    with application(path, cached=cached) as app:
        get, save = app.repository.get, app.save
        if cached:
            for aggregate_id in {one[0] for one in given}:
                get(aggregate_id)
        started = time.perf_counter()
        for number, (aggregate_id, operation, action, body) in enumerate(given):
            if number == warm_up:
                started = time.perf_counter()
            aggregate: Case = get(aggregate_id)
            aggregate.decide(operation, action, body)
            save(aggregate)
        return time.perf_counter() - started


def replay(path: Path, decisions: Slice) -> float:
    """Seconds to rebuild every aggregate of these decisions from its events."""
    ids = dict.fromkeys(map(_id, decisions))
    with application(path, cached=False) as app:
        get = app.repository.get
        events = 0
        started = time.perf_counter()
        for aggregate_id in ids:
            aggregate: Case = get(aggregate_id)
            events += aggregate.version
        took = time.perf_counter() - started
    if events != decisions.count:
        raise RuntimeError(f"replayed {events} events of {decisions.count}")
    return took


def opened(decisions: Slice) -> dict[str, Case]:
    """The aggregates of these decisions, not stored yet, by entity."""
    aggregates: dict[str, Case] = {}
    for one in decisions:
        _decided(aggregates, one)
    return aggregates


def identified(one: Decision) -> tuple[UUID, str, str, dict[str, Any]]:
    """A decision as the aggregate's ID and what it is given."""
    return (_id(one), *_parts(one))


def _decided(aggregates: dict[str, Case], one: Decision) -> Case:
    operation, action, body = _parts(one)
    if one.entity in aggregates:
        aggregates[one.entity].decide(operation, action, body)
    else:
        aggregates[one.entity] = Case(
            entity=one.entity, operation=operation, action=action, body=body
        )
    return aggregates[one.entity]


def _id(one: Decision) -> UUID:
    return Case.create_id(entity=one.entity)


def _parts(one: Decision) -> tuple[str, str, dict[str, Any]]:
    return one.operation, one.action, msgspec.json.decode(one.body, type=dict[str, Any])
