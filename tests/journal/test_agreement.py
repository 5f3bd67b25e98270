"""Two processes with different lanes do not do one tenant's work."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal.agreement import agree, check_agreement
from journal.errors import LockHeld, Refused, SettingsInvalid
from journal.lanes import DELIVERY, Contract, Effect, Lane, Receiver
from journal.settings import Settings

ROOT = Path(__file__).resolve().parents[2]

HOLD = """
import sys
import msgspec
from journal.agreement import agree
from journal.settings import Settings
agree(msgspec.json.decode(sys.argv[1], type=Settings))
print("agreed", flush=True)
sys.stdin.read()
"""

BANK = Receiver(url="https://bank.example/releases", contract=Contract.IDEMPOTENT, window=86400.0)
PAYOUT = Lane(receiver="bank")


def settings(folder: Path, **changes: Any) -> Settings:
    base = Settings(
        data=str(folder / "data"),
        lock_timeout=1.0,
        lane={"payout": PAYOUT},
        receiver={"bank": BANK},
    )
    return msgspec.structs.replace(base, **changes)


Starts = Callable[[Settings], "subprocess.Popen[str]"]


@pytest.fixture
def process() -> Iterator[Starts]:
    """Start a process that agrees and then lives until it is told to end."""
    started: list[subprocess.Popen[str]] = []

    def start(declared: Settings) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, msgspec.json.encode(declared).decode()],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "agreed\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate(timeout=60)


def test_processes_that_declare_the_same_lanes_work_side_by_side(tmp_path, process):
    process(settings(tmp_path))
    process(settings(tmp_path))
    check_agreement(settings(tmp_path))
    agree(settings(tmp_path)).close()


CHANGES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a lane's number": ({"lane": {"payout": Lane(receiver="bank", rate=5.0)}}, ["lane payout"]),
    "a lane more": ({"lane": {"payout": PAYOUT, "mail": Lane()}}, ["lane mail"]),
    "a lane less": ({"lane": {}}, ["lane payout"]),
    "the shipped lane": (
        {"lane": {"payout": PAYOUT, "delivery": Lane(effect=Effect.INTERNAL)}},
        ["lane delivery"],
    ),
    "a receiver": (
        {"receiver": {"bank": msgspec.structs.replace(BANK, window=60.0)}},
        ["receiver bank"],
    ),
    "both": ({"lane": {}, "receiver": {}}, ["lane payout", "receiver bank"]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_process_with_other_lanes_is_refused_naming_them(tmp_path, process, name):
    changes, differing = CHANGES[name]
    child = process(settings(tmp_path))
    for ask in (agree, check_agreement):
        with pytest.raises(SettingsInvalid, match=", ".join(differing)) as refused:
            ask(settings(tmp_path, **changes))
        members = refused.value.members
        assert members["differing"] == differing
        assert members["process"] == child.pid
        assert members["running"] != members["here"]
        assert members["running"] in refused.value.detail
        assert members["here"] in refused.value.detail
    # The refused one left nothing that would hold up those that agree.
    check_agreement(settings(tmp_path))
    agree(settings(tmp_path)).close()


def test_what_is_not_about_lanes_may_differ(tmp_path, process):
    process(settings(tmp_path))
    agree(settings(tmp_path, port=9, sweep_every=1.0, max_batch=7)).close()


def test_the_agreement_ends_with_its_last_holder_even_when_killed(tmp_path, process):
    other = settings(tmp_path, lane={}, receiver={})
    first, second = process(settings(tmp_path)), process(settings(tmp_path))
    first.kill()
    first.wait(60)
    with pytest.raises(SettingsInvalid):
        agree(other)
    second.send_signal(signal.SIGKILL)
    second.wait(60)
    held = agree(other)
    with pytest.raises(SettingsInvalid, match="lane payout, receiver bank"):
        check_agreement(settings(tmp_path))
    held.close()
    held.close()
    agree(settings(tmp_path)).close()


def test_a_process_that_is_stopped_still_holds_it(tmp_path, process):
    child = process(settings(tmp_path))
    child.send_signal(signal.SIGSTOP)
    check_agreement(settings(tmp_path))
    with pytest.raises(SettingsInvalid, match="lane payout"):
        check_agreement(settings(tmp_path, lane={}))


def test_a_check_leaves_no_trace_and_holds_nobody_up(tmp_path, process):
    check_agreement(settings(tmp_path))
    assert list(tmp_path.iterdir()) == []
    child = process(settings(tmp_path, lane={}, receiver={}))
    child.kill()
    child.wait(60)
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    for _ in range(3):
        # Against what an ended process declared, which binds nobody.
        check_agreement(settings(tmp_path))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before
    process(settings(tmp_path))


def test_an_unreadable_declaration_of_a_live_process_is_refused(tmp_path, process):
    child = process(settings(tmp_path))
    (tmp_path / "data/main.lanes").write_bytes(b"{")
    for ask in (agree, check_agreement):
        with pytest.raises(Refused, match=r"main\.lanes"):
            ask(settings(tmp_path))
    child.kill()
    child.wait(60)
    agree(settings(tmp_path)).close()


def test_a_turn_that_hangs_is_named_and_does_not_keep_those_who_agree_waiting(tmp_path, process):
    process(settings(tmp_path))
    lock = os.open(tmp_path / "data/main.lock", os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        check_agreement(settings(tmp_path))
        with pytest.raises(LockHeld, match="process"):
            check_agreement(settings(tmp_path, lane={}, lock_timeout=0.1))
    finally:
        os.close(lock)


def test_tenants_agree_apart(tmp_path, process):
    process(settings(tmp_path))
    agree(settings(tmp_path, tenant="south", lane={"payout": DELIVERY})).close()
