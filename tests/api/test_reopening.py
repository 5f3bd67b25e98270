"""Over HTTP: a running service follows each stage, and tells what became of every operation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.api.laned import Laned, pages, serving

_WAIVED = {"despite": ["reconciled"], "reason": "a test"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laned]:
    with serving(tmp_path_factory.mktemp("server")) as running:
        yield running


def recovered(server: Laned) -> None:
    """Everything up to the reopening."""
    assert server.post("recovery/begin", {"reason": "a test"}).status == 200
    assert server.post("recovery/apply").status == 200


def test_a_running_service_follows_each_stage(server: Laned) -> None:
    release = server.permit("1")
    recovered(server)
    name = release[-12:]

    def tried() -> tuple[int, int, str]:
        """Whether it shows entities, decides, and why a lane gives out nothing."""
        decided = server.decide(f"{name}-{server.get('status').json['stage']}", "case/1", "note")
        claim = server.claim("transfers")
        held = claim.json.get("held") or ""
        return server.get("entities/order/1").status, decided.status, held

    assert tried()[:2] == (503, 503)
    reply = server.post("recovery/reopen", {"to": "reading"})
    assert (reply.status, reply.json["stage"], reply.json["passed"]) == (
        200,
        "reading",
        ["reading"],
    )
    assert tried()[:2] == (200, 503)
    reply = server.post("recovery/reopen")
    assert (reply.json["stage"], reply.json["passed"]) == ("internal", ["internal"])
    assert reply.json["missing"][0].startswith("reconciled: ")
    shown, decided, held = tried()
    assert (shown, decided) == (200, 201)
    assert "internal" in held
    refused = server.post("recovery/reopen", {"to": "open"})
    assert (refused.status, refused.json["type"]) == (409, "/problems/refused")
    assert refused.json["missing"] == reply.json["missing"]
    external = {"to": "external", "lanes": ["transfers"], "rate": 100, **_WAIVED}
    reply = server.post("recovery/reopen", external)
    assert (reply.json["stage"], len(reply.json["despite"])) == ("external", 1)
    view = server.get("recovery").json
    assert view["opening"] == {"lanes": ["transfers"], "releases": [], "rate": 100}
    permit = server.claimed("transfers")
    assert permit["id"] == release
    reply = server.post("recovery/reopen")
    assert (reply.json["stage"], reply.json["soon"]) == ("external", True)
    assert server.report(permit, "confirmed", receipt="r-1").status == 200
    assert server.post("recovery/reopen").json["stage"] == "open"
    assert server.get("recovery").json["opening"] is None
    report = server.get("recovery/report").json
    assert (report["stage"], report["backlog"]["left"]) == ("open", 0)
    stages = [step["stage"] for step in report["steps"] if step["action"] == "reopen"]
    assert stages == ["reading", "internal", "external", "open"]
    assert server.get("recovery/report?generation=99").status == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"to": "closed"}, None),
        ({"to": "external"}, "to"),
        ({"to": "open", "lanes": ["transfers"]}, "to"),
        ({"to": "external", "lanes": ["mail"]}, "lanes"),
        ({"to": "external", "lanes": ["transfers"], "rate": -1}, "rate"),
        ({"to": "external", "rate": 1}, "lanes"),
        ({"despite": ["heads"], "reason": "x"}, "despite"),
        ({"despite": ["reconciled"]}, "reason"),
        ({"despite": ["reconciled"], "reason": ""}, "reason"),
        ({"stage": "open"}, None),
    ],
)
def test_a_reopening_that_makes_no_sense_is_refused(
    server: Laned, body: dict[str, Any], field: str | None
) -> None:
    reply = server.post("recovery/reopen", body)
    assert (reply.status, reply.json["type"]) == (400, "/problems/invalid"), reply.body
    assert reply.json.get("field") == field


def test_p12_every_operation_tells_its_fate(server: Laned) -> None:
    server.permit("f1")
    server.permit("f2")
    permit = server.claimed("transfers")
    server.report(permit, "unknown")
    listed = {item["operation"]: item["fate"] for item in pages(server, "operations", 100)}
    unresolved = pages(server, "operations?unresolved=true", 1)
    open_ones = {name for name, fate in listed.items() if fate["fate"] == "unresolved"}
    assert {item["operation"] for item in unresolved} == open_ones == {"f1-transfer", "f2-transfer"}
    assert all(item["fate"]["owner"] and item["fate"]["deadline"] for item in unresolved)
    (one,) = pages(server, "operations?unresolved=true&entity=order%2Ff1", 10)
    assert one == next(item for item in unresolved if item["operation"] == "f1-transfer")
    told = server.get("operations/f1-transfer").json
    assert (told["fate"], told["outcome"]) == (one["fate"], "duplicate")
    assert told["status_url"].endswith("/operations/f1-transfer")
    assert server.get("operations/f1-approve").json["fate"]["fate"] == "completed"


@pytest.mark.parametrize(
    "query",
    [
        "unresolved=yes",
        "unresolved=",
        "entity=nothing",
        "unresolved=true&after=nonsense",
        "entity=order%2Ff1&after=bnVsbA",
        "limit=0",
    ],
)
def test_a_question_about_operations_that_makes_no_sense_is_refused(
    server: Laned, query: str
) -> None:
    reply = server.get(f"operations?{query}")
    assert (reply.status, reply.json["type"]) == (400, "/problems/invalid"), reply.body


def test_a_cursor_of_one_list_is_none_of_the_other(server: Laned, tmp_path: Path) -> None:
    del tmp_path
    for number in range(3):
        server.permit(f"c{number}")
    cursor = server.get("operations?unresolved=true&limit=1").json["next"]
    assert server.get(f"operations?after={cursor}").status == 400
    assert json.loads(server.get(f"operations?unresolved=true&after={cursor}").body)["items"]
