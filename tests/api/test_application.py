"""The application in this process, where a fault can be put in: bodies, failures, readiness."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from api import requests
from api.alerts import Alerts
from api.app import Application, create_app
from api.health import Health
from api.schedule import Schedule
from api.watching import Watch
from journal import Journal, Settings
from journal.control import Role
from journal.errors import JournalUnavailable, Overloaded
from tests.support.whole import verify_files

PATH = "/v1/main/decisions"
DECISION = b'{"operation":"op-1","entity":"case/1","action":"note"}'

Message = dict[str, Any]


class Client:
    """Calls the application with chosen ASGI messages."""

    def __init__(self, app: Application, token: str) -> None:
        self.app = app
        self.token = token

    async def send(
        self, receive: Callable[[], Awaitable[Message]], method: str = "POST", path: str = PATH
    ) -> tuple[int, dict[str, str], Any]:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"host", b"x"), (b"authorization", f"Bearer {self.token}".encode())],
        }
        await self.app(scope, receive, send)
        headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], headers, json.loads(sent[1]["body"])

    async def post(self, *chunks: bytes) -> tuple[int, dict[str, str], Any]:
        left = list(chunks)

        async def receive() -> Message:
            chunk = left.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(left)}

        return await self.send(receive)


@pytest.fixture
async def client(service: Journal) -> Client:
    """The application over a started tenant, with a writer's token."""
    token = await service.create_token(Role.WRITER, "test")
    return Client(create_app(service.settings, service), token)


async def test_a_body_may_come_in_pieces(client: Client) -> None:
    status, _, receipt = await client.post(DECISION[:7], b"", DECISION[7:20], DECISION[20:], b"")
    assert (status, receipt["operation"]) == (201, "op-1")


async def test_pieces_are_counted_though_no_length_was_declared(client: Client) -> None:
    limit = client.app.journal.settings.max_request
    piece = b"x" * (limit // 4)
    status, _, problem = await client.post(piece, piece, piece, piece, b"x", b"never read")
    assert (status, problem["type"], problem["limit"]) == (413, "/problems/too-large", limit)


async def test_a_body_that_does_not_arrive_is_given_up(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "BODY_SECONDS", 0.05)

    async def receive() -> Message:
        return await asyncio.Future()

    status, headers, problem = await client.send(receive)
    assert (status, problem["type"]) == (408, "/problems/request-timeout")
    assert headers["connection"] == "close"


async def test_a_client_that_goes_away_stores_nothing(client: Client) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    status, _, _ = await client.send(receive)
    assert status == 400
    assert (await client.app.journal.operations()).items == []


async def test_an_unforeseen_failure_is_logged_and_tells_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(client.app.journal, "accept", fail)
    status, headers, problem = await client.post(DECISION)
    assert (status, problem["type"]) == (500, "/problems/internal")
    assert headers["content-type"] == "application/problem+json"
    assert "secret" not in json.dumps(problem)
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert record.exc_info is not None
    assert "a secret" in str(record.exc_info[1])
    assert client.token not in caplog.text


@pytest.mark.parametrize(
    ("error", "status"), [(Overloaded, 429), (JournalUnavailable, 503)], ids=["full", "down"]
)
async def test_what_is_worth_repeating_says_so(
    client: Client,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    status: int,
) -> None:
    async def fail(_: object) -> None:
        raise error

    monkeypatch.setattr(client.app.journal, "accept", fail)
    found, headers, problem = await client.post(DECISION)
    assert found == status
    assert int(headers["retry-after"]) >= 1
    assert problem["repeat"] == "keep the operation ID"


@pytest.mark.parametrize(
    ("said", "seconds"), [(90, "90"), (0.2, "1"), (59.1, "60"), ("soon", "1"), (None, "1")]
)
async def test_who_is_told_to_come_back_is_told_when(
    client: Client, monkeypatch: pytest.MonkeyPatch, said: object, seconds: str
) -> None:
    async def fail(_: object) -> None:
        raise Overloaded("a lane is full", retry_after=said)

    monkeypatch.setattr(client.app.journal, "accept", fail)
    status, headers, problem = await client.post(DECISION)
    assert (status, headers["retry-after"]) == (429, seconds)
    assert problem["retry_after"] == said


async def test_a_request_of_any_size_goes_where_its_limit_says(settings: Settings) -> None:
    small = msgspec.structs.replace(settings, max_body=8, max_request=100)
    app = create_app(small)
    async with app.lifespan():
        client = Client(app, await app.journal.create_token(Role.WRITER, "test"))
        assert (await client.post(DECISION))[0] == 201
        long_body = DECISION[:-1].replace(b"op-1", b"op-2") + b',"body":"123456789"}'
        assert (await client.post(long_body))[0] == 413
        assert (await client.post(DECISION + b" " * 100))[0] == 413
    assert verify_files(settings) == []


async def test_r13_one_check_of_readiness_serves_all_who_ask(
    service: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = 0
    write = service.write

    async def counted(*args: Any) -> Any:
        nonlocal checks
        checks += 1
        return await write(*args)

    monkeypatch.setattr(service, "write", counted)
    health = Health(service)
    await asyncio.gather(*[health.check() for _ in range(50)])
    assert checks == 1
    service._writing.poisoned = "the disk"
    await health.check()
    health._until = 0.0
    with pytest.raises(JournalUnavailable):
        await health.check()
    service._writing.poisoned = None


async def test_a_job_that_fails_is_logged_and_comes_again(
    service: Journal, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    quick = msgspec.structs.replace(service.settings, handoff_every=0.02, detect_every=0.02)
    monkeypatch.setattr(service, "settings", quick)
    settled, detected = asyncio.Event(), asyncio.Event()
    runs = {"settle": 0, "detect": 0}

    async def settle() -> None:
        runs["settle"] += 1
        if runs["settle"] >= 3:
            settled.set()
        raise RuntimeError("broken")

    async def detect(*, deep: bool) -> None:
        assert deep
        runs["detect"] += 1
        if runs["detect"] >= 3:
            detected.set()
        raise JournalUnavailable

    monkeypatch.setattr(service, "settle", settle)
    monkeypatch.setattr(service, "detect", detect)
    leading = await service.join("serve", schedules=True)
    schedule = Schedule(service, Watch(service, Alerts(quick)), leading)
    schedule.start()
    try:
        async with asyncio.timeout(30):
            await settled.wait()
            await detected.wait()
    finally:
        await schedule.stop()
        monkeypatch.undo()
    assert "settle failed" in caplog.text
    assert "detect: The journal cannot be written" in caplog.text
