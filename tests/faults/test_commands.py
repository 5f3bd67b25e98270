"""Commands whose disk fails: one line that says so, exit code 3, and the same command again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.strace import SYNC, WRITE, injected, injecting, require_strace
from tests.soak.processes import Ran, Site, site_at
from tests.support.whole import verify_files

_ROWS = 9000
_IMPORT = (
    "import", "rows.csv", "--entity-type", "case", "--entity", "case", "--action", "action",
    "--operation", "operation",
)  # fmt: skip
_ACCEPT = ("accept", "--entity", "case/1", "--action", "set")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    require_strace()
    with site_at(tmp_path, UNREWIND_HANDOFF_EVERY="3600") as made:
        yield made


def _wal(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def _failing(site: Site, file: Path, calls: str, what: str, *arguments: str) -> Ran:
    """Run a command whose calls on a file fail; it has to say so and end with 3."""
    trace = site.folder / "strace"
    ran = site.run(*arguments, under=injecting(file, calls, what, trace))
    assert "INJECTED" in trace.read_text()
    assert ran.code == 3, ran
    assert "Traceback" not in ran.err, ran
    lines = [line for line in ran.err.splitlines() if not line.startswith("strace: ")]
    assert len(lines) == 1, ran
    return ran


def _whole(site: Site) -> None:
    report = site.do("verify")
    assert (report["verdict"], report["findings"]) == ("clean", [])
    assert verify_files(site.settings) == []


@pytest.mark.parametrize(("side", "calls"), [("store", SYNC), ("journal", WRITE)])
def test_r11_an_import_whose_commit_fails_is_run_again(site: Site, side: str, calls: str) -> None:
    assert site.run(*_ACCEPT, "--operation", "first").code == 0
    rows = [f"op-{row},{row % 50},note,{row}" for row in range(_ROWS)]
    (site.folder / "rows.csv").write_text("\n".join(["operation,case,action,n", *rows, ""]))
    when = "when=2" if calls == SYNC else "when=1500"
    database: Path = getattr(site, side)
    ran = _failing(site, _wal(database), calls, f"error=EIO:{when}", *_IMPORT)
    assert f"the {side}'s commit failed" in ran.err
    done = site.do(*_IMPORT)
    assert (done["accepted"] + done["duplicate"], done["refused"]) == (_ROWS, 0)
    _whole(site)


@pytest.mark.parametrize("side", ["store", "journal"])
def test_p1_a_founding_that_fails_leaves_nothing_in_the_way(site: Site, side: str) -> None:
    database: Path = getattr(site, side)
    aside = _wal(database.with_name(f"{database.name}.new"))
    _failing(site, aside, SYNC, "error=ENOSPC:when=1", "serve", "--port", "0")
    server = site.start()
    assert server.decide("first", "case/1")[0] == 201
    assert server.get("status")[1]["stage"] == "open"
    assert server.stop() == 0
    _whole(site)


@pytest.mark.parametrize(
    ("step", "side"),
    [("begin", "journal"), ("apply", "store"), ("apply", "journal"), ("reopen", "journal")],
)
def test_p11_a_recovery_whose_disk_fails_is_run_again(site: Site, step: str, side: str) -> None:
    assert site.run(*_ACCEPT, "--operation", "kept").code == 0
    site.do("snapshot", "snapshot")
    for number in range(3):
        assert site.run(*_ACCEPT, "--operation", f"lost-{number}").code == 0
    digest = site.do("verify")["state_digest"]
    history = site.status()["history"]
    site.do("restore", "snapshot", "--confirm-tenant", "main", "--confirm-history", history)
    database: Path = getattr(site, side)
    for each in ("begin", "apply", "reopen"):
        if each == step:
            _failing(site, _wal(database), SYNC, "error=EIO:when=1", "recover", each)
            assert site.status()["stage"] == "closed"
        site.do("recover", each)
    assert site.do("verify")["state_digest"] == digest
    assert site.run(*_ACCEPT, "--operation", "lost-0", "--json").json["outcome"] == "duplicate"
    _whole(site)


def test_p8_a_stop_that_cannot_be_written_closes_all_the_same(site: Site) -> None:
    server = site.start()
    site.do("snapshot", "snapshot")
    assert server.decide("lost", "case/1")[0] == 201
    copy = site.folder / "snapshot" / "store.db"
    for suffix in ("-wal", "-shm"):
        site.store.with_name(site.store.name + suffix).unlink()
    copy.replace(site.store)
    stop = site.settings.beside("stop")
    with injected(server, stop, "openat,write,fsync", "error=ENOSPC:when=1+") as trace:
        for operation in ("lost", "next"):
            status, problem = server.decide(operation, "case/1")
            assert (status, problem["type"]) == (503, "/problems/recovering"), problem
        assert "INJECTED" in trace.read_text()
    assert "Traceback" not in server.errors, server.errors
    site.recover()
    assert server.decide("lost", "case/1")[0] == 200
    assert server.stop() == 0
    _whole(site)


def test_p1_a_lock_that_cannot_be_signed_is_let_go(site: Site) -> None:
    server = site.start()
    lock = site.settings.beside("lock")
    # Whoever signed last need not sign again: another process has held it since.
    assert site.run(*_ACCEPT, "--operation", "before").code == 0
    with injected(server, lock, WRITE, "error=ENOSPC:when=1+") as trace:
        status, problem = server.decide("first", "case/1")
        assert status == 503, problem
        assert "INJECTED" in trace.read_text()
        # Nobody is kept out by a lock that nobody holds.
        assert site.run(*_ACCEPT, "--operation", "beside").code == 0
    assert "Traceback" not in server.errors, server.errors
    assert server.decide("first", "case/1")[0] == 201
    assert server.stop() == 0
    _whole(site)
