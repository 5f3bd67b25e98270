"""R20: what an apply over HTTP may undo is named in the request."""

from tests.api.servers import Server


def test_r20_the_tenant_and_the_history_are_named_rightly_or_nothing_is_applied(
    server: Server,
) -> None:
    server.decide("op-1", "document/a", "submit")
    assert server.post("recovery/begin", {"reason": "a test"}).status == 200
    force = server.get("recovery").json
    plan = server.post("recovery/plan").json
    assert (plan["direction"], plan["undo"], plan["undone_approvals"]) == ("store", 0, [])
    for wrong, said in (
        ({"confirm_tenant": "other"}, "this is tenant main, not other"),
        ({"confirm_history": "f" * 32}, f"the history in force is {force['history']}"),
        ({"plan": "0123456789abcdef"}, plan["plan"]),
    ):
        refused = server.post("recovery/apply", wrong)
        assert (refused.status, refused.json["type"]) == (409, "/problems/refused")
        assert said in refused.json["detail"]
    assert server.post("recovery/apply", {"max_undo": "all"}).status == 400
    assert server.get("recovery").json["begun"] == force["generation"]
    named = {"max_undo": 0, "confirm_tenant": "main", "confirm_history": force["history"]}
    applied = server.post("recovery/apply", {"plan": plan["plan"], **named})
    assert applied.status == 200, applied.body
    assert (applied.json["undone"], applied.json["undone_operations"]) == (0, [])
    assert server.post("recovery/reopen").json["stage"] == "open"
