"""Releases over HTTP: from the permission to what became of it, by hand and by workers."""

import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.api.laned import Laned, pages, serving

DIGEST = "ab" * 32


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Laned]:
    with serving(tmp_path / "server") as running:
        yield running


def actions(server: Laned, entity: str) -> list[str]:
    return [event["action"] for event in pages(server, f"events?entity={entity}", 100)]


# From a permission to an outcome.


def test_p3_a_permit_names_the_journalled_commitment(server: Laned) -> None:
    data: dict[str, Any] = {"recipient": "ada", "digest": DIGEST, "total": 1.50, "é": [None, True]}
    release = server.permit("1", **data)
    before = server.release(release)
    assert (before["status"], before["attempts"], before["committed"]) == ("ready", 0, None)
    permit = server.claimed("transfers")
    assert permit["id"] == release
    assert permit["data"] == data
    assert (permit["recipient"], permit["digest"], permit["attempt"]) == ("ada", DIGEST, 1)
    assert (permit["contract"], permit["key"]) == ("opaque", None)
    (committed,) = server.get("events?action=release.committed").json["items"]
    assert committed["digest"] == permit["commitment"]
    assert committed["entity"] == "order/1"
    running = server.release(release)
    assert (running["status"], running["lease"], running["worker"]) == (
        "running",
        permit["lease"],
        "w",
    )


def test_a_confirmation_is_a_decision_and_its_repeat_the_same_one(server: Laned) -> None:
    release = server.permit("1")
    permit = server.claimed("transfers")
    first = server.report(permit, "confirmed", receipt="r-1", evidence="it said so")
    assert first.status == 200, first.body
    assert (first.json["status"], first.json["observed"]) == ("done", False)
    acceptance = first.json["acceptance"]
    assert (acceptance["outcome"], acceptance["entity"]) == ("accepted", "order/1")
    again = server.report(permit, "confirmed", receipt="r-1", evidence="it said so")
    assert (again.status, again.json["acceptance"]["outcome"]) == (200, "duplicate")
    assert again.json["acceptance"]["digest"] == acceptance["digest"]
    stored = server.release(release)
    assert (stored["status"], stored["receipt"], stored["lease"]) == (
        "done",
        "r-1",
        permit["lease"],
    )
    assert actions(server, "order/1") == [
        "approve",
        "transfer",
        "release.committed",
        "release.confirmed",
    ]


def test_work_is_the_same_path_for_every_kind_of_work(server: Laned) -> None:
    server.permit("1")
    permit = server.claimed("transfers")
    said = {"lease": permit["lease"], "outcome": "refused", "evidence": "no such account"}
    reply = server.post(f"work/{permit['id']}/outcome", said)
    assert (reply.status, reply.json["status"]) == (200, "refused")
    beat = server.post(f"work/{permit['id']}/heartbeat", {"lease": permit["lease"]})
    assert (beat.status, beat.json["type"]) == (409, "/problems/lease-lost")


def test_l16_a_lost_reply_is_unknown_and_no_failure(server: Laned) -> None:
    release = server.permit("1")
    permit = server.claimed("transfers")
    reply = server.report(permit, "unknown", evidence="timed out after 10 s")
    assert (reply.status, reply.json["status"]) == (200, "unknown")
    stored = server.release(release)
    assert (stored["status"], stored["failures"], stored["due"]) == ("unknown", 0, None)
    assert stored["last_error"] == "timed out after 10 s"


def test_an_attempt_that_surely_failed_is_made_again_with_another_lease(server: Laned) -> None:
    release = server.permit("1", "pay")
    first = server.claimed("payments")
    failed = server.report(first, "failed", evidence="connection refused", retry_after=0)
    assert (failed.status, failed.json["status"]) == (200, "retry")
    assert failed.json["acceptance"] is None
    (second,) = server.claims("payments", 1)
    assert second["id"] == release
    assert second["lease"] > first["lease"]
    assert (second["attempt"], second["key"]) == (2, release)
    late = server.report(first, "failed", evidence="again")
    assert (late.status, late.json["observed"]) == (202, True)
    assert server.release(release)["status"] == "running"


