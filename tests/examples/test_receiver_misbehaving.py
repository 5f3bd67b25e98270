"""The example receiver misbehaves exactly as told, and its record says what was true."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.receivers import (
    BROKEN,
    DIGEST,
    Receiver,
    Sending,
    receiving,
    release_id,
)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path) as made:
        yield made


# Answers that do not come, or cannot be read.


def test_a_lost_reply_was_an_execution(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("lose-reply", calls=1)
    with pytest.raises(http.client.RemoteDisconnected):
        receiver.send(release)
    assert receiver.state_of(release) == "done"
    assert receiver.send(release, 2).status == 200
    assert receiver.outcomes(release) == ["lost", "repeated"]
    assert receiver.calls(release)[0]["answer"] is None
    assert receiver.executions(release) == 1


@pytest.mark.parametrize("execute", [False, True])
def test_a_reset_comes_before_or_after_the_execution(receiver: Receiver, execute: bool) -> None:
    release = release_id()
    receiver.tell("reset", calls=1, execute=execute)
    with pytest.raises(ConnectionResetError) as seen:
        receiver.send(release)
    # http.client calls a plain end of the connection a reset, too, by a class of its own.
    assert seen.type is ConnectionResetError
    assert receiver.executions(release) == int(execute)
    receiver.send(release, 2)
    assert receiver.outcomes(release) == ["lost", "repeated" if execute else "executed"]
    assert receiver.executions(release) == 1


@pytest.mark.parametrize(
    ("form", "seen"),
    [("not-http", http.client.BadStatusLine), ("short", http.client.IncompleteRead)],
)
def test_garbage_is_no_http(receiver: Receiver, form: str, seen: type[Exception]) -> None:
    release = release_id()
    receiver.tell("garbage", calls=1, form=form)
    with pytest.raises(seen):
        receiver.send(release)
    assert receiver.outcomes(release) == ["garbled"]
    assert receiver.executions(release) == 1


def test_garbage_is_http_without_json(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("garbage", calls=1, form="not-json", execute=False)
    reply = receiver.send(release)
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    with pytest.raises(ValueError, match="Expecting value"):
        _ = reply.json
    assert receiver.executions(release) == 0


# Answers that say something else.


@pytest.mark.parametrize("status", [500, 502, 503])
@pytest.mark.parametrize("execute", [False, True])
def test_an_error_comes_before_or_after_the_execution(
    receiver: Receiver, status: int, execute: bool
) -> None:
    release = release_id()
    receiver.tell("error", calls=1, status=status, execute=execute, retry_after=7)
    reply = receiver.send(release)
    assert (reply.status, reply.headers["retry-after"]) == (status, "7")
    assert receiver.state_of(release) == ("done" if execute else 404)
    receiver.send(release, 2)
    assert receiver.outcomes(release) == ["failed", "repeated" if execute else "executed"]
    assert receiver.executions(release) == 1


@pytest.mark.parametrize("after", [3, "Fri, 31 Dec 2027 23:59:59 GMT"])
def test_too_many_calls_are_not_taken(receiver: Receiver, after: int | str) -> None:
    release = release_id()
    receiver.tell("rate-limit", calls=2, retry_after=after)
    for attempt in (1, 2):
        reply = receiver.send(release, attempt)
        assert (reply.status, reply.headers["retry-after"]) == (429, str(after))
    assert receiver.send(release, 3).status == 200
    assert receiver.outcomes(release) == ["limited", "limited", "executed"]
    assert receiver.executions(release) == 1


@pytest.mark.parametrize("status", [302, 307])
def test_a_redirect_names_a_place_and_takes_nothing(receiver: Receiver, status: int) -> None:
    release, place = release_id(), f"{receiver.base}/releases?again=1"
    receiver.tell("redirect", calls=1, status=status, location=place)
    reply = receiver.send(release)
    assert (reply.status, reply.headers["location"], reply.body) == (status, place, b"")
    assert receiver.outcomes(release) == ["redirected"]
    assert receiver.executions(release) == 0


def test_a_refusal_stands_for_every_attempt(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("refuse", calls=1, detail="no such recipient")
    first, second = receiver.send(release), receiver.send(release, 2)
    assert first.headers["content-type"] == "application/problem+json"
    assert first.status == second.status == 400
    assert first.json["detail"] == second.json["detail"] == "no such recipient"
    assert receiver.state_of(release) == "refused"
    assert receiver.outcomes(release) == ["refused", "repeated"]
    assert receiver.executions(release) == 0


def test_answers_name_another_digest_or_another_release(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("wrong-digest", calls=1)
    receiver.tell("wrong-release", calls=1)
    receiver.tell("ok", calls=1, status=204)
    digest, other, bare = (receiver.send(release, attempt) for attempt in (1, 2, 3))
    assert (digest.json["release"], digest.json["digest"]) == (release, "0" * 64)
    assert (other.json["digest"], other.json["release"]) == (DIGEST, "rel_" + "0" * 40)
    assert (bare.status, bare.body) == (204, b"")
    assert receiver.executions(release) == 1


# Work that takes time.


def test_a_delayed_call_executes_when_told(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("delay", calls=1)
    call = Sending(receiver, release)
    assert (receiver.executions(release), receiver.state_of(release)) == (0, "pending")
    assert receiver.send(release, 2).json["state"] == "pending"
    receiver.finish(release)
    assert receiver.executions(release) == 1
    assert call.answer().json == receiver.look_up(release).json
    assert receiver.outcomes(release) == ["delayed", "repeated"]
    (change,) = receiver.lines("change", release)
    assert (change["outcome"], change["of"]) == ("executed", receiver.calls(release)[0]["number"])


def test_an_executed_call_is_answered_late(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("delay", calls=1, before="answering")
    call = Sending(receiver, release)
    assert (receiver.executions(release), receiver.state_of(release)) == (1, "done")
    assert not call.answered
    receiver.finish(release)
    assert call.answer().json["state"] == "done"


def test_a_delay_ends_by_itself(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("delay", seconds=0.05)
    assert receiver.send(release).json["state"] == "done"
    receiver.tell("delay", on="lookup", seconds=0.05)
    assert receiver.state_of(release) == "done"


def test_a_delayed_call_executes_though_its_caller_hung_up(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("delay", calls=1)
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port)
    headers = {"Idempotency-Key": release}
    connection.request("POST", "/releases", b'{"release": "%s"}' % release.encode(), headers)
    receiver.wait_for(lambda: receiver.attempts(release) == 1)
    connection.close()
    receiver.finish(release)
    assert receiver.executions(release) == 1
    assert receiver.errors == ""


def test_a_delayed_call_that_was_killed_is_not_executed(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("delay", calls=1)
    connection = http.client.HTTPConnection("127.0.0.1", receiver.port)
    headers = {"Idempotency-Key": release}
    connection.request("POST", "/releases", b'{"release": "%s"}' % release.encode(), headers)
    receiver.wait_for(lambda: receiver.attempts(release) == 1)
    receiver.kill()
    with pytest.raises(BROKEN):
        connection.getresponse()
    connection.close()
    receiver.start()
    assert receiver.state_of(release) == 404
    assert receiver.executions(release) == 0


def test_not_found_proves_nothing_while_a_call_is_in_flight(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("not-found-in-flight", calls=1)
    call = Sending(receiver, release)
    assert receiver.state_of(release) == 404
    # What a caller must not do: it is executed now, and the first call still will be.
    assert receiver.send(release, 2).status == 200
    receiver.finish(release)
    assert call.answer().status == 200
    assert receiver.executions(release) == 2


@pytest.mark.parametrize("status", [200, 202])
def test_pending_work_is_done_when_told(receiver: Receiver, status: int) -> None:
    release = release_id()
    receiver.tell("pending", calls=1, status=status)
    reply = receiver.send(release)
    assert (reply.status, reply.json["state"], reply.json["receipt"]) == (status, "pending", None)
    assert (receiver.state_of(release), receiver.executions(release)) == ("pending", 0)
    assert receiver.send(release, 2).status == 202
    receiver.finish(release)
    assert (receiver.state_of(release), receiver.executions(release)) == ("done", 1)
    assert receiver.send(release, 3).json == receiver.look_up(release).json


def test_pending_work_is_done_by_itself_also_after_a_kill(receiver: Receiver) -> None:
    first, second = release_id(), release_id()
    receiver.tell("pending", seconds=0.2)
    receiver.send(first)
    receiver.wait_for(lambda: receiver.state_of(first) == "done")
    receiver.send(second)
    receiver.kill()
    receiver.start()
    receiver.wait_for(lambda: receiver.state_of(second) == "done")
    assert (receiver.executions(first), receiver.executions(second)) == (1, 1)


def test_pending_work_can_end_refused(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("pending", calls=1)
    receiver.send(release)
    receiver.finish(release, "refused")
    receiver.kill()
    receiver.start()
    assert receiver.state_of(release) == "refused"
    assert receiver.send(release, 2).status == 400
    assert receiver.executions(release) == 0


# IDs that are given up.


def test_an_id_that_is_given_up_executes_only_for_a_later_attempt(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("void", calls=1)
    with pytest.raises(http.client.RemoteDisconnected):
        receiver.send(release, 2)
    receiver.kill()
    receiver.start()
    assert receiver.state_of(release) == "void"
    assert [receiver.send(release, attempt).status for attempt in (1, 2, 3)] == [429, 429, 200]
    assert receiver.executions(release) == 1
    assert receiver.try_command({"finish": release, "as": "void"}).status == 409


@pytest.mark.parametrize("behaviour", ["delay", "not-found-in-flight"])
def test_a_call_in_flight_does_not_execute_once_its_id_is_void(
    receiver: Receiver, behaviour: str
) -> None:
    release = release_id()
    receiver.tell(behaviour, calls=1)
    call = Sending(receiver, release)
    receiver.tell("void", on="lookup", calls=1)
    assert receiver.state_of(release) == "void"
    assert call.answer().status == 429
    assert receiver.executions(release) == 0


def test_work_that_was_given_up_stays_so_after_a_later_attempt(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("pending", calls=1)
    receiver.send(release, 2)
    receiver.tell("void", on="lookup", calls=1)
    assert receiver.state_of(release) == "void"
    assert [receiver.send(release, attempt).status for attempt in (2, 3)] == [429, 200]
    receiver.kill()
    receiver.start()
    assert receiver.try_command({"finish": release}).status == 409
    assert receiver.executions(release) == 1


def test_a_lookup_that_tells_the_attempt_voids_those_still_on_their_way(receiver: Receiver) -> None:
    release = release_id()
    receiver.tell("void", on="lookup", calls=1)
    asked = receiver.request("GET", f"/status/{release}", headers={"unrewind-attempt": "2"})
    assert asked.json["state"] == "void"
    assert [receiver.send(release, attempt).status for attempt in (1, 2, 3)] == [429, 429, 200]


def test_what_was_executed_is_not_void(receiver: Receiver) -> None:
    release, pending = release_id(), release_id()
    receiver.send(release)
    receiver.tell("void", on="lookup")
    assert receiver.state_of(release) == "done"
    receiver.tell("pending", calls=1)
    receiver.send(pending)
    assert receiver.state_of(pending) == "void"
    assert receiver.try_command({"finish": pending}).status == 409
    assert receiver.executions(pending) == 0


# Lookups.


def test_lookups_fail_or_do_not_know(receiver: Receiver) -> None:
    release = release_id()
    receiver.send(release)
    receiver.tell("not-found", on="lookup", calls=1)
    receiver.tell("unknown", on="lookup", calls=1)
    receiver.tell("error", on="lookup", calls=1, status=503)
    receiver.tell("wrong-digest", on="lookup", calls=1)
    assert [receiver.state_of(release) for _ in range(3)] == [404, "unknown", 503]
    assert receiver.look_up(release).json["digest"] == "0" * 64
    receiver.tell("reset", on="lookup", calls=1)
    with pytest.raises(ConnectionResetError) as seen:
        receiver.look_up(release)
    assert seen.type is ConnectionResetError
    assert receiver.state_of(release) == "done"
    outcomes = [line["outcome"] for line in receiver.lines("lookup")]
    assert outcomes == ["not-found", "unknown", "failed", "done", "lost", "done"]
