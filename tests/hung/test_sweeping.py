"""L1, L3, L12, P12: work whose worker died, hangs, or only looks dead; and who moves it on.

Three things end work that hangs, and none needs the others: a call has a timeout, a row has a
sweeper, and the step in the row tells how far it came.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults.strace import SYNC, injected, require_strace
from tests.soak.books import Books
from tests.soak.clients import Client
from tests.soak.effects import CAP, LEASE, PULLED, PUSHED, Town, python, town_at
from tests.soak.processes import ROOT, SECONDS, holders, item, until
from tests.support.whole import verify_files

_NEVER = "3600"
_LONG = 3600.0

_NO_TIMEOUTS = """
import api.receivers
call = api.receivers.Caller._call
api.receivers.Caller._call = lambda self, request, seconds: call(self, request, 3600)
"""
_NO_STEPS = """
from journal.sql import Statement
from journal.store import work
work.set_step = lambda claims, step: Statement("UPDATE unrewind_work SET step = step WHERE 0")
"""
_CLAIM_AND_DIE = """
import os, signal, sys
from api.opening import working
from journal import load_settings
from journal.asking import worker_name
from journal.permits import Asked, claim
from journal.worker import drive
with working(load_settings()) as record:
    permits = drive(claim(record, Asked(sys.argv[1], worker_name("push"), "claim-1"))).permits
    assert len(permits) == 1
    os.kill(os.getpid(), signal.SIGKILL)
"""

_BLOCKED = f"""
[lane.blocked]
effect = "internal"
handler = "blocked:run"
timeout = 0.4
lease = {LEASE}
sweep_after = 1.4
cap = 60.0
attempts = 1
"""
_BLOCKING = f"""
import time
def note(line):
    with open("blocked.log", "a") as file:
        file.write(line + "\\n")
async def run(permit):
    note(f"begun under {{permit.lease}}")
    time.sleep({4 * LEASE})
    note("ended")
    return "done"
"""


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """Lanes of every kind. Nothing is swept but by command, and the service dispatches nothing."""
    quiet = {
        "UNREWIND_SWEEP_EVERY": _NEVER,
        "UNREWIND_HANDOFF_EVERY": _NEVER,
        "UNREWIND_LOCK_TIMEOUT": "4",
        "UNREWIND_DISPATCH": "false",
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
    }
    (tmp_path / "blocked.py").write_text(_BLOCKING)
    with town_at(tmp_path, _BLOCKED, **quiet) as made:
        yield made
        Books(made).check_effects()
        for server in made.servers:
            server.kill()
            assert "Traceback" not in server.errors, server.errors
        made.do("sweep")
        assert verify_files(made.settings) == []


def _swept(town: Town, count: int) -> Counter[tuple[str, str, str]]:
    """Sweep by the command line until so many rows were moved; where they were, and are."""
    moved: Counter[tuple[str, str, str]] = Counter()

    def enough() -> bool:
        ran = town.run("sweep", "--json")
        assert ran.code == 0, ran
        for row in ran.json["rows"]:
            moved[row["lane"], row["step"], row["status"]] += row["rows"]
        return moved.total() >= count

    until("they are swept", enough)
    return moved


def _calls(town: Town, lane: str, count: int) -> None:
    """Wait until a receiver is at work on so many calls."""
    town.receivers[lane].wait_for(lambda: town.receivers[lane].attempts() >= count)


def _at_work(town: Town, count: int | None = 1) -> None:
    """Have every receiver take calls and not come to their end."""
    for receiver in town.receivers.values():
        receiver.tell("delay", seconds=None, calls=count)


def _ends(town: Town, release: str) -> None:
    """Wait until what became of a release is known."""
    until("its end is known", lambda: town.row(release)["status"] == "done")


def _freeze_outside_a_turn(town: Town) -> None:
    def stands() -> bool:
        town.service.freeze()
        if town.service.pid not in holders(town.settings.beside("lock")):
            return True
        town.service.thaw()
        return False

    until("it stands, without the lock", stands)


def _platform(process: subprocess.Popen[Any]) -> None:
    """End a process at its cap, as a platform that bills by the second does."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(CAP)
    process.kill()
    assert process.wait(SECONDS) == -signal.SIGKILL


