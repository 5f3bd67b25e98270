"""The OpenAPI document is true: every call is in it, and answers only what it says."""

import base64
import itertools
import random
import re
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from litestar.routes import HTTPRoute
from schemathesis.checks import CHECKS, load_all_checks

from api import problems
from api.app import create_app
from api.calls import CALL
from api.signing import sign
from journal import errors
from journal.control import ControlUnreadable, Role
from journal.settings import Settings
from tests.api.laned import CALLBACK_SECRET, Laned, serving
from tests.api.servers import Server
from tests.soak.processes import LONG
from tests.support.proof import record
from tests.support.sealing import Caller

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
    max_examples=200 if LONG else 18,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
# Marked when they are collected for the long rounds: to collect them twice takes seconds.
pytestmark = [pytest.mark.soak] if LONG else []


LEASE = 2**32 + 1
"""The first claim's number in the first generation."""

ABOVE = {Role.READER: 0, Role.WRITER: 1, Role.OPERATOR: 2}
TURNS = (Role.OPERATOR, Role.OPERATOR, Role.WRITER, Role.READER)
"""Whose token a case is sent with, by what the case is: most get beyond the door."""
COUNTED = {"cases": 0}

DOCUMENT: dict[str, Any] = msgspec.json.decode(create_app(Settings()).state["openapi"]())
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@pytest.fixture
def document() -> dict[str, Any]:
    return DOCUMENT


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laned]:
    with serving(tmp_path_factory.mktemp("filled") / "server") as running:
        for number in range(1, 30):
            for action in ("submit", "approve", "release"):
                entity = f"document/{number}"
                reply = running.decide(f"{action}-{number}", entity, action, version="v1")
                assert reply.status == 201, reply.body
        assert running.request("GET", "/schema/openapi.json").json == DOCUMENT
        yield running
        if LONG:
            command = "UNREWIND_SOAK=1 python -m pytest -m soak tests/api/test_openapi.py"
            record("schemathesis", command, scope=COUNTED["cases"], calls=len(NEEDS))


@pytest.fixture(scope="module")
def tokens(filled: Laned) -> dict[Role, str]:
    """A token of each role that calls are documented for."""
    made = {
        role: filled.post("tokens", {"role": str(role), "name": f"a {role}"}).json["token"]
        for role in (Role.WRITER, Role.READER)
    }
    return {Role.OPERATOR: filled.token, **made}


@pytest.fixture(scope="module")
def courier(filled: Laned) -> str:
    made = filled.post("tokens", {"role": "receiver", "name": "courier"})
    return str(made.json["token"])


@pytest.fixture(scope="module")
def recovered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    running = Server(tmp_path_factory.mktemp("recovery") / "server").start()
    try:
        yield running
    finally:
        assert running.end() == 0
        assert "Traceback" not in running.errors, running.errors


def call(case: Any, server: Server, token: str | None = None) -> int:
    """Send the case and judge the answer by the document; its status."""
    headers = {"Authorization": f"Bearer {token or server.token}"}
    base = f"http://127.0.0.1:{server.port}"
    response = case.call(base_url=base, headers=headers)
    checks = CHECKED if case.path.endswith("/batch") else [*CHECKED, REFUSED]
    case.validate_response(response, checks=checks, headers=headers)
    COUNTED["cases"] += 1
    status: int = response.status_code
    return status


def _needs() -> dict[tuple[str, str], Role | None]:
    return {
        (method, route.path_format): handler.opt[CALL].needs
        for route in create_app(Settings()).routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        for method in handler.http_methods - {"OPTIONS"}
    }


NEEDS = _needs()
"""The role that each call asks for; None: anybody's."""


@SCHEMA.exclude(path_regex="/recovery").parametrize()
@FUZZED
def test_calls_answer_what_is_documented(case: Any, filled: Laned, tokens: dict[Role, str]) -> None:
    told = repr((case.method, case.path, case.path_parameters, case.query, case.body))
    role = TURNS[zlib.crc32(told.encode()) % len(TURNS)]
    status = call(case, filled, tokens[role])
    assert status < 500
    needs = NEEDS.get((case.method, case.path))
    if needs is Role.RECEIVER or (needs is not None and ABOVE[role] < ABOVE[needs]):
        assert status >= 400, f"a {role} got {status}"


@SCHEMA.include(path_regex="/callbacks/").parametrize()
@FUZZED
def test_signed_callbacks_answer_what_is_documented(case: Any, filled: Laned, courier: str) -> None:
    """Whatever a receiver signs: a body of any shape, about a release that is there or is not."""
    content = msgspec.json.encode(case.body) if isinstance(case.body, dict | list) else b"{}"
    identity = f"evt_{next(_numbers)}"
    headers = {
        **sign(CALLBACK_SECRET, identity, datetime.now(UTC), content),
        "Authorization": f"Bearer {courier}",
        "Content-Type": "application/json",
    }
    case.path_parameters = {"receiver": "courier"}
    url = f"http://127.0.0.1:{filled.port}/v1/main/callbacks/courier"
    response = requests.post(url, data=content, headers=headers, timeout=60)
    case.validate_response(response, checks=CHECKED[:4], headers=headers)
    COUNTED["cases"] += 1
    assert response.status_code < 500
    assert response.status_code not in {401, 403}


_numbers = itertools.count(1)


@SCHEMA.include(path_regex="/entries$", method="POST").parametrize()
@FUZZED
def test_sealed_entries_answer_what_is_documented(
    case: Any, filled: Laned, tokens: dict[Role, str]
) -> None:
    """Entries that a caller sealed, some with a byte changed, some left out, some sent twice."""
    chance = random.Random(next(_numbers))
    force = filled.get("status").json
    caller = Caller(force["history"], force["generation"])
    sent = []
    for entry in caller.chain(f"contract/{next(_numbers)}", chance.randint(1, 4)):
        text = bytearray(entry.text)
        if not chance.randrange(4):
            text[chance.randrange(len(text))] ^= 1
        if chance.randrange(5):
            sent.append({"envelope": text.decode("latin-1"), "body": _base64(entry.body)})
    chance.shuffle(sent)
    case.body = {"entries": sent + sent[: chance.randint(0, 1)]}
    headers = {"Authorization": f"Bearer {tokens[Role.WRITER]}"}
    response = case.call(base_url=f"http://127.0.0.1:{filled.port}", headers=headers)
    case.validate_response(response, checks=CHECKED[:4], headers=headers)
    COUNTED["cases"] += 1
    assert response.status_code < 500


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@SCHEMA.include(path_regex="/(releases|work|lanes)/{|/where").parametrize()
@FUZZED
def test_calls_about_what_is_there_answer_what_is_documented(case: Any, filled: Laned) -> None:
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
