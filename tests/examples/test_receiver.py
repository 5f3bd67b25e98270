"""The example receiver keeps its contract and its record, and misbehaves exactly as told."""

from __future__ import annotations

import contextlib
import http.client
import json
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook

from tests.support.receivers import (
    BROKEN,
    DIGEST,
    SCRIPT,
    SECRET,
    Receiver,
    Sending,
    body_of,
    receiving,
    release_id,
)


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    with receiving(tmp_path) as made:
        yield made


# The contracts.


@pytest.mark.parametrize("contract", ["idempotent", "queryable"])
def test_a_repeat_has_the_same_outcome_and_no_second_effect(tmp_path: Path, contract: str) -> None:
    with receiving(tmp_path, contract=contract) as receiver:
        release = release_id()
        first, second = receiver.send(release), receiver.send(release, 2)
        assert (first.status, second.status) == (200, 200)
        assert first.json == second.json == receiver.look_up(release).json
        assert first.json["state"] == "done"
        assert first.json["digest"] == DIGEST
        assert (receiver.attempts(release), receiver.executions(release)) == (2, 1)
        call, repeat, asked = receiver.lines()
        assert [call["outcome"], repeat["outcome"], asked["outcome"]] == [
            "executed",
            "repeated",
            "done",
        ]
        assert [line["number"] for line in (call, repeat, asked)] == [1, 2, 3]
        assert (call["attempt"], repeat["attempt"], asked["kind"]) == (1, 2, "lookup")
        assert call["idempotency_key"] == release
        assert call["body_sha256"] == repeat["body_sha256"]
        assert call["content"] == json.loads(body_of(release))


def test_an_opaque_receiver_executes_every_call_and_cannot_be_asked(tmp_path: Path) -> None:
    with receiving(tmp_path, contract="opaque") as receiver:
        release = release_id()
        for attempt in (1, 2):
            assert receiver.send(release, attempt, headers={}).status == 200
        assert receiver.send(release, 3, body_of(release, data=1), headers={}).status == 200
        assert (receiver.executions(release), receiver.state_of(release)) == (3, 404)
        receiver.tell("pending")
        assert [receiver.send(release, n, headers={}).status for n in (4, 5)] == [202, 202]
        receiver.finish(release)
        assert receiver.executions(release) == 5
        receiver.tell("refuse", calls=1)
        assert receiver.send(release, 6, headers={}).status == 400
        receiver.tell("delay", calls=1, seconds=0)
        assert receiver.send(release, 7, headers={}).status == 200
        assert receiver.executions(release) == 6


@pytest.mark.parametrize("contract", ["idempotent", "queryable"])
def test_other_content_under_a_known_id_is_refused(tmp_path: Path, contract: str) -> None:
    with receiving(tmp_path, contract=contract) as receiver:
        release, working = release_id(), release_id()
        receiver.send(release)
        assert receiver.send(release, 2, body_of(release, data=1)).status == 422
        receiver.tell("delay", release=working, calls=1)
        call = Sending(receiver, working)
        assert receiver.send(working, 2, body_of(working, data=1)).status == 422
        receiver.finish(working)
        assert call.answer().status == 200
        assert receiver.executions() == 2


def test_an_id_is_forgotten_after_its_window(tmp_path: Path) -> None:
    with receiving(tmp_path, window=0.2) as receiver:
        release = release_id()
        receiver.send(release)
        receiver.wait_for(lambda: receiver.state_of(release) == 404)
        assert receiver.send(release, 2).json["state"] == "done"
        assert receiver.executions(release) == 2


def test_an_id_is_forgotten_on_command_and_for_good(receiver: Receiver) -> None:
    release = release_id()
    receiver.send(release)
    receiver.forget(release)
    receiver.kill()
    receiver.start()
    assert receiver.state_of(release) == 404
    receiver.send(release, 2)
    assert receiver.executions(release) == 2


# Who is believed, and what can be judged.


def signed(release: str, secret: str = SECRET, minutes: int = 0) -> dict[str, str]:
    at = datetime.now(UTC) + timedelta(minutes=minutes)
    return {
        "Idempotency-Key": release,
        "webhook-id": release,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(secret).sign(release, at, body_of(release).decode()),
    }


