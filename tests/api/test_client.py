"""The client's decisions and questions: a real server, and a proxy before it that loses things."""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from api.client import Abandoned, AsyncClient, Item, Outcome, Refused, Result
from tests.api.servers import Server
from tests.support.callers import KINDS, calling
from tests.support.proxies import Fault, Proxy, answer, losing, problem

AWKWARD = "a/b %2F é\U0001f600?#&=+;:@'\"<>\\~ .."


@pytest.fixture
def proxy(shared: Server) -> Iterator[Proxy]:
    with losing(shared.port) as running:
        yield running


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(kind: str, proxy: Proxy, shared: Server) -> Iterator[Any]:
    with calling(kind, proxy.url, shared.token) as made:
        yield made


@pytest.fixture
def name() -> str:
    """An entity of the test's own: the server is shared."""
    return uuid.uuid4().hex


def made(server: Server, entity: str) -> int:
    """How many decisions of the entity there are."""
    reply = server.get(f"entities/{entity}")
    return reply.json["revision"] if reply.status == 200 else 0


def ready(server: Server, entity: str, version: str = "v1") -> None:
    """Bring a document to where it may be released."""
    server.decide(f"{entity}-1", entity, "submit")
    reply = server.decide(f"{entity}-2", entity, "approve", version=version)
    assert reply.status == 201, reply.body


# Four results.


def test_a_decision_from_which_work_follows_is_accepted_and_a_repeat_is_a_duplicate(
    client: Any, shared: Server, name: str
) -> None:
    ready(shared, f"document/{name}")
    first = client.decide(f"document/{name}", "release", version="v1", operation=f"{name}-3")
    again = client.decide(f"document/{name}", "release", version="v1", operation=f"{name}-3")
    assert (first.outcome, again.outcome) == (Outcome.ACCEPTED, Outcome.DUPLICATE)
    assert first.operation == again.operation == f"{name}-3"
    assert first.receipt["releases"] == again.receipt["releases"] != []
    assert first.receipt["digest"] == again.receipt["digest"]
    assert first.recorded
    assert again.recorded
    assert (again.attempts, again.unanswered) == (1, 0)


def test_a_decision_from_which_nothing_follows_is_ignored_and_recorded(
    client: Any, shared: Server, name: str
) -> None:
    result = client.decide(f"case/{name}", "note", body={"a": 1}, actor="ada")
    assert (result.outcome, result.recorded) == (Outcome.IGNORED, True)
    assert result.require()["revision"] == 1
    assert shared.get(f"operations/{result.operation}").json["digest"] == result.receipt["digest"]
    assert client.entity(f"case/{name}")["data"] == {"a": 1}


