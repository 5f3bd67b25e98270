"""The peer on PostgreSQL: its own recorder, one event a transaction, also in many threads.

The same aggregates as on SQLite, cached, so that a decision is one INSERT. Its recorder locks the
table while it inserts, so that events are seen in their order; each thread has entities of its own,
so none of them meets another's version.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from eventsourcing.application import Application

from benchmarks.measure import MeasureError
from benchmarks.peer import Case, identified, opened
from benchmarks.workload import Slice


@contextmanager
def application(url: str, threads: int, *, by_function: bool) -> Iterator[Application]:
    """An application over a database; `by_function` inserts by its database function.

    That is one round trip a decision instead of five, and not its default.
    """
    at = urlsplit(url)
    app: Application = Application(
        {
            "PERSISTENCE_MODULE": "eventsourcing.postgres",
            "POSTGRES_DBNAME": at.path.removeprefix("/"),
            "POSTGRES_HOST": at.hostname or "",
            "POSTGRES_PORT": str(at.port),
            "POSTGRES_USER": at.username or "",
            "POSTGRES_PASSWORD": at.password or "",
            "POSTGRES_POOL_SIZE": str(threads),
            "POSTGRES_ENABLE_DB_FUNCTIONS": "y" if by_function else "n",
            "AGGREGATE_CACHE_MAXSIZE": "0",
            "AGGREGATE_CACHE_FASTFORWARD": "n",
            "DEEPCOPY_FROM_AGGREGATE_CACHE": "n",
        }
    )
    try:
        yield app
    finally:
        app.close()


def decide(
    url: str, opening: Slice, decisions: Slice, warm_up: int, threads: int, *, by_function: bool
) -> float:
    """Seconds for the decisions, in as many threads; the first `warm_up` come before the clock."""
    with application(url, threads, by_function=by_function) as app:
        app.save(*opened(opening).values())
        given = [identified(one) for one in decisions]
        for aggregate_id in {one[0] for one in given}:
            app.repository.get(aggregate_id)
        _in_threads(app, given[:warm_up], threads)
        return _in_threads(app, given[warm_up:], threads)


def _in_threads(app: Application, given: Sequence[Any], threads: int) -> float:
    shares: list[list[Any]] = [[] for _ in range(threads)]
    for one in given:
        shares[one[0].int % threads].append(one)
    failed: list[Exception] = []

    def work(share: list[Any]) -> None:
        get, save = app.repository.get, app.save
        try:
            for aggregate_id, operation, action, body in share:
                aggregate: Case = get(aggregate_id)
                aggregate.decide(operation, action, body)
                save(aggregate)
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    started = time.perf_counter()
    if threads == 1:
        work(shares[0])
    else:
        running = [threading.Thread(target=work, args=(share,)) for share in shares]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    took = time.perf_counter() - started
    if failed:
        raise MeasureError(f"the peer failed: {failed[0]}")
    return took
