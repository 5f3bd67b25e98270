"""The example receiver's callbacks: true ones verify, and a false one is false in one way."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from tests.support.receivers import (
    CALLBACK_SECRET,
    DIGEST,
    Receiver,
    Sending,
    receiving,
    release_id,
)


class Came(Struct):
    """One callback as it arrived."""

    headers: dict[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def fault(self) -> str | None:
        """What a careful caller finds wrong with it."""
        try:
            Webhook(CALLBACK_SECRET).verify(self.body, self.headers)
        except WebhookVerificationError as error:
            return str(error)
        return None


class Caller:
    """Stands where unrewind takes callbacks, and answers 202."""

    def __init__(self) -> None:
        self.came: list[Came] = []
        came = self.came

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                came.append(Came(headers, body))
                self.send_response(202)
                self.send_header("Content-Length", "5")
                self.end_headers()
                self.wfile.write(b"taken")

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/main/callbacks/post"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def caller() -> Iterator[Caller]:
    made = Caller()
    yield made
    made.close()


@pytest.fixture
def receiver(tmp_path: Path, caller: Caller) -> Iterator[Receiver]:
    with receiving(
        tmp_path,
        "--callback",
        caller.url,
        callback_secret=CALLBACK_SECRET,
        callback_token="the token of the receiver",
    ) as made:
        yield made


def executed(receiver: Receiver) -> str:
    release = release_id()
    receiver.send(release)
    return release


def test_a_true_callback_verifies_and_says_what_a_lookup_says(
    receiver: Receiver, caller: Caller
) -> None:
    release = executed(receiver)
    (sent,) = receiver.callback("ok", release)
    (came,) = caller.came
    assert came.fault is None
    assert came.headers["authorization"] == "Bearer the token of the receiver"
    assert json.loads(came.body) == receiver.look_up(release).json
    assert sent == {"callback": "ok", "webhook_id": came.id, "status": 202, "answer": "taken"}
    (line,) = receiver.lines("callback", release)
    assert (line["outcome"], line["answer"], line["executed"]) == ("accepted", 202, False)
    assert (line["callback"], line["webhook_id"]) == ("ok", came.id)


def test_pending_work_calls_back_when_it_is_done(receiver: Receiver, caller: Caller) -> None:
    release = release_id()
    receiver.tell("pending", calls=1)
    receiver.send(release)
    assert caller.came == []
    receiver.finish(release)
    receiver.wait_for(lambda: len(receiver.lines("callback")) == 1)
    assert caller.came[0].fault is None
    assert json.loads(caller.came[0].body)["state"] == "done"
    quiet = release_id()
    receiver.tell("pending", calls=1, callback=None)
    receiver.send(quiet)
    receiver.finish(quiet)
    receiver.callback("late", release)
    assert [line["release"] for line in receiver.lines("callback")] == [release, release]


def test_a_callback_overtakes_the_work_it_tells_of(receiver: Receiver, caller: Caller) -> None:
    pending, delayed = release_id(), release_id()
    receiver.tell("pending", calls=1, callback="early")
    receiver.send(pending)
    receiver.wait_for(lambda: len(receiver.lines("callback")) == 1)
    receiver.tell("delay", calls=1)
    call = Sending(receiver, delayed)
    receiver.callback("early", delayed)
    assert [json.loads(came.body)["state"] for came in caller.came] == ["done", "done"]
    assert [came.fault for came in caller.came] == [None, None]
    assert receiver.executions() == 0
    receiver.finish(delayed)
    receiver.finish(pending)
    assert call.answer().status == 200
    assert receiver.state_of(pending) == "done"
    assert receiver.executions() == 2
    # What was said early is not said again.
    assert (len(receiver.lines("callback")), receiver.errors) == (2, "")


def test_a_callback_comes_twice_or_is_replayed(receiver: Receiver, caller: Caller) -> None:
    release = executed(receiver)
    assert len(receiver.callback("twice", release)) == 2
    first, second = caller.came
    assert first.id != second.id
    assert first.body == second.body
    receiver.callback("replayed", release)
    assert (caller.came[2].id, caller.came[2].headers) == (first.id, first.headers)
    assert caller.came[2].body == first.body
    fresh = executed(receiver)
    assert len(receiver.callback("replayed", fresh)) == 2
    assert caller.came[3].headers == caller.came[4].headers
    assert {came.fault for came in caller.came} == {None}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("forged", "No matching signature found"),
        ("altered", "No matching signature found"),
        ("reencoded", "No matching signature found"),
        ("unsigned", "Missing required headers"),
        ("old", "Message timestamp too old"),
        ("future", "Message timestamp too new"),
    ],
)
def test_a_false_callback_is_false_in_one_way(
    receiver: Receiver, caller: Caller, kind: str, fault: str
) -> None:
    release = executed(receiver)
    receiver.callback(kind, release)
    receiver.callback(kind, release_id())
    assert [came.fault for came in caller.came] == [fault, fault]
    assert [json.loads(came.body)["state"] for came in caller.came] == ["done", "done"]
    told = json.loads(caller.came[0].body)
    assert (told == receiver.look_up(release).json) == (kind != "altered")
    assert told["digest"] == DIGEST


def test_a_claim_is_false_only_of_what_was_never_done(receiver: Receiver, caller: Caller) -> None:
    never = release_id()
    receiver.callback("false-claim", never)
    (came,) = caller.came
    assert came.fault is None
    assert json.loads(came.body)["state"] == "done"
    assert receiver.state_of(never) == 404
    release = executed(receiver)
    for kind in ("false-claim", "early"):
        assert receiver.try_command({"callback": kind, "release": release}).status == 409
    for kind in ("ok", "late", "twice", "replayed"):
        assert receiver.try_command({"callback": kind, "release": never}).status == 409
    assert len(caller.came) == 1


def test_an_address_can_be_told_and_need_not_answer(tmp_path: Path, caller: Caller) -> None:
    with receiving(tmp_path, contract="queryable") as receiver:
        release = executed(receiver)
        assert receiver.try_command({"callback": "ok", "release": release}).status == 409
        receiver.call_back_to(caller.url, "told")
        receiver.callback("ok", release)
        assert caller.came[0].headers["authorization"] == "Bearer told"
        assert "webhook-signature" not in caller.came[0].headers
        receiver.call_back_to("http://127.0.0.1:9/")
        assert receiver.callback("ok", release)[0]["status"] is None
        outcomes = [line["outcome"] for line in receiver.lines("callback")]
        assert outcomes == ["accepted", "lost"]
