"""Lanes over HTTP: claims, pausing and switching off, work that is no decision, dead letters."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from journal.outcomes import Outcome
from tests.api.laned import Laned, pages, serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Laned]:
    with serving(tmp_path / "server") as running:
        yield running


def lane(server: Laned, name: str) -> dict[str, Any]:
    reply = server.get(f"lanes/{name}")
    assert reply.status == 200, reply.body
    return dict(reply.json)


def put(server: Laned, name: str, *ids: str, kind: str = "count") -> list[str]:
    items = [{"id": each, "data": {"n": each}} for each in ids]
    reply = server.post(f"lanes/{name}/work", {"kind": kind, "items": items})
    assert reply.status == 201, reply.body
    return list(reply.json["made"])


def fail(server: Laned, name: str) -> str:
    """Spend the budget of the lane's next work, of one attempt; its ID."""
    permit = server.claimed(name)
    reply = server.report(permit, "failed", evidence="it broke")
    assert (reply.status, reply.json["status"]) == (200, "dead"), reply.body
    return str(permit["id"])


# Claims.


@pytest.mark.parametrize("header", [False, True])
def test_a_claim_repeated_under_its_operation_gives_the_same_permits(
    server: Laned, header: bool
) -> None:
    for number in range(3):
        server.permit(str(number))
    body: dict[str, Any] = {"worker": "w", "limit": 2, "execution": "run-7"}
    headers: dict[str, str | bytes] = {"Idempotency-Key": '"claim-1"'} if header else {}
    body |= {} if header else {"operation": "claim-1"}
    first = server.post("lanes/transfers/claim", body, headers=headers)
    assert first.status == 200, first.body
    assert first.json["operation"] == "claim-1"
    assert first.json["held"] is None
    assert len(first.json["permits"]) == 2
    again = server.post("lanes/transfers/claim", body, headers=headers)
    known = {permit["id"]: permit for permit in first.json["permits"]}
    assert {permit["id"]: permit for permit in again.json["permits"]} == known
    assert lane(server, "transfers")["counts"] == {"ready": 1, "running": 2}
    for permit in first.json["permits"]:
        assert server.release(permit["id"])["execution"] == "run-7"


def test_a_claim_without_an_operation_is_told_its_own(server: Laned) -> None:
    server.permit("1")
    first = server.claim("transfers").json
    assert first["operation"].startswith("claim-")
    again = server.claim("transfers", first["operation"]).json
    assert again["permits"] == first["permits"]


def test_a_claim_that_has_ended_gives_nothing_more(server: Laned) -> None:
    release = server.permit("1")
    (permit,) = server.claim("transfers", "claim-1").json["permits"]
    server.report(permit, "confirmed")
    reply = server.claim("transfers", "claim-1")
    assert (reply.status, reply.json["type"]) == (409, "/problems/lease-lost")
    assert reply.json["release"] == release
    other = server.claim("transfers", "1-approve")
    assert (other.status, other.json["field"]) == (400, "operation")


def test_p4_many_claims_at_once_give_each_release_once(server: Laned) -> None:
    releases = {server.permit(str(number)) for number in range(12)}
    with ThreadPoolExecutor(16) as many:
        replies = list(many.map(lambda _: server.claim("transfers"), range(24)))
    assert {reply.status for reply in replies} == {200}
    given = [permit["id"] for reply in replies for permit in reply.json["permits"]]
    assert sorted(given) == sorted(releases)


@pytest.mark.parametrize("name", ["parcels", "hooks"])
def test_work_that_unrewind_attempts_itself_is_given_to_no_worker(server: Laned, name: str) -> None:
    if name == "hooks":
        put(server, name, "1")
    else:
        server.permit("1", "ship")
    before = lane(server, name)["counts"]
    reply = server.claim(name)
    assert (reply.status, reply.json["type"]) == (409, "/problems/refused")
    assert lane(server, name)["counts"] == before == {"ready": 1}


def test_a_permit_carries_the_data_as_it_was_given(server: Laned) -> None:
    data = '{"a" : 1.50, "b": [null, "é\\u00e9"], "c": {}}'
    body = f'{{"kind": "count", "items": [{{"id": "1", "data": {data}}}]}}'
    made = server.request("POST", "/v1/main/lanes/stats/work", body.encode())
    assert made.status == 201, made.body
    reply = server.claim("stats")
    assert f'"data":{data}'.encode() in reply.body
    (permit,) = reply.json["permits"]
    assert (permit["effect"], permit["name"]) == ("best-effort", "count")
    assert permit["commitment"] is None


# How lanes run.


