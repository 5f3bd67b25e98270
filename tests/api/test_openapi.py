"""The OpenAPI document is true: every call is in it, and answers only what it says."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from litestar.routes import HTTPRoute
from schemathesis.checks import CHECKS, load_all_checks

from api import problems
from api.app import create_app
from api.calls import CALL
from journal import errors
from journal.control import ControlUnreadable, Role
from journal.settings import Settings
from tests.api.servers import Server
from tests.soak.processes import LONG

load_all_checks()
CHECKED = [
    CHECKS.get_one(name)
    for name in (
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "unsupported_method",
        "ignored_auth",
    )
]
# A malformed item of a batch is refused in its own answer, and the batch is answered 200.
REFUSED = CHECKS.get_one("negative_data_rejection")
FUZZED = settings(
    max_examples=200 if LONG else 20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
# Marked when they are collected for the long rounds: to collect them twice takes seconds.
pytestmark = [pytest.mark.soak] if LONG else []


LEASE = 2**32 + 1
"""The first claim's number in the first generation."""

DOCUMENT: dict[str, Any] = msgspec.json.decode(create_app(Settings()).state["openapi"]())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture
def document() -> dict[str, Any]:
    return DOCUMENT


@pytest.fixture(scope="module")
def filled(shared: Server) -> Server:
    for number in range(1, 30):
        for action in ("submit", "approve", "release"):
            entity = f"document/{number}"
            reply = shared.decide(f"{action}-{number}", entity, action, version="v1")
            assert reply.status == 201, reply.body
    assert shared.request("GET", "/schema/openapi.json").json == DOCUMENT
    return shared


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("recovery") / "server").start()
    try:
        yield running
    finally:
        assert running.end() == 0
        assert "Traceback" not in running.errors, running.errors


def call(case: Any, server: Server) -> int:
    """Send the case and judge the answer by the document; its status."""
    headers = {"Authorization": f"Bearer {server.token}"}
    base = f"http://127.0.0.1:{server.port}"
    response = case.call(base_url=base, headers=headers)
    checks = CHECKED if case.path.endswith("/batch") else [*CHECKED, REFUSED]
    case.validate_response(response, checks=checks, headers=headers)
    status: int = response.status_code
    return status


@SCHEMA.exclude(path_regex="/recovery").parametrize()
@FUZZED
def test_calls_answer_what_is_documented(case: Any, filled: Server) -> None:
    assert call(case, filled) < 500


@SCHEMA.include(path_regex="/(releases|work|lanes)/{|/where").parametrize()
@FUZZED
def test_calls_about_what_is_there_answer_what_is_documented(case: Any, filled: Server) -> None:
    known = {"lane": "delivery", "id": released(filled)}
    if case.path.endswith("/where"):
        known["id"] = "release-1"
    case.path_parameters = {name: known[name] for name in case.path_parameters}
    if isinstance(case.body, dict) and "lease" in case.body:
        case.body["lease"] = LEASE
    headers = {"Authorization": f"Bearer {filled.token}"}
    response = case.call(base_url=f"http://127.0.0.1:{filled.port}", headers=headers)
    case.validate_response(response, checks=CHECKED[:4], headers=headers)
    assert response.status_code < 500


def released(server: Server) -> str:
    """A release that is under way, claimed if it has to be; else any one."""
    server.post("lanes/delivery/resume", {"reason": "for the next case"})
    server.post("lanes/delivery/claim", {"worker": "w"})
    found = server.get("releases?status=running&limit=1").json["items"]
    found = found or server.get("releases?limit=1").json["items"]
    return str(found[0]["id"])


@SCHEMA.include(path_regex="/recovery").parametrize()
@FUZZED
def test_recovery_answers_what_is_documented(case: Any, recovered: Server) -> None:
    assert call(case, recovered) != 500


def test_every_route_is_in_the_document(document: dict[str, Any]) -> None:
    app = create_app(Settings())
    routes = {
        (route.path_format, method.lower())
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for method in route.methods
        if method != "OPTIONS"
    }
    assert routes == {(path, method) for path, item in document["paths"].items() for method in item}
    for path, item in document["paths"].items():
        named = set(re.findall(r"{(\w+)}", path))
        for operation in item.values():
            parameters = operation.get("parameters", [])
            assert named == {each["name"] for each in parameters if each["in"] == "path"}, path


def test_every_operation_of_the_document_has_a_name_of_its_own(document: dict[str, Any]) -> None:
    names = [call["operationId"] for item in document["paths"].values() for call in item.values()]
    assert len(set(names)) == len(names)


def test_only_what_is_meant_to_be_public_is(document: dict[str, Any]) -> None:
    public = {
        path
        for path, item in document["paths"].items()
        for operation in item.values()
        if not operation["security"]
    }
    assert public == {
        "/health/live",
        "/health/ready",
        "/schema",
        "/schema/openapi.json",
        "/problems/{slug}",
    }