def test_calls_that_are_not_signed_with_the_secret_are_turned_away(tmp_path: Path) -> None:
    with receiving(tmp_path, secret=SECRET) as receiver:
        release = release_id()
        good, other = signed(release), signed(release, "whsec_b3RoZXI=")
        bad = [
            {"Idempotency-Key": release},
            other,
            signed(release, minutes=-10),
            signed(release, minutes=10),
            {**good, "webhook-signature": "v1"},
            {**good, "webhook-signature": "v2," + good["webhook-signature"][3:]},
        ]
        assert {receiver.send(release, headers=headers).status for headers in bad} == {401}
        altered = body_of(release, data=1)
        assert receiver.send(release, body=altered, headers=good).status == 401
        assert set(receiver.outcomes(release)) == {"unauthorised"}
        assert receiver.executions() == 0
        assert receiver.send(release, headers=good).status == 200


def test_calls_without_the_token_are_turned_away(tmp_path: Path) -> None:
    with receiving(tmp_path, token="correct") as receiver:
        release = release_id()
        key = {"Idempotency-Key": release}
        assert receiver.send(release).status == 401
        wrong = {**key, "Authorization": "Bearer wrong"}
        assert receiver.send(release, headers=wrong).status == 401
        right = {**key, "Authorization": "Bearer correct"}
        assert receiver.send(release, headers=right).status == 200
        assert receiver.executions() == 1
        assert receiver.state_of(release) == 401
        told = receiver.request("GET", f"/status/{release}", headers=right)
        assert told.json["state"] == "done"


def test_a_call_that_cannot_be_judged_is_refused_and_recorded(receiver: Receiver) -> None:
    release = release_id()
    assert receiver.send(release, headers={}).status == 400
    assert receiver.send(release, headers={"Idempotency-Key": "other"}).status == 400
    for body in (b"not JSON", b'{"release": 1}', b"[]", b"\xff"):
        assert receiver.send(release, body=body).status == 400
    assert [line["outcome"] for line in receiver.calls()] == ["refused"] * 6
    assert receiver.executions() == 0


def raw(receiver: Receiver, content: bytes) -> bytes:
    """Everything that comes back for these bytes, until the receiver closes."""
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=60) as connection:
        connection.sendall(content)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_it_speaks_http_to_clients_of_every_kind(receiver: Receiver) -> None:
    release = release_id()
    body = body_of(release)
    head = f"POST /releases HTTP/1.1\r\nHost: it\r\nIdempotency-Key: {release}\r\n".encode()
    chunked = head + b"Transfer-Encoding: chunked\r\n\r\n"
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    sized = head + b"Content-Length: %d\r\n" % len(body)
    # Two requests at once on one connection are answered in turn.
    assert raw(receiver, chunked + chunks + sized + b"\r\n" + body).count(b"HTTP/1.1 200 OK") == 2
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=60) as waiting:
        waiting.sendall(sized + b"Expect: 100-continue\r\n\r\n")
        assert waiting.recv(65536) == b"HTTP/1.1 100 \r\n\r\n"
        waiting.sendall(body)
        assert waiting.recv(65536).startswith(b"HTTP/1.1 200 OK")
    assert raw(receiver, b"not http\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(receiver, b"HEAD /health HTTP/1.1\r\nHost: it\r\n\r\n").startswith(b"HTTP/1.1 404 ")
    assert raw(receiver, sized + b"\r\n" + body[:5]).startswith(b"HTTP/1.1 400 ")
    assert (receiver.attempts(), receiver.executions(release)) == (3, 1)
    assert receiver.errors == ""


# The record.


def test_a_killed_receiver_remembers_what_it_executed(receiver: Receiver) -> None:
    lost, done, pending = release_id(), release_id(), release_id()
    receiver.tell("lose-reply", release=lost, calls=1)
    receiver.tell("pending", release=pending, calls=1)
    with pytest.raises(BROKEN):
        receiver.send(lost)
    first = receiver.send(done).json
    assert receiver.send(pending).status == 202
    receiver.kill()
    with receiver.record.open("ab") as record:
        record.write(b'{"number":4,"at":"20')
    receiver.start()
    assert receiver.send(done, 2).json == first
    assert receiver.send(lost, 2).status == 200
    assert receiver.send(pending, 2).status == 202
    receiver.finish(pending)
    assert [receiver.executions(release) for release in (lost, done, pending)] == [1, 1, 1]
    numbers = [line["number"] for line in receiver.lines()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_no_call_that_was_answered_is_missing_after_a_kill(receiver: Receiver) -> None:
    answered: list[str] = []

    def call(connection: http.client.HTTPConnection) -> None:
        release = release_id()
        headers = {"Idempotency-Key": release, "unrewind-attempt": "1"}
        connection.request("POST", "/releases", body_of(release), headers)
        assert connection.getresponse().read()
        answered.append(release)

    def run() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=60)
        with contextlib.closing(connection), contextlib.suppress(*BROKEN):
            while True:
                call(connection)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    receiver.wait_for(lambda: len(answered) > 200)
    receiver.kill()
    for thread in threads:
        thread.join(60)
    executed = {line["release"] for line in receiver.calls() if line["executed"]}
    assert set(answered) <= executed
    receiver.start()
    assert {receiver.send(release, 2).status for release in answered[-20:]} == {200}
    assert all(receiver.executions(release) == 1 for release in answered[-20:])


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits are set from outside")
def test_what_cannot_be_recorded_whole_does_not_happen(receiver: Receiver) -> None:
    first, second = release_id(), release_id()
    # The limit holds for stderr too, which is to stay below it.
    receiver.send(first, body=body_of(first, data="x" * 20_000))
    assert receiver.process is not None
    before = receiver.record.stat().st_size
    unlimited = resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE)
    tight = (before + 10, unlimited[1])
    resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, tight)
    assert receiver.send(second).status == 500
    assert receiver.record.stat().st_size == before
    assert "only 10 of" in receiver.errors
    resource.prlimit(receiver.process.pid, resource.RLIMIT_FSIZE, unlimited)
    assert receiver.send(second, 2).status == 200
    assert receiver.outcomes(second) == ["executed"]