@pytest.mark.parametrize("service", ["down", "hung"])
def test_p12_a_worker_killed_at_its_cap_is_swept_with_the_service(town: Town, service: str) -> None:
    town.serve()
    picked_up = town.release("picked-up", "idempotent")
    with python(town, _CLAIM_AND_DIE, "idempotent") as claiming:
        assert claiming.wait(SECONDS) == -signal.SIGKILL
    _at_work(town)
    called = {lane: town.release(f"called-{lane}", lane) for lane in PUSHED}
    pulled = town.release("pulled", PULLED)
    worker = town.worker("slow", pause=_LONG).start()
    until("it has its permit", lambda: worker.lines("permit"))
    town.dispatch(_NO_TIMEOUTS)
    for lane in PUSHED:
        _calls(town, lane, 1)
    if service == "down":
        town.service.kill()
    else:
        _freeze_outside_a_turn(town)
    assert worker.process is not None
    _platform(worker.process)
    town.dispatcher.kill()

    rows = town.rows()
    assert {row["status"] for row in rows.values()} == {"running"}
    assert rows[picked_up]["step"].startswith("picked up by push:")
    assert {rows[release]["step"] for release in called.values()} == {"calling"}
    assert rows[pulled]["step"] == "permit given to slow"
    moved = _swept(town, 5)
    # Nobody who lives has watched the file since a kill of the last who had it open.
    unwatched = "perhaps further than: " if service == "down" else ""
    assert {(lane, step.partition(" by ")[0], status) for lane, step, status in moved} == {
        ("idempotent", f"{unwatched}picked up", "retry"),
        ("idempotent", "calling", "retry"),
        ("queryable", "calling", "unknown"),
        ("opaque", "calling", "unknown"),
        (PULLED, "permit given to slow", "unknown"),
    }
    rows = town.rows()
    assert "calling" in rows[called["opaque"]]["step"]
    assert "permit given to slow" in rows[pulled]["step"]
    assert "picked up by" in rows[picked_up]["step"]
    _both_ends_agree(town, called.values())


def _both_ends_agree(town: Town, called: Iterable[str]) -> None:
    """Mend what is broken: the receivers come to their end, and what can be told is told."""
    town.mend()
    rows = town.rows()
    for release in called:
        receiver = town.receivers[rows[release]["lane"]]
        receiver.clear()
        receiver.finish(release)
    books = Books(town)
    until("all is quiet", lambda: not books.unquiet())
    ends = books.check_accounts()
    assert {end for end in ends if end.startswith(("idempotent", "queryable"))} == {
        "idempotent done",
        "queryable done",
    }


def test_p12_a_service_hung_inside_a_turn_is_named_by_the_sweep(town: Town) -> None:
    require_strace()
    town.serve()
    town.release("before", "opaque")
    wal = town.store.with_name(f"{town.store.name}-wal")
    with (
        Client(town.port, town.token) as client,
        injected(town.service, wal, SYNC, "signal=STOP:when=1") as trace,
    ):
        client.send("POST", "/v1/main/decisions", item("in-flight", "document/9", "submit"))
        until("it is stopped in its commit", lambda: "stopped by SIGSTOP" in trace.read_text())
    until("it stands still without strace", town.service.is_frozen)
    # It waits for the lock for 4 s, and not a second time.
    with town.popen("sweep") as sweeping:
        out, err = sweeping.communicate(timeout=7.5)
    assert sweeping.returncode == 3, (out, err)
    assert f"kill -9 {town.service.pid}" in err
    assert "over 4 s" in err
    assert len(err.strip().splitlines()) == 1, err

    os.kill(town.service.pid, signal.SIGKILL)
    town.service.wait()
    assert town.do("sweep")["moved"] == 0
    town.serve()


# One of the three is missing.