def test_every_lane_tells_how_it_is_declared_and_how_it_stands(server: Laned) -> None:
    views = {view["lane"]: view for view in server.get("lanes").json["items"]}
    assert views["parcels"]["mode"] == "push"
    assert (views["parcels"]["receiver"], views["parcels"]["contract"]) == ("courier", "queryable")
    assert (views["payments"]["mode"], views["hooks"]["mode"]) == ("pull", "handler")
    assert set(views) >= {"delivery", "mail", "stats", "transfers"}
    assert lane(server, "transfers") == views["transfers"]
    missing = server.get("lanes/nowhere")
    assert (missing.status, missing.json["lane"]) == (404, "nowhere")


def test_what_stands_in_a_lane_that_is_declared_no_more_is_still_shown(server: Laned) -> None:
    release = server.permit("1")
    put(server, "stats", "1")
    assert server.end() == 0
    config = server.folder / "unrewind.toml"
    text = config.read_text().replace("[lane.transfers]", "[lane.moved]")
    text = text.replace("[lane.stats]", "[lane.counts]").replace('"transfers"', '"moved"')
    config.write_text(text)
    server.start()
    assert [view["id"] for view in pages(server, "releases", 1)] == [release]
    assert [view["id"] for view in pages(server, "commands", 1)] == ["item_stats_1"]
    assert [view["id"] for view in pages(server, "releases?lane=transfers", 1)] == [release]
    for name in ("transfers", "stats"):
        assert (lane(server, name)["mode"], lane(server, name)["counts"]) == ("gone", {"ready": 1})
    gone = server.claim("transfers")
    assert (gone.status, gone.json["type"]) == (404, "/problems/not-found")


def test_a_paused_lane_gives_nothing_out_and_others_go_on(server: Laned) -> None:
    release = server.permit("1")
    paid = server.permit("2", "pay")
    paused = server.post("lanes/transfers/pause", {"reason": "the bank is down"})
    assert (paused.status, paused.json["running"]) == (200, "paused")
    assert paused.json["reason"] == "the bank is down"
    held = server.claim("transfers").json
    assert held["permits"] == []
    assert "the bank is down" in held["held"]
    assert lane(server, "transfers")["running"] == "paused"
    assert server.claimed("payments")["id"] == paid
    server.permit("3")
    resumed = server.post("lanes/transfers/resume", {"reason": "it is back"})
    assert (resumed.status, resumed.json["running"]) == (200, "on")
    assert server.claimed("transfers")["id"] == release
    missing = server.post("lanes/nowhere/pause", {"reason": "x"})
    assert (missing.status, missing.json["type"]) == (404, "/problems/not-found")


def test_a_pause_survives_a_restart(server: Laned) -> None:
    server.permit("1")
    server.post("lanes/transfers/pause", {"reason": "the bank is down"})
    assert server.end() == 0
    server.start()
    assert "the bank is down" in server.claim("transfers").json["held"]


def test_only_best_effort_work_is_discarded_and_only_when_it_is_said(server: Laned) -> None:
    put(server, "stats", "1", "2")
    for name, body in (
        ("transfers", {"reason": "x", "discard": True}),
        ("mail", {"reason": "x", "discard": True}),
        ("stats", {"reason": "x"}),
    ):
        reply = server.post(f"lanes/{name}/off", body)
        assert (reply.status, reply.json["type"]) == (409, "/problems/refused"), name
    off = server.post("lanes/stats/off", {"reason": "too much", "discard": True})
    assert (off.status, off.json["running"]) == (200, "off")
    put(server, "stats", "3")
    assert lane(server, "stats")["counts"]["discarded"] == 3
    assert server.claim("stats").json["permits"] == []


# Work that is no decision.


def test_work_is_made_once_for_each_id(server: Laned) -> None:
    assert put(server, "stats", "a", "b") == ["item_stats_a", "item_stats_b"]
    assert put(server, "stats", "b", "c") == ["item_stats_c"]
    body = {"kind": "count", "items": [{"id": "a", "data": 1}]}
    again = server.post("lanes/stats/work", body)
    assert (again.status, again.json) == (200, {"made": []})
    view = server.get("commands/item_stats_a").json
    assert (view["status"], view["kind"], view["entity"]) == ("ready", "count", None)
    external = server.post("lanes/transfers/work", body)
    assert (external.status, external.json["type"]) == (400, "/problems/invalid")


