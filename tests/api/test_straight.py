"""Calls that pass the router by: everything that the router does for them is done all the same."""

from __future__ import annotations

import json

import pytest

from api.app import Application, create_app
from api.calls import STRAIGHT
from journal import Journal
from journal.control import Role
from tests.api.test_application import DECISION, PATH, Client, Message

UNKNOWN = "unr_00000000_" + "0" * 43


@pytest.fixture
async def client(service: Journal) -> Client:
    """The application over a started tenant, with a writer's token."""
    token = await service.create_token(Role.WRITER, "test")
    return Client(create_app(service.settings, service), token)


async def test_decisions_pass_the_router_by(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise AssertionError("the router was asked")

    monkeypatch.setattr(client.app, "asgi_handler", refuse)
    status, headers, receipt = await client.post(DECISION)
    assert (status, receipt["outcome"]) == (201, "accepted")
    assert headers["cache-control"] == "no-store"
    assert headers["content-type"] == "application/json"


async def test_they_answer_what_the_router_would(client: Client, service: Journal) -> None:
    plain = create_app(service.settings, service)
    plain.straight.clear()
    routed = Client(plain, client.token)
    reader = await service.create_token(Role.READER, "reads")
    bodies = [
        DECISION,
        DECISION,
        b'{"operation":"op-1","entity":"case/2","action":"note"}',
        b'{"operation":"op-2","entity":"case/1","action":"note","expected_revision":7}',
        b'{"operation":"op-2","entity":"nothing/1","action":"note"}',
        b'{"operation":"op-2"',
        b"",
    ]
    await client.post(DECISION)
    for token in (client.token, reader, UNKNOWN, "not a token"):
        client.token = routed.token = token
        for body in bodies:
            assert await client.post(body) == await routed.post(body)


async def test_a_fault_that_nobody_foresaw_is_a_problem_document(
    client: Client, service: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise KeyError("secret")

    monkeypatch.setattr(service, "accept", fail)
    status, headers, problem = await client.post(DECISION)
    assert (status, headers["content-type"]) == (500, "application/problem+json")
    assert "secret" not in json.dumps(problem)


async def test_another_method_is_refused_with_those_that_there_are(client: Client) -> None:
    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    status, headers, _ = await client.send(receive, "DELETE")
    assert (status, headers["allow"]) == (405, "POST")


def test_only_decisions_pass_by(client: Client) -> None:
    """What passes by is no part of the middleware stack: each such call is a choice."""
    app: Application = client.app
    assert {path: handler.opt[STRAIGHT] for path, handler in app.straight.items()} == {PATH: True}