def test_p12_without_a_sweeper_calls_end_and_steps_tell(town: Town) -> None:
    town.serve()
    _at_work(town)
    pulled = town.release("pulled", PULLED)
    worker = town.worker("slow", pause=_LONG).start()
    until("it has its permit", lambda: worker.lines("permit"))
    worker.kill()
    called = {lane: town.release(f"called-{lane}", lane) for lane in PUSHED}
    town.dispatch()
    until("the call ended", lambda: town.row(called["opaque"])["status"] == "unknown")
    assert "calling" in town.row(called["opaque"])["step"]
    until("it is repeated", lambda: town.row(called["idempotent"])["attempts"] > 1)
    until("it is asked about", lambda: town.receivers["queryable"].lines("lookup"))
    for lane in ("idempotent", "queryable"):
        town.receivers[lane].finish(called[lane])
        _ends(town, called[lane])
    # Nobody moves what a dead worker left; it says where it is.
    row = town.row(pulled)
    assert (row["status"], row["step"]) == ("running", "permit given to slow")
    assert town.receivers["opaque"].attempts() == 1
    moved = _swept(town, 1)
    assert [*moved] == [(PULLED, "permit given to slow", "unknown")]


def test_l1_a_slow_but_live_call_is_swept_and_seen_once(town: Town) -> None:
    """A call without a timeout outlives its lane's cap, at which its signs of life end."""
    town.serve()
    _at_work(town)
    called = {lane: town.release(f"called-{lane}", lane) for lane in ("queryable", "opaque")}
    town.dispatch(_NO_TIMEOUTS)
    moved = _swept(town, 2)
    assert moved == {
        ("queryable", "calling", "unknown"): 1,
        ("opaque", "calling", "unknown"): 1,
    }
    assert town.dispatcher.alive
    opaque = town.row(called["opaque"])
    assert (opaque["due"], opaque["owner"]) == (None, "ines")
    assert [town.receivers[lane].attempts() for lane in called] == [1, 1]
    # It ends after all, and what it tells is taken.
    for lane, release in called.items():
        town.receivers[lane].finish(release)
        _ends(town, release)
        assert town.receivers[lane].attempts() == 1
        assert town.receivers[lane].executions() == 1


def test_p12_a_dispatcher_that_wakes_after_the_sweep_is_heard(town: Town) -> None:
    """Only its own word tells that its attempt is over: it lives on. Then it may be repeated."""
    town.serve()
    _at_work(town)
    release = town.release("called", "queryable")
    town.dispatch()
    _calls(town, "queryable", 1)
    town.dispatcher.freeze()
    assert [*_swept(town, 1)] == [("queryable", "calling", "unknown")]
    # The receiver forgets what it had not done yet.
    town.receivers["queryable"].kill()
    town.receivers["queryable"].start()
    town.dispatcher.thaw()
    _ends(town, release)
    assert town.dispatcher.alive
    assert town.receivers["queryable"].outcomes(release) == ["delayed", "executed"]


def test_p7_a_dispatcher_that_outlives_a_recovery_repeats_what_was_not_done(town: Town) -> None:
    """What it reports of an ended generation decides nothing; that it is at no work now does."""
    town.serve()
    copy = town.folder / "copy"
    town.do("snapshot", str(copy))
    _at_work(town)
    release = town.release("called", "queryable")
    town.dispatch()
    _calls(town, "queryable", 1)
    town.dispatcher.freeze()
    town.put_back(copy)
    town.recover()
    town.receivers["queryable"].kill()
    town.receivers["queryable"].start()
    town.dispatcher.thaw()
    _swept(town, 1)
    _ends(town, release)
    assert town.dispatcher.alive
    assert town.receivers["queryable"].outcomes(release) == ["delayed", "executed"]


@pytest.mark.parametrize(
    "times", [{"timeout": 0.9}, {"lease": 1.5}, {"sweep_after": 3.5}, {"cap": 1.0}]
)
def test_l1_times_under_which_live_work_is_swept_are_refused(
    tmp_path: Path, times: dict[str, float]
) -> None:
    ((name, value),) = times.items()
    with town_at(tmp_path) as town:
        path = town.folder / "unrewind.toml"
        lines = path.read_text().splitlines()
        lines = [f"{name} = {value}" if line.startswith(f"{name} = ") else line for line in lines]
        path.write_text("\n".join(lines))
        for command in ("serve", "dispatch"):
            ran = town.run(command)
            assert ran.code in {2, 3}, ran
            assert "a call must end before its lease" in ran.err


