"""Sweeping: what is in progress beyond its time is moved, by whoever is left to do it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from journal import handling, sweeping
from journal.control import Stage
from journal.errors import (
    EngineError,
    Recovering,
    Unreachable,
    UnrewindError,
)
from journal.lanes import Contract, Effect, Lane
from journal.outcomes import CALLING
from journal.store import work as works
from journal.sweeping import PORTION, last_sweep
from journal.worker import drive
from tests.support.faults import fail_log, fail_store
from tests.support.releases import DAY, PAST, Yard, lane_settings


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