# What can be no decision.


def test_l11_a_receipt_under_an_ended_claim_is_kept_as_evidence(server: Laned) -> None:
    release = server.permit("1")
    permit = server.claimed("transfers")
    stale = {**permit, "lease": permit["lease"] - 1}
    for _ in range(2):
        reply = server.report(stale, "confirmed", receipt="r-old", evidence="x" * 5000)
        assert (reply.status, reply.json) == (
            202,
            {"id": release, "status": "observed", "acceptance": None, "observed": True},
        )
    (seen,) = server.get("observations").json["items"]
    assert seen["status"] == "running"
    assert seen["observed"]["receipt"] == "r-old"
    assert len(seen["observed"]["evidence"]) == 300
    assert server.release(release)["status"] == "running"


def test_r3_a_receipt_for_an_unknown_release_is_an_orphan(server: Laned) -> None:
    orphan = {"id": "rel_" + "0" * 40, "lease": 2**32 + 1}
    assert server.report(orphan, "failed").status == 404
    assert server.report(orphan, "confirmed", receipt="r").status == 202
    (seen,) = server.get("observations").json["items"]
    assert (seen["status"], seen["observed"]["release"]) == (None, orphan["id"])
    assert server.get(f"releases/{orphan['id']}").status == 404


def test_l11_a_report_to_a_closed_tenant_is_kept_and_nothing_is_given_out(server: Laned) -> None:
    release = server.permit("1")
    permit = server.claimed("transfers")
    server.permit("2")
    assert server.post("recovery/begin", {"reason": "looking"}).status == 200
    claim = server.claim("transfers")
    assert (claim.status, claim.json["type"]) == (503, "/problems/recovering")
    beat = server.post(f"releases/{release}/heartbeat", {"lease": permit["lease"]})
    assert beat.status == 503
    reply = server.report(permit, "confirmed", receipt="r-1")
    assert (reply.status, reply.json["observed"]) == (202, True)
    (seen,) = server.get("observations").json["items"]
    assert seen["observed"]["receipt"] == "r-1"
    assert server.post("recovery/apply").status == 200
    despite = {"despite": ["reconciled"], "reason": "a test"}
    assert server.post("recovery/reopen", despite).status == 200
    server.claim("transfers")
    assert server.release(release)["attempts"] == 1


# Signs of life.


def test_l5_a_claim_is_kept_alive_and_says_what_it_does(server: Laned) -> None:
    release = server.permit("1")
    permit = server.claimed("transfers")
    path = f"releases/{release}/heartbeat"
    beat = server.post(path, {"lease": permit["lease"], "step": "sending\nto the bank"})
    assert beat.status == 200, beat.body
    assert (beat.json["id"], beat.json["lease"], beat.json["holds"]) == (
        release,
        permit["lease"],
        True,
    )
    assert datetime.fromisoformat(beat.json["until"]) >= datetime.fromisoformat(permit["until"])
    stored = server.release(release)
    assert stored["step"] == "sending to the bank"
    assert stored["started"] is not None
    lost = server.post(path, {"lease": permit["lease"] + 1})
    assert (lost.status, lost.json["type"]) == (409, "/problems/lease-lost")
    assert (lost.json["id"], lost.json["work_status"]) == (release, "running")
    assert server.release(release)["step"] == "sending to the bank"


def test_a_step_cannot_say_that_nothing_was_begun(server: Laned) -> None:
    release = server.permit("1")
    permit = server.claimed("transfers")
    said = {"lease": permit["lease"], "step": " picked up by w"}
    reply = server.post(f"releases/{release}/heartbeat", said)
    assert (reply.status, reply.json["field"]) == (400, "step")


# By hand.