def test_p12_without_steps_calls_end_and_rows_are_swept(town: Town) -> None:
    town.serve()
    _at_work(town, None)
    slow = {lane: town.release(f"slow-{lane}", lane) for lane in PUSHED}
    town.dispatch(_NO_STEPS)
    until("the call ended", lambda: town.row(slow["opaque"])["status"] == "unknown")
    until("it is repeated", lambda: town.row(slow["idempotent"])["attempts"] > 1)
    assert town.receivers["opaque"].attempts() == 1
    killed = town.release("killed", "idempotent")
    until("it is called", lambda: town.receivers["idempotent"].attempts(killed))
    town.dispatcher.kill()
    assert "calling" not in town.row(killed)["step"]

    def swept() -> bool:
        assert town.run("sweep").code == 0
        return bool(town.row(killed)["status"] == "retry")

    until("it is swept", swept)  # beside the others that the dispatcher had in hand
    _both_ends_agree(town, [killed, *slow.values()])


# Everything is gone.


def test_l3_every_slot_killed_is_cleared_by_the_separate_sweeper(town: Town) -> None:
    slots = 3
    town.serve()
    _at_work(town, slots)
    for number in range(slots):
        for lane in (*PUSHED, PULLED):
            town.release(f"{lane}-{number}", lane)
    workers = [town.worker(f"slow-{number}", pause=_LONG).start() for number in range(slots)]
    town.dispatch(_NO_TIMEOUTS)
    until("they have permits", lambda: all(worker.lines("permit") for worker in workers))
    for lane in PUSHED:
        _calls(town, lane, slots)
    for worker in workers:
        worker.kill()
    town.dispatcher.kill()
    town.service.kill()
    assert {row["status"] for row in town.rows().values()} == {"running"}

    moved = _swept(town, 4 * slots)
    ends: Counter[tuple[str, str]] = Counter()
    for (lane, _, status), count in moved.items():
        ends[lane, status] += count
    assert ends == {
        ("idempotent", "retry"): slots,
        ("queryable", "unknown"): slots,
        ("opaque", "unknown"): slots,
        (PULLED, "unknown"): slots,
    }
    assert town.status()["stage"] == "open"
    for receiver in town.receivers.values():
        assert receiver.attempts() == slots


# It only looks dead.


def test_l12_a_blocked_event_loop_keeps_its_lease(town: Town) -> None:
    log = town.folder / "blocked.log"
    town.serve()
    sent = {"kind": "wait", "items": [{"id": "one", "data": {}}]}
    status, answer = town.service.ask("POST", "/v1/main/lanes/blocked/work", sent)
    assert status == 201, answer
    (identity,) = answer["made"]
    town.dispatch()
    until("its loop is blocked", log.exists)
    beats: set[str] = set()
    leases: set[int] = set()

    def over() -> bool:
        with closing(town.look(town.store)) as database:
            wanted = "SELECT heartbeat, lease FROM unrewind_work WHERE lane = 'blocked'"
            beat, lease = database.execute(wanted).fetchone()
        if beat not in beats:
            beats.add(beat)
            leases.add(lease)
            assert town.do("sweep")["moved"] == 0
        return "ended" in log.read_text()

    until("its loop goes on", over)
    # Four leases, three signs of life in each.
    assert len(beats) > 2, beats
    assert len(leases) == 1
    until(
        "its end is known",
        lambda: town.do("commands", "--lane", "blocked")["items"][0]["status"] in {"done", "dead"},
    )
    (row,) = town.do("commands", "--lane", "blocked")["items"]
    assert (row["id"], row["expired"], row["attempts"]) == (identity, 0, 1)
    assert len(log.read_text().splitlines()) == 2
