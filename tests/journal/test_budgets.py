"""Due times, limits and rate budgets of a lane, and lanes that are paused or off."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from journal import handling
from journal.control import Running
from journal.errors import (
    Invalid,
)
from journal.lanes import Effect, Lane
from tests.support.releases import FUTURE, TASK, Yard, lane_settings
from tests.support.tenants import operation

# Due, limits, budgets.


def test_l7_due_in_the_future_is_claimed_once_and_only_when_it_is_due(yard: Yard) -> None:
    first = yard.release("payment/1", due=FUTURE)
    assert yard.row(first).due == FUTURE
    assert yard.claim("pay", limit=5).permits == []
    yard.let_come(first)
    assert yard.permit("pay", limit=5).id == first
    assert yard.claim("pay", limit=5).permits == []


def test_l7_a_due_time_with_an_offset_is_the_same_moment(yard: Yard) -> None:
    first = yard.release("payment/1", due="2999-06-01T02:30:00+02:30")
    assert yard.row(first).due == "2999-06-01T00:00:00.000000Z"


UNFIT = {
    "due": [7, "tomorrow", "2999-06-01", "2999-06-01T00:00:00"],
    "recipient": [7, "r" * 1025, ["ada"]],
    "digest": [7, "a" * 63, "A" * 64, "g" * 64],
}


@pytest.mark.parametrize("field", UNFIT)
def test_data_that_no_release_can_be_made_of_is_refused_with_its_field(
    yard: Yard, field: str
) -> None:
    for number, value in enumerate(UNFIT[field]):
        entity = f"payment/{number}"
        yard.accept(operation(entity, "approve", {field: value}, version="1"))
        with pytest.raises(Invalid) as refused:
            yard.accept(operation(entity, "release", version="1"))
        assert refused.value.members == {"field": f"data.{field}"}


def test_no_more_runs_at_once_than_the_lane_allows(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"pay": Lane(concurrency=3)}))
    for number in range(5):
        made.release(f"payment/{number}")
    first = made.claim("pay", limit=5).permits
    assert len(first) == 3
    other = made.companion()
    assert made.claim("pay", limit=5, by=other).permits == []
    made.report(first[0], "unknown")
    assert len(made.claim("pay", limit=5, by=other).permits) == 1
    made.finish()


def test_a_rate_budget_is_shared_by_two_records(tmp_path: Path) -> None:
    lane = Lane(concurrency=100, rate=3.0)
    made = Yard(lane_settings(tmp_path, lane={"pay": lane}))
    for number in range(10):
        made.release(f"payment/{number}")
    other = made.companion()
    given = len(made.claim("pay", limit=2).permits)
    given += len(made.claim("pay", limit=10, by=other).permits)
    # The last refill is behind: no time passes for the budget.
    made.sql("UPDATE unrewind_budgets SET at = at + 3600")
    given += len(made.claim("pay", limit=10).permits)
    given += len(made.claim("pay", limit=10, by=other).permits)
    assert 3 <= given <= 4
    made.sql("UPDATE unrewind_budgets SET at = at - 7200")
    assert len(made.claim("pay", limit=10, by=other).permits) == 3
    made.finish()


def test_lanes_of_one_receiver_share_its_budget(tmp_path: Path) -> None:
    receiver = msgspec.structs.replace(lane_settings(tmp_path).receiver["bank"], rate=2.0)
    made = Yard(
        lane_settings(
            tmp_path,
            receiver={"bank": receiver},
            lane={"pay": Lane(receiver="bank"), "bank": Lane(receiver="bank")},
        )
    )
    for number in range(3):
        made.release(f"payment/{number}")
        made.release(f"transfer/{number}")
    made.sql("DELETE FROM unrewind_budgets")
    given = len(made.claim("pay", limit=3).permits)
    made.sql("UPDATE unrewind_budgets SET at = at + 3600")
    given += len(made.claim("bank", limit=3).permits)
    assert given == 2
    made.finish()


def test_a_paused_lane_gives_nothing_out_and_leaves_to_its_end_what_runs(yard: Yard) -> None:
    yard.release("payment/1")
    yard.release("payment/2")
    permit = yard.permit("pay", id="c-1")
    state = yard.do(handling.set_lane, "pay", Running.PAUSED, "the bank is closed", "olga")
    assert (state.running, state.reason) == (Running.PAUSED, "the bank is closed")
    claimed = yard.claim("pay")
    assert claimed.permits == []
    assert claimed.held == "lane pay is paused: the bank is closed"
    assert [again.id for again in yard.claim("pay", id="c-1").permits] == [permit.id]
    assert yard.beat(permit) == [(permit.id, permit.lease)]
    assert yard.report(permit, "confirmed").status == "done"
    yard.do(handling.set_lane, "pay", Running.ON, "it is open again")
    assert yard.permit("pay").entity == "payment/2"


def test_pausing_a_lane_survives_a_restart_and_a_rewind(yard: Yard, tmp_path: Path) -> None:
    yard.release("payment/1")
    copy = yard.snapshot(tmp_path / "kept")
    yard.do(handling.set_lane, "pay", Running.PAUSED, "closed")
    yard.do(handling.set_lane, "pay", Running.PAUSED, "closed")
    yard.close()
    yard.rewind(copy)
    yard.open()
    assert yard.claim("pay").held == "lane pay is paused: closed"
    assert yard.control().sequence == 2


def test_only_a_best_effort_lane_is_switched_off_and_it_says_what_it_discards(yard: Yard) -> None:
    from journal.errors import Refused

    for lane in ("pay", "mail"):
        with pytest.raises(Refused, match="may wait"):
            yard.do(handling.set_lane, lane, Running.OFF, "enough", discard=True)
    with pytest.raises(Refused, match="--discard"):
        yard.do(handling.set_lane, "preview", Running.OFF, "enough")


def test_a_lane_that_is_off_discards_what_waits_and_what_comes_counted(yard: Yard) -> None:
    for number in range(3):
        yard.do(handling.enqueue, "preview", "thumbnail", [(f"{number}", b"{}")])
    (permit,) = yard.claim("preview").permits
    yard.do(handling.set_lane, "preview", Running.OFF, "enough", discard=True)
    yard.do(handling.enqueue, "preview", "thumbnail", [("4", b"{}")])
    yard.report(permit, "failed")
    yard.sweep()
    counts = yard.sql(
        "SELECT status, items FROM unrewind_counts WHERE lane = 'preview' AND items > 0"
    )
    assert counts == [("discarded", 4)]
    yard.do(handling.set_lane, "preview", Running.ON, "again")
    assert yard.claim("preview").permits == []


# Lanes that are declared anew.


def test_a_release_goes_to_nobody_but_whom_it_was_permitted_for(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path))
    waiting, tried = made.release("payment/1"), made.release("payment/2")
    made.meddle(waiting, due=FUTURE)
    made.report(made.permit("pay"), "unknown")
    made.close()
    anew = Yard(lane_settings(tmp_path, lane={"pay": Lane(receiver="bank")}))
    for identity in (waiting, tried):
        anew.let_come(identity)
    assert anew.claim("pay", limit=5).permits == []
    for identity in (waiting, tried):
        assert "permitted for workers, and lane pay now sends to bank" in anew.row(identity).step
    # What is permitted from now on goes to the new one, under an ID of its own.
    third = anew.release("payment/1", "2")
    assert [permit.id for permit in anew.claim("pay", limit=5).permits] == [third]
    anew.close()
    back = Yard(lane_settings(tmp_path))
    back.let_come(tried)
    assert [permit.id for permit in back.claim("pay", limit=5).permits] == [tried]
    back.finish()


def test_work_of_another_effect_than_its_lanes_waits(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path))
    first = made.release("payment/1")
    made.close()
    settings = lane_settings(
        tmp_path, lane={"pay": Lane(effect=Effect.INTERNAL)}, lifecycle={"payment": TASK}
    )
    anew = Yard(settings)
    assert anew.claim("pay").permits == []
    assert "declared internal" in anew.row(first).step
    anew.close()
    made = Yard(lane_settings(tmp_path))
    made.let_come(first)
    assert made.permit("pay").id == first
    made.finish()