def test_l10_cancelling_a_release_that_is_committed_only_asks_for_it(server: Laned) -> None:
    waits = server.permit("1")
    reply = server.post(f"releases/{waits}/cancel", {"reason": "wrong account"})
    assert (reply.status, reply.json["status"]) == (200, "cancelled")
    assert server.claim("transfers").json["permits"] == []

    under_way = server.permit("2")
    permit = server.claimed("transfers")
    asked = server.post(f"releases/{under_way}/cancel", {"reason": "too late?"})
    assert (asked.status, asked.json["status"]) == (202, "cancel-requested")
    assert server.release(under_way)["cancel_requested"] is True
    late = server.report(permit, "confirmed", receipt="r")
    assert (late.status, late.json["status"]) == (200, "done")
    over = server.post(f"releases/{under_way}/cancel", {"reason": "now?"})
    assert (over.status, over.json["type"]) == (409, "/problems/transition-refused")


def test_r23_an_unknown_outcome_is_settled_one_by_one_on_evidence(server: Laned) -> None:
    release = server.permit("1")
    permit = server.claimed("transfers")
    said = {"happened": True, "evidence": "line 7 of the statement", "receipt": "st-7"}
    early = server.post(f"releases/{release}/settle", said)
    assert (early.status, early.json["type"]) == (409, "/problems/transition-refused")
    server.report(permit, "unknown")
    settled = server.post(f"releases/{release}/settle", said)
    assert (settled.status, settled.json["status"]) == (200, "done")
    assert server.release(release)["receipt"] == "st-7"
    body = {"reason": "the amount was wrong"}
    incident = server.post(f"releases/{release}/incident", body)
    assert (incident.status, incident.json["status"]) == (200, "done")
    assert server.release(release)["incident"] == "the amount was wrong"
    (entry,) = server.get("events?entity=order/1&action=release.incident").json["items"]
    assert entry["operation"].startswith(release)


def test_decisions_tell_which_releases_and_commands_follow(server: Laned) -> None:
    release = server.permit("1")
    again = server.decide("again", "order/1", "transfer", version="v1").json
    assert (again["releases"], again["existing"]) == ([release], [release])
    asked = server.decide("remind", "order/1", "remind").json
    (command,) = asked["commands"]
    assert command.startswith("cmd_")
    view = server.get(f"commands/{command}").json
    assert (view["kind"], view["lane"], view["effect"]) == ("remind", "mail", "internal")
    for path in (f"releases/{command}", f"commands/{release}"):
        reply = server.get(path)
        assert (reply.status, reply.json["type"]) == (404, "/problems/not-found")


def test_a_lane_that_takes_no_more_says_when_to_come_again(server: Laned) -> None:
    server.permit("1", "squeeze")
    server.decide("a", "order/2", "approve")
    reply = server.decide("b", "order/2", "squeeze", version="v1")
    assert (reply.status, reply.json["type"]) == (429, "/problems/overloaded")
    assert reply.headers["retry-after"] == str(reply.json["retry_after"]) == "60"
    batch = {"items": [{"operation": "c", "entity": "order/2", "action": "squeeze",
                        "version": "v1"}]}  # fmt: skip
    (item,) = server.post("decisions/batch", batch).json["items"]
    assert (item["status"], item["problem"]["retry_after"]) == (429, 60)


# Lists.


def test_lists_are_filtered_and_continued(server: Laned) -> None:
    releases = [server.permit(str(n), "pay" if n % 3 else "transfer") for n in range(9)]
    server.decide("r", "order/0", "remind")
    permit = server.claimed("payments")
    for limit in (1, 2, 4, 1000):
        every = [view["id"] for view in pages(server, "releases", limit)]
        assert sorted(every) == sorted(releases)
        paid = pages(server, "releases?lane=payments", limit)
        assert {view["lane"] for view in paid} == {"payments"}
        assert len(paid) == 6
        (running,) = pages(server, "releases?status=running", limit)
        assert running["id"] == permit["id"]
        (own,) = pages(server, "releases?entity=order/3", limit)
        assert own["id"] == releases[3]
        (command,) = pages(server, "commands", limit)
        assert command["entity"] == "order/0"
    assert pages(server, "releases?lane=payments&status=done", 5) == []
    missing = server.get("releases?lane=nowhere")
    assert (missing.status, missing.json["type"]) == (404, "/problems/not-found")


