"""The calls, from outside: real processes, real sockets, real signals."""

import base64
import http.client
import json
import shutil
import signal
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.api.servers import Server, request_of
from tests.support.sealing import Caller

AWKWARD = "a/b %2F é\U0001f600?#&=+;:@'\"<>\\~ .."


def approve(server: Server, name: str) -> None:
    assert server.decide(f"{name}-1", f"document/{name}", "submit").status == 201
    assert server.decide(f"{name}-2", f"document/{name}", "approve").status == 201


# Decisions.


def test_a_decision_is_accepted_and_told(server: Server) -> None:
    reply = server.decide(
        "op-1",
        "document/inv-2041",
        "submit",
        body={"total": 12},
        version="v1",
        expected_revision=0,
        actor="ada",
        at="2026-01-31T08:15:00+01:00",
    )
    assert reply.status == 201
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-content-type-options"] == "nosniff"
    receipt = reply.json
    assert set(receipt) == {
        "operation", "outcome", "entity", "version", "revision", "predecessor", "history",
        "generation", "sequence", "digest", "state", "durable_through", "status_url", "releases",
        "existing", "commands", "ran",
    }  # fmt: skip
    assert [receipt[name] for name in ("releases", "existing", "commands", "ran")] == [[]] * 4
    assert receipt["outcome"] == "accepted"
    assert (receipt["revision"], receipt["durable_through"], receipt["sequence"]) == (1, 1, 1)
    assert receipt["state"] == "submitted"
    told = server.request("GET", receipt["status_url"])
    assert told.status == 200
    assert told.json["digest"] == receipt["digest"]
    entity = server.get("entities/document/inv-2041").json
    assert entity["data"] == {"total": 12}
    assert (entity["state"], entity["revision"], entity["complete"]) == ("submitted", 1, True)
    (step,) = server.get("entities/document/inv-2041/history").json["revisions"]
    assert (step["actor"], step["at"]) == ("ada", "2026-01-31T07:15:00.000000Z")
    assert step["principal"] == server.token.split("_")[1]


def test_an_id_may_hold_anything_printable(server: Server) -> None:
    entity = f"document/{AWKWARD}"
    reply = server.decide(AWKWARD, entity, "submit")
    assert reply.status == 201, reply.body
    assert server.request("GET", reply.json["status_url"]).json["operation"] == AWKWARD
    path = f"entities/document/{quote(AWKWARD, safe='')}"
    for part in ("", "/history", "/gate"):
        assert server.get(path + part).json["entity"] == entity
    every = "".join(f"%{byte:02x}" for byte in AWKWARD.encode())
    assert server.get(f"entities/document/{every}").json["entity"] == entity
    assert server.get("entities?type=document").json["items"][0]["entity"] == entity


@pytest.mark.parametrize("key", ["key-1", '"key-1"'])
def test_the_operation_id_may_come_as_a_header(server: Server, key: str) -> None:
    body = {"entity": "document/1", "action": "submit"}
    assert server.post("decisions", body, headers={"Idempotency-Key": key}).status == 201
    both = {**body, "operation": "key-1"}
    repeat = server.post("decisions", both, headers={"Idempotency-Key": key})
    assert (repeat.status, repeat.json["outcome"]) == (200, "duplicate")


@pytest.mark.parametrize(
    "body", [b"null", b'"text"', b"[1, 2]", b"-0.0", b'{"b":1, "a" : 1.0,"\\u00e9":1e2}', b"{ }"]
)
def test_h9_a_body_is_kept_byte_for_byte(server: Server, body: bytes) -> None:
    sent = b'{"operation":"op","entity":"case/1","action":"x","body":  ' + body + b"\n}"
    assert server.request("POST", "/v1/main/decisions", sent).status == 201
    entry = server.get("entries").json["entries"][-1]
    assert base64.b64decode(entry["body"]) == body
    assert json.loads(entry["envelope"])["body"]["type"] == "application/json"


def test_h1_p6_another_body_under_a_known_operation_is_refused(server: Server) -> None:
    first = server.decide("op-1", "case/1", "note", body={"a": 1})
    before = server.get("entries").json
    reply = server.decide("op-1", "case/1", "note", body={"a": 2}, actor="eve")
    assert reply.status == 422
    assert reply.json["type"] == "/problems/operation-reused"
    assert reply.json["differing"] == ["actor", "body"]
    assert server.get("entries").json == before
    assert server.get("operations/op-1").json["digest"] == first.json["digest"]


