"""Reconciling over HTTP: a service that was rewound asks its receiver before it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.opening import writing
from journal.worker import drive
from reconstruct import snapshots
from tests.api.servers import CONFIG, Server
from tests.support import receivers
from tests.support.whole import verify_files

COURIER = """
dispatch_every = 0.05

[receiver.courier]
url = "{base}/releases"
status_url = "{base}/status/{{release}}"
contract = "queryable"
window = 86400
works = 0.2
poll = 0.2
timeout = 9

[lane.parcels]
receiver = "courier"

[lifecycle.order.actions.ship]
from = ["draft", "going"]
to = "going"
releases = ["parcels"]
"""


@pytest.fixture
def courier(tmp_path: Path) -> Iterator[receivers.Receiver]:
    with receivers.receiving(tmp_path / "receiver", contract="queryable") as running:
        yield running


@pytest.fixture
def shop(tmp_path: Path, courier: receivers.Receiver) -> Iterator[Server]:
    running = Server(tmp_path / "server")
    text = COURIER.format(base=courier.base).lstrip()
    top, _, tables = text.partition("\n")
    (running.folder / "unrewind.toml").write_text(f"{top}\n{CONFIG}{tables}")
    try:
        yield running.start()
    finally:
        assert running.end() == 0
        assert "Traceback" not in running.errors, running.errors
    assert verify_files(running.settings) == []


def ship(shop: Server, name: str) -> str:
    reply = shop.decide(f"{name}-ship", f"order/{name}", "ship", version="v1")
    assert reply.status == 201, reply.body
    (release,) = reply.json["releases"]
    return str(release)


def keep(shop: Server, folder: Path) -> Path:
    with writing(shop.settings) as record:
        drive(snapshots.snapshot(record, folder))
    return folder


def put_back(shop: Server, folder: Path, history: str, *, killed: bool) -> None:
    """End the service, put the snapshot in its store's place, start it again."""
    if killed:
        shop.end(9)
    else:
        assert shop.end() == 0
    snapshots.restore(shop.settings, folder, "main", history)
    shop.start()
    assert shop.get("status").json["stage"] == "closed"


def recover(shop: Server) -> None:
    for step, body in (("begin", {"reason": "restored"}), ("apply", None)):
        reply = shop.post(f"recovery/{step}", body)
        assert reply.status == 200, reply.body


def state(shop: Server, release: str) -> str:
    return str(shop.get(f"releases/{release}").json["status"])


def test_r5_a_rewind_to_before_releases_calls_nobody_a_second_time(
    shop: Server, courier: receivers.Receiver, tmp_path: Path
) -> None:
    """Released and confirmed, then rewound; and one that was under way when the service died."""
    kept = keep(shop, tmp_path / "kept")
    history = shop.get("status").json["history"]
    confirmed = ship(shop, "confirmed")
    shop.wait_for(lambda: state(shop, confirmed) == "done")
    receipt = shop.get(f"releases/{confirmed}").json["receipt"]
    courier.tell("delay", seconds=600, before="answering")
    under_way = ship(shop, "under-way")
    courier.wait_for(lambda: courier.attempts(under_way) == 1)
    put_back(shop, kept, history, killed=True)
    courier.clear()
    courier.finish(under_way)
    recover(shop)
    held = shop.post("recovery/reopen", {"to": "open"})
    assert held.status == 409
    assert "reconciled" in held.json["detail"]

    done = shop.post("recovery/reconcile")
    assert done.status == 200, done.body
    assert (done.json["complete"], done.json["counts"]) == (True, {"confirmed": 1})
    found = shop.get("recovery/findings?found=confirmed").json
    assert [(one["id"], one["generation"]) for one in found["items"]] == [(under_way, 2)]
    assert shop.get("recovery/findings?found=held").json == {"items": [], "next": None}
    assert shop.post("recovery/reopen").json["stage"] == "open"

    # The dispatcher is at work again: it delivers what is new, and nothing of what was.
    later = ship(shop, "later")
    shop.wait_for(lambda: state(shop, later) == "done")
    assert [state(shop, release) for release in (confirmed, under_way)] == ["done", "done"]
    assert shop.get(f"releases/{confirmed}").json["receipt"] == receipt
    assert [courier.attempts(one) for one in (confirmed, under_way, later)] == [1, 1, 1]
    assert courier.executions() == 3
    fates = [
        shop.get(f"operations/{name}-ship").json["fate"]["fate"]
        for name in ("confirmed", "under-way")
    ]
    assert fates == ["completed", "completed"]


def test_a_call_is_bounded_and_says_how_much_is_left(
    shop: Server, courier: receivers.Receiver, tmp_path: Path
) -> None:
    kept = keep(shop, tmp_path / "kept")
    history = shop.get("status").json["history"]
    courier.tell("delay", seconds=600, before="answering")
    releases = [ship(shop, str(number)) for number in range(3)]
    courier.wait_for(lambda: courier.attempts() == 3)
    courier.kill()
    put_back(shop, kept, history, killed=True)
    recover(shop)
    first = shop.post("recovery/reconcile", {"limit": 2}).json
    assert (first["complete"], first["left"], first["unreachable"]) == (False, 1, {"courier": 2})
    second = shop.post("recovery/reconcile").json
    assert (second["complete"], second["counts"]) == (False, {"unreachable": 3})
    page = shop.get("recovery/findings?limit=2").json
    rest = shop.get(f"recovery/findings?limit=2&after={page['next']}").json
    assert sorted(one["id"] for one in page["items"] + rest["items"]) == sorted(releases)
    assert {one["evidence"]["owner"] for one in page["items"]} == {"operator"}
    courier.start()
    assert shop.post("recovery/reconcile", {"rate": 100}).json["counts"] == {"confirmed": 3}
    assert shop.post("recovery/reopen").json["stage"] == "open"
    assert courier.attempts() == 3


def test_bad_requests_say_what_is_wrong(shop: Server) -> None:
    for body in ({"limit": 0}, {"limit": "all"}, {"rate": -1}, {"force": True}):
        reply = shop.post("recovery/reconcile", body)
        assert (reply.status, reply.json["type"]) == (400, "/problems/invalid"), reply.body
    assert shop.get("recovery/findings?found=lost").status == 400
    assert shop.get("recovery/findings?after=nonsense").status == 400
    reader = shop.make_token("reader")
    for method, path in (("POST", "recovery/reconcile"), ("GET", "recovery/findings")):
        reply = shop.request(method, f"/v1/main/{path}", token=reader)
        assert reply.status == 403
