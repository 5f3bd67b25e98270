"""P2: what a synchronous standby has not confirmed counts as journalled for nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from journal.errors import Unreachable
from journal.log.engine import SqlLog
from journal.postgres import greeting
from journal.worker import drive
from tests.contract.test_log import add, decisions
from tests.support.engines import Postgres
from tests.support.postgres import PostgresServer
from tests.support.servers import require_postgres
from tests.support.sessions import SECONDS, at_once, until

pytestmark = pytest.mark.engines

_WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    require_postgres()
    with PostgresServer() as made:
        yield made


def test_p2_a_restart_does_not_show_what_the_standby_lacks(
    primary: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(greeting, "WITHIN", 0.5)
    engine = Postgres(primary)
    with primary.standby(synchronous=True) as standby:
        log = drive(engine.log())
        drive(add(log, *decisions(1)))
        position = drive(log.look()).position
        standby.stop()
        results: list[Any] = []
        writer = threading.Thread(
            target=lambda: results.extend(at_once(lambda: drive(add(log, *decisions(1, start=2)))))
        )
        writer.start()
        until("the append waits for the standby", lambda: primary.query(_WAITING))
        primary.kill9()
        writer.join(SECONDS)
        assert isinstance(results[0], Unreachable), results
        primary.start()
        # It is written here, and on the standby it is not.
        for call in (
            lambda: drive(log.look()),
            engine.same_log,
            lambda: engine.same_log(read_only=True),
            lambda: drive(log.feed(0, 9)),
        ):
            with pytest.raises(Unreachable, match="synchronous standby does not confirm"):
                call()
        until("no session is left waiting", lambda: not primary.query(_WAITING))
        standby.start()
        until("it follows again", lambda: _looked(log) == position + 1)
        log.database.close()


def test_a_journal_without_a_standby_commits_nothing_to_be_read(primary: PostgresServer) -> None:
    engine = Postgres(primary)
    drive(engine.log()).database.close()
    before = primary.query("SELECT pg_current_wal_insert_lsn()")
    engine.same_log(read_only=True).database.close()
    assert primary.query("SELECT pg_current_wal_insert_lsn()") == before


def _looked(log: SqlLog) -> int | None:
    try:
        return drive(log.look()).position
    except Unreachable:
        return None
