"""What each stage lets go: nothing, reads, decisions and the house's own work, a few, all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from journal import reading
from journal.control import Authority, Control, Stage
from journal.errors import Recovering
from journal.gate import GO, HELD
from journal.lanes import Effect, Lane
from journal.outcomes import CALLING
from journal.standing import change_control
from journal.worker import drive
from tests.support.releases import DAY, PAST, Yard, lane_settings
from tests.support.tenants import operation


def open_to(yard: Yard, *lanes: str, releases: tuple[str, ...] = (), rate: float = 0.0) -> Control:
    """Put the stage *external* in force, as a recovery does that lets out a named set."""

    def becomes(control: Control) -> Authority:
        before = control.authority
        return Authority(
            before.history, before.generation, Stage.EXTERNAL, before.first, before.digest
        )

    opening: dict[str, Any] = {"lanes": lanes, "releases": releases, "rate": rate}
    facts = {"reason": "a test", "opening": opening}
    return drive(change_control(yard.record, "reopen", becomes, facts))


def test_internal_decides_and_does_the_houses_own_work_and_lets_nothing_out(yard: Yard) -> None:
    yard.put_in_force(stage=Stage.INTERNAL)
    first = yard.release("payment/1")
    yard.accept(operation("task/1", "start"))
    assert yard.permit("mail").effect == Effect.INTERNAL
    held = yard.claim("pay")
    assert held.permits == []
    assert held.held == "the tenant's stage is internal, which allows no effects outside"
    assert yard.status(first) == "ready"
    yard.put_in_force(stage=Stage.OPEN)
    assert yard.permit("pay").id == first


def test_external_lets_out_the_named_lanes_and_no_other(yard: Yard) -> None:
    paid, posted = yard.release("payment/1"), yard.release("letter/1")
    open_to(yard, "post")
    assert yard.permit("post").id == posted
    held = yard.claim("pay")
    assert (held.permits, held.held) == (
        [],
        "the stage is external and lets out lane post alone",
    )
    yard.accept(operation("task/1", "start"))
    assert yard.permit("mail").effect == Effect.INTERNAL
    yard.put_in_force(stage=Stage.OPEN)
    assert yard.permit("pay").id == paid


def test_external_lets_out_the_named_releases_however_many_wait_before_them(yard: Yard) -> None:
    paid = [yard.release(f"payment/{number}") for number in range(40)]
    posted = yard.release("letter/1")
    open_to(yard, releases=(paid[39], posted))
    assert [permit.id for permit in yard.claim("pay", limit=5).permits] == [paid[39]]
    held = yard.claim("pay")
    assert held.permits == []
    assert held.held == "the stage is external and lets out 2 named releases alone"
    assert yard.permit("post").id == posted
    assert {yard.status(identity) for identity in paid[:39]} == {"ready"}


def test_external_without_a_named_set_lets_nothing_out(yard: Yard) -> None:
    yard.release("payment/1")
    yard.put_in_force(stage=Stage.EXTERNAL)
    held = yard.claim("pay")
    assert (held.permits, held.held) == ([], "the stage is external and lets out nothing")


def test_external_lets_out_no_more_than_its_rate_over_all_lanes(tmp_path: Path) -> None:
    lane = {
        "pay": Lane(concurrency=50, window=DAY),
        "post": Lane(concurrency=50),
    }
    made = Yard(lane_settings(tmp_path, lane=lane))
    for number in range(9):
        made.release(f"payment/{number}")
        made.release(f"letter/{number}")
    open_to(made, "pay", "post", rate=4.0)
    other = made.companion()
    given = len(made.claim("pay", limit=3).permits)
    # The last refill is behind: no time passes for the budget.
    made.sql("UPDATE unrewind_budgets SET at = at + 3600")
    given += len(made.claim("post", limit=9, by=other).permits)
    assert given == 4
    assert made.sql("SELECT name FROM unrewind_budgets") == [("opening",)]
    # What stays in the house has no part in it.
    made.accept(operation("task/1", "start"))
    assert len(made.claim("mail").permits) == 1
    made.finish()


@pytest.mark.parametrize("named", ["lane", "release"])
def test_a_step_before_a_call_is_judged_by_the_stage_as_it_is_then(yard: Yard, named: str) -> None:
    first, second = yard.release("payment/1"), yard.release("payment/2")
    permits = yard.claim("pay", limit=2, id="c-1").permits
    assert [permit.id for permit in permits] == [first, second]
    if named == "lane":
        open_to(yard, "post")
        for permit in permits:
            with pytest.raises(Recovering, match="lets out lane post alone"):
                yard.beat(permit, CALLING)
        allowed = []
    else:
        open_to(yard, releases=(second,))
        assert yard.beat(permits[0], CALLING) == []
        assert yard.beat(permits[1], CALLING) == [(second, permits[1].lease)]
        allowed = [second]
    # A sign of life is no risk, and the claim repeated gives what may still go.
    assert yard.beat(permits[0]) == [(first, permits[0].lease)]
    again = yard.claim("pay", limit=2, id="c-1")
    assert [permit.id for permit in again.permits] == allowed
    assert again.held is not None


def test_what_became_of_a_release_is_taken_in_every_stage_that_decides(yard: Yard) -> None:
    first, second = yard.release("payment/1"), yard.release("payment/2")
    permits = yard.claim("pay", limit=2).permits
    yard.put_in_force(stage=Stage.INTERNAL)
    assert yard.report(permits[0], "confirmed").status == "done"
    open_to(yard, "post")
    assert yard.report(permits[1], "confirmed").status == "done"
    assert (yard.status(first), yard.status(second)) == ("done", "done")


def test_an_expired_attempt_is_moved_on_and_not_sent_while_its_lane_is_kept_in(yard: Yard) -> None:
    first = yard.release("payment/1")
    yard.permit("pay")
    open_to(yard, "post")
    yard.let_expire(first)
    yard.sweep()
    assert yard.status(first) == "retry"
    yard.meddle(first, due=PAST)
    assert yard.claim("pay").permits == []


def test_the_gate_goes_in_external_for_types_whose_every_lane_is_let_out(yard: Yard) -> None:
    for entity in ("payment/1", "bundle/1"):
        yard.accept(operation(entity, "approve", version="1"))
    yard.accept(operation("case/1", "opened"))

    def gate(entity: str) -> tuple[str, tuple[str, ...]]:
        ruling = drive(reading.read_gate(yard.record, entity, None))
        return ruling.gate, ruling.reasons

    assert gate("payment/1") == (GO, ())
    open_to(yard, "pay")
    assert gate("payment/1") == (GO, ())
    why = "stage: the stage is external and lets out lane pay alone"
    assert gate("bundle/1") == (HELD, (why,))
    # Nobody can tell by which lane a type without lanes has its effects.
    assert gate("case/1") == (HELD, (why,))
    open_to(yard, "pay", "post")
    assert gate("bundle/1") == (GO, ())
    yard.put_in_force(stage=Stage.INTERNAL)
    assert gate("payment/1") == (HELD, ("stage: the tenant's stage is internal",))