def test_what_could_not_be_established_is_abandoned_logged_and_alarmed(
    kind: str, proxy: Proxy, shared: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    alarms: list[Result] = []
    proxy.meets(Fault("lose", "decisions"), always=True)
    with calling(kind, proxy.url, shared.token, attempts=3, on_abandoned=alarms.append) as client:
        result = client.decide(f"case/{name}", "note")
        assert (result.outcome, result.recorded, result.receipt) == (
            Outcome.ABANDONED, False, None,
        )  # fmt: skip
        assert (result.attempts, result.unanswered, client.abandoned) == (3, 3, 1)
        assert len(proxy.requests("decisions")) == 3
        with pytest.raises(Abandoned, match=result.operation):
            result.require()
        assert alarms == [result]
        (record,) = [one for one in caplog.records if one.name == "unrewind.client"]
        assert record.levelno == logging.ERROR
        assert result.operation in record.getMessage()
        # The decision was there all along: only repeating it can tell.
        proxy.clear()
        again = client.decide(f"case/{name}", "note", operation=result.operation)
        assert again.outcome is Outcome.DUPLICATE
    assert made(shared, f"case/{name}") == 1


def test_a_server_that_is_not_there_took_nothing(kind: str, shared: Server, name: str) -> None:
    with losing(shared.port) as gone:
        url = gone.url
    with calling(kind, url, shared.token, attempts=3) as client:
        result = client.decide(f"case/{name}", "note")
    assert (result.outcome, result.attempts, result.unanswered) == (Outcome.ABANDONED, 3, 0)


@pytest.mark.parametrize("outcome", Outcome)
def test_no_result_is_true_or_false(outcome: Outcome) -> None:
    with pytest.raises(TypeError, match="outcome"):
        bool(Result(outcome=outcome, operation="op-1"))


# Repeating.


def test_l17_a_lost_reply_is_repeated_under_the_same_operation(
    client: Any, proxy: Proxy, shared: Server, name: str
) -> None:
    proxy.meets(Fault("lose", "decisions"))
    result = client.decide(f"case/{name}", "note", body={"a": 1.5}, expected_revision=0)
    assert (result.outcome, result.attempts, result.unanswered) == (Outcome.DUPLICATE, 2, 1)
    first, second = proxy.requests("decisions")
    assert first.body == second.body
    assert first.json["operation"] == result.operation
    assert made(shared, f"case/{name}") == 1


@pytest.mark.parametrize("fault", ["reset", "lose", "swallow"])
def test_l17_nothing_but_our_own_layer_repeats(
    kind: str, fault: str, proxy: Proxy, shared: Server, name: str
) -> None:
    seconds = 1.0 if fault == "swallow" else 20.0
    with calling(kind, proxy.url, shared.token, timeout=seconds) as client:
        # Leaves a connection open: on one of those a transport likes to repeat by itself.
        client.decide(f"case/{name}", "open")
        proxy.seen.clear()
        proxy.meets(*[Fault(fault, "decisions")] * 3)
        result = client.decide(f"case/{name}", "note")
    assert result.recorded
    assert result.attempts == len(proxy.requests("decisions")) == 4
    assert result.unanswered == 3
    assert made(shared, f"case/{name}") == 2


def test_a_request_that_arrives_after_its_repeat_makes_no_second_decision(
    kind: str, proxy: Proxy, shared: Server, name: str
) -> None:
    proxy.meets(Fault("hold", "decisions"))
    with calling(kind, proxy.url, shared.token, timeout=1.0) as client:
        result = client.decide(f"case/{name}", "note")
        assert (result.outcome, result.unanswered) == (Outcome.IGNORED, 1)
        before = len(proxy.answers)
        proxy.release()
        proxy.wait_for(lambda: len(proxy.answers) > before)
    assert b"duplicate" in proxy.answers[-1]
    assert made(shared, f"case/{name}") == 1


@pytest.mark.parametrize(
    "told",
    [
        answer(502, b"<h1>Bad Gateway</h1>", "text/html"),
        answer(404, b"no such host", "text/plain"),
        answer(307, b"", Location="http://127.0.0.1:1/elsewhere"),
        answer(200, b"{"),
        answer(200, b"{}"),
        answer(201, b'{"operation": "another", "outcome": "accepted"}'),
        answer(204),
        problem(503, "journal-unavailable"),
        problem(500, "internal"),
        problem(429, "overloaded"),
        problem(408, "request-timeout"),
        b"not HTTP\r\n\r\n",
    ],
    ids=[
        "gateway",
        "no-problem",
        "redirect",
        "no-json",
        "empty",
        "another",
        "no-content",
        "unavailable",
        "internal",
        "overloaded",
        "late",
        "no-http",
    ],
)
def test_what_is_no_answer_is_asked_again(
    client: Any, proxy: Proxy, shared: Server, name: str, told: bytes
) -> None:
    proxy.meets(Fault("answer", "decisions", content=told))
    result = client.decide(f"case/{name}", "note")
    assert (result.outcome, result.attempts) == (Outcome.IGNORED, 2)
    first, second = proxy.requests("decisions")
    assert first.body == second.body
    assert made(shared, f"case/{name}") == 1


def test_a_redirect_is_not_followed_and_is_named(
    kind: str, proxy: Proxy, shared: Server, name: str
) -> None:
    with losing(shared.port) as elsewhere:
        told = answer(308, b"", Location=f"{elsewhere.url}/v1/main/decisions")
        proxy.meets(Fault("answer", "decisions", content=told), always=True)
        with calling(kind, proxy.url, shared.token, attempts=2) as client:
            result = client.decide(f"case/{name}", "note")
        assert elsewhere.seen == []
    assert result.outcome is Outcome.ABANDONED
    assert "308" in result.reason
    assert "not followed" in result.reason


# Refusals.


def test_a_refusal_is_definite_and_says_what_the_server_said(
    client: Any, proxy: Proxy, shared: Server, name: str
) -> None:
    client.decide(f"document/{name}", "submit", operation=f"{name}-1")
    before = shared.position()
    proxy.seen.clear()
    with pytest.raises(Refused, match="transition-refused") as found:
        client.decide(f"document/{name}", "revoke")
    assert found.value.type == "/problems/transition-refused"
    assert found.value.members["allowed"] == ["approve", "cancel", "submit"]
    assert found.value.operation == proxy.seen[-1].json["operation"]
    with pytest.raises(Refused) as found:
        client.decide(f"document/{name}", "approve", expected_revision=7)
    assert (found.value.name, found.value.members["actual"]) == ("revision-mismatch", 1)
    with pytest.raises(Refused) as found:
        client.decide(f"document/{name}", "submit", operation=f"{name}-1", actor="eve")
    assert (found.value.name, found.value.status) == ("operation-reused", 422)
    assert found.value.members["differing"] == ["actor"]
    with pytest.raises(Refused) as found:
        client.decide("nowhere/1", "submit")
    assert (found.value.name, found.value.unanswered) == ("invalid", 0)
    assert len(proxy.requests("decisions")) == 4
    assert client.abandoned == 0
    assert shared.position() == before


def test_a_token_that_may_not_is_refused(kind: str, proxy: Proxy, shared: Server) -> None:
    reader = shared.make_token("reader")
    for token, name in ((reader, "forbidden"), ("unr_none_at_all", "unauthenticated")):
        with calling(kind, proxy.url, token) as client, pytest.raises(Refused) as found:
            client.decide("case/1", "note")
        assert found.value.name == name
    assert len(proxy.requests("decisions")) == 2


@pytest.mark.parametrize("refusal", ["unauthenticated", "history-incomplete", "invalid"])
def test_a_refusal_at_the_door_tells_nothing_about_a_lost_reply_before_it(
    client: Any, proxy: Proxy, shared: Server, name: str, refusal: str
) -> None:
    told = problem(409, refusal, "the door is closed")
    proxy.meets(Fault("lose", "decisions"), Fault("answer", "decisions", content=told))
    result = client.decide(f"case/{name}", "note")
    assert result.outcome is Outcome.ABANDONED
    assert refusal in result.reason
    assert "the door is closed" in result.reason
    assert made(shared, f"case/{name}") == 1


def test_a_refusal_that_looked_the_operation_up_is_definite_after_a_lost_request_too(
    client: Any, proxy: Proxy, shared: Server, name: str
) -> None:
    proxy.meets(Fault("reset", "decisions"))
    with pytest.raises(Refused) as found:
        client.decide(f"case/{name}", "note", expected_revision=3)
    assert (found.value.name, found.value.attempts) == ("revision-mismatch", 2)
    assert found.value.unanswered == 1
    assert client.abandoned == 0


# Many at once.


def test_many_are_judged_each_for_itself(client: Any, shared: Server, name: str) -> None:
    items = [
        Item(entity=f"document/{name}", action="submit", operation=f"{name}-1"),
        Item(entity=f"document/{name}", action="submit", operation=f"{name}-1"),
        Item(entity=f"document/{name}", action="revoke"),
        Item(entity=f"case/{name}", action="note", body=[1, 2]),
    ]
    first, again, refused, last = client.decide_many(items)
    assert (first.outcome, again.outcome) == (Outcome.IGNORED, Outcome.DUPLICATE)
    assert isinstance(refused, Refused)
    assert (refused.name, refused.members["allowed"][0]) == ("transition-refused", "approve")
    assert refused.operation
    assert last.operation
    assert refused.operation != last.operation
    assert shared.get(f"operations/{last.operation}").json["digest"] == last.receipt["digest"]


def test_many_whose_reply_was_lost_are_duplicates(
    client: Any, proxy: Proxy, shared: Server, name: str
) -> None:
    proxy.meets(Fault("lose", "batch"))
    items = [Item(entity=f"case/{name}", action=f"note-{number}") for number in range(50)]
    results = client.decide_many(items)
    assert {result.outcome for result in results} == {Outcome.DUPLICATE}
    assert {(result.attempts, result.unanswered) for result in results} == {(2, 1)}
    assert made(shared, f"case/{name}") == 50


def test_only_the_items_without_a_definite_answer_are_asked_again(
    client: Any, proxy: Proxy, shared: Server, name: str
) -> None:
    taken = shared.decide(f"{name}-0", f"case/{name}", "note").json
    later = {"type": "/problems/recovering", "title": "", "status": 503, "detail": "wait"}
    content = {"items": [{"status": 201, "acceptance": taken}, {"status": 503, "problem": later}]}
    told = answer(200, msgspec.json.encode(content))
    proxy.meets(Fault("answer", "batch", content=told))
    items = [
        Item(entity=f"case/{name}", action="note", operation=f"{name}-0"),
        Item(entity=f"case/{name}", action="close"),
    ]
    first, second = client.decide_many(items)
    assert (first.attempts, second.attempts, second.unanswered) == (1, 2, 1)
    assert first.recorded
    assert second.outcome is Outcome.IGNORED
    one, two = proxy.requests("batch")
    assert two.json["items"] == one.json["items"][1:]


def test_many_that_could_not_be_established_are_each_abandoned(
    kind: str, proxy: Proxy, shared: Server, name: str
) -> None:
    alarms: list[Result] = []
    proxy.meets(Fault("lose", "batch"), always=True)
    items = [Item(entity=f"case/{name}", action=f"note-{number}") for number in range(3)]
    with calling(kind, proxy.url, shared.token, attempts=2, on_abandoned=alarms.append) as client:
        results = client.decide_many(items)
    assert {result.outcome for result in results} == {Outcome.ABANDONED}
    assert [alarm.operation for alarm in alarms] == [result.operation for result in results]
    assert made(shared, f"case/{name}") == 3


def test_many_that_are_refused_as_one_raise(kind: str, proxy: Proxy, shared: Server) -> None:
    with calling(kind, proxy.url, shared.make_token("reader")) as client:
        with pytest.raises(Refused, match="forbidden"):
            client.decide_many([Item(entity="case/1", action="note")])
        for count in (0, 1001):
            with pytest.raises(ValueError, match="1 to 1000"):
                client.decide_many([Item(entity="case/1", action="note")] * count)


# Questions.


def test_questions_are_answered_through_a_lossy_line(
    client: Any, proxy: Proxy, shared: Server, name: str
) -> None:
    ready(shared, f"document/{name}")
    result = client.decide(f"document/{name}", "release", version="v1")
    proxy.meets(Fault("lose"), Fault("answer", content=problem(503, "recovering", "wait")))
    assert client.operation(result.operation)["digest"] == result.receipt["digest"]
    assert client.entity(f"document/{name}")["revision"] == 3
    assert client.entity(f"document/{name}", at=1)["state"] == "submitted"
    assert client.gate(f"document/{name}", 1)["gate"] == "held"
    assert client.gate(f"document/{name}")["gate"] == "go"
    boundaries = [step["boundary"] for step in client.where(result.operation)["boundaries"]]
    assert boundaries == ["acceptance", "journal", "lane delivery", "attempt", "outcome"]


def test_a_question_that_nobody_answers_is_abandoned_and_stores_nothing(
    kind: str, proxy: Proxy, shared: Server
) -> None:
    proxy.meets(Fault("reset"), always=True)
    with calling(kind, proxy.url, shared.token, attempts=2) as client:
        with pytest.raises(Abandoned, match="the question"):
            client.operation("op-1")
        assert client.abandoned == 0
        proxy.clear()
        with pytest.raises(Refused, match="not-found"):
            client.operation("op-1")
        with pytest.raises(ValueError, match="type/id"):
            client.entity("op-1")


@pytest.mark.parametrize("identity", [AWKWARD, "..", ".", "a/../b"])
def test_an_id_may_hold_anything_printable(client: Any, name: str, identity: str) -> None:
    operation = identity if len(identity) > 2 and "/" not in identity else f"{identity}{name}"
    client.decide(f"case/{identity}", "note", operation=operation)
    assert client.operation(operation)["entity"] == f"case/{identity}"
    assert client.entity(f"case/{identity}")["entity"] == f"case/{identity}"
    assert client.gate(f"case/{identity}")["entity"] == f"case/{identity}"


# Interrupted.


async def test_a_cancelled_call_that_may_have_arrived_is_alarmed(
    proxy: Proxy, shared: Server, name: str
) -> None:
    alarms: list[Result] = []
    proxy.meets(Fault("swallow", "decisions"))
    async with AsyncClient(proxy.url, shared.token, on_abandoned=alarms.append) as client:
        task = asyncio.create_task(client.decide(f"case/{name}", "note"))
        await asyncio.to_thread(proxy.wait_for, lambda: proxy.answers)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as found:
            await task
        (alarm,) = alarms
        assert alarm.outcome is Outcome.ABANDONED
        assert alarm.operation == proxy.seen[0].json["operation"]
        assert alarm.operation in "".join(found.value.__notes__)
        result = await client.decide(f"case/{name}", "note", operation=alarm.operation)
    assert result.outcome is Outcome.DUPLICATE


async def test_a_cancelled_call_of_which_nothing_arrived_is_not(shared: Server, name: str) -> None:
    with losing(shared.port) as gone:
        url = gone.url
    async with AsyncClient(url, shared.token) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await client.decide(f"case/{name}", "note")
        assert client.abandoned == 0


def test_an_alarm_that_fails_does_not_hide_what_it_was_about(
    kind: str, proxy: Proxy, shared: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def alarm(result: Result) -> None:
        raise RuntimeError("the pager is broken")

    proxy.meets(Fault("reset"), always=True)
    with calling(kind, proxy.url, shared.token, attempts=1, on_abandoned=alarm) as client:
        assert client.decide("case/1", "note").outcome is Outcome.ABANDONED
    assert "the pager is broken" in caplog.text