def test_h2_p6_a_repeat_with_a_correct_expected_revision_makes_no_second_decision(
    server: Server,
) -> None:
    first = server.decide("op-1", "case/1", "note", expected_revision=0)
    again = server.decide("op-1", "case/1", "note", expected_revision=1)
    assert (again.status, again.json["outcome"]) == (200, "duplicate")
    assert again.json["digest"] == first.json["digest"]
    assert server.get("entities/case/1").json["revision"] == 1


def test_p6_a_repeat_in_a_batch_is_a_repeat(server: Server) -> None:
    item = {"operation": "op-1", "entity": "document/1", "action": "submit"}
    refused = {"operation": "op-2", "entity": "document/1", "action": "revoke"}
    stale = {**item, "operation": "op-3", "expected_revision": 7}
    reply = server.post("decisions/batch", {"items": [item, item, refused, stale]})
    assert reply.status == 200
    items = reply.json["items"]
    assert [found["status"] for found in items] == [201, 200, 409, 409]
    assert items[1]["acceptance"]["digest"] == items[0]["acceptance"]["digest"]
    assert items[2]["problem"]["type"] == "/problems/transition-refused"
    assert items[2]["problem"]["allowed"] == ["approve", "cancel", "submit"]
    assert items[3]["problem"]["type"] == "/problems/revision-mismatch"
    assert items[3]["problem"]["actual"] == 1


def test_p6_one_operation_sent_at_once_by_many_makes_one_decision(server: Server) -> None:
    with ThreadPoolExecutor(16) as many:
        replies = list(many.map(lambda _: server.decide("op-1", "case/1", "note"), range(48)))
    assert sorted({reply.status for reply in replies}) == [200, 201]
    assert [reply.status for reply in replies].count(201) == 1
    assert len({reply.json["digest"] for reply in replies}) == 1
    assert len(server.get("operations").json["items"]) == 1


# Pages.


def test_pages_are_continued_by_their_cursor(server: Server) -> None:
    items = [
        {"operation": f"op-{n}", "entity": f"case/{n % 7}", "action": "note"} for n in range(20)
    ]
    assert server.post("decisions/batch", {"items": items}).status == 200
    for path, key, count in (("operations", "operation", 20), ("entities", "entity", 7)):
        found, after = [], ""
        while after is not None:
            page = server.get(f"{path}?limit=3" + (after and f"&after={after}")).json
            assert len(page["items"]) <= 3
            found += [item[key] for item in page["items"]]
            after = page["next"]
        assert len(found) == len(set(found)) == count
    history = server.get("entities/case/0/history?first=2&limit=1").json
    assert [step["revision"] for step in history["revisions"]] == [2]
    assert history["next"] == 3


def test_an_earlier_state_is_told_by_revision_and_by_time(server: Server) -> None:
    server.decide("op-1", "case/1", "open", body={"a": 1})
    server.decide("op-2", "case/1", "close", body={"a": 2})
    first, second = server.get("entities/case/1/history").json["revisions"]
    assert server.get("entities/case/1?at=1").json["data"] == {"a": 1}
    assert server.get(f"entities/case/1?at={second['recorded']}").json["data"] == {"a": 2}
    offset = first["recorded"].replace("Z", "+00:00")
    assert server.get(f"entities/case/1?at={offset}").json["data"] == {"a": 1}


# Sealed entries.


def test_p5_revision_42_before_41_is_kept_and_holds_only_its_entity(server: Server) -> None:
    status = server.get("status").json
    caller = Caller(status["history"], status["generation"])
    chain = caller.chain("contract/c", 42)
    other = caller.chain("contract/other", 1)
    assert server.post("entries", request_of(chain[:40])).status == 200
    ahead = server.post("entries", request_of([chain[41], *other]))
    assert ahead.status == 200
    early, fine = ahead.json["entries"]
    assert (early["revision"], early["durable_through"], early["complete"]) == (42, 40, False)
    assert (fine["durable_through"], fine["complete"]) == (1, True)
    (gap,) = server.get("gaps").json["items"]
    assert (gap["entity"], gap["flaw"]) == ("contract/c", "gap")
    assert (gap["first"], gap["last"], gap["holds"]) == (41, 41, 1)
    held = server.get("entities/contract/c/gate?revision=42").json
    assert held["gate"] == "held"
    assert held["reasons"]
    assert server.get("entities/contract/other/gate").json["gate"] == "go"
    entity = server.get("entities/contract/c")
    assert (entity.status, entity.json["revision"], entity.json["complete"]) == (200, 40, False)
    forged = caller.draft("contract/c", revision=41, predecessor=chain[40].envelope.predecessor)
    refused = server.post("entries", request_of([forged]))
    assert (refused.status, refused.json["type"]) == (409, "/problems/forked")

    filled = server.post("entries", request_of([chain[40]]))
    (late,) = filled.json["entries"]
    assert (late["durable_through"], late["complete"]) == (42, True)
    assert server.get("gaps").json["items"] == []
    assert server.get("entities/contract/c/gate?revision=42").json["gate"] == "go"
    again = server.post("entries", request_of([chain[41]]))
    assert again.json["entries"][0]["outcome"] == "duplicate"


