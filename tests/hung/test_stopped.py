"""P7, H2: servers that stand still, beside which an operator carries on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from journal.errors import LockHeld
from journal.locks import TurnLock
from journal.record import Record
from journal.worker import drive
from tests.faults.strace import SYNC, injected, require_strace
from tests.hung.scene import (
    InFlight,
    arrived,
    content,
    decide_some,
    named,
    turn_held,
    whole,
)
from tests.soak.ledger import Ledger
from tests.soak.processes import Site, item, site_at, until
from tests.support.whole import verify_files

_RECOVERING = "/problems/recovering"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


def _work(count: int = 8) -> list[dict[str, object]]:
    return [
        item(f"flight-{number}", f"case/{number % 3}", body={"f": 1}) for number in range(count)
    ]


def test_p7_a_server_that_wakes_after_begin_changes_nothing_more(site: Site) -> None:
    server, ledger = site.start(), Ledger()
    decide_some(server, ledger, "before")
    with turn_held(site):
        flight = InFlight(server, ledger, _work())
        arrived(server)
        server.freeze()
    # Stopped with a turn about to begin and more behind it; nobody holds the lock.
    assert flight.answered == 0
    assert site.status()["stage"] == "open"
    token = site.do("token", "create", "--role", "reader")["token"]
    begun = site.do("recover", "begin", "--reason", "the server hangs")
    assert (begun["generation"], begun["verdict"]) == (2, "clean")
    before = content(site)

    server.thaw()
    for told in flight.answers():
        assert told is not None
        assert told[0] == 503, told
    status, problem = server.decide("later", "case/1")
    assert (status, problem["type"]) == (503, _RECOVERING)
    assert "the server hangs" in problem["detail"]
    assert server.get("entities/case/1")[0] == 503
    assert server.get("entities/case/1/history")[0] == 200
    assert server.ask("GET", "/health/ready")[0] == 503
    assert server.get("status")[1]["stage"] == "closed"
    assert content(site) == before

    plan = site.do("recover", "plan")
    assert (plan["missing"], plan["local_only"]) == (0, [])
    site.do("recover", "apply", "--plan", plan["plan"])
    site.do("recover", "reopen")
    # The same process goes on, in the new history.
    status, answer = server.decide("after", "case/1")
    assert (status, answer["generation"]) == (201, 2)
    ledger.imported.add("after")
    whole(site, server, ledger)
    site.token, old = token, site.token
    assert server.get("status")[0] == 200
    site.token = old
    assert server.stop() == 0
    assert verify_files(site.settings) == []


@pytest.mark.parametrize("end", ["kill", pytest.param("wake", marks=pytest.mark.soak)])
@pytest.mark.parametrize("side", ["store", "journal"])
def test_h2_one_stopped_inside_a_transaction_is_named_and_can_be_killed(
    site: Site, side: str, end: str
) -> None:
    require_strace()
    server, ledger = site.start(), Ledger()
    decide_some(server, ledger, "before")
    database: Path = getattr(site, side)
    wal = database.with_name(f"{database.name}-wal")
    with injected(server, wal, SYNC, "signal=STOP:when=1") as trace:
        flight = InFlight(server, ledger, _work())
        until("it is stopped in its commit", lambda: "stopped by SIGSTOP" in trace.read_text())
    until("it stands still without strace", server.is_frozen)

    begin = ("recover", "begin", "--reason", "it hangs")
    rescues = [begin, ("token", "create", "--role", "reader"), ("token", "revoke", "none")]
    with ThreadPoolExecutor(len(rescues)) as pool:
        refused = [pool.submit(site.run, *rescue) for rescue in rescues]
        # The stop needs no lock: it stands long before the command that put it up is refused.
        until("the stop file stands", site.settings.beside("stop").exists)
        assert site.status()["stage"] == "closed"
    assert {named(each.result()) for each in refused} == {server.pid}

    if end == "kill":
        server.signal(signal.SIGKILL)
        assert server.wait() == -signal.SIGKILL
        assert flight.answers() == [None] * len(flight.items)
    else:
        server.thaw()
        # The turn that was under way may end; those that wait may not begin.
        told = [answer and answer[0] for answer in flight.answers()]
        assert set(told) <= {201, 503}, told
        status, problem = server.decide("later", "case/1")
        assert (status, problem["type"]) == (503, _RECOVERING)
    begun = site.do("recover", "begin", "--reason", "it hung")
    assert begun["safe_to_restore"]
    site.do("recover", "apply")
    site.do("recover", "reopen")
    after = site.start() if end == "kill" else server
    whole(site, after, ledger)
    assert after.stop() == 0
    assert verify_files(site.settings) == []


def test_p1_a_graceful_stop_answers_what_waits(site: Site) -> None:
    server, ledger = site.start(), Ledger()
    with turn_held(site):
        flight = InFlight(server, ledger, _work(20))
        arrived(server)
        server.signal(signal.SIGTERM)
        assert flight.answered == 0
    assert [told and told[0] for told in flight.answers()] == [201] * 20
    assert server.wait() == 0
    assert "Traceback" not in server.errors, server.errors
    after = site.start()
    whole(site, after, ledger)


def test_h2_a_command_waits_for_the_lock_once(site: Site) -> None:
    site.start().stop()
    settings = msgspec.structs.replace(site.settings, lock_timeout=0.2)
    record = Record(settings)
    assert isinstance(record.lock, TurnLock)
    waits = 0
    take = record.lock._take

    def counted() -> None:
        nonlocal waits
        waits += 1
        take()

    record.lock._take = counted  # type: ignore[method-assign]
    with turn_held(site):
        with pytest.raises(LockHeld):
            drive(record.open())
        drive(record.close())
    assert waits == 1
