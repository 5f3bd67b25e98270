"""What the tests of PostgreSQL do: run at once, wait, cut connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from journal.acceptance import Place
from journal.entry import GENESIS
from journal.errors import EngineError
from journal.store import tables
from journal.store.postgres import PostgresStore
from journal.store.tables import FORMAT, Marker
from journal.worker import drive
from tests.support.engines import Postgres
from tests.support.sealing import HISTORY

MARKER = Marker(FORMAT, "main", "production", Place(HISTORY, 1, 0, GENESIS), 0)
NEXT = Place(HISTORY, 1, 1, "1" * 64)
FENCE = tables.fence(MARKER, NEXT, 0)
SECONDS = 30.0


def marker_of(store: PostgresStore) -> Marker | None:
    return tables.marker_of(drive(store.read([tables.READ_MARKER]))[0])


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """What each call gave, or the error that it raised; all begun at one moment."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(index: int) -> None:
        barrier.wait()
        try:
            results[index] = calls[index]()
        except EngineError as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    return results


def found_log_of(engine: Postgres) -> Any:
    return drive(engine.log())


def until(what: str, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def cut(engine: Postgres) -> None:
    engine.server.query(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
        f"unrewind {engine.tenant}",
    )
