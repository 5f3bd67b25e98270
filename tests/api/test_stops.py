"""Stops over HTTP: a type or an action alone, and what its callers are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.laned import Laned, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Laned]:
    with serving(tmp_path / "server") as running:
        yield running


def test_a_stop_answers_503_held_worth_repeating_and_only_for_what_it_names(
    server: Laned,
) -> None:
    release = server.permit("1")
    reply = server.post(
        "stops", {"type": "order", "action": "transfer", "reason": "a faulty limit"}
    )
    assert reply.status == 200, reply.body
    made = reply.json
    assert (made["type"], made["action"], made["reason"]) == ("order", "transfer", "a faulty limit")
    assert made["principal"]
    assert server.get("stops").json == {"items": [made]}

    held = server.decide("transfer-2", "order/1", "transfer", version="1")
    assert (held.status, held.json["type"]) == (503, "/problems/held")
    assert held.json["detail"].startswith("order/transfer is stopped: a faulty limit")
    assert held.json["entity"] == "order/1"
    assert "repeat" in held.json
    assert int(held.headers["retry-after"]) > 0
    assert server.decide("approve-2", "order/2", "approve", version="1").status == 201
    gate = server.get("entities/order/1/gate").json
    assert (gate["gate"], gate["reasons"][-1]) == (
        "held",
        "held: order/transfer is stopped: a faulty limit",
    )

    claimed = server.claim("transfers").json
    assert claimed["permits"] == []
    assert claimed["held"] == "order/transfer is stopped: a faulty limit"
    assert server.release(release)["step"] == f"held: {claimed['held']}"

    again = server.post("stops/resume", {"type": "order", "action": "transfer", "reason": "mended"})
    assert (again.status, again.json) == (200, {"items": []})
    assert server.get("stops").json == {"items": []}
    (permit,) = server.claim("transfers").json["permits"]
    assert permit["id"] == release


def test_a_stop_of_nothing_is_told_what_there_is(server: Laned) -> None:
    reply = server.post("stops", {"type": "ordr", "reason": "a typo"})
    assert (reply.status, reply.json["type"]) == (404, "/problems/not-found")
    assert "order" in reply.json["detail"]
    reply = server.post("stops", {"type": "order", "action": "release.confirmed", "reason": "no"})
    assert (reply.status, reply.json["field"]) == (400, "action")
    assert server.post("stops", {"type": "order"}).status == 400
