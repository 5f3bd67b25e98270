"""`POST recovery/abandon`: a running service goes on without what was cut off."""

from __future__ import annotations

from tests.api.servers import Server, request_of
from tests.support.sealing import Caller


def test_a_callers_gap_is_abandoned_over_http(server: Server) -> None:
    status = server.get("status").json
    caller = Caller(status["history"], status["generation"])
    chain = caller.chain("contract/c", 5)
    given = server.post("entries", request_of([chain[0], *chain[2:4]]))
    assert given.json["entries"][-1]["durable_through"] == 1
    assert server.post("recovery/begin", {"reason": "revision 2 is lost"}).status == 200
    assert server.post("recovery/apply").status == 200
    history = server.get("status").json["history"]
    body = {
        "entity": "contract/c",
        "reason": "revision 2 is lost",
        "evidence": "ticket 481",
        "confirm_tenant": "main",
        "confirm_history": history,
    }
    refused = server.post("recovery/abandon", body)
    assert (refused.status, refused.json["type"]) == (409, "/problems/refused")
    names = [each["operation"] for each in refused.json["drop"]]
    assert names == [entry.envelope.operation for entry in chain[2:4]]
    wrong = server.post("recovery/abandon", {**body, "drop": names, "confirm_tenant": "other"})
    assert (wrong.status, wrong.json["type"]) == (409, "/problems/refused")
    assert server.post("recovery/abandon", {**body, "entity": "contract/none"}).status == 404
    assert server.post("recovery/abandon", {**body, "reason": ""}).status == 400
    done = server.post("recovery/abandon", {**body, "drop": names})
    assert (done.status, done.json["through"], done.json["missing"]) == (200, 1, 1)
    assert [each["kind"] for each in done.json["dropped"]] == ["decision", "decision"]
    again = server.post("recovery/abandon", body)
    assert (again.status, again.json["again"]) == (200, True)
    assert server.post("recovery/reopen").json["stage"] == "open"
    # Whoever asks for what was dropped is told, and so is whoever sends it late.
    operation = server.get(f"operations/{names[0].replace('/', '%2F')}")
    assert (operation.status, operation.json["type"]) == (409, "/problems/history-incomplete")
    assert "new operation ID" in operation.json["detail"]
    for late in (chain[1], chain[3], chain[4]):
        reply = server.post("entries", request_of([late]))
        assert (reply.status, reply.json["type"]) == (409, "/problems/history-incomplete")
    view = server.get("entities/contract/c/history").json
    assert [(step["revision"], step["flaw"]) for step in view["revisions"]] == [
        (1, None),
        (3, "abandoned"),
        (4, "abandoned"),
    ]
    assert [cut["reason"] for cut in view["abandoned"]] == ["revision 2 is lost"]
    assert server.get("gaps").json["items"] == []
    status = server.get("status").json
    caller = Caller(status["history"], status["generation"])
    caller.heads["contract/c"] = chain[0]
    taken = server.post("entries", request_of([caller.seal("contract/c", "again")]))
    assert taken.json["entries"][0]["durable_through"] == 2
