"""The turn lock on a server, where many wait for it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from journal.postgres.lock import ServerLock
from journal.postgres.where import STORE, where

pytestmark = pytest.mark.engines

WAIT = 0.02
TRIES = 60


@pytest.fixture
def other(store_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(store_url, autocommit=True) as made:
        yield made


def test_a_lock_that_comes_as_the_wait_ends_is_not_kept(
    store_url: str, other: psycopg.Connection[Any]
) -> None:
    """A session may be given a lock in the moment in which it is told that it waited too long."""
    key = where(store_url, STORE, "main").turns
    lock = ServerLock(store_url, "main", WAIT)
    for _ in range(TRIES):
        # Busy meanwhile, so that nobody takes it for one that stands still.
        seconds = WAIT + random.uniform(-0.001, 0.001)
        turn = f"SELECT pg_advisory_lock({key}); SELECT pg_sleep({seconds})"
        thread = threading.Thread(
            target=other.execute, args=(f"{turn}; SELECT pg_advisory_unlock({key})",)
        )
        thread.start()
        with lock.held():
            pass
        thread.join()
        # The other one gets it at once: it is held by nobody.
        other.execute("SET lock_timeout = '5s'")
        other.execute(f"SELECT pg_advisory_lock({key}), pg_advisory_unlock({key})")
    lock.close()


def test_one_of_many_that_take_short_turns_is_not_ended(
    store_url: str, other: psycopg.Connection[Any]
) -> None:
    key = where(store_url, STORE, "main").turns
    over = threading.Event()

    def take_turns() -> None:
        while not over.is_set():
            with psycopg.connect(store_url, autocommit=True) as one:
                for _ in range(20):
                    one.execute(f"SELECT pg_advisory_lock({key})")
                    one.execute(f"SELECT pg_advisory_unlock({key})")

    threads = [threading.Thread(target=take_turns) for _ in range(3)]
    for thread in threads:
        thread.start()
    lock = ServerLock(store_url, "main", WAIT)
    try:
        for _ in range(20):
            with lock.held():
                assert other.execute("SELECT 1").fetchall() == [(1,)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
        lock.close()
