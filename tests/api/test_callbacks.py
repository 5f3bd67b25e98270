"""Callbacks over HTTP: only a receiver's own, signed just now, taken once, and only a wake-up."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from api.signing import sign
from journal.outcomes import Outcome
from tests.api.laned import CALLBACK_SECRET, LANES, OTHER_SECRET, UNSET, Laned, serving
from tests.api.servers import Reply
from tests.support.receivers import receiving
from tests.support.whole import rows_of

_numbers = count(1)

Change = Callable[[dict[str, str | bytes], bytes], tuple[dict[str, str | bytes], bytes]]


class Couriers:
    """A server with one release whose outcome is unknown, and what its receiver would send."""

    def __init__(self, server: Laned) -> None:
        self.server = server
        self.release = server.permit("1", "ship")
        server.attempt("parcels", Outcome.PENDING)
        self.token = self.make_token("courier")
        self.due = self.row()["due"]

    def make_token(self, name: str, role: str = "receiver") -> str:
        made = self.server.post("tokens", {"role": role, "name": name})
        assert made.status == 201, made.body
        return str(made.json["token"])

    def row(self) -> dict[str, Any]:
        return self.server.release(self.release)

    def body(self, **said: Any) -> bytes:
        return json.dumps({"release": self.release, "state": "done", **said}).encode()

    def send(
        self,
        body: bytes | None = None,
        *,
        receiver: str = "courier",
        token: str | None = None,
        secret: str = CALLBACK_SECRET,
        identity: str | None = None,
        at: datetime | None = None,
        change: Change | None = None,
    ) -> Reply:
        content = self.body() if body is None else body
        identity = f"evt_{next(_numbers)}" if identity is None else identity
        headers: dict[str, str | bytes] = {}
        headers |= sign(secret, identity, at or datetime.now(UTC), content)
        if change is not None:
            headers, content = change(headers, content)
        path = f"/v1/main/callbacks/{quote(receiver, safe='')}"
        return self.server.request(
            "POST", path, content, headers, token=self.token if token is None else token
        )

    def remembered(self) -> list[tuple[str, str]]:
        return rows_of(
            self.server.settings.store_file, "SELECT receiver, id FROM unrewind_callbacks"
        )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Laned]:
    with serving(tmp_path / "server") as running:
        yield running


@pytest.fixture
def couriers(server: Laned) -> Couriers:
    return Couriers(server)


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Couriers]:
    """For callbacks that change nothing: compared whole when all of them were refused."""
    with serving(tmp_path_factory.mktemp("callbacks") / "server", LANES + UNSET) as running:
        couriers = Couriers(running)
        before = (couriers.row(), running.position(), couriers.remembered())
        yield couriers
        assert (couriers.row(), running.position(), couriers.remembered()) == before


def now(**later: float) -> datetime:
    return datetime.now(UTC) + timedelta(**later)


# What is taken.


def test_l15_a_callback_has_its_receiver_asked_at_once(couriers: Couriers) -> None:
    assert couriers.row()["status"] == "pending"
    reply = couriers.send(identity="evt_a")
    assert (reply.status, reply.json) == (202, {"release": couriers.release, "woken": True})
    row = couriers.row()
    assert row["status"] == "pending", "only the receiver's answer says what happened"
    assert row["due"] <= datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert row["due"] != couriers.due
    assert couriers.remembered() == [("courier", "evt_a")]
    assert "WARNING" not in couriers.server.errors


def test_l15_a_callback_is_taken_once(couriers: Couriers) -> None:
    assert couriers.send(identity="evt_a").json["woken"] is True
    row = couriers.row()
    for _ in range(2):
        again = couriers.send(identity="evt_a")
        assert (again.status, again.json) == (200, {"woken": False, "seen": True})
    assert couriers.row() == row
    assert couriers.server.end() == 0
    couriers.server.start()
    assert couriers.send(identity="evt_a").status == 200
    assert couriers.row() == row
    assert "callback of receiver courier was taken before" in couriers.server.errors


def test_l15_one_callback_sent_at_once_by_many_wakes_once(couriers: Couriers) -> None:
    at, body = now(), couriers.body()
    with ThreadPoolExecutor(12) as many:
        replies = list(many.map(lambda _: couriers.send(body, identity="evt_a", at=at), range(24)))
    assert sorted(reply.status for reply in replies) == [200] * 23 + [202]


def test_the_ids_of_two_receivers_are_their_own(couriers: Couriers) -> None:
    assert couriers.send(identity="evt_a").status == 202
    carrier = couriers.make_token("carrier")
    reply = couriers.send(identity="evt_a", receiver="carrier", token=carrier, secret=OTHER_SECRET)
    assert (reply.status, reply.json["woken"]) == (202, False)


@pytest.mark.parametrize("state", ["done", "refused", "void", "cancelled", 7])
def test_p4_a_false_claim_decides_nothing(couriers: Couriers, state: Any) -> None:
    before = couriers.server.position()
    claim = couriers.body(state=state, outcome="confirmed", receipt="forged", status="done")
    assert couriers.send(claim).status == 202
    row = couriers.row()
    assert (row["status"], row["receipt"], row["attempts"]) == ("pending", None, 1)
    assert couriers.server.position() == before
    assert couriers.server.get("observations").json["items"] == []


def test_only_what_its_receiver_can_be_asked_about_is_woken(couriers: Couriers) -> None:
    server = couriers.server
    ready = server.permit("2", "ship")
    running = server.permit("3", "ship")
    other = server.permit("4", "load")
    server.attempt("loads", Outcome.UNKNOWN)
    pulled = server.permit("6", "transfer")
    server.report(server.claimed("transfers"), "unknown")
    server.post("lanes/parcels/pause", {"reason": "no more"})
    for release in (ready, running, other, pulled, "rel_" + "0" * 40):
        before = server.get(f"releases/{release}").json
        reply = couriers.send(couriers.body(release=release))
        assert (reply.status, reply.json) == (202, {"release": release, "woken": False})
        assert server.get(f"releases/{release}").json == before


def test_nobody_is_asked_who_cannot_be(server: Laned) -> None:
    couriers = Couriers(server)
    release = server.permit("2", "whisper")
    server.attempt("silent", Outcome.UNKNOWN)
    before = server.release(release)
    assert (before["status"], before["due"]) == ("unknown", None)
    token = couriers.make_token("blunt")
    reply = couriers.send(couriers.body(release=release), receiver="blunt", token=token)
    assert (reply.status, reply.json["woken"]) == (202, False)
    assert server.release(release) == before


def test_what_is_being_attempted_is_left_alone(server: Laned) -> None:
    from journal import permits
    from journal.permits import Asked

    release = server.permit("1", "ship")
    server.write(permits.claim, Asked("parcels", "push:test:0", "claim-1"))
    before = server.release(release)
    assert before["status"] == "running"
    token = server.post("tokens", {"role": "receiver", "name": "courier"}).json["token"]
    content = json.dumps({"release": release}).encode()
    headers: dict[str, str | bytes] = {**sign(CALLBACK_SECRET, "evt_a", now(), content)}
    reply = server.request("POST", "/v1/main/callbacks/courier", content, headers, token=token)
    assert (reply.status, reply.json["woken"]) == (202, False)
    assert server.release(release) == before


def test_p7_a_closed_tenant_takes_the_callback_later(couriers: Couriers) -> None:
    server = couriers.server
    assert server.post("recovery/begin", {"reason": "looking"}).status == 200
    reply = couriers.send(identity="evt_a")
    assert (reply.status, reply.json["type"]) == (503, "/problems/recovering")
    assert couriers.remembered() == []
    assert "refused" not in server.errors
    assert server.post("recovery/apply").status == 200
    despite = {"despite": ["reconciled"], "reason": "a test"}
    assert server.post("recovery/reopen", despite).status == 200
    assert couriers.send(identity="evt_a").status == 202


def test_the_command_line_makes_a_receivers_token(couriers: Couriers) -> None:
    server = couriers.server
    command = [sys.executable, "-m", "api.cli", "token", "create", "--role", "receiver"]
    made = subprocess.run(
        [*command, "--name", "courier"],
        cwd=server.folder,
        env=server.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    server.wait_for(lambda: couriers.send(token=made.stdout.strip()).status == 202)


def test_l10_a_real_receivers_callbacks_have_it_asked_and_its_answers_count(
    tmp_path: Path,
) -> None:
    with receiving(
        tmp_path / "receiver",
        contract="queryable",
        window=86400,
        callback_secret=CALLBACK_SECRET,
    ) as receiver:
        # Nobody would ask for an hour.
        status = 'status_url = "http://127.0.0.1:9/deliveries/{release}"'
        config = LANES.replace(status, f'status_url = "{receiver.status_url}"\npoll = 3600')
        config = config.replace("http://127.0.0.1:9/deliveries", receiver.url)
        with serving(tmp_path / "server", config, UNREWIND_DISPATCH="true") as server:
            made = server.post("tokens", {"role": "receiver", "name": "courier"})
            url = f"http://127.0.0.1:{server.port}/v1/main/callbacks/courier"
            receiver.call_back_to(url, made.json["token"])
            receiver.tell("pending", callback=None)
            release = server.permit("1", "ship")
            server.wait_for(lambda: server.release(release)["status"] == "pending")

            def answers(kind: str) -> list[int]:
                return [sent["status"] for sent in receiver.callback(kind, release)]

            due, asked = server.release(release)["due"], len(receiver.lines("lookup", release))
            for kind in ("forged", "unsigned", "old", "future"):
                assert answers(kind) == [401], kind
            assert server.release(release)["due"] == due
            assert answers("early") == [202]
            receiver.wait_for(lambda: len(receiver.lines("lookup", release)) > asked)
            assert server.release(release)["status"] == "pending"
            receiver.finish(release)
            assert answers("twice") == [202, 202]
            server.wait_for(lambda: server.release(release)["status"] == "done")
            assert answers("replayed") == [200]
            row = server.release(release)
            assert row["receipt"] == receiver.look_up(release).json["receipt"]
            assert (row["attempts"], receiver.executions(release)) == (1, 1)


# What is refused.


def without(name: str) -> Change:
    return lambda headers, body: ({k: v for k, v in headers.items() if k != name}, body)


def having(**changed: str | bytes) -> Change:
    named = {name.replace("_", "-"): value for name, value in changed.items()}
    return lambda headers, body: ({**headers, **named}, body)


def twice(name: str, value: str) -> Change:
    """Before the right header another one of its name, which HTTP writes in any case."""
    return lambda headers, body: ({name: value, **headers}, body)


def re_encoded(headers: dict[str, str | bytes], body: bytes) -> Any:
    return headers, json.dumps(json.loads(body), separators=(",", ":")).encode()


def altered(headers: dict[str, str | bytes], body: bytes) -> Any:
    return headers, body.replace(b"done", b"d0ne")


def unsigned(_: dict[str, str | bytes], body: bytes) -> Any:
    return {}, body


def as_another_id(headers: dict[str, str | bytes], body: bytes) -> Any:
    return {**headers, "webhook-id": "evt_forged"}, body


def made_newer(headers: dict[str, str | bytes], body: bytes) -> Any:
    return {**headers, "webhook-timestamp": str(int(now().timestamp()))}, body


REFUSED: dict[str, tuple[int, dict[str, Any]]] = {
    "unsigned": (401, {"change": unsigned}),
    "without its ID": (401, {"change": without("webhook-id")}),
    "without its time": (401, {"change": without("webhook-timestamp")}),
    "without its signature": (401, {"change": without("webhook-signature")}),
    "signed with another secret": (401, {"secret": OTHER_SECRET}),
    "altered": (401, {"change": altered}),
    "encoded anew": (401, {"change": re_encoded}),
    "under another ID": (401, {"change": as_another_id}),
    "old": (401, {"at": -301}),
    "from the future": (401, {"at": 302}),
    "old, its time replaced": (401, {"at": -7200, "change": made_newer}),
    "with two IDs": (401, {"change": twice("Webhook-Id", "evt_other")}),
    "with two signatures": (401, {"change": twice("Webhook-Signature", "v1,AAAA")}),
    "signature of another kind": (401, {"change": having(webhook_signature="v1a,AAAA")}),
    "signature not ASCII": (401, {"change": having(webhook_signature=b"v1,\xff\xfe")}),
    "signature too long": (401, {"change": having(webhook_signature="v1,A " * 1000)}),
    "ID too long": (401, {"change": having(webhook_id="x" * 10_240)}),
    "ID not ASCII": (401, {"change": having(webhook_id=b"\xc3\xa9")}),
    "time a fraction": (401, {"change": having(webhook_timestamp="1e9")}),
    "time of 5,000 digits": (401, {"change": having(webhook_timestamp="1" * 5000)}),
    "body not UTF-8": (401, {"change": lambda headers, _: (headers, b"\xff\xfe")}),
    "body too large": (413, {"body": b'{"release": "' + b"x" * 65_536 + b'"}'}),
    "media type": (415, {"change": having(content_type="text/plain")}),
    "no token": (401, {"token": "!none"}),
    "unknown token": (401, {"token": "unr_000000000000_" + "A" * 32}),
    "reader's token": (403, {"token": "!reader"}),
    "writer's token": (403, {"token": "!writer"}),
    "operator's token": (403, {"token": "!operator"}),
    "another receiver's token": (403, {"token": "!carrier"}),
    "another receiver's path": (403, {"receiver": "carrier", "secret": OTHER_SECRET}),
    "a path of line breaks": (403, {"receiver": "courier\nERROR: forged"}),
    "an undeclared receiver": (404, {"token": "!nobody", "receiver": "nobody"}),
    "a receiver without a secret": (409, {"token": "!mute", "receiver": "mute"}),
    "a receiver whose secret is not set": (409, {"token": "!unset", "receiver": "unset"}),
    "signed and no JSON": (400, {"body": b"release=1"}),
    "signed and empty": (400, {"body": b""}),
    "signed and a list": (400, {"body": b"[]"}),
    "signed and no release": (400, {"body": b'{"state": "done"}'}),
    "signed and a number": (400, {"body": b'{"release": 7}'}),
    "signed and two releases": (400, {"body": b'{"release": "a", "release": "b"}'}),
    "signed and a NUL": (400, {"body": b'{"release": "rel_\\u0000"}'}),
    "signed and a long release": (400, {"body": b'{"release": "' + b"x" * 10_240 + b'"}'}),
    "signed and nested deeply": (400, {"body": b"[" * 30_000}),
}
SLUGS = {
    400: "invalid",
    401: "unauthenticated",
    403: "forbidden",
    404: "not-found",
    409: "refused",
    413: "too-large",
    415: "unsupported-media-type",
}


@pytest.fixture(scope="module")
def tokens(steady: Couriers) -> dict[str, str]:
    made = {role: steady.make_token(role, role) for role in ("reader", "writer", "operator")}
    made |= {name: steady.make_token(name) for name in ("carrier", "nobody", "mute", "unset")}
    return {**made, "none": ""}


@pytest.mark.parametrize("name", REFUSED)
def test_l15_a_callback_is_refused_and_changes_nothing(
    steady: Couriers, tokens: dict[str, str], name: str
) -> None:
    status, sent = REFUSED[name]
    fields = dict(sent)
    if "at" in fields:
        fields["at"] = now(seconds=fields["at"])
    if str(fields.get("token", "")).startswith("!"):
        fields["token"] = tokens[fields["token"][1:]]
    before = (steady.row(), steady.remembered())
    told = len(steady.server.errors)
    reply = steady.send(**fields)
    assert reply.status == status, reply.body
    assert reply.json["type"] == f"/problems/{SLUGS[status]}"
    assert (steady.row(), steady.remembered()) == before
    (line,) = steady.server.errors[told:].splitlines()
    receiver = quote(fields.get("receiver", "courier"), safe="")
    assert line.startswith(f"WARNING: callback of receiver {receiver} refused: ")
    assert len(line) < 700
    assert_nothing_secret(steady, line)
    assert_nothing_secret(steady, reply.body.decode())


def assert_nothing_secret(couriers: Couriers, said: str) -> None:
    for secret in (CALLBACK_SECRET, OTHER_SECRET, couriers.token):
        assert secret not in said
        assert secret.removeprefix("whsec_") not in said
    assert "v1," not in said
    assert couriers.release not in said


def test_a_receivers_token_is_good_for_callbacks_alone(
    steady: Couriers, tokens: dict[str, str]
) -> None:
    paths = json.loads(steady.server.request("GET", "/schema").body)["paths"]
    tried = 0
    for path, item in paths.items():
        if not path.startswith("/v1/") or "callbacks" in path:
            continue
        for method in item:
            asked = path.replace("{", "").replace("}", "")
            reply = steady.server.request(
                method.upper(), asked, b"{}" if method == "post" else None, token=steady.token
            )
            assert (reply.status, reply.json["needed"] != "receiver") == (403, True), path
            tried += 1
    assert tried > 30
