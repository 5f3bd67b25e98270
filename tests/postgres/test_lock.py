"""The turn lock on a server: it keeps order, and never anybody out for good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from journal.postgres.lock import ServerLock
from tests.support.engines import Postgres
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.engines

SECONDS = 30.0
HANG = """
import sys, time
from journal.postgres.lock import ServerLock
with ServerLock(sys.argv[1], sys.argv[2], 5.0).held():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def engine(postgres_stores: PostgresServer) -> Postgres:
    return Postgres(postgres_stores)


@pytest.fixture
def locks(engine: Postgres) -> Iterator[list[ServerLock]]:
    made = [ServerLock(engine.url, engine.tenant, timeout) for timeout in (20.0, 20.0, 0.2)]
    yield made
    for lock in made:
        lock.close()


def holders(engine: Postgres) -> int:
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted"
    count: int = engine.server.query(held)[0][0]
    return count


def until_free(engine: Postgres) -> None:
    """Nobody waits for the answer to an unlock, so it may be a moment off."""
    deadline = time.monotonic() + SECONDS
    while holders(engine):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_one_holds_it_at_a_time_and_may_take_it_again(
    engine: Postgres, locks: list[ServerLock]
) -> None:
    first, second, _ = locks
    inside: list[str] = []
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        entered.wait(SECONDS)
        with second.held():
            inside.append("second")

    thread = threading.Thread(target=other)
    thread.start()
    with first.held(), first.held():
        entered.set()
        with first.held():
            inside.append("first")
        leave.wait(0.05)  # time enough to come in, were it free
        assert inside == ["first"]
        inside.append("first again")
    thread.join(SECONDS)
    assert inside == ["first", "first again", "second"]
    until_free(engine)


def test_whoever_waits_too_long_ends_the_session_of_one_that_hangs(
    engine: Postgres, locks: list[ServerLock]
) -> None:
    patient = locks[2]
    hung = subprocess.Popen(
        [sys.executable, "-c", HANG, engine.url, engine.tenant], stdout=subprocess.PIPE
    )
    try:
        assert hung.stdout is not None
        assert hung.stdout.readline() == b"held\n"
        os.kill(hung.pid, signal.SIGSTOP)
        with patient.held():
            assert holders(engine) == 1
        until_free(engine)
    finally:
        hung.kill()
        hung.wait(SECONDS)
        assert hung.stdout is not None
        hung.stdout.close()


def test_one_whose_session_was_ended_goes_on_and_locks_again(
    engine: Postgres, locks: list[ServerLock]
) -> None:
    first, _, impatient = locks
    with first.held(), impatient.held():
        assert holders(engine) == 1
    with first.held():
        assert holders(engine) == 1
    until_free(engine)


def test_where_no_server_answers_nobody_is_kept_out(postgres_stores: PostgresServer) -> None:
    url = "postgresql://nobody@127.0.0.1:1/none"
    lock = ServerLock(url, "main", 0.2)
    for _ in range(2):
        with lock.held(), lock.held():
            pass
    lock.close()


def test_tenants_do_not_wait_for_each_other(engine: Postgres, locks: list[ServerLock]) -> None:
    other = ServerLock(engine.url, f"{engine.tenant}-other", 0.2)
    with locks[0].held(), other.held():
        assert holders(engine) == 2
    other.close()
