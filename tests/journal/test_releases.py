"""Releases at record level: what is permitted, withdrawn and corrected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal import handling, reports
from journal.acceptance import check_operation
from journal.errors import (
    Invalid,
    NotFound,
    TransitionRefused,
)
from journal.lifecycle import Action
from journal.permits import Asked
from journal.release import REPORT_TYPE, Report, release_id
from journal.worker import drive
from journal.writepath import make_ready
from tests.support.releases import Yard, lane_settings, releasing
from tests.support.tenants import operation

# One release, one ID.


def test_a_release_has_one_id_through_revocation_and_approval(yard: Yard) -> None:
    first = yard.release("payment/1", "3", recipient="ada")
    yard.accept(operation("payment/1", "revoke"))
    assert yard.status(first) == "cancelled"
    yard.accept(operation("payment/1", "approve", version="3"))
    again = yard.accept(operation("payment/1", "release", version="3"))
    assert again.releases == (first,)
    assert again.existing == ()
    assert yard.status(first) == "ready"
    assert yard.permit("pay").id == first
    assert yard.claim("pay").permits == []


def test_a_permission_for_a_release_that_exists_says_so_and_makes_no_second(yard: Yard) -> None:
    first = yard.release("payment/1")
    again = yard.accept(operation("payment/1", "release", version="1"))
    assert (again.releases, again.existing) == ((first,), (first,))
    permit = yard.permit("pay")
    once_more = yard.accept(operation("payment/1", "release", version="1"))
    assert once_more.existing == (first,)
    yard.report(permit, "confirmed", receipt="r-1")
    last = yard.accept(operation("payment/1", "release", version="1"))
    assert last.existing == (first,)
    assert yard.status(first) == "done"
    assert yard.claim("pay").permits == []


def test_a_repeat_of_the_permission_names_its_releases(yard: Yard) -> None:
    yard.accept(operation("payment/1", "approve", version="1"))
    wanted = operation("payment/1", "release", version="1")
    first = yard.accept(wanted)
    assert yard.accept(wanted).releases == first.releases != ()


@pytest.mark.parametrize("field", ["version", "recipient"])
def test_another_version_or_recipient_is_another_release(yard: Yard, field: str) -> None:
    first = yard.release("payment/1", "1", recipient="ada")
    changes = {"version": "2"} if field == "version" else {"recipient": "bob"}
    data = {"recipient": "ada", **changes}
    second = yard.release("payment/1", data.pop("version", "1"), **data)
    assert second != first


def test_the_id_is_a_hash_of_its_seven_parts() -> None:
    parts: list[Any] = ["main", "payment/1", "1", "release", "pay", None, "ada"]
    known = release_id(*parts)
    assert known.startswith("rel_")
    assert len(known) == 44
    for at in range(7):
        others = [*parts]
        others[at] = "x"
        assert release_id(*others) != known
    # Parts do not run into each other.
    assert release_id("main", "a", "b", "c", "d", None, None) != release_id(
        "main", "ab", "", "c", "d", None, None
    )


def test_an_action_may_release_to_several_lanes(yard: Yard) -> None:
    yard.accept(operation("bundle/1", "approve", version="1"))
    ids = yard.permit_again("bundle/1")
    assert len(set(ids)) == 2
    assert {yard.row(each).lane for each in ids} == {"pay", "post"}


# Versions.


def test_an_approval_of_version_3_does_not_release_version_4(yard: Yard) -> None:
    yard.accept(operation("payment/1", "approve", version="3"))
    with pytest.raises(TransitionRefused) as refused:
        yard.accept(operation("payment/1", "release", version="4"))
    assert refused.value.members["decided"] == "3"
    assert yard.claim("pay").permits == []


def test_a_release_is_superseded_by_a_decision_on_another_version(yard: Yard) -> None:
    third = yard.release("payment/1", "3")
    yard.accept(operation("payment/1", "approve", version="4"))
    row = yard.row(third)
    assert row.status == "cancelled"
    assert "superseded: version 4" in row.step
    assert yard.claim("pay").permits == []
    # And back again: the third is approved once more, and is the same release.
    assert yard.release("payment/1", "3") == third
    assert yard.permit("pay").id == third


def test_a_decision_that_names_no_version_supersedes_nothing(tmp_path: Path) -> None:
    noted = msgspec.structs.replace(
        releasing("pay"),
        actions={**releasing("pay").actions, "note": Action(("approved",), "approved")},
    )
    made = Yard(lane_settings(tmp_path, lifecycle={"payment": noted}))
    first = made.release("payment/1")
    made.accept(operation("payment/1", "note"))
    assert made.status(first) == "ready"
    made.finish()


def test_a_superseded_release_is_attempted_no_more_once_it_was_committed(yard: Yard) -> None:
    first = yard.release("payment/1", "3")
    yard.report(yard.permit("pay"), "failed")
    assert yard.status(first) == "retry"
    yard.accept(operation("payment/1", "approve", version="4"))
    yard.let_come(first)
    assert yard.claim("pay").permits == []
    assert yard.status(first) == "cancelled"


@pytest.mark.parametrize("how", ["superseded", "revoked", "asked"])
def test_a_permission_given_anew_takes_a_cancellation_back_that_was_not_yet_carried_out(
    yard: Yard, how: str
) -> None:
    first = yard.release("payment/1", "3")
    yard.report(yard.permit("pay"), "unknown")
    if how == "superseded":
        yard.accept(operation("payment/1", "approve", version="4"))
    elif how == "revoked":
        yard.accept(operation("payment/1", "revoke"))
    else:
        yard.do(handling.cancel, first, "a mistake")
    assert yard.row(first).cancel_requested == 1
    yard.accept(operation("payment/1", "approve", version="3"))
    again = yard.accept(operation("payment/1", "release", version="3"))
    assert again.existing == (first,)
    assert yard.row(first).cancel_requested == 0
    assert yard.do(handling.cancel, first, "a mistake").status == "cancel-requested"
    assert yard.row(first).cancel_requested == 1
    yard.permit_again("payment/1", "3")
    yard.let_come(first)
    assert yard.permit("pay").id == first


# Withdrawing.


def test_cancel_first_then_there_is_nothing_to_commit(yard: Yard) -> None:
    first = yard.release("payment/1")
    yard.accept(operation("payment/1", "revoke"))
    assert yard.claim("pay").permits == []
    assert "release.committed" not in yard.actions("payment/1")
    assert yard.status(first) == "cancelled"


def test_commit_first_then_a_cancel_at_that_revision_is_refused(yard: Yard) -> None:
    yard.accept(operation("document/1", "submit", version="1"))
    yard.accept(operation("document/1", "approve", version="1"))
    seen = yard.accept(operation("document/1", "release", version="1"))
    yard.permit("delivery")
    with pytest.raises(Exception, match="is at revision 4") as refused:
        yard.accept(operation("document/1", "cancel", expected_revision=seen.revision))
    assert refused.value.members["actual"] == seen.revision + 1  # type: ignore[attr-defined]
    # Without a precondition it is taken for what it can still be: a request.
    assert yard.accept(operation("document/1", "cancel")).state == "cancel-requested"


def test_cancel_and_commit_compete_and_one_of_two_records_wins(yard: Yard) -> None:
    other = yard.companion()
    first = yard.release("payment/1")
    row = drive(reports.read_row(other, first))
    yard.do(handling.cancel, first, "a mistake")
    # The other one picked the row before: its commitment finds the revision taken.
    ready = drive(make_ready(other))
    from journal import permits

    picked = permits._Picked([row], [], [])
    asked = Asked("pay", "w2", "late")
    assert drive(permits._commit(other, ready, asked, other.settings.lanes["pay"], picked)) == []
    assert yard.status(first) == "cancelled"
    assert "release.committed" not in yard.actions("payment/1")


def test_l10_cancel_after_the_commitment_is_a_request_and_the_outcome_is_still_recorded(
    yard: Yard,
) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    asked = yard.do(handling.cancel, first, "too late")
    assert asked.status == "cancel-requested"
    assert yard.row(first).cancel_requested == 1
    done = yard.report(permit, "confirmed", receipt="r-9")
    assert done.status == "done"
    assert yard.row(first).receipt == "r-9"


def test_l10_a_requested_cancellation_ends_it_where_surely_nothing_happened(yard: Yard) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.do(handling.cancel, first, "too late")
    assert yard.report(permit, "failed").status == "cancelled"
    assert yard.claim("pay").permits == []


def test_l10_a_document_that_is_cancelled_under_way_can_end_as_it_happened(yard: Yard) -> None:
    yard.accept(operation("document/1", "submit", version="1"))
    yard.accept(operation("document/1", "approve", version="1"))
    (first,) = yard.permit_again("document/1")
    permit = yard.permit("delivery")
    assert yard.accept(operation("document/1", "cancel")).state == "cancel-requested"
    assert yard.row(first).cancel_requested == 1
    done = yard.report(permit, "confirmed")
    assert done.acceptance is not None
    assert done.acceptance.state == "released"


def test_cancelling_twice_acts_once(yard: Yard) -> None:
    first = yard.release("payment/1")
    assert yard.do(handling.cancel, first, "a mistake").status == "cancelled"
    assert yard.do(handling.cancel, first, "for another reason").status == "cancelled"
    assert yard.actions("payment/1").count("release.cancelled") == 1
    second = yard.release("payment/2")
    yard.permit("pay")
    for reason in ("too late", "really"):
        assert yard.do(handling.cancel, second, reason).status == "cancel-requested"
    assert yard.actions("payment/2").count("release.cancel-requested") == 1


def test_a_release_that_was_cancelled_and_revived_can_be_cancelled_again(yard: Yard) -> None:
    first = yard.release("payment/1")
    yard.do(handling.cancel, first, "a mistake")
    assert yard.permit_again("payment/1") == (first,)
    assert yard.status(first) == "ready"
    assert yard.do(handling.cancel, first, "a mistake").status == "cancelled"
    assert yard.status(first) == "cancelled"
    assert yard.claim("pay").permits == []


def test_a_release_that_was_cancelled_after_its_commitment_is_not_revived(yard: Yard) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.do(handling.cancel, first, "too late")
    yard.report(permit, "failed")
    again = yard.accept(operation("payment/1", "release", version="1"))
    assert again.existing == (first,)
    assert yard.status(first) == "cancelled"


def test_nothing_is_cancelled_that_has_ended(yard: Yard) -> None:
    first = yard.release("payment/1")
    yard.report(yard.permit("pay"), "confirmed")
    with pytest.raises(TransitionRefused, match="a corrective action"):
        yard.do(handling.cancel, first, "too late")
    with pytest.raises(NotFound):
        yard.do(handling.cancel, "rel_0", "nothing")


# Correcting, and what should not have been.


def test_a_corrective_action_names_the_release_that_it_corrects(yard: Yard) -> None:
    first = yard.release("payment/1")
    yard.report(yard.permit("pay"), "confirmed")
    answer = yard.accept(
        operation("payment/1", "correct", {"corrects": first}, version="1"),
    )
    (second,) = answer.releases
    assert second != first
    row = yard.row(second)
    assert (row.corrects, row.status) == (first, "ready")
    assert yard.permit("pay").corrects == first


WRONG_CORRECTIONS: dict[str, Any] = {
    "no body": None,
    "no release": {"reason": "wrong"},
    "a number": {"corrects": 7},
    "a release that does not exist": {"corrects": "rel_0"},
}


@pytest.mark.parametrize("what", WRONG_CORRECTIONS)
def test_a_correction_of_nothing_is_refused(yard: Yard, what: str) -> None:
    yard.release("payment/1")
    with pytest.raises(Invalid) as refused:
        yard.accept(operation("payment/1", "correct", WRONG_CORRECTIONS[what], version="1"))
    assert refused.value.members["field"] == "body.corrects"
    assert yard.actions("payment/1") == ["approve", "release"]


def test_a_correction_of_another_entitys_release_is_refused(yard: Yard) -> None:
    other = yard.release("payment/2")
    yard.release("payment/1")
    with pytest.raises(Invalid):
        yard.accept(operation("payment/1", "correct", {"corrects": other}, version="1"))


def test_an_incident_is_recorded_whatever_became_of_the_release(yard: Yard) -> None:
    first = yard.release("payment/1")
    yard.report(yard.permit("pay"), "confirmed")
    before = yard.row(first)
    yard.do(handling.record_incident, first, "paid to the wrong person", "olga")
    row = yard.row(first)
    assert row.incident == "paid to the wrong person"
    assert (row.status, row.finished) == (before.status, before.finished)
    assert yard.actions("payment/1")[-1] == "release.incident"


def test_a_finding_that_a_release_happened_is_recorded_with_its_evidence(yard: Yard) -> None:
    first = yard.release("letter/1")
    yard.report(yard.permit("post"), "unknown", evidence="no reply")
    settled = yard.do(handling.settle, first, True, "the post office says so", "no. 7", "olga")
    assert settled.status == "done"
    assert yard.row(first).receipt == "no. 7"
    with pytest.raises(TransitionRefused):
        yard.do(handling.settle, first, False, "no, it did not", None, "olga")


def test_a_repair_is_conditional_on_the_state_that_it_expects_and_acts_once(yard: Yard) -> None:
    first = yard.release("letter/1")
    yard.report(yard.permit("post"), "unknown", evidence="no reply")
    why = {"reason": "their monthly statement", "expected": "pending"}
    with pytest.raises(TransitionRefused, match="is unknown, not pending as this repair expects"):
        yard.do(handling.settle, first, True, "line 17", "no. 7", "olga", **why)
    with pytest.raises(Invalid, match="no status"):
        yard.do(handling.settle, first, True, "line 17", None, "olga", expected="settled")
    before = yard.status(first)
    why["expected"] = before
    settled = yard.do(handling.settle, first, True, "line 17", "no. 7", "olga", **why)
    again = yard.do(handling.settle, first, True, "line 17", "no. 7", "olga", **why)
    assert (before, settled.status, again.status) == ("unknown", "done", "done")
    assert settled.acceptance is not None
    assert again.acceptance is not None
    assert again.acceptance.digest == settled.acceptance.digest
    assert again.acceptance.outcome == "duplicate"
    row = yard.journal_sql("SELECT body FROM entries ORDER BY position DESC LIMIT 1")[0]
    report = msgspec.json.decode(row[0], type=Report)
    assert (report.reason, report.expected) == ("their monthly statement", "unknown")


def test_nothing_is_settled_while_its_attempt_is_under_way_or_before_one(yard: Yard) -> None:
    first = yard.release("letter/1")
    with pytest.raises(TransitionRefused):
        yard.do(handling.settle, first, True, "somebody says so", None)
    yard.permit("post")
    with pytest.raises(TransitionRefused, match="under way"):
        yard.do(handling.settle, first, True, "somebody says so", None)


# Only unrewind says what became of a release.


@pytest.mark.parametrize("action", ["release.committed", "release.confirmed", "release.anything"])
def test_what_became_of_a_release_is_refused_from_callers(yard: Yard, action: str) -> None:
    wanted = operation("payment/1", action, {"release": "rel_0"}, body_type=REPORT_TYPE)
    with pytest.raises(Invalid) as refused:
        check_operation(wanted, yard.settings.lifecycles, 1 << 20)
    assert refused.value.members["field"] == "action"


def test_a_body_that_looks_like_a_report_is_a_body(yard: Yard) -> None:
    first = yard.release("payment/1")
    yard.accept(
        operation("payment/1", "revoke", {"release": first, "lease": 1}, body_type=REPORT_TYPE)
    )
    assert yard.status(first) == "cancelled"
