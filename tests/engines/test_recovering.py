"""Recoveries from two machines: the servers of store and journal let one step through at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from journal import Settings
from journal.errors import Refused
from reconstruct.fencing import alone
from tests.soak.processes import ROOT, SECONDS, until
from tests.support.postgres import PostgresServer

pytestmark = pytest.mark.engines

_HANG = """
import sys
from journal import Settings
from reconstruct.fencing import alone
with alone(Settings(data=sys.argv[1], store=sys.argv[2], journal=sys.argv[3])):
    print("held", flush=True)
    input()
"""


def machine(folder: Path, name: str, store: str | None, journal: str | None) -> Settings:
    """The tenant as another machine sees it: with a data directory of its own."""
    home = folder / name
    home.mkdir()
    return Settings(data=str(home), store=store, journal=journal)


def is_free(settings: Settings) -> bool:
    try:
        with alone(settings):
            return True
    except Refused:
        return False


def test_one_step_at_a_time_whatever_machine_it_runs_on(
    store_url: str, journal_url: str, tmp_path: Path
) -> None:
    one, two = (machine(tmp_path, name, store_url, journal_url) for name in ("one", "two"))
    with alone(one), pytest.raises(Refused, match=r"from 127\.0\.0\.1") as refused, alone(two):
        pass
    assert "pg_terminate_backend" in str(refused.value)
    with alone(two):
        pass


@pytest.mark.parametrize("away", ["store", "journal"])
def test_each_server_alone_keeps_them_apart(
    store_url: str, journal_url: str, tmp_path: Path, away: str
) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    urls = {"store": store_url, "journal": journal_url, away: nowhere}
    one, two = (machine(tmp_path, name, urls["store"], urls["journal"]) for name in ("one", "two"))
    with alone(one), pytest.raises(Refused, match="at work right now"), alone(two):
        pass


def test_where_no_server_answers_a_recovery_goes_on(tmp_path: Path) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    with alone(machine(tmp_path, "one", nowhere, "nats://127.0.0.1:1")):
        pass


def test_one_whose_end_the_server_has_yet_to_notice_is_waited_for(
    store_url: str, journal_url: str, tmp_path: Path
) -> None:
    one, two = (machine(tmp_path, name, store_url, journal_url) for name in ("one", "two"))
    held, end = threading.Event(), threading.Event()

    def hold() -> None:
        with alone(one):
            held.set()
            end.wait(SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(SECONDS)
    threading.Timer(0.3, end.set).start()
    with alone(two):
        assert end.is_set()
    holder.join()


def test_one_that_is_killed_or_cut_off_keeps_nobody_out(
    store_url: str, journal_url: str, postgres_stores: PostgresServer, tmp_path: Path
) -> None:
    one, two = (machine(tmp_path, name, store_url, journal_url) for name in ("one", "two"))
    with subprocess.Popen(
        [sys.executable, "-c", _HANG, one.data, store_url, journal_url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert not is_free(two)
        os.kill(process.pid, signal.SIGKILL)
        until("it is free", lambda: is_free(two))
    with alone(one):
        postgres_stores.cut_connections(store_url.rpartition("/")[2])
    assert is_free(two)
