"""Commands and items: run at least once, in order; dead letters, and rows that were spoiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal import handling, inquiry
from journal.errors import HistoryIncomplete, Invalid, NotFound, Overloaded, UnrewindError
from journal.lanes import Contract, Effect, Lane
from journal.release import command_id
from journal.work import Status
from journal.worker import drive
from tests.support.releases import DAY, PAST, Yard, lane_settings
from tests.support.tenants import operation

# In their order.


def test_an_action_asks_for_its_commands_once(yard: Yard) -> None:
    wanted = operation("task/1", "start", {"to": "ada"})
    answer = yard.accept(wanted)
    assert answer.commands == tuple(yard.commands("task/1"))
    assert answer.commands == tuple(
        command_id("main", wanted.operation, place, name)
        for place, name in enumerate(("first", "second", "third"))
    )
    assert yard.accept(wanted).commands == ()
    assert len(yard.commands("task/1")) == 3
    row = yard.row(answer.commands[1])
    assert (row.lane, row.name, row.effect, row.data) == (
        "tidy",
        "second",
        "internal",
        '{"to":"ada"}',
    )


def test_commands_of_one_action_run_in_the_order_of_its_list(yard: Yard) -> None:
    yard.accept(operation("task/1", "start"))
    assert yard.claim("tidy", limit=5).permits == []
    (first,) = yard.claim("mail", limit=5).permits
    assert first.name == "first"
    assert yard.claim("tidy", limit=5).permits == []
    yard.report(first, "confirmed")
    (second,) = yard.claim("tidy", limit=5).permits
    assert yard.claim("mail", limit=5).permits == []
    yard.report(second, "confirmed")
    (third,) = yard.claim("mail", limit=5).permits
    assert third.name == "third"


def test_commands_of_different_decisions_wait_for_nobody(yard: Yard) -> None:
    yard.accept(operation("task/1", "start"))
    yard.accept(operation("task/1", "start"))
    yard.accept(operation("task/2", "start"))
    given = yard.claim("mail", limit=5).permits
    assert [permit.name for permit in given] == ["first"] * 3


def test_a_dead_command_keeps_the_ones_after_it_until_it_is_handled(yard: Yard) -> None:
    yard.accept(operation("task/1", "start"))
    first = yard.permit("mail")
    yard.report(first, "refused", evidence="no such address")
    assert yard.status(first.id) == "dead"
    assert yard.claim("tidy").permits == []
    yard.do(handling.drain, [first.id], "done by hand")
    assert yard.permit("tidy").name == "second"


# At least once.


def test_a_command_that_fails_is_run_again_and_ends_in_the_dead_letters(yard: Yard) -> None:
    yard.accept(operation("task/1", "start"))
    for attempt in (1, 2, 3):
        permit = yard.permit("mail")
        assert permit.attempt == attempt
        yard.report(permit, "failed", evidence=f"broken {attempt}")
        yard.let_come(permit.id)
    row = yard.row(permit.id)
    assert (row.status, row.failures, row.last_error) == ("dead", 3, "broken 3")
    assert row.due == PAST  # written by the test; nothing waits for it
    assert yard.claim("mail").permits == []


@pytest.mark.parametrize("outcome", ["unknown", "pending", "failed"])
def test_a_command_that_may_have_run_is_run_again(yard: Yard, outcome: str) -> None:
    yard.accept(operation("task/1", "start"))
    permit = yard.permit("mail")
    assert yard.report(permit, outcome).status == "retry"


def test_a_command_whose_worker_died_is_run_again_by_the_sweep(yard: Yard) -> None:
    yard.accept(operation("task/1", "start"))
    permit = yard.permit("mail")
    yard.let_expire(permit.id)
    assert [moved.status for moved in yard.sweep().moved] == ["retry"]
    again = yard.permit("mail")
    assert (again.id, again.attempt) == (permit.id, 2)
    assert yard.row(permit.id).failures == 0


def test_reporting_a_finished_command_again_acts_once(yard: Yard) -> None:
    yard.accept(operation("task/1", "start"))
    permit = yard.permit("mail")
    done = yard.report(permit, "confirmed", receipt="m-1")
    before = yard.row(permit.id)
    assert yard.report(permit, "confirmed", receipt="m-2") == done
    assert yard.row(permit.id) == before


def test_an_observed_report_on_a_command_does_not_keep_its_row_from_the_sweep(yard: Yard) -> None:
    yard.accept(operation("task/1", "start"))
    permit = yard.permit("mail")
    yard.observe(permit, "confirmed")
    yard.let_expire(permit.id)
    assert yard.sweep().failed == 0
    assert yard.status(permit.id) == "retry"


# Dead letters.


def dead_command(yard: Yard, entity: str = "task/1") -> str:
    yard.accept(operation(entity, "start"))
    permit = yard.permit("mail")
    yard.report(permit, "refused", evidence="no such address")
    return permit.id


def test_l8_replaying_twice_acts_once(yard: Yard) -> None:
    dead = dead_command(yard)
    assert yard.do(handling.replay, [dead], "the address is there now", "olga").done == [dead]
    row = yard.row(dead)
    assert (row.status, row.failures, row.expired) == ("retry", 0, 0)
    assert "replayed by olga: the address is there now" in row.step
    again = yard.do(handling.replay, [dead, dead], "once more")
    assert again.done == []
    assert again.left == {dead: "it is retry, not dead"}
    permit = yard.permit("mail")
    yard.report(permit, "confirmed")
    assert yard.claim("mail").permits == []
    assert yard.do(handling.replay, [dead], "once more").done == []


def test_l8_one_dead_letter_named_twice_in_a_call_is_handled_once(yard: Yard) -> None:
    dead = dead_command(yard)
    handled = yard.do(handling.replay, [dead, dead], "again")
    assert handled.done == [dead]
    assert handled.left == {dead: "it is retry, not dead"}


@pytest.mark.parametrize("action", [handling.replay, handling.drain])
@pytest.mark.parametrize("ids", [[], ["cmd_0"] * (handling.MAX_HANDLED + 1)])
def test_l8_replay_and_drain_without_naming_anything_or_too_much_are_refused(
    yard: Yard, action: Any, ids: list[str]
) -> None:
    dead = dead_command(yard)
    with pytest.raises(Invalid) as refused:
        yard.do(action, ids, "everything")
    assert refused.value.members == {"field": "ids"}
    assert yard.status(dead) == "dead"


@pytest.mark.parametrize("action", [handling.replay, handling.drain])
def test_l8_handling_needs_a_reason(yard: Yard, action: Any) -> None:
    dead = dead_command(yard)
    with pytest.raises(Invalid, match="reason"):
        yard.do(action, [dead], "")
    assert yard.status(dead) == "dead"


def test_l8_what_cannot_be_handled_is_named_and_the_rest_is_done(yard: Yard) -> None:
    dead = dead_command(yard)
    waiting = yard.accept(operation("task/2", "start")).commands[0]
    handled = yard.do(handling.drain, [waiting, "cmd_0", dead], "tidied up", "olga")
    assert handled.done == [dead]
    assert handled.left[waiting] == "it is ready, not dead"
    assert "there is no release" in handled.left["cmd_0"]
    row = yard.row(dead)
    assert row.status == "drained"
    assert row.finished is not None
    assert "tidied up" in row.step


def test_l8_dead_letters_outlive_successes(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, keep=DAY))
    dead = dead_command(made)
    made.accept(operation("task/2", "start"))
    permit = made.permit("mail")
    made.report(permit, "confirmed")
    young = made.accept(operation("task/3", "start")).commands[0]
    made.report(made.permit("mail"), "confirmed")
    # Both ended long ago, and one of them well.
    made.meddle(permit.id, finished=PAST)
    made.meddle(dead, created=PAST, claimed=PAST)
    made.sweep()
    with pytest.raises(IndexError):
        made.row(permit.id)
    assert made.status(dead) == "dead"
    assert made.status(young) == "done"
    made.spoiled()
    made.finish()


def test_l8_a_release_is_never_forgotten(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, keep=DAY))
    first = made.release("payment/1")
    made.report(made.permit("pay"), "confirmed", receipt="r-1")
    made.meddle(first, finished=PAST)
    made.sweep()
    assert made.row(first).receipt == "r-1"
    again = made.accept(operation("payment/1", "release", version="1"))
    assert again.existing == (first,)
    made.spoiled()
    made.finish()


# Dead releases.


def test_l8_a_dead_release_is_replayed_where_a_repeat_is_safe(tmp_path: Path) -> None:
    lanes = {
        "pay": Lane(contract=Contract.IDEMPOTENT, window=DAY, attempts=1),
        "post": Lane(attempts=1),
    }
    made = Yard(lane_settings(tmp_path, lane=lanes))
    safe = made.release("payment/1")
    made.report(made.permit("pay"), "unknown", evidence="no reply")
    assert (made.status(safe), made.row(safe).last_error) == ("dead", "no reply")
    surely_not = made.release("letter/1")
    made.report(made.permit("post"), "failed", evidence="no paper")
    assert made.status(surely_not) == "dead"
    assert made.do(handling.replay, [safe, surely_not], "now").done == [safe, surely_not]
    for lane, identity in (("pay", safe), ("post", surely_not)):
        permit = made.permit(lane)
        assert (permit.id, permit.attempt) == (identity, 2)
        made.report(permit, "confirmed")
    made.finish()


def test_r23_a_dead_release_that_may_have_happened_is_not_replayed_after_the_window(
    tmp_path: Path,
) -> None:
    lanes = {"pay": Lane(contract=Contract.IDEMPOTENT, window=DAY, attempts=1)}
    made = Yard(lane_settings(tmp_path, lane=lanes))
    dead = made.release("payment/1")
    made.report(made.permit("pay"), "unknown")
    made.meddle(dead, committed=PAST)
    handled = made.do(handling.replay, [dead], "now")
    assert handled.done == []
    assert "settle it" in handled.left[dead]
    assert made.status(dead) == "dead"
    made.spoiled()
    made.finish()


def test_a_dead_release_can_be_replayed_after_each_death(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"post": Lane(attempts=1)}))
    dead = made.release("letter/1")
    for number in range(1, 4):
        made.report(made.permit("post"), "failed", evidence=f"no paper {number}")
        assert made.status(dead) == "dead"
        assert made.do(handling.replay, [dead], "paper came").done == [dead]
        assert made.status(dead) == "retry"
        made.let_come(dead)
    made.finish()


def test_a_drained_release_is_given_to_nobody(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"post": Lane(attempts=1)}))
    dead = made.release("letter/1")
    made.report(made.permit("post"), "failed")
    assert made.do(handling.drain, [dead], "nobody wants it").done == [dead]
    assert made.actions("letter/1")[-1] == "release.drained"
    assert made.permit_again("letter/1") == (dead,)
    assert made.claim("post").permits == []
    made.finish()


# L14: a row that cannot be read.

SPOILED: dict[str, dict[str, Any]] = {
    "data that is not JSON": {"data": "{not json"},
    "no data": {"data": ""},
    "data of bytes": {"data": b"\x00\xff"},
    "a weight that is no number": {"weight": "heavy"},
    "a number of attempts that is none": {"attempts": "many"},
    "a fraction of a lease": {"lease": 1.5},
    "an effect that nobody knows": {"effect": "elsewhere"},
    "a time that is none": {"committed": "yesterday"},
    "a day without a time": {"created": "2026-01-31"},
}


@pytest.mark.parametrize("kind", ["payment", "task"])
@pytest.mark.parametrize("what", SPOILED)
def test_l14_a_row_that_cannot_be_read_is_parked_and_the_one_behind_leaves_in_the_same_pass(
    tmp_path: Path, kind: str, what: str
) -> None:
    lanes = {
        "pay": Lane(contract=Contract.IDEMPOTENT, window=DAY, attempts=2),
        "mail": Lane(effect=Effect.INTERNAL, attempts=2),
    }
    made = Yard(lane_settings(tmp_path, lane=lanes))
    lane = "pay" if kind == "payment" else "mail"
    ids = []
    for entity in (f"{kind}/1", f"{kind}/2", f"{kind}/3"):
        if kind == "payment":
            ids.append(made.release(entity))
        else:
            ids.append(made.accept(operation(entity, "start")).commands[0])
    first, *behind = ids
    made.meddle(first, **SPOILED[what])
    assert [permit.id for permit in made.claim(lane).permits] == behind[:1]
    assert made.sql("SELECT status FROM unrewind_work WHERE id = ?", first) == [("ready",)]
    made.let_come(first)
    assert [permit.id for permit in made.claim(lane).permits] == behind[1:]
    parked = made.sql("SELECT status, due, last_error, step FROM unrewind_work WHERE id = ?", first)
    ((status, due, error, step),) = parked
    assert (status, due, step) == ("dead", None, "cannot be read")
    assert error
    assert made.claim(lane).permits == []
    made.spoiled()
    made.finish()


def test_l14_however_many_rows_cannot_go_the_one_behind_them_leaves_in_the_same_pass(
    tmp_path: Path,
) -> None:
    made = Yard(lane_settings(tmp_path))
    for number in range(150):
        spoiled = made.release(f"payment/{number}")
        made.meddle(spoiled, data="{", due=PAST)
    last = made.release("payment/last")
    assert [permit.id for permit in made.claim("pay").permits] == [last]
    made.spoiled()
    made.finish()


@pytest.mark.parametrize("what", SPOILED)
def test_l14_a_row_in_progress_that_cannot_be_read_keeps_no_other_from_the_sweep(
    tmp_path: Path, what: str
) -> None:
    if what in {"data that is not JSON", "no data"}:
        return  # the sweep does not look into it
    made = Yard(lane_settings(tmp_path))
    ids = [made.release(f"payment/{number}") for number in range(3)]
    made.claim("pay", limit=3)
    for number, identity in enumerate(ids):
        made.meddle(identity, sweep_at=PAST.replace("2001", f"200{number}"))
    made.meddle(ids[0], **SPOILED[what])
    assert made.sweep().failed == 0
    statuses = [
        made.sql("SELECT status FROM unrewind_work WHERE id = ?", identity)[0][0]
        for identity in ids
    ]
    assert statuses == ["dead", "retry", "retry"]
    made.spoiled()
    made.finish()


def test_l14_a_spoiled_row_keeps_no_page_from_being_shown(yard: Yard) -> None:
    good = yard.release("payment/1")
    bad = yard.release("payment/2")
    yard.meddle(bad, weight="heavy", attempts="many", data=b"\x00")
    page = drive(
        inquiry.read_work(yard.record, [Effect.EXTERNAL], inquiry.Filter(lane="pay"), None, 10)
    )
    assert [view.id for view in page.items] == [good, bad]
    yard.spoiled()


def test_l14_a_spoiled_row_refuses_what_concerns_it_and_leaves_the_tenant_open(yard: Yard) -> None:
    bad = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.meddle(bad, failures="many")
    with pytest.raises(HistoryIncomplete, match="cannot be read"):
        yard.report(permit, "confirmed")
    with pytest.raises(HistoryIncomplete, match="cannot be read"):
        yard.accept(operation("payment/1", "revoke"))
    assert yard.do(handling.drain, [bad], "spoiled").done == []
    assert yard.release("payment/2")
    yard.meddle(bad, failures=0)
    assert yard.report(permit, "confirmed").status == "done"


# Items.


def test_an_item_that_is_there_already_makes_nothing_new(yard: Yard) -> None:
    items = [("a", b"1"), ("b", b"[2]"), ("a", b"1")]
    assert len(yard.do(handling.enqueue, "mail", "notice", items)) == 2
    assert yard.do(handling.enqueue, "mail", "notice", items) == []
    permit = yard.permit("mail", limit=1)
    yard.report(permit, "confirmed")
    assert yard.do(handling.enqueue, "mail", "notice", items[:1]) == []


def test_items_of_lanes_whose_names_run_together_are_told_apart(tmp_path: Path) -> None:
    lanes = {"a": Lane(effect=Effect.BEST_EFFORT), "a_b": Lane(effect=Effect.BEST_EFFORT)}
    made = Yard(lane_settings(tmp_path, lane=lanes))
    made.do(handling.enqueue, "a", "x", [("b_c", b"{}")])
    with pytest.raises(Invalid, match="stands in lane a"):
        made.do(handling.enqueue, "a_b", "x", [("c", b"{}")])
    made.finish()


WRONG_ITEMS: dict[str, tuple[str, str, list[tuple[str, bytes]]]] = {
    "an external lane": ("pay", "x", [("1", b"{}")]),
    "no kind": ("mail", "", [("1", b"{}")]),
    "nothing": ("mail", "x", []),
    "too many": ("mail", "x", [(str(n), b"{}") for n in range(handling.MAX_ITEMS + 1)]),
    "no id": ("mail", "x", [("", b"{}")]),
    "an id too long": ("mail", "x", [("i" * 129, b"{}")]),
    "not JSON": ("mail", "x", [("1", b"{"), ("2", b"{}")]),
}


@pytest.mark.parametrize("what", WRONG_ITEMS)
def test_an_item_that_nobody_could_run_is_refused_with_all_of_its_call(
    yard: Yard, what: str
) -> None:
    with pytest.raises(Invalid):
        yard.do(handling.enqueue, *WRONG_ITEMS[what])
    assert yard.sql("SELECT count(*) FROM unrewind_work") == [(0,)]


def test_items_go_through_the_lanes_door_too(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lane={"preview": Lane(Effect.BEST_EFFORT, limit=3)}))
    made.do(handling.enqueue, "preview", "x", [("1", b"{}"), ("2", b"{}")])
    with pytest.raises(Overloaded) as refused:
        made.do(handling.enqueue, "preview", "x", [("3", b"{}"), ("4", b"{}")])
    assert refused.value.members["retry_after"] > 0
    assert len(made.do(handling.enqueue, "preview", "x", [("3", b"{}")])) == 1
    # One that is there already costs nothing.
    assert made.do(handling.enqueue, "preview", "x", [("1", b"{}")]) == []
    made.finish()


def test_handling_of_what_is_no_release_is_refused(yard: Yard) -> None:
    command = yard.accept(operation("task/1", "start")).commands[0]
    for call in (
        lambda: yard.do(handling.cancel, command, "why"),
        lambda: yard.do(handling.settle, command, True, "why", None),
        lambda: yard.do(handling.record_incident, command, "why"),
    ):
        with pytest.raises(UnrewindError, match="is no release"):
            call()
    with pytest.raises(NotFound):
        yard.do(handling.settle, "rel_0", True, "why", None)
    assert yard.status(command) == Status.READY
    assert msgspec.json.decode(yard.row(command).data) == {}
