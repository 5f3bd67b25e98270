"""P2, P4, P8: a real point-in-time recovery of PostgreSQL under a running service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.engines.scene import BUSY, CLOSED, check_journal, config
from tests.soak.ledger import Ledger
from tests.soak.processes import Server, item, site_at, until
from tests.support.postgres import PostgresServer
from tests.support.receivers import Receiver, receiving
from tests.support.servers import require_postgres

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("server_area")]

_DECISIONS, _RELEASES = 1000, 50
_BATCH = 50
_LANE = """
[lifecycle.case]
kind = "free"

[receiver.post]
url = "{url}"
contract = "queryable"
window = 86400
status_url = "{status_url}"
timeout = 5
works = 1

[lane.delivery]
receiver = "post"
concurrency = 8
"""


@pytest.fixture
def stores(server_area: None) -> Iterator[PostgresServer]:
    """A store's server that archives its WAL."""
    require_postgres()
    with PostgresServer(archive=True) as server:
        yield server


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path / "receiver", contract="queryable") as made:
        yield made


def test_p2_a_point_in_time_recovery_loses_nothing_and_sends_nothing_twice(
    stores: PostgresServer, journal_url: str, receiver: Receiver, tmp_path: Path
) -> None:
    more = _LANE.format(url=receiver.url, status_url=receiver.status_url)
    text = config(stores.create_database("shop"), journal_url, more)
    with site_at(tmp_path / "site", config=text) as site:
        server, ledger = site.start(), Ledger()
        _release(server, ledger, "early", 5)
        _until_confirmed(server, receiver, 5)
        backup = stores.base_backup()
        kept = site.status()["sequence"]
        moment = stores.now()

        _decide(server, ledger, "late", _DECISIONS - 3 * _RELEASES)
        releases = _release(server, ledger, "late", _RELEASES)
        _until_confirmed(server, receiver, 5 + _RELEASES)
        lost = site.status()["sequence"] - kept
        # Each release is two decisions more: that it is committed, and that it arrived.
        assert lost == _DECISIONS + 2 * _RELEASES
        calls = receiver.attempts()

        before = len(ledger.told)
        told = _restored_under(server, ledger, stores, backup, moment)
        lost += len(ledger.told) - before
        # Taken until the server stopped, then away, then closed.
        while told and told[0] == "accepted":
            told.pop(0)
        while told and told[0] in BUSY:
            told.pop(0)
        assert set(told) == {CLOSED}
        status, problem = server.decide("at-once", "case/new")
        assert (status, problem["type"]) == (503, CLOSED), problem
        assert server.get("entities/document/late-1")[0] == 503
        found = site.status()
        assert (found["stage"], found["verdict"]) == ("closed", "rewound")

        assert site.do("recover", "begin", "--reason", "restored")["safe_to_restore"]
        plan = site.run("recover", "plan", "--json")
        assert plan.code in {0, 1}, plan
        assert (plan.json["missing"], plan.json["local_only"]) == (lost, [])
        applied = site.do("recover", "apply", "--plan", plan.json["plan"])
        assert applied["replayed"] == lost, applied
        asked = site.run("recover", "reconcile", "--json")
        assert asked.code == 0, asked
        assert site.do("recover", "reopen")["stage"] == "open"

        # The same process goes on, in a new history, with all that it had acknowledged.
        _decide(server, ledger, "after", 10)
        _release(server, ledger, "after", 2)
        _until_confirmed(server, receiver, 5 + _RELEASES + 2)
        ledger.repeat(server, ledger.told)
        assert receiver.attempts() == calls + 2
        assert {receiver.executions(release) for release in releases} == {1}
        report = site.do("verify")
        assert (report["verdict"], report["findings"]) == ("clean", [])
        ledger.imported |= _reports(server)
        check_journal(ledger, journal_url)
        assert server.stop() == 0, server.errors
        assert "Traceback" not in server.errors, server.errors


def _restored_under(
    server: Server, ledger: Ledger, stores: PostgresServer, backup: Path, moment: datetime
) -> list[str]:
    """Recover the store's server to that moment while a client goes on asking; what it was told."""
    told: list[str] = []

    def closed() -> bool:
        name = f"meanwhile-{len(told)}"
        made = ledger.send(item(name, "case/meanwhile", body={}))
        status, answer = server.ask("POST", "/v1/main/decisions", made)
        ledger.hear(name, status, answer)
        told.append("accepted" if status == 201 else answer["type"])
        return restoring.done() and told[-1] == CLOSED

    with ThreadPoolExecutor(1) as pool:
        restoring = pool.submit(stores.restore_to, backup, moment)
        until("the service is closed", closed)
        restoring.result()
    return told


def _decide(server: Server, ledger: Ledger, name: str, count: int) -> None:
    """So many decisions of a few entities, all acknowledged."""
    made = [
        ledger.send(item(f"{name}-{number}", f"case/{number % 40}", body={"n": number}))
        for number in range(count)
    ]
    _acknowledged(server, ledger, made)


def _release(server: Server, ledger: Ledger, name: str, count: int) -> list[str]:
    """Submit, approve and release so many documents; the releases' IDs."""
    for step in ("submit", "approve", "release"):
        made = [
            ledger.send(
                item(
                    f"{name}-{number}-{step}",
                    f"document/{name}-{number}",
                    step,
                    version="v1",
                    body={"recipient": f"{name}-{number}@example.org", "digest": "5a" * 32},
                )
            )
            for number in range(count)
        ]
        _acknowledged(server, ledger, made)
    told = [ledger.told[f"{name}-{number}-release"] for number in range(count)]
    return [str(release) for answer in told for release in answer["releases"]]


def _acknowledged(server: Server, ledger: Ledger, made: list[dict[str, Any]]) -> None:
    for start in range(0, len(made), _BATCH):
        items = made[start : start + _BATCH]
        answer = server.ask("POST", "/v1/main/decisions/batch", {"items": items})
        ledger.hear_items(items, *answer)
        assert {each["operation"] for each in items} <= ledger.told.keys(), answer


def _until_confirmed(server: Server, receiver: Receiver, count: int) -> None:
    def confirmed() -> bool:
        status, listed = server.get("releases?status=done&limit=500")
        assert status == 200, listed
        return len(listed["items"]) == count

    until(f"{count} releases arrive", lambda: receiver.executions() >= count)
    until(f"{count} releases are confirmed", confirmed)
    assert receiver.executions() == count


def _reports(server: Server) -> set[str]:
    """The operations by which unrewind itself decided what became of releases."""
    found: set[str] = set()
    after = ""
    while True:
        status, page = server.get(f"entries?limit=1000{after}")
        assert status == 200, page
        for entry in page["entries"]:
            envelope = entry["envelope"]
            if '"action":"release.' in envelope:
                found.add(envelope.partition('"operation":"')[2].partition('"')[0])
        if not page["entries"]:
            return found
        after = f"&after={page['next']}"
