"""Locks: one turn at a time, and a holder that hangs is named by its PID."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

import journal
from journal.errors import LockHeld, Recovering, Refused
from journal.locks import Presence, StopFile, TurnLock
from tests.support.tenants import Tenant, make_settings, operation

ROOT = Path(__file__).resolve().parents[2]

HOLD = """
import sys
from pathlib import Path
from journal.locks import Presence, TurnLock
lock = TurnLock(Path(sys.argv[1]), 5.0)
presence = Presence(Path(sys.argv[2]))
with lock.held():
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holding(lock: Path, presence: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process that holds the turn lock until its standard input ends."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lock), str(presence)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"held\n"
        yield child
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def test_a_process_stopped_while_holding_the_lock_is_named_by_its_pid(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(msgspec.structs.replace(settings, lock_timeout=0.2))
    tenant.decide("document/7", "submit")
    with holding(settings.beside("lock"), settings.beside("presence")) as child:
        child.send_signal(signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(LockHeld) as held:
            tenant.turn(operation("document/7"))
        assert time.monotonic() - started < 5
        assert held.value.members == {"pid": child.pid}
        assert f"kill -9 {child.pid}" in held.value.detail
    assert tenant.decide("document/7", "submit")[0].revision == 2
    tenant.finish()


def test_a_killed_holder_leaves_no_lock_behind(settings: journal.Settings) -> None:
    tenant = Tenant(settings)
    with holding(settings.beside("lock"), settings.beside("presence")) as child:
        child.kill()
        child.wait()
        assert tenant.decide("document/7", "submit")[0].revision == 1
    tenant.finish()


def test_closing_without_the_lock_leaves_the_files_to_the_next_opener(
    settings: journal.Settings,
) -> None:
    """Closing the last connection checkpoints, which nobody may do beside a holder."""
    tenant = Tenant(msgspec.structs.replace(settings, lock_timeout=0.1))
    tenant.decide("document/7", "submit")
    files = [settings.store_file, settings.journal_file]
    with holding(settings.beside("lock"), settings.beside("presence")):
        before = [file.read_bytes() for file in files]
        tenant.close()
        gc.collect()
        assert [file.read_bytes() for file in files] == before
        assert all(file.with_name(f"{file.name}-wal").exists() for file in files)
    tenant.open()
    assert tenant.decide("document/7", "submit")[0].revision == 2
    tenant.finish()


def test_the_lock_is_reentrant_and_free_after_the_outermost(tmp_path: Path) -> None:
    one, other = TurnLock(tmp_path / "lock", 0.05), TurnLock(tmp_path / "lock", 0.05)
    with one.held():
        with one.held():
            pass
        with pytest.raises(LockHeld) as held, other.held():
            pass
        assert held.value.members == {"pid": os.getpid()}
    with other.held():
        pass
    one.close()
    other.close()


def test_an_error_inside_a_turn_lets_go_of_the_lock(tmp_path: Path) -> None:
    one, other = TurnLock(tmp_path / "lock", 0.05), TurnLock(tmp_path / "lock", 0.05)
    with pytest.raises(ZeroDivisionError), one.held():
        _ = 1 / 0
    with other.held():
        pass
    one.close()
    other.close()


def test_a_restore_is_refused_while_somebody_has_the_tenant_open(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(settings)
    other = tenant.companion()
    with pytest.raises(Refused, match="stop it first"):
        Presence(settings.beside("presence"), exclusive=True)
    assert other.store is not None
    tenant.close()
    restoring = Presence(settings.beside("presence"), exclusive=True)
    with pytest.raises(Refused, match="being replaced right now"):
        Presence(settings.beside("presence"))
    restoring.close()
    tenant.open()
    tenant.finish()


def test_p9_the_stop_file_counts_by_being_there(tmp_path: Path) -> None:
    stop = StopFile(tmp_path / "main.stop")
    stop.check()
    assert not stop.stands()
    stop.put_up("rewound", "2026-03-14T09:26:53.000000Z", verdict="rewound")
    assert stop.facts() == {
        "reason": "rewound",
        "at": "2026-03-14T09:26:53.000000Z",
        "verdict": "rewound",
    }
    with pytest.raises(Recovering) as refused:
        stop.check()
    assert refused.value.members == {"verdict": "rewound"}
    stop.path.write_bytes(b"")
    assert stop.stands()
    with pytest.raises(Recovering):
        stop.check()
    stop.take_down()
    assert not stop.stands()
    stop.take_down()


def test_p9_a_stop_file_that_cannot_be_looked_at_stands(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"")
    assert StopFile(tmp_path / "data" / "main.stop").stands()


def test_each_tenant_has_a_lock_of_its_own(tmp_path: Path) -> None:
    one = Tenant(make_settings(tmp_path, lock_timeout=0.1))
    other = Tenant(make_settings(tmp_path, tenant="other", lock_timeout=0.1))
    with one.record.lock.held():
        assert other.decide("document/7", "submit")[0].sequence == 1
    one.finish()
    other.finish()


def test_p9_a_stop_put_up_while_another_is_taken_down_stays(tmp_path: Path) -> None:
    stop = StopFile(tmp_path / "main.stop")
    stop.put_up("first", "now")
    seen = stop.standing()
    assert seen is not None
    stop.put_up("second", "later")
    assert not stop.take_down(seen)
    assert stop.facts() == {"reason": "first", "at": "now"}
    # Removed by hand and put up again, with the same inode number where the system reuses it.
    seen = stop.standing()
    stop.path.unlink()
    stop.put_up("second", "later")
    assert not stop.take_down(seen)
    assert stop.facts()["reason"] == "second"
    # Said again by hand.
    seen = stop.standing()
    os.utime(stop.path)
    assert not stop.take_down(seen)
    assert stop.take_down(stop.standing())
    assert not stop.stands()
    assert stop.take_down(seen)
    assert list(tmp_path.iterdir()) == []


def test_p9_an_empty_stop_of_an_operator_gets_words_from_the_next(tmp_path: Path) -> None:
    stop = StopFile(tmp_path / "main.stop")
    stop.path.touch()
    stop.put_up("a recovery", "now")
    assert stop.facts()["reason"] == "a recovery"


def test_p9_a_stop_waits_for_no_process_that_hangs_in_taking_one_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal.locks._STOP_SECONDS", 0.05)
    stop = StopFile(tmp_path / "main.stop")
    stop.put_up("first", "now")
    seen = stop.standing()
    with stop.path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        stop.put_up("second", "later")
    assert stop.stands()
    assert not stop.take_down(seen)


def test_p9_where_no_second_file_can_be_made_the_stop_stands_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = StopFile(tmp_path / "main.stop")
    stop.put_up("first", "now")

    def full(_self: Path, _target: Path) -> Path:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Path, "replace", full)
    stop.put_up("second", "later")
    assert stop.facts()["reason"] == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["main.stop"]