def test_an_item_that_is_wrong_lets_none_in(server: Laned) -> None:
    good = '{"id": "1", "data": null}'
    for bad in (
        '{"id": "2"}',
        '{"id": "1", "data": 2}',
        '{"id": "2", "id": "3", "data": 1}',
        '{"id": "2", "data": {"a": 1, "a": 2}}',
        '{"id": "2", "data": ' + "[" * 70 + "]" * 70 + "}",
        '{"id": "2", "data": 1e999}',
        '{"id": "2\\u0000", "data": 1}',
        '{"id": "2", "data": 1, "due": "now"}',
    ):
        body = f'{{"kind": "count", "items": [{good}, {bad}]}}'.encode()
        reply = server.request("POST", "/v1/main/lanes/stats/work", body)
        assert (reply.status, reply.json["type"]) == (400, "/problems/invalid"), bad
    assert lane(server, "stats")["counts"] == {}


# Dead letters.


def test_l8_a_replay_or_a_drain_of_everything_is_refused(server: Laned) -> None:
    put(server, "mail", "1", kind="letter")
    fail(server, "mail")
    for what in ("replay", "drain"):
        for body in (
            {"reason": "x"},
            {"reason": "x", "kind": "letter"},
            {"reason": "x", "entity": "order/1"},
            {"reason": "x", "limit": 5},
            {"reason": "x", "ids": []},
            {"reason": "x", "ids": ["item_mail_1"], "lane": "mail"},
            {"ids": ["item_mail_1"]},
        ):
            reply = server.post(f"dead-letters/{what}", body)
            assert (reply.status, reply.json["type"]) == (400, "/problems/invalid"), body
    assert lane(server, "mail")["dead"] == 1


def test_l8_a_replay_done_twice_acts_once(server: Laned) -> None:
    put(server, "mail", "1", kind="letter")
    letter = fail(server, "mail")
    (shown,) = server.get("dead-letters?lane=mail").json["items"]
    assert (shown["id"], shown["last_error"], shown["status"]) == (letter, "it broke", "dead")
    body = {"ids": [letter, letter, "item_mail_9"], "reason": "the post is back"}
    first = server.post("dead-letters/replay", body)
    assert first.status == 200, first.body
    assert first.json["done"] == [letter]
    assert set(first.json["left"]) == {"item_mail_9"}
    again = server.post("dead-letters/replay", body).json
    assert again["done"] == []
    assert set(again["left"]) == {letter, "item_mail_9"}
    assert server.claimed("mail")["id"] == letter
    assert server.claim("mail").json["permits"] == []


def test_l8_dead_letters_are_chosen_by_lane_kind_and_entity(server: Laned) -> None:
    for number in range(45):
        put(server, "mail", str(number), kind="odd" if number % 2 else "even")
    for number in range(3):
        server.decide(f"approve-{number}", f"order/{number}", "approve")
        server.decide(f"remind-{number}", f"order/{number}", "remind")
    for _ in range(48):
        fail(server, "mail")
    put(server, "stats", "1")
    fail(server, "stats")
    assert len(pages(server, "dead-letters", 7)) == 49

    def drained(**chosen: Any) -> int:
        reply = server.post("dead-letters/drain", {"reason": "looked at", **chosen})
        assert reply.status == 200, reply.body
        assert reply.json["left"] == {}
        return len(reply.json["done"])

    assert drained(lane="mail", entity="order/1") == 1
    assert drained(lane="mail", kind="odd", limit=5) == 5
    assert drained(lane="mail", kind="odd") == 17
    assert drained(lane="mail", kind="odd") == 0
    assert drained(lane="mail", limit=1) == 1
    assert drained(lane="mail") == 24
    (left,) = pages(server, "dead-letters", 7)
    assert left["id"] == "item_stats_1"
    missing = server.post("dead-letters/drain", {"reason": "x", "lane": "nowhere"})
    assert missing.status == 404


def test_r23_a_dead_release_is_replayed_only_where_a_repeat_is_safe(server: Laned) -> None:
    safe, unsafe, refused = (
        server.permit("1", "pay"),
        server.permit("2", "transfer"),
        server.permit("3", "ship"),
    )
    for _ in range(2):
        (permit,) = server.claims("payments", 1)
        reply = server.report(permit, "unknown", evidence="timed out")
    assert reply.json["status"] == "dead"
    server.report(server.claimed("transfers"), "unknown")
    server.attempt("parcels", Outcome.REFUSED)
    letters = [letter["id"] for letter in server.get("dead-letters").json["items"]]
    assert sorted(letters) == sorted([safe, refused])
    body = {"ids": [safe, unsafe, refused], "reason": "looked at"}
    reply = server.post("dead-letters/replay", body)
    assert reply.json["done"] == [safe]
    assert set(reply.json["left"]) == {unsafe, refused}
    assert server.release(safe)["status"] == "retry"
    assert server.release(unsafe)["status"] == "unknown"