def test_events_are_the_journals_decisions_in_its_order(server: Laned) -> None:
    for number in range(12):
        server.decide(f"op-{number}", f"case/{number % 2}", "note" if number % 3 else "open")
    server.make_token("reader")
    for limit in (1, 5, 1000):
        every = pages(server, "events", limit)
        assert [event["operation"] for event in every] == [f"op-{n}" for n in range(12)]
        positions = [event["position"] for event in every]
        assert positions == sorted(positions)
        own = pages(server, "events?entity=case/1", limit)
        assert [event["revision"] for event in own] == [1, 2, 3, 4, 5, 6]
        opened = pages(server, "events?action=open", limit)
        assert [event["operation"] for event in opened] == ["op-0", "op-3", "op-6", "op-9"]
        both = pages(server, "events?action=open&entity=case/1", limit)
        assert [event["operation"] for event in both] == ["op-3", "op-9"]
    first = server.get("events?limit=1").json["items"][0]
    told = server.get("operations/op-0").json
    assert {name: first[name] for name in ("digest", "sequence", "state", "revision")} == {
        name: told[name] for name in ("digest", "sequence", "state", "revision")
    }
    assert pages(server, "events?entity=control/tenant", 10) == []
    assert pages(server, "events?entity=nothing/1", 10) == []


def test_a_cursor_of_all_events_goes_on_among_one_entitys(server: Laned) -> None:
    for number in range(6):
        server.decide(f"op-{number}", f"case/{number % 2}", "note")
    server.decide("op-6", "case/2", "note")
    for position, entity, left in ((3, "case/0", ["op-4"]), (6, "case/2", ["op-6"])):
        cursor = server.get(f"events?limit={position}").json["next"]
        page = server.get(f"events?entity={entity}&after={cursor}").json
        assert [event["operation"] for event in page["items"]] == left


def test_where_says_which_boundary_an_operation_has_reached(server: Laned) -> None:
    release = server.permit("1")

    def passed() -> dict[str, bool]:
        where = server.get("operations/1-transfer/where").json
        assert [view["id"] for view in where["work"]] == [release]
        return {each["boundary"]: each["passed"] for each in where["boundaries"]}

    lane = "lane transfers"
    assert passed() == {
        "acceptance": True,
        "journal": True,
        lane: False,
        "attempt": False,
        "outcome": False,
    }
    permit = server.claimed("transfers")
    assert (passed()[lane], passed()["attempt"], passed()["outcome"]) == (True, True, False)
    stale = {**permit, "lease": 1}
    server.report(stale, "confirmed", receipt="r")
    where = server.get("operations/1-transfer/where").json
    assert [seen["receipt"] for seen in where["observations"]] == ["r"]
    server.report(permit, "confirmed")
    assert passed()["outcome"] is True
    assert server.get("operations/none/where").status == 404


def test_p8_where_says_that_a_rewound_store_lacks_the_operation(
    server: Laned, tmp_path: Path
) -> None:
    server.decide("op-1", "case/1", "note")
    assert server.end() == 0
    store = server.settings.store_file
    shutil.copy(store, tmp_path / "older.db")
    server.start()
    server.decide("op-2", "case/1", "note")
    assert server.end() == 0
    shutil.copy(tmp_path / "older.db", store)
    server.start()
    for operation, passed in (("op-1", True), ("op-2", False)):
        boundaries = server.get(f"operations/{operation}/where").json["boundaries"]
        assert [each["passed"] for each in boundaries[:2]] == [passed, True]
    for step in ("begin", "apply", "reopen"):
        body = {"reason": "a rewind"} if step == "begin" else {}
        assert server.post(f"recovery/{step}", body).status == 200
    assert server.get("operations/op-2/where").json["boundaries"][0]["passed"] is True


def test_reports_are_no_decisions_for_anybody_to_make(server: Laned) -> None:
    server.permit("1")
    reply = server.decide("forged", "order/1", "release.confirmed", body={"release": "x"})
    assert (reply.status, reply.json["field"]) == (400, "action")
    assert "outcome" in json.dumps(reply.json)