def test_sixty_four_connections_at_once_execute_each_id_once(receiver: Receiver) -> None:
    shared = [release_id() for _ in range(30)]

    def run(_: int) -> set[str]:
        connection = http.client.HTTPConnection("127.0.0.1", receiver.port, timeout=60)
        receipts = set()
        for release in shared:
            headers = {"Idempotency-Key": release, "unrewind-attempt": "1"}
            connection.request("POST", "/releases", body_of(release), headers)
            receipts.add(json.loads(connection.getresponse().read())["receipt"])
        connection.close()
        return receipts

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(run, range(64)))
    assert all(receipts == answers[0] for receipts in answers)
    seen = receiver.request("GET", "/calls").json
    counts = {"attempts": 64, "executions": 1}
    assert seen["releases"] == dict.fromkeys(shared, counts)
    assert [line["number"] for line in seen["calls"]] == list(range(1, 64 * 30 + 1))
    one = receiver.request("GET", f"/calls?kind=call&release={shared[0]}").json
    assert {line["release"] for line in one["calls"]} == {shared[0]}
    assert one["releases"] == {shared[0]: counts}


def test_a_start_that_cannot_work_says_why(receiver: Receiver, tmp_path: Path) -> None:
    other, broken = str(tmp_path / "other"), tmp_path / "broken"
    broken.write_text("not a record\n")
    for flags, reason in (
        (["--record", str(receiver.record)], "another receiver writes to this record"),
        (["--record", str(broken)], "line 1 is not of a record"),
        (["--record", other, "--port", str(receiver.port)], "cannot listen on"),
        (["--record", other, "--secret-env", "NOT_SET"], "NOT_SET is not set"),
        (["--record", other, "--behave", "dance"], "no such behaviour"),
    ):
        command = [sys.executable, str(SCRIPT), "--port", "0", *flags]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr
        assert done.stderr.count("\n") == 1


def test_it_says_that_it_is_well_and_ends_when_told(receiver: Receiver) -> None:
    assert receiver.request("GET", "/health").json == {"status": "ok", "contract": "idempotent"}
    assert receiver.request("GET", "/nothing").status == 404
    assert (receiver.stop(), receiver.errors) == (0, "")
