"""P1: a commit whose disk fails acknowledges nothing, and ends the acknowledging."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.strace import SYNC, WRITE, injected, require_strace
from tests.soak.clients import Cut
from tests.soak.ledger import Ledger
from tests.soak.processes import Server, Site, item, site_at
from tests.support.whole import verify_files

_TOGETHER = 8


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One tenant that lives through every fault, each found by the process after it."""
    require_strace()
    folder = tmp_path_factory.mktemp("faults")
    # Nothing but decisions commits: a fault hits the batch that it is meant for.
    with site_at(folder, UNREWIND_HANDOFF_EVERY="3600") as made:
        made.start().stop()
        yield made
    assert verify_files(made.settings) == []


@pytest.fixture(scope="module")
def ledger() -> Ledger:
    return Ledger()


def _wal(site: Site, side: str) -> Path:
    database: Path = getattr(site, side)
    return database.with_name(f"{database.name}-wal")


def _together(server: Server, items: list[dict[str, Any]]) -> list[tuple[int, Any] | None]:
    """Send items at the same time; None for a connection that was cut."""
    ready = threading.Barrier(len(items))

    def send(wanted: dict[str, Any]) -> tuple[int, Any] | None:
        ready.wait()
        try:
            return server.ask("POST", "/v1/main/decisions", wanted)
        except Cut:
            return None

    with ThreadPoolExecutor(len(items)) as pool:
        return list(pool.map(send, items))


_FAULTS = [
    (SYNC, "EIO", "1"),
    (SYNC, "ENOSPC", "1+"),
    (WRITE, "ENOSPC", "1"),
    (WRITE, "EIO", "2"),
    (WRITE, "ENOSPC", "1+"),
]


@pytest.mark.parametrize(("calls", "error", "when"), _FAULTS)
@pytest.mark.parametrize("side", ["store", "journal"])
def test_p1_a_failed_commit_acknowledges_nothing_more(
    site: Site, ledger: Ledger, side: str, calls: str, error: str, when: str
) -> None:
    name = f"{side}-{error}-{calls}-{when}"
    server = site.start()
    for number in range(3):
        first = ledger.send(item(f"{name}-before-{number}", f"case/{number}", body={"n": name}))
        ledger.hear(first["operation"], *server.ask("POST", "/v1/main/decisions", first))
    batch = [
        ledger.send(item(f"{name}-{number}", f"case/{number % 5}", body={"n": number}))
        for number in range(_TOGETHER)
    ]
    with injected(server, _wal(site, side), calls, f"error={error}:when={when}") as trace:
        answers = _together(server, batch)
        assert "INJECTED" in trace.read_text()

        # Nothing is acknowledged, and why is said at every door.
        assert [answer and answer[0] for answer in answers] == [503] * _TOGETHER, answers
        again = server.decide(f"{name}-later", "case/9")
        for status, problem in [*(answer for answer in answers if answer), again]:
            assert (status, problem["type"]) == (503, "/problems/journal-unavailable")
            assert f"the {side}'s commit failed" in problem["detail"], problem
            assert problem["repeat"] == "keep the operation ID"
    # The disk works again. The process may not know what it did, and stays silent.
    for operation in (f"{name}-0", f"{name}-new"):
        assert server.decide(operation, "case/9")[0] == 503
    status, ready = server.ask("GET", "/health/ready")
    assert (status, f"the {side}'s commit failed" in ready["detail"]) == (503, True)
    assert server.ask("GET", "/health/live")[0] == 200
    status, stands = server.get("status")
    assert status == 200
    assert stands["stage"] == "reading"
    assert f"the {side}'s commit failed" in stands["detail"]
    # A token would be an acknowledgement too.
    assert server.ask("POST", "/v1/main/tokens", {"role": "reader", "name": "x"})[0] == 503
    told = [line for line in server.errors.splitlines() if "commit failed" in line]
    assert len(told) == 1, server.errors
    assert "Traceback" not in server.errors

    # A restart recovers: what was acknowledged is there, the rest is one decision each.
    server.stop()
    after = site.start()
    ledger.repeat(after, ledger.told)
    ledger.repeat(after, ledger.unsettled)
    assert not ledger.unsettled
    ledger.check_journal(site.journal)
    report = site.do("verify")
    assert (report["verdict"], report["findings"]) == ("clean", [])
    assert after.stop() == 0
