"""Admission: how long what waits will take, and when no more of it is promised."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.acceptance import Acceptance
from journal.admission import (
    SATURATED,
    Door,
    Load,
    capacity,
    drain_seconds,
    sustainable,
)
from journal.errors import Overloaded
from journal.lanes import Lane
from journal.work import Work
from journal.worker import drive
from journal.writepath import loads_of
from tests.support.releases import DAY, Yard, lane_settings, row_of_work
from tests.support.tenants import operation

FLOW = Lane(concurrency=1000, expected=10.0)
"""A lane that can complete 100 items a second."""


def work(weight: float = 1.0, lane: str = "pay") -> Work:
    return row_of_work(status="ready", weight=weight, lane=lane)


def door(
    lane: Lane, load: Load | None = None, *, outstanding: float = 0.0, most: float = 1e6
) -> Door:
    loads = {} if load is None else {"pay": load}
    return Door({"pay": lane, "free": Lane()}, loads, outstanding, most)


# How long it takes.


@pytest.mark.parametrize(
    ("arriving", "seconds"), [(0, 720.0), (40, 1200.0), (90, 7200.0), (100, None), (130, None)]
)
def test_72000_waiting_and_100_a_second_done_take_as_long_as_what_arrives_lets_them(
    arriving: float, seconds: float | None
) -> None:
    assert drain_seconds(72_000, 100, arriving) == seconds


def test_nothing_waiting_takes_no_time_whatever_arrives() -> None:
    assert drain_seconds(0, 0, 100) == 0.0


def test_an_idle_lane_is_judged_by_what_it_could_do_and_a_busy_one_by_what_it_does() -> None:
    assert capacity(FLOW) == 100
    assert capacity(msgspec.structs.replace(FLOW, rate=7.0)) == 7
    assert sustainable(FLOW, 100 * SATURATED - 1, 3.0) == 100
    assert sustainable(FLOW, 100 * SATURATED, 3.0) == 3.0


# The door.


@pytest.mark.parametrize(("arriving", "admitted"), [(40, True), (90, False), (100, False)])
def test_a_lane_takes_no_more_than_it_can_do_within_its_tolerance(
    arriving: float, admitted: bool
) -> None:
    lane = msgspec.structs.replace(FLOW, tolerance=3600.0)
    tried = door(lane, Load(72_000, arriving, 100))
    if admitted:
        tried.admit([work()])
        return
    with pytest.raises(Overloaded) as refused:
        tried.admit([work()])
    members = refused.value.members
    assert members["lane"] == "pay"
    assert members["retry_after"] == 3600
    delay = members["delay"]
    assert (delay is None) == (arriving >= 100)
    if delay is not None:
        assert 7200 <= delay < 7201


def test_the_replay_window_bounds_it_too_and_the_shorter_one_counts() -> None:
    load = Load(72_000, 40, 100)  # 1,200 s
    for tolerance, replay, admitted in (
        (0.0, 1300.0, True),
        (0.0, 1100.0, False),
        (1300.0, 1100.0, False),
        (1100.0, 1300.0, False),
        (1300.0, 1300.0, True),
        (0.0, 0.0, True),
    ):
        lane = msgspec.structs.replace(FLOW, tolerance=tolerance, replay=replay)
        tried = door(lane, load)
        if admitted:
            tried.admit([work()])
        else:
            with pytest.raises(Overloaded):
                tried.admit([work()])


def test_below_saturation_a_first_arrival_is_no_flood() -> None:
    lane = msgspec.structs.replace(FLOW, tolerance=1.0)
    door(lane, Load(0, 500, 0)).admit([work()])


def test_a_stuck_lane_refuses_once_as_much_waits_as_it_could_do_in_a_while() -> None:
    lane = msgspec.structs.replace(FLOW, tolerance=DAY)
    door(lane, Load(998, 0, 0)).admit([work()])
    with pytest.raises(Overloaded, match="never"):
        door(lane, Load(999, 0, 0)).admit([work()])


def test_a_lanes_limit_counts_weights_and_what_the_batch_added_before() -> None:
    tried = door(msgspec.structs.replace(FLOW, limit=10.0), Load(6, 0, 0))
    tried.admit([work(2.0)])
    with pytest.raises(Overloaded) as refused:
        tried.admit([work(2.5)])
    assert refused.value.members["waiting"] == 10.5
    assert refused.value.members["retry_after"] > 0
    tried.admit([work(2.0)])
    tried.admit([work(100.0, "free")])


def test_a_decision_that_makes_several_items_in_one_lane_is_weighed_whole() -> None:
    tried = door(msgspec.structs.replace(FLOW, limit=10.0), Load(8, 0, 0))
    with pytest.raises(Overloaded):
        tried.admit([work(), work(), work()])
    tried.admit([work(), work()])


def test_what_is_outstanding_in_all_lanes_has_a_bound() -> None:
    tried = door(FLOW, outstanding=8.0, most=10.0)
    tried.admit([work(), work(1.0, "free")])
    with pytest.raises(Overloaded) as refused:
        tried.admit([work(0.5)])
    assert refused.value.members["retry_after"] > 0
    tried.admit([])


@given(
    st.lists(st.lists(st.floats(0.1, 50), max_size=4), max_size=12),
    st.floats(0, 100),
    st.floats(0.5, 200),
)
def test_what_is_refused_is_not_counted_and_what_is_admitted_never_exceeds_the_limit(
    groups: list[list[float]], waiting: float, limit: float
) -> None:
    tried = door(msgspec.structs.replace(FLOW, limit=limit), Load(waiting, 0, 0))
    stands = waiting
    for group in groups:
        added = sum(group)
        try:
            tried.admit([work(weight) for weight in group])
        except Overloaded:
            assert stands + added > limit - 1e-6
        else:
            stands += added
            assert not group or stands <= limit + 1e-6


# At record level.


def test_p6_a_refusal_affects_its_item_alone_and_repeats_and_reads_go_on(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"pay": Lane(limit=2.0)}))
    for number in range(3):
        made.accept(operation(f"payment/{number}", "approve", version="1"))
    wanted = [operation(f"payment/{number}", "release", version="1") for number in range(3)]
    other = operation("case/1", "set", {"value": 1})
    answers = made.turn(*wanted, other)
    assert [type(answer) for answer in answers] == [Acceptance, Acceptance, Overloaded, Acceptance]
    refused = answers[2]
    assert isinstance(refused, Overloaded)
    assert refused.members["retry_after"] > 0
    # Repeats are answered, and what makes no work is decided, while the lane is full.
    assert [each.outcome for each in map(made.accept, wanted[:2])] == ["duplicate"] * 2
    made.accept(operation("payment/2", "revoke"))
    made.accept(operation("payment/3", "approve", version="1"))
    with pytest.raises(Overloaded):
        made.permit_again("payment/3")
    # What leaves makes room; the refusal was not remembered.
    made.accept(operation("payment/2", "approve", version="1"))
    made.report(made.permit("pay"), "confirmed")
    assert made.accept(wanted[2]).outcome == "accepted"
    made.finish()


def test_a_release_that_exists_needs_no_room(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"pay": Lane(limit=1.0)}))
    first = made.release("payment/1")
    assert made.permit_again("payment/1") == (first,)
    # One that is revived does.
    made.accept(operation("payment/1", "revoke"))
    made.release("payment/2")
    made.accept(operation("payment/1", "approve", version="1"))
    with pytest.raises(Overloaded):
        made.permit_again("payment/1")
    made.finish()


def test_weights_come_from_the_data_as_the_lane_says(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"pay": Lane(weight="pages", limit=50.0)}))
    first = made.release("payment/1", pages=40.5)
    assert made.row(first).weight == 40.5
    made.accept(operation("payment/2", "approve", {"pages": 20}, version="1"))
    with pytest.raises(Overloaded):
        made.permit_again("payment/2")
    for wrong in (0, -1, "many", True, None):
        made.accept(operation("payment/3", "approve", {"pages": wrong}, version="1"))
        if wrong is None:
            assert made.row(made.permit_again("payment/3")[0]).weight == 1.0
            continue
        with pytest.raises(Exception, match="is not a number above 0"):
            made.permit_again("payment/3")
    made.finish()


def test_outcomes_are_taken_however_much_is_outstanding(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, max_outstanding=2.0))
    made.release("payment/1")
    made.release("letter/1")
    with pytest.raises(Overloaded, match="max_outstanding is 2"):
        made.release("letter/2")
    permit = made.permit("pay")
    assert made.report(permit, "failed").status == "retry"
    made.let_come(permit.id)
    assert made.report(made.permit("pay"), "confirmed").status == "done"
    made.permit_again("letter/2")
    made.finish()


def test_finished_and_dead_work_is_not_outstanding(yard: Yard) -> None:
    from journal.store import work as works

    first = yard.release("payment/1")
    yard.release("letter/1")
    yard.report(yard.permit("pay"), "confirmed")
    yard.accept(operation("task/1", "start"))
    yard.report(yard.permit("mail"), "refused")
    counts, flow = drive(yard.store.read([works.READ_COUNTS, works.read_flow(60)]))
    loads, outstanding = loads_of(counts, flow)
    assert outstanding == 3  # the letter, and two commands behind the dead one
    assert loads["pay"].waiting == 0
    assert loads["pay"].arrival > 0
    assert loads["pay"].completion > 0
    assert yard.status(first) == "done"
