"""A stop of one entity type, or of one of its actions: what it holds, and all that goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal import reading, stopping
from journal.control import Hold
from journal.errors import Held, Invalid, NotFound, Recovering, Refused
from journal.gate import GO, HELD
from journal.lifecycle import Action, Command, Lifecycle
from journal.outcomes import CALLING
from journal.record import Record
from journal.worker import drive
from tests.support.releases import Yard, lane_settings
from tests.support.tenants import accepted, operation

WHY = "payment/release is stopped: a faulty limit"

JOB = Lifecycle(
    initial="new",
    actions={
        "start": Action(("new", "begun"), "begun", commands=(Command("run", "mail"),)),
        "retry": Action(("begun",), "begun", commands=(Command("run", "mail"),)),
    },
)
"""A type of which two actions ask for the same command."""


def stop(yard: Yard, kind: str, action: str | None = None, by: Record | None = None) -> Hold:
    return drive(
        stopping.stop_action(by or yard.record, kind, action, "a faulty limit", "os-user:ada")
    )


def resume(yard: Yard, kind: str, action: str | None = None) -> list[Hold]:
    return yard.do(stopping.resume_action, kind, action, "mended")


def gate(yard: Yard, entity: str) -> tuple[str, tuple[str, ...]]:
    ruling = drive(reading.read_gate(yard.record, entity, None))
    return ruling.gate, ruling.reasons


# Operations.


def test_a_stopped_type_takes_no_operation_and_every_other_one_does(yard: Yard) -> None:
    known = operation("payment/1", "approve", version="1")
    first = yard.accept(known)
    hold = stop(yard, "payment")
    assert (hold.kind, hold.action, hold.principal) == ("payment", None, "os-user:ada")
    held, other, again = yard.turn(
        operation("payment/1", "revoke"), operation("letter/1", "approve", version="1"), known
    )
    assert isinstance(held, Held)
    assert held.detail.startswith("payment is stopped: a faulty limit; ")
    assert held.members == {"entity": "payment/1"}
    assert accepted(other).state == "approved"
    # A known operation is answered before anything else is looked at.
    assert accepted(again).digest == first.digest
    assert accepted(again).outcome == "duplicate"


def test_a_stopped_action_stops_no_other_action_of_its_type(yard: Yard) -> None:
    yard.accept(operation("payment/1", "approve", version="1"))
    stop(yard, "payment", "release")
    refused = yard.turn(operation("payment/1", "release", version="1"))[0]
    assert isinstance(refused, Held)
    assert refused.detail.startswith(WHY)
    assert yard.accept(operation("payment/1", "revoke")).state == "revoked"
    assert yard.accept(operation("letter/1", "approve", version="1")).state == "approved"


def test_a_held_operation_is_not_remembered_and_goes_through_afterwards(yard: Yard) -> None:
    stop(yard, "payment")
    wanted = operation("payment/1", "approve", version="1")
    assert isinstance(yard.turn(wanted)[0], Held)
    assert resume(yard, "payment") == []
    assert yard.accept(wanted).outcome == "accepted"


def test_every_process_heeds_a_stop_from_its_next_turn_on(yard: Yard) -> None:
    other = yard.companion()
    release = yard.release("payment/1")
    stop(yard, "payment", by=other)
    assert isinstance(yard.turn(operation("payment/2", "approve", version="1"))[0], Held)
    assert yard.claim("pay").held == "payment is stopped: a faulty limit"
    resume(yard, "payment")
    assert yard.permit("pay", by=other).id == release


def test_a_stop_survives_a_restart_and_a_rewind(yard: Yard, tmp_path: Path) -> None:
    yard.accept(operation("payment/1", "approve", version="1"))
    copy = yard.snapshot(tmp_path / "kept")
    stop(yard, "payment", "release")
    yard.close()
    yard.rewind(copy)
    yard.open()
    refused = yard.turn(operation("payment/1", "release", version="1"))[0]
    assert isinstance(refused, Held)


@pytest.mark.parametrize("how", ["stop file", "rewound"])
def test_a_type_can_be_stopped_while_the_tenant_is_closed(
    yard: Yard, tmp_path: Path, how: str
) -> None:
    copy = yard.snapshot(tmp_path / "kept")
    yard.accept(operation("payment/1", "approve", version="1"))
    if how == "rewound":
        yard.close()
        yard.rewind(copy)
        yard.open()
        with pytest.raises(Recovering):
            yard.accept(operation("payment/1", "revoke"))
        yard.diverged()
    else:
        yard.record.stop.put_up("a test", "now", verdict=None)
    stop(yard, "payment")
    assert [hold.kind for hold in yard.do(stopping.stops)] == ["payment"]
    assert resume(yard, "payment") == []
    yard.record.stop.take_down()


# What they permitted.


def test_a_release_that_a_stopped_action_permitted_is_given_to_nobody(yard: Yard) -> None:
    release = yard.release("payment/1")
    before = yard.row(release)
    stop(yard, "payment", "release")
    held = yard.claim("pay")
    assert (held.permits, held.held) == ([], WHY)
    row = yard.row(release)
    assert (row.status, row.step) == ("ready", f"held: {WHY}")
    assert yard.actions("payment/1").count("release.committed") == 0
    # Let go, it is there at once, and not only when its time aside is over.
    resume(yard, "payment", "release")
    assert yard.row(release).step != row.step
    permit = yard.permit("pay")
    assert (permit.id, permit.attempt) == (release, before.attempts + 1)


def test_what_waits_behind_held_work_leaves_all_the_same(yard: Yard) -> None:
    for number in range(40):
        yard.accept(operation(f"bundle/{number}", "approve", version="1"))
        yard.permit_again(f"bundle/{number}")
    paid = yard.release("payment/1")
    stop(yard, "bundle", "release")
    given = yard.claim("pay")
    assert [permit.id for permit in given.permits] == [paid]
    assert given.held is None


def test_a_retry_of_a_stopped_type_waits_too(yard: Yard) -> None:
    release = yard.release("payment/1")
    yard.report(yard.permit("pay"), "failed", evidence="the line broke")
    stop(yard, "payment")
    yard.let_come(release)
    assert yard.claim("pay").held == "payment is stopped: a faulty limit"
    assert yard.status(release) == "retry"


@pytest.mark.parametrize("name", ["payment", "payment/release"])
def test_a_call_is_not_begun_once_its_action_is_stopped(yard: Yard, name: str) -> None:
    for number in (1, 2):
        yard.release(f"payment/{number}")
    permits = yard.claim("pay", id="c-1", limit=2).permits
    letter = yard.release("letter/1")
    stop(yard, *stopping.name_of(name))
    for permit in permits:
        assert yard.beat(permit, CALLING) == []
        assert yard.beat(permit) == [(permit.id, permit.lease)]
    again = yard.claim("pay", id="c-1", limit=2)
    assert again.permits == []
    assert again.held == f"{name} is stopped: a faulty limit"
    posted = yard.permit("post")
    assert yard.beat(posted, CALLING) == [(letter, posted.lease)]


@pytest.mark.parametrize("outcome", ["confirmed", "refused", "unknown"])
def test_what_became_of_a_release_is_taken_whatever_is_stopped(yard: Yard, outcome: str) -> None:
    release = yard.release("letter/1")
    permit = yard.permit("post")
    assert yard.beat(permit, CALLING) == [(release, permit.lease)]
    stop(yard, "letter")
    assert yard.report(permit, outcome).acceptance is not None
    assert yard.status(release) in {"done", "refused", "unknown"}
    # Expiry is moved on as well, and a stopped type stays a known one.
    assert yard.sweep().failed == 0


def test_commands_are_held_by_the_action_that_asked_for_them(tmp_path: Path) -> None:
    made = Yard(lane_settings(tmp_path, lifecycle={"job": JOB}))
    made.accept(operation("job/1", "start"))
    made.accept(operation("job/2", "start"))
    made.accept(operation("job/2", "retry"))
    first, second = made.commands("job/1") + made.commands("job/2")[:1]
    again = made.commands("job/2")[1]
    stop(made, "job", "start")
    (permit,) = made.claim("mail", limit=5).permits
    assert permit.id == again
    for held in (first, second):
        assert made.row(held).step == "held: job/start is stopped: a faulty limit"
    resume(made, "job", "start")
    assert {each.id for each in made.claim("mail", limit=5).permits} == {first, second}
    made.finish()


def test_nothing_is_read_for_stops_while_nothing_is_stopped(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    operations = yard.log.operations

    async def counted(ids: Any) -> Any:
        asked.extend(ids)
        return await operations(ids)

    monkeypatch.setattr(yard.log, "operations", counted)
    yard.accept(operation("task/1", "start"))
    asked.clear()
    yard.claim("mail", id="c-1")
    assert asked == ["c-1"]
    stop(yard, "task", "start")
    asked.clear()
    yard.let_come(yard.commands("task/1")[0])
    yard.claim("mail", id="c-2")
    assert asked[0] == "c-2"


# Other owners of their tables, and the gate.


def test_an_embedded_type_is_stopped_like_any_other(yard: Yard) -> None:
    yard.accept(operation("account/1", "opened", {"balance": 1}))
    stop(yard, "account")
    assert isinstance(yard.turn(operation("account/1", "closed"))[0], Held)


def test_sealed_entries_of_a_stopped_type_are_refused_and_late_ones_are_evidence(
    yard: Yard,
) -> None:
    caller = yard.caller()
    first, second, third, fourth = caller.chain("contract/1", 4)
    yard.append(first, third)
    stop(yard, "contract")
    with pytest.raises(Held):
        yard.append(fourth)
    # What fills a gap was decided before; what is known is answered.
    assert yard.append(second)[0].durable_through == 3
    assert yard.append(third)[0].outcome == "duplicate"
    resume(yard, "contract")
    assert yard.append(fourth)[0].durable_through == 4


def test_the_gate_holds_what_is_stopped_and_names_it(yard: Yard) -> None:
    yard.accept(operation("payment/1", "approve", version="1"))
    yard.accept(operation("payment/2", "approve", version="1"))
    yard.accept(operation("payment/2", "release", version="1"))
    stop(yard, "payment", "release")
    assert gate(yard, "payment/1") == (GO, ())
    assert gate(yard, "payment/2") == (HELD, (f"held: {WHY}",))
    stop(yard, "payment")
    assert gate(yard, "payment/1")[0] == HELD
    assert gate(yard, "letter/1")[1] == ("unknown: the journal holds no decision of this entity",)


# Stopping and letting go.


def test_stopping_and_letting_go_twice_acts_once(yard: Yard) -> None:
    before = yard.control().sequence
    first = stop(yard, "payment", "release")
    assert stop(yard, "payment", "release") == first
    assert yard.control().sequence == before + 1
    assert resume(yard, "payment", "release") == []
    assert resume(yard, "payment", "release") == []
    assert yard.control().sequence == before + 2


def test_letting_go_of_a_part_says_what_is_still_stopped(yard: Yard) -> None:
    stop(yard, "payment")
    stop(yard, "payment", "release")
    assert [hold.action for hold in resume(yard, "payment")] == ["release"]
    stop(yard, "payment")
    assert [hold.action for hold in resume(yard, "payment", "release")] == [None]
    with pytest.raises(Refused, match="resume payment, not payment/release"):
        resume(yard, "payment", "release")


UNFIT: dict[str, tuple[str, str | None, type[Exception], str]] = {
    "a type that nobody declared": ("paymnt", None, NotFound, "declared: .*payment"),
    "an action that nobody declared": ("payment", "releese", NotFound, "declared: .*release"),
    "what became of a release": ("payment", "release.confirmed", Invalid, "pause their lane"),
    "no action at all": ("case", "", Invalid, "action"),
}


@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("how", [stop, resume])
def test_a_name_that_would_stop_nothing_is_refused(
    yard: Yard, name: str, how: Callable[..., Any]
) -> None:
    kind, action, error, message = UNFIT[name]
    before = yard.control().sequence
    with pytest.raises(error, match=message):
        how(yard, kind, action)
    assert yard.control().sequence == before


def test_an_action_of_a_free_type_has_any_name(yard: Yard) -> None:
    stop(yard, "case", "noted")
    assert isinstance(yard.turn(operation("case/1", "noted"))[0], Held)
    assert yard.accept(operation("case/1", "opened")).state == "opened"
