"""Observations: reports that can be no decision now, and what receivers say when asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal import handling, inquiry
from journal.asking import take_answer
from journal.control import Stage
from journal.errors import (
    EngineError,
    JournalUnavailable,
    LeaseLost,
    Recovering,
    StaleGeneration,
    UnrewindError,
)
from journal.lanes import Lane
from journal.observing import observe
from journal.outcomes import CALLING, Outcome, Reported, Told
from journal.reports import report
from journal.worker import drive
from tests.support.faults import fail_log
from tests.support.releases import PAST, Yard, lane_settings
from tests.support.tenants import operation

# Observations.


def test_an_observed_receipt_becomes_a_decision(yard: Yard) -> None:
    first = yard.release("letter/1")
    old = yard.permit("post")
    yard.put_in_force(stage=Stage.CLOSED)
    with pytest.raises(Recovering):
        yard.report(old, "confirmed", receipt="r-1")
    yard.observe(old, "confirmed", receipt="r-1", evidence="a slip of paper")
    yard.put_in_force(stage=Stage.OPEN)
    (moved,) = yard.sweep().moved
    assert (moved.id, moved.status) == (first, "done")
    row = yard.row(first)
    assert row.receipt == "r-1"
    assert "observed: a slip of paper" in row.step
    assert yard.sweep().moved == []


def test_an_observation_is_kept_once_and_another_one_beside_it(yard: Yard) -> None:
    yard.release("letter/1")
    permit = yard.permit("post")
    first = yard.observe(permit, "confirmed", receipt="r-1")
    assert yard.observe(permit, "confirmed", receipt="r-1") == first
    assert yard.observe(permit, "confirmed", receipt="r-2") != first
    page = drive(inquiry.read_observations(yard.record, None, 10))
    assert [view.observed.receipt for view in page.items] == ["r-1", "r-2"]


def test_an_observations_id_that_somebody_took_for_a_decision_does_not_lose_it(
    tmp_path: Path,
) -> None:
    # What an observation's ID will be can be told before.
    there = Yard(lane_settings(tmp_path / "there"))
    there.release("letter/1")
    permit = there.permit("post")
    there.observe(permit, "confirmed", receipt="r-1")
    ((taken,),) = there.journal_sql("SELECT operation FROM entries WHERE stream = 'observations'")
    there.finish()
    here = Yard(lane_settings(tmp_path / "here"))
    here.accept(operation("case/1", "set", id=taken))
    first = here.release("letter/1")
    here.permit("post")
    here.observe(permit, "confirmed", receipt="r-1")
    here.sweep()
    assert here.row(first).receipt == "r-1"
    here.finish()


def test_a_receipt_outweighs_a_refusal_that_was_seen_later(yard: Yard) -> None:
    first = yard.release("letter/1")
    permit = yard.permit("post")
    yard.observe(permit, "confirmed", receipt="r-1")
    yard.observe(permit, "refused")
    yard.let_expire(first)
    yard.sweep()
    assert yard.status(first) == "done"


@pytest.mark.parametrize("outcome", ["failed", "unknown", "pending"])
def test_an_observation_that_tells_no_outcome_changes_nothing(yard: Yard, outcome: str) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.observe(permit, outcome)
    assert yard.sweep().moved == []
    yard.let_expire(first)
    assert [moved.status for moved in yard.sweep().moved] == ["retry"]
    assert yard.permit("pay").id == first


@pytest.mark.parametrize("identity", ["", "rel_0\n", "r" * 257])
def test_an_observation_of_what_no_entry_can_name_is_refused(yard: Yard, identity: str) -> None:
    with pytest.raises(UnrewindError):
        yard.do(observe, Reported(identity, Outcome.CONFIRMED, 1), "a test")
    assert yard.journal_sql("SELECT count(*) FROM entries WHERE stream = 'observations'") == [(0,)]


def test_an_observation_passes_in_a_closed_tenant_and_never_while_the_journal_is_away(
    yard: Yard,
) -> None:
    yard.release("letter/1")
    permit = yard.permit("post")
    yard.put_in_force(stage=Stage.CLOSED)
    log = fail_log(yard.record, before=[EngineError("away")])
    with pytest.raises(JournalUnavailable):
        yard.observe(permit, "confirmed")
    assert log.before == []
    assert yard.observe(permit, "confirmed") == yard.observe(permit, "confirmed")
    yard.put_in_force(stage=Stage.OPEN)


def test_r3_a_report_on_a_release_that_nobody_knows_is_listed_as_an_orphan(yard: Yard) -> None:
    yard.do(observe, Reported("rel_unheard", Outcome.CONFIRMED, 7, receipt="r-1"), "unknown here")
    yard.release("letter/1")
    known = yard.permit("post")
    yard.observe(known, "confirmed")
    assert yard.sweep().count == 1
    page = drive(inquiry.read_observations(yard.record, None, 1))
    (orphan,) = page.items
    assert (orphan.observed.release, orphan.status) == ("rel_unheard", None)
    assert (orphan.observed.receipt, orphan.observed.why) == ("r-1", "unknown here")
    page = drive(inquiry.read_observations(yard.record, page.next, 5))
    assert [(view.observed.release, view.status) for view in page.items] == [(known.id, "done")]
    assert page.next is None
    # And again: neither dropped nor acted upon.
    assert yard.sweep().count == 0
    assert len(drive(inquiry.read_observations(yard.record, None, 5)).items) == 2


# L11, R5: an old generation.


@pytest.mark.parametrize("kind", ["payment", "letter", "transfer"])
def test_r5_l11_a_receipt_of_an_ended_generation_closes_the_release_without_a_call(
    yard: Yard, kind: str
) -> None:
    lane = {"payment": "pay", "letter": "post", "transfer": "bank"}[kind]
    first = yard.release(f"{kind}/1")
    permit = yard.permit(lane)
    yard.beat(permit, CALLING)
    yard.recover()
    # The old worker is alive still: it is refused, and what it says is kept.
    with pytest.raises(StaleGeneration):
        drive(report(yard.record, yard.said(permit, "confirmed", receipt="r-1")))
    yard.observe(permit, "confirmed", receipt="r-1")
    assert yard.status(first) == "running"
    assert yard.claim(lane).permits == []
    yard.sweep()
    row = yard.row(first)
    assert (row.status, row.receipt, row.attempts) == ("done", "r-1", 1)


def test_l11_an_old_workers_refusal_closes_it_only_where_it_made_the_last_attempt(
    yard: Yard,
) -> None:
    first = yard.release("letter/1")
    permit = yard.permit("post")
    yard.recover()
    yard.observe(permit, "refused", evidence="no such street")
    yard.sweep()
    assert yard.status(first) == "refused"


@pytest.mark.parametrize(("kind", "lane"), [("letter", "post"), ("transfer", "bank")])
def test_p7_how_far_an_attempt_of_an_ended_generation_got_is_not_taken_from_its_step(
    yard: Yard, kind: str, lane: str
) -> None:
    first = yard.release(f"{kind}/1")
    yard.permit(lane)
    yard.recover()
    # The store may have been put back to before the step that was written last.
    yard.let_expire(first)
    yard.sweep()
    row = yard.row(first)
    assert (row.status, row.maybe) == ("unknown", 1)


def test_l11_the_old_worker_cannot_go_on_after_its_row_was_claimed_anew(yard: Yard) -> None:
    first = yard.release("payment/1")
    old = yard.permit("pay")
    yard.recover()
    yard.let_expire(first)
    yard.sweep()
    new = yard.permit("pay")
    with pytest.raises((StaleGeneration, LeaseLost)):
        yard.report(old, "confirmed")
    assert yard.beat(old, CALLING) == []
    assert yard.beat(new, CALLING) == [(first, new.lease)]


# Asking.


@pytest.mark.parametrize("status", ["unknown", "pending"])
def test_p4_not_found_after_the_receivers_window_proves_nothing_and_waits_for_a_person(
    yard: Yard, status: str
) -> None:
    first = yard.release("transfer/1")
    permit = yard.permit("bank")
    yard.beat(permit, CALLING)
    yard.report(permit, status)
    yard.meddle(first, committed=PAST, claimed=PAST, started=PAST, worker=None)
    asked = Reported(first, Outcome.UNKNOWN, evidence="404")
    yard.do(take_answer, Told.NOT_FOUND, asked)
    row = yard.row(first)
    assert (row.status, row.due, row.maybe) == ("unknown", None, 1)
    assert "proves nothing" in (row.last_error or "")
    assert yard.claim("bank").permits == []
    yard.spoiled()


def test_l10_a_requested_cancellation_ends_it_when_the_receiver_has_surely_not_done_it(
    yard: Yard,
) -> None:
    first = yard.release("transfer/1")
    permit = yard.permit("bank")
    yard.beat(permit, CALLING)
    yard.report(permit, "unknown")
    yard.do(handling.cancel, first, "a mistake")
    yard.do(take_answer, Told.VOID, Reported(first, Outcome.UNKNOWN))
    assert yard.status(first) == "cancelled"


def test_a_receiver_that_never_has_it_is_not_sent_it_for_ever(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"bank": Lane(receiver="bank", attempts=2)}))
    first = made.release("transfer/1")
    for _ in range(2):
        permit = made.permit("bank")
        made.report(permit, "unknown")
        made.meddle(first, claimed=PAST, started=PAST)
        made.do(take_answer, Told.NOT_FOUND, Reported(first, Outcome.UNKNOWN))
    assert made.status(first) == "retry"
    assert made.claim("bank").permits == []
    row = made.row(first)
    assert (row.status, row.maybe) == ("dead", 0)
    assert row.last_error == "its budget of 2 attempts is spent"
    made.finish()
