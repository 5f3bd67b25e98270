"""The servers that engine tests stand on do what those tests take for granted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.soak.processes import ROOT, until
from tests.support.area import area
from tests.support.postgres import PostgresServer
from tests.support.servers import NatsCluster, require_postgres, require_small_disk

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("server_area")]

_ORPHANS = """
from tests.support.servers import NatsServer, PostgresServer
postgres, nats = PostgresServer(), NatsServer()
print(postgres.folder.parent, postgres.process.pid, nats.process.pid, flush=True)
input()
"""


def test_nothing_outlives_a_killed_test_run() -> None:
    require_postgres()
    with subprocess.Popen(
        [sys.executable, "-c", _ORPHANS],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        folder, *pids = process.stdout.readline().split()
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        os.kill(process.pid, signal.SIGKILL)
        until("its folder is gone", lambda: not Path(folder).exists())
        assert not any(Path(f"/proc/{pid}/cwd").exists() for pid in pids)


def test_a_killed_server_keeps_what_it_committed() -> None:
    require_postgres()
    with PostgresServer() as server:
        server.query("CREATE TABLE kept AS SELECT 1 AS one")
        before = server.port
        server.kill9()
        with pytest.raises(psycopg.OperationalError):
            server.query("SELECT 1")
        server.start()
        assert server.query("TABLE kept") == [(1,)]
        assert server.port == before
        with server.connect() as client:
            assert server.cut_connections() == 1
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")


def test_a_restore_goes_back_to_a_time_or_a_named_point() -> None:
    require_postgres()
    with PostgresServer(archive=True) as server:
        server.query("CREATE TABLE kept (name text)")
        backup = server.base_backup()
        server.query("INSERT INTO kept VALUES ('first')")
        moment = server.now()
        server.query("INSERT INTO kept VALUES ('second')")
        server.restore_point("here")
        server.query("INSERT INTO kept VALUES ('third')")
        server.restore_to(backup, "here")
        assert server.query("TABLE kept") == [("first",), ("second",)]
        server.query("INSERT INTO kept VALUES ('other')")
        server.restore_to(backup, moment)
        assert server.query("TABLE kept") == [("first",)]


def test_a_standby_is_promoted_while_its_primary_lives() -> None:
    require_postgres()
    with PostgresServer() as primary, primary.standby(synchronous=True) as standby:
        primary.query("CREATE TABLE kept AS SELECT 1 AS one")
        until("it arrives", lambda: standby.query("SELECT to_regclass('kept')") != [(None,)])
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.query("INSERT INTO kept VALUES (2)")
        standby.promote()
        standby.query("INSERT INTO kept VALUES (2)")
        assert primary.query("TABLE kept") == [(1,)]


@pytest.mark.parametrize("what", ["data", "wal"])
def test_a_disk_is_full_and_free_again(what: str) -> None:
    require_postgres()
    require_small_disk()
    with PostgresServer(small_disk=(what, 80)) as server:
        server.query("CREATE TABLE kept (text text)")
        server.fill_disk()
        fill = "INSERT INTO kept SELECT repeat('x', 100) FROM generate_series(1, 99999)"
        with pytest.raises(psycopg.errors.DiskFull, match="No space left on device"):
            server.query(fill)
        assert ("PANIC" in server.said()) == (what == "wal")
        server.free_disk()
        if what == "wal":
            server.kill9()
            server.start()
        server.query("INSERT INTO kept VALUES ('again')")


def test_a_cluster_has_one_leader(nats_cluster: NatsCluster) -> None:
    leader = nats_cluster.leader()
    assert leader not in nats_cluster.followers()
    assert len(nats_cluster.followers()) == 2


def test_each_test_has_a_database_of_its_own(
    store_url: str, journal_url: str, postgres_stores: PostgresServer
) -> None:
    assert store_url.rpartition("/")[0] != journal_url.rpartition("/")[0]
    name = store_url.rpartition("/")[2]
    with psycopg.connect(store_url) as client:
        client.execute("CREATE SCHEMA mine CREATE TABLE one (two int)")
        client.commit()
        postgres_stores.wipe_database(name)
    assert postgres_stores.query("SELECT to_regclass('mine.one')", database=name) == [(None,)]


def test_folders_of_servers_are_open_to_another_user() -> None:
    assert area().folder.stat().st_mode & 0o005 == 0o005