def test_entries_are_taken_all_or_none(server: Server) -> None:
    status = server.get("status").json
    chain = Caller(status["history"], status["generation"]).chain("contract/c", 3)
    request = request_of(chain)
    request["entries"][2]["body"] = "YQ=="
    reply = server.post("entries", request)
    assert (reply.status, reply.json["item"]) == (400, 2)
    assert server.get("entities/contract/c").status == 404


# Tokens.


def test_a_token_is_told_once_and_works_until_it_is_revoked(server: Server) -> None:
    made = server.post("tokens", {"role": "writer", "name": "worker"})
    assert made.status == 201
    secret, name = made.json["token"], made.json["id"]
    assert server.get("status", token=secret).status == 200
    listed = server.get("tokens")
    assert [token["name"] for token in listed.json["items"]] == ["first start", "worker"]
    assert secret.encode() not in listed.body
    assert b"sha256" not in listed.body
    feed = server.get("entries").body
    assert b"control/token" not in feed
    assert b"control/tenant" in feed
    for _ in range(2):
        revoked = server.request("DELETE", f"/v1/main/tokens/{name}")
        assert (revoked.status, revoked.json["revoked"]) == (200, True)
    assert server.get("status", token=secret).status == 401
    assert secret not in server.errors
    assert server.token not in server.errors


# Recovery.


def recover(server: Server) -> None:
    assert server.post("recovery/begin", {"reason": "a test"}).status == 200
    plan = server.post("recovery/plan")
    assert plan.status == 200, plan.body
    applied = server.post("recovery/apply", {"plan": plan.json["plan"]})
    assert applied.status == 200, applied.body
    assert server.post("recovery/reopen").status == 200


def test_r1_a_cursor_of_an_ended_history_is_refused_also_later(server: Server) -> None:
    approve(server, "a")
    cursor = server.get("entries").json["next"]
    old = server.get("status").json["history"]
    recover(server)
    new = server.get("status").json
    assert (new["parent"], new["stage"]) == (old, "open")
    for count in (0, 30):
        for number in range(count):
            assert server.decide(f"later-{number}", "case/1", "note").status == 201
        reply = server.get(f"entries?after={cursor}")
        assert (reply.status, reply.json["type"]) == (410, "/problems/history-changed")
        assert reply.json["history"] == new["history"]
    rest = server.get(f"entries?limit=1000&after={reply.json['resume']}").json["entries"]
    operations = [json.loads(entry["envelope"])["operation"] for entry in rest]
    assert operations[-30:] == [f"later-{number}" for number in range(30)]
    assert server.decide("a-1", "document/a", "submit").json["outcome"] == "duplicate"


def test_p7_a_stopped_tenant_decides_nothing_and_says_so(server: Server) -> None:
    approve(server, "a")
    assert server.post("recovery/begin", {"reason": "looking"}).json["safe_to_restore"]
    refused = server.decide("op-9", "document/a", "cancel")
    assert (refused.status, refused.json["type"]) == (503, "/problems/recovering")
    assert refused.json["repeat"] == "keep the operation ID"
    assert int(refused.headers["retry-after"]) > 0
    assert server.get("entities/document/a").status == 503
    assert server.get("entities/document/a/gate").json["gate"] == "held"
    assert server.get("entities/document/a/history").status == 200
    assert server.get("gaps").status == 200
    assert server.get("status").json["stage"] == "closed"
    standing = server.get("recovery").json
    assert (standing["stage"], standing["begun"], standing["reason"]) == ("closed", 2, "looking")
    ready = server.request("GET", "/health/ready", token="")
    assert (ready.status, ready.json["type"]) == (503, "/problems/recovering")
    assert server.request("GET", "/health/live", token="").status == 200
    assert server.post("recovery/apply").status == 200
    assert server.post("recovery/reopen").json["stage"] == "open"
    assert server.decide("op-9", "document/a", "cancel").status == 201


# The process.


