"""Sweeping: what is in progress beyond its time is moved, by whoever is left to do it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from journal import handling, inquiry, sweeping
from journal.asking import take_answer
from journal.control import Stage
from journal.errors import (
    EngineError,
    JournalUnavailable,
    LeaseLost,
    Recovering,
    StaleGeneration,
    Unreachable,
    UnrewindError,
)
from journal.lanes import Contract, Effect, Lane
from journal.observing import observe
from journal.outcomes import CALLING, Outcome, Reported, Told
from journal.reports import report
from journal.store import work as works
from journal.sweeping import PORTION, last_sweep
from journal.worker import drive
from tests.support.faults import fail_log, fail_store
from tests.support.releases import DAY, PAST, Yard, lane_settings
from tests.support.tenants import operation


def at(second: int) -> str:
    """A moment in the past; later ones are higher."""
    return f"2001-01-01T00:{second // 60:02}:{second % 60:02}.000000Z"


# Where a row goes.


@pytest.mark.parametrize(
    ("kind", "lane", "step", "status"),
    [
        ("payment", "pay", CALLING, "retry"),
        ("letter", "post", CALLING, "unknown"),
        ("transfer", "bank", CALLING, "unknown"),
        ("letter", "post", None, "unknown"),
        ("transfer", "bank", None, "retry"),
    ],
)
def test_l1_a_row_is_moved_by_its_lanes_contract_and_how_far_its_attempt_got(
    yard: Yard, kind: str, lane: str, step: str | None, status: str
) -> None:
    first = yard.release(f"{kind}/1")
    permit = yard.permit(lane)
    if step is not None:
        yard.beat(permit, step)
    yard.let_expire(first)
    (moved,) = yard.sweep().moved
    assert (moved.id, moved.lane, moved.status) == (first, lane, status)
    row = yard.row(first)
    assert (row.status, row.failures) == (status, 0)
    # The step in which it was is in the evidence.
    assert moved.step in (row.last_error or "")
    assert (row.due is not None) == (status == "retry" or lane == "bank")


def test_l1_a_swept_call_that_is_slow_but_alive_may_still_say_that_it_happened(yard: Yard) -> None:
    first = yard.release("letter/1")
    permit = yard.permit("post")
    yard.beat(permit, CALLING)
    yard.let_expire(first)
    yard.sweep()
    assert yard.claim("post").permits == []
    assert yard.beat(permit) == []
    assert yard.report(permit, "confirmed", receipt="r-1").status == "done"


def test_what_a_worker_calls_its_step_does_not_make_it_a_call_that_never_began(yard: Yard) -> None:
    first = yard.release("transfer/1")
    permit = yard.permit("bank")
    yard.beat(permit, "picked up the phone")
    yard.let_expire(first)
    yard.sweep()
    assert yard.status(first) == "unknown"


def test_nothing_is_swept_before_its_time_or_while_it_is_kept_alive(yard: Yard) -> None:
    first = yard.release("letter/1")
    permit = yard.permit("post")
    assert yard.sweep().moved == []
    yard.let_expire(first)
    assert yard.beat(permit) == [(first, permit.lease)]
    assert yard.sweep().moved == []
    assert yard.status(first) == "running"


def test_a_row_that_keeps_losing_its_workers_ends_in_the_dead_letters(tmp_path: Path) -> None:
    lane = Lane(contract=Contract.IDEMPOTENT, window=DAY, expirations=3)
    made = Yard(lane_settings(tmp_path, lane={"pay": lane}))
    first = made.release("payment/1")
    for _ in range(3):
        permit = made.permit("pay")
        made.let_expire(first)
        made.sweep()
    row = made.row(first)
    assert (row.status, row.failures) == ("dead", 0)
    assert row.last_error == "its time was over in step: permit given to w1"
    assert made.actions("payment/1")[-1] == "release.unknown"
    assert made.report(permit, "confirmed").status == "done"
    made.finish()


def test_a_requested_cancellation_is_carried_out_where_no_call_began(yard: Yard) -> None:
    first = yard.release("transfer/1")
    yard.permit("bank")
    yard.do(handling.cancel, first, "a mistake")
    yard.let_expire(first)
    yard.sweep()
    assert yard.status(first) == "cancelled"


# L2: the worker and the sweeper at once.


def test_l2_a_sign_of_life_after_the_sweeper_read_it_keeps_it(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = yard.companion()
    first = yard.release("letter/1")
    permit = yard.permit("post")
    yard.let_expire(first)
    real = sweeping._move

    async def late(record: object, row: object) -> str | None:
        assert yard.beat(permit)
        return await real(record, row)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeping, "_move", late)
    assert drive(sweeping.sweep(sweeper)).moved == []
    assert yard.status(first) == "running"


@pytest.mark.parametrize("outcome", ["confirmed", "failed", "unknown"])
def test_l2_what_the_worker_finished_after_the_sweeper_read_it_stays_as_it_is(
    yard: Yard, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = yard.companion()
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.let_expire(first)
    real = sweeping._move

    async def late(record: object, row: object) -> str | None:
        # The portion is read; before the row is written the worker reports.
        yard.report(permit, outcome)
        return await real(record, row)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeping, "_move", late)
    assert drive(sweeping.sweep(sweeper)).moved == []
    after = yard.row(first)
    assert after.status == {"confirmed": "done", "failed": "retry", "unknown": "retry"}[outcome]
    assert (after.expired, after.failures) == (0, 0 if outcome == "confirmed" else 1)


def test_l2_what_was_claimed_anew_after_the_sweeper_read_it_stays_as_it_is(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeper = yard.companion()
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.let_expire(first)
    real = sweeping._move

    async def late(record: object, row: object) -> str | None:
        yard.report(permit, "failed")
        yard.let_come(first)
        yard.permit("pay", worker="w2")
        return await real(record, row)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeping, "_move", late)
    assert drive(sweeping.sweep(sweeper)).moved == []
    row = yard.row(first)
    assert (row.status, row.worker) == ("running", "w2")


def test_l2_two_sweepers_move_a_row_once(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    other = yard.companion()
    first = yard.release("letter/1")
    yard.permit("post")
    yard.let_expire(first)
    real = sweeping._move

    async def late(record: object, row: object) -> str | None:
        monkeypatch.setattr(sweeping, "_move", real)
        assert yard.sweep(by=other).count == 1
        return await real(record, row)  # type: ignore[arg-type]

    monkeypatch.setattr(sweeping, "_move", late)
    assert yard.sweep().moved == []
    assert yard.actions("letter/1").count("release.unknown") == 1


def test_l2_a_row_written_while_the_sweeper_holds_an_older_one_is_not_overwritten(
    yard: Yard,
) -> None:
    first = yard.release("payment/1")
    yard.permit("pay")
    before = yard.row(first)
    yard.let_expire(first)
    yard.sweep()
    swept = yard.row(first)
    stale = works.put_while(before, before)
    yard.sql(stale.sql, *stale.parameters)
    assert yard.row(first) == swept


# L3, L4: nobody alive, and errors.


def test_l3_a_sweeper_of_its_own_clears_what_every_killed_worker_left(yard: Yard) -> None:
    ids = [yard.release(f"letter/{number}") for number in range(4)]
    yard.claim("post", limit=4)
    for identity in ids:
        yard.let_expire(identity)
    yard.crash()
    yard.open()
    assert yard.claim("post").permits == []
    assert yard.sweep().count == 4
    assert {yard.status(identity) for identity in ids} == {"unknown"}


def test_l3_the_sweeper_shares_nothing_with_the_workers(yard: Yard) -> None:
    yard.release("letter/1")
    permit = yard.permit("post")
    yard.let_expire(permit.id)
    drive(yard.records.pop(0).close())
    alone = yard.open()
    assert drive(sweeping.sweep(alone)).count == 1


@pytest.mark.parametrize("where", ["store", "journal", "read"])
def test_l4_errors_during_a_sweep_leave_the_rest_to_the_next_pass(yard: Yard, where: str) -> None:
    ids = [yard.release(f"letter/{number}") for number in range(3)]
    yard.claim("post", limit=3)
    for number, identity in enumerate(ids):
        yard.meddle(identity, sweep_at=at(number))
    errors: list[EngineError] = [Unreachable("database is locked")]
    if where == "store":
        fail_store(yard.record, before=errors)
    elif where == "journal":
        fail_log(yard.record, before=errors)
    else:
        fail_store(yard.record).reads = [None, None, *errors]
    with pytest.raises(UnrewindError):
        yard.sweep()
    assert drive(last_sweep(yard.record)) is None
    assert sorted(moved.status for moved in yard.sweep().moved) in (
        ["unknown"] * 3,
        ["unknown"] * 2,
    )
    assert {yard.status(identity) for identity in ids} == {"unknown"}
    for number in range(3):
        assert yard.actions(f"letter/{number}").count("release.unknown") == 1
    last = drive(last_sweep(yard.record))
    assert last is not None
    assert (last.process, last.total) == (os.getpid(), last.moved)
    assert 0 <= last.age < 60


def test_l4_the_age_of_the_last_good_sweep_tells_that_none_ends_well(yard: Yard) -> None:
    yard.sweep()
    yard.sql("UPDATE unrewind_sweeps SET succeeded = ?", PAST)
    yard.put_in_force(stage=Stage.CLOSED)
    with pytest.raises(Recovering):
        yard.sweep()
    last = drive(last_sweep(yard.record))
    assert last is not None
    assert last.age > DAY
    yard.put_in_force(stage=Stage.OPEN)


def test_a_row_that_cannot_be_moved_keeps_no_other_in_its_place(yard: Yard) -> None:
    stuck = yard.release("letter/1")
    others = [yard.release(f"letter/{number}") for number in (2, 3)]
    yard.claim("post", limit=3)
    for number, identity in enumerate([stuck, *others]):
        yard.meddle(identity, sweep_at=at(number))
    yard.flaw("letter/1")
    swept = yard.sweep()
    assert (sorted(moved.id for moved in swept.moved), swept.failed) == (sorted(others), 1)
    assert yard.status(stuck) == "running"
    yard.flaw("letter/1", mend=True)
    assert [moved.id for moved in yard.sweep().moved] == [stuck]


# Order and portions.


def test_the_oldest_go_first(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"post": Lane(concurrency=10)}))
    ids = [made.release(f"letter/{number}") for number in range(6)]
    made.claim("post", limit=6)
    order = [ids[number] for number in (3, 0, 5, 1, 4, 2)]
    for number, identity in enumerate(order):
        made.meddle(identity, sweep_at=at(number))
    assert [moved.id for moved in made.sweep().moved] == order
    made.finish()


def test_a_sweep_goes_on_in_portions_and_keeps_to_its_limit(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"mail": Lane(Effect.INTERNAL, concurrency=1000)}))
    count = PORTION + 5
    items = [(f"{number}", b"{}") for number in range(count)]
    made.do(handling.enqueue, "mail", "notice", items)
    while made.claim("mail", limit=256).permits:
        pass
    made.sql("UPDATE unrewind_work SET sweep_at = ?", PAST)
    assert made.do(sweeping.sweep, 3).count == 3
    assert made.sweep().count == count - 3
    assert made.sql("SELECT status, count(*) FROM unrewind_work GROUP BY 1") == [("retry", count)]
    made.finish()


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
    assert row.last_error.startswith("its budget of 2 attempts is spent; the last one: ")
    made.finish()