def test_each_role_is_asked_for_where_it_should_be() -> None:
    app = create_app(Settings())
    needs: dict[str, set[Role | None]] = {}
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                for method in handler.http_methods - {"OPTIONS"}:
                    needs.setdefault(f"{method} {route.path_format}", set()).add(
                        handler.opt[CALL].needs
                    )
    prefix = "/v1/main/"
    assert {call for call, role in needs.items() if role == {Role.WRITER}} == {
        f"POST {prefix}decisions",
        f"POST {prefix}decisions/batch",
        f"POST {prefix}entries",
        f"POST {prefix}releases/{{id}}/outcome",
        f"POST {prefix}releases/{{id}}/heartbeat",
        f"POST {prefix}releases/{{id}}/cancel",
        f"POST {prefix}work/{{id}}/outcome",
        f"POST {prefix}work/{{id}}/heartbeat",
        f"POST {prefix}lanes/{{lane}}/claim",
        f"POST {prefix}lanes/{{lane}}/work",
    }
    assert {call for call, role in needs.items() if role == {Role.OPERATOR}} == {
        f"POST {prefix}recovery/begin",
        f"POST {prefix}recovery/plan",
        f"POST {prefix}recovery/apply",
        f"POST {prefix}recovery/abandon",
        f"POST {prefix}recovery/reconcile",
        f"GET {prefix}recovery/findings",
        f"POST {prefix}recovery/reopen",
        f"POST {prefix}stops",
        f"POST {prefix}stops/resume",
        f"GET {prefix}stops",
        f"GET {prefix}recovery",
        f"GET {prefix}recovery/report",
        f"POST {prefix}tokens",
        f"GET {prefix}tenants",
        f"POST {prefix}tenants",
        f"GET {prefix}tenants/{{name}}",
        f"POST {prefix}tenants/{{name}}/close",
        f"GET {prefix}tokens",
        f"DELETE {prefix}tokens/{{id}}",
        f"POST {prefix}releases/{{id}}/settle",
        f"POST {prefix}releases/{{id}}/incident",
        f"POST {prefix}lanes/{{lane}}/pause",
        f"POST {prefix}lanes/{{lane}}/resume",
        f"POST {prefix}lanes/{{lane}}/off",
        f"POST {prefix}dead-letters/replay",
        f"POST {prefix}dead-letters/drain",
        f"POST {prefix}alerts/test",
    }
    assert {call for call, role in needs.items() if role == {Role.RECEIVER}} == {
        f"POST {prefix}callbacks/{{receiver}}",
    }
    # Whatever else there is reads.
    assert {call.partition(" ")[0] for call, role in needs.items() if role == {Role.READER}} == {
        "GET"
    }


def every_error() -> Iterator[type[errors.UnrewindError]]:
    found = [errors.UnrewindError]
    while found:
        error = found.pop()
        found += error.__subclasses__()
        yield error


def test_every_error_has_a_problem_type() -> None:
    without = {errors.UnrewindError, errors.Refusal, errors.SettingsInvalid}
    missing = [
        error
        for error in every_error()
        if problems.kind_of(error()) is problems.INTERNAL
        and error.__module__.partition(".")[0] in {"journal", "reconstruct", "api"}
        and not error.__module__.startswith("api.cli.")  # nothing of the commands is served
        and error not in without
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("error", "slug", "status"),
    [
        (errors.Invalid, "invalid", 400),
        (errors.Unauthenticated, "unauthenticated", 401),
        (errors.Forbidden, "forbidden", 403),
        (errors.NotFound, "not-found", 404),
        (errors.RevisionMismatch, "revision-mismatch", 409),
        (errors.TransitionRefused, "transition-refused", 409),
        (errors.HistoryIncomplete, "history-incomplete", 409),
        (errors.StaleGeneration, "stale-generation", 409),
        (errors.Forked, "forked", 409),
        (errors.LeaseLost, "lease-lost", 409),
        (errors.HistoryChanged, "history-changed", 410),
        (errors.OperationReused, "operation-reused", 422),
        (errors.Overloaded, "overloaded", 429),
        (errors.JournalUnavailable, "journal-unavailable", 503),
        (errors.WriterStopped, "journal-unavailable", 503),
        (errors.DiskFailed, "journal-unavailable", 503),
        (errors.Recovering, "recovering", 503),
        (ControlUnreadable, "recovering", 503),
        (errors.Held, "held", 503),
        (errors.LockHeld, "busy", 503),
        (errors.Refused, "refused", 409),
    ],
)
def test_a_problem_type_never_changes(
    error: type[errors.UnrewindError], slug: str, status: int
) -> None:
    found = problems.document(error(), "/v1/main/x")
    assert (found["type"], found["status"]) == (f"/problems/{slug}", status)
    assert ("repeat" in found) == (status in {429, 503})


def test_an_unforeseen_failure_tells_nothing_internal() -> None:
    found = problems.document(errors.UnrewindError("a secret", secret="a secret"), None)
    assert found["status"] == 500
    assert "secret" not in str(found)


def test_a_member_never_hides_a_field_of_the_document() -> None:
    found = problems.document(errors.Invalid("what", type="invoice", status=7, field="entity"), "/")
    assert (found["type"], found["status"]) == ("/problems/invalid", 400)
    assert found["field"] == "entity"