def test_r13_readiness_includes_a_write(server: Server) -> None:
    assert server.request("GET", "/health/ready", token="").json == {"status": "ready"}
    with closing(sqlite3.connect(server.settings.store_file, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        server.wait_for(lambda: server.request("GET", "/health/ready", token="").status == 503)
        store.execute("ROLLBACK")
    server.wait_for(lambda: server.request("GET", "/health/ready", token="").status == 200)


def test_p1_what_was_acknowledged_is_there_after_a_kill(server: Server) -> None:
    first = server.decide("op-1", "case/1", "note", body={"a": 1})
    server.end(signal.SIGKILL)
    server.start()
    assert server.said[0].startswith("unrewind serves"), "the token is shown once"
    again = server.decide("op-1", "case/1", "note", body={"a": 1})
    assert (again.status, again.json["digest"]) == (200, first.json["digest"])


def test_h8_an_operation_is_known_after_every_restart(server: Server) -> None:
    first = server.decide("op-1", "case/1", "note").json
    for _ in range(3):
        assert server.end() == 0
        server.start()
        assert server.decide("op-1", "case/1", "note").json["digest"] == first["digest"]
        assert server.decide("op-1", "case/2", "note").status == 422


def test_p2_a_stop_answers_what_waits(server: Server) -> None:
    port, stopping = server.port, threading.Event()

    def send(worker: int) -> list[str]:
        told: list[str] = []
        for number in range(2000):
            operation = f"{worker}-{number}"
            try:
                reply = server.decide(operation, f"case/{worker}", "note")
            except (ConnectionError, http.client.HTTPException):
                assert stopping.is_set()
                return told
            assert reply.status in {201, 429}, reply.body
            if reply.status == 201:
                told.append(operation)
            if number == 5 and worker == 0:
                stopping.set()
                assert server.process is not None
                server.process.send_signal(signal.SIGTERM)
        return told

    with ThreadPoolExecutor(8) as many:
        told = [operation for each in many.map(send, range(8)) for operation in each]
    assert server.process is not None
    assert server.process.wait(60) == 0
    server.end(signal.SIGCONT)
    server.start()
    assert server.port != port or told
    found, after = set(), ""
    while after is not None:
        page = server.get("operations?limit=1000" + (after and f"&after={after}")).json
        found |= {item["operation"] for item in page["items"]}
        after = page["next"]
    assert set(told) <= found
    assert told


def test_a_taken_port_is_one_line_and_exit_3(server: Server, tmp_path: Path) -> None:
    second = Server(tmp_path / "second", UNREWIND_PORT=str(server.port))
    process = second.popen()
    assert process.wait(60) == 3
    assert process.stdout is not None
    assert process.stdout.read() == ""
    process.stdout.close()
    (line,) = second.errors.splitlines()
    assert f"127.0.0.1:{server.port}" in line
    assert not (second.folder / "data").exists()


def test_data_that_cannot_be_opened_is_one_line_and_exit_3(tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    (server.folder / "data").write_text("a file")
    process = server.popen()
    assert process.wait(60) == 3
    assert process.stdout is not None
    assert process.stdout.read() == ""
    process.stdout.close()
    assert len(server.errors.splitlines()) == 1, server.errors


def test_p8_a_rewound_store_is_served_closed(server: Server, tmp_path: Path) -> None:
    assert server.decide("op-1", "document/a", "submit").status == 201
    assert server.end() == 0
    store = server.settings.store_file
    shutil.copy(store, tmp_path / "older.db")
    server.start()
    acknowledged = server.decide("op-2", "document/a", "approve")
    assert acknowledged.status == 201
    assert server.end() == 0
    shutil.copy(tmp_path / "older.db", store)
    server.start()
    assert "tenant main is closed, verdict rewound" in server.errors.splitlines()[-1]
    assert server.get("status").json["verdict"] == "rewound"
    assert server.decide("op-3", "document/a", "cancel").status == 503
    recover(server)
    assert server.get("entities/document/a").json["state"] == "approved"
    again = server.decide("op-2", "document/a", "approve")
    assert (again.status, again.json["digest"]) == (200, acknowledged.json["digest"])


def test_p9_control_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    server = Server(tmp_path / "server").start()
    assert server.decide("op-1", "document/a", "submit").status == 201
    assert server.end() == 0
    with closing(sqlite3.connect(server.settings.journal_file, isolation_level=None)) as journal:
        for (name,) in journal.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'entries'"
        ).fetchall():
            journal.execute(f"DROP TRIGGER {name}")
        journal.execute("DELETE FROM entries WHERE stream = 'control' AND sequence = 1")
    server.start()
    try:
        reply = server.get("status")
        assert (reply.status, reply.json["type"]) == (503, "/problems/recovering")
        assert server.decide("op-2", "document/a", "approve").status == 503
        assert server.request("GET", "/health/ready", token="").status == 503
        assert server.request("GET", "/health/live", token="").status == 200
    finally:
        assert server.end() == 0
    assert "Traceback" not in server.errors
