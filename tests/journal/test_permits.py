"""Permits: who may attempt a release, and what must be in the journal before."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from journal import handling
from journal.control import Stage
from journal.errors import (
    DiskFailed,
    EngineError,
    HistoryIncomplete,
    Invalid,
    JournalUnavailable,
    LeaseLost,
    NotFound,
    OperationReused,
    Recovering,
    StaleGeneration,
    TransitionRefused,
    WriterStopped,
)
from journal.lifecycle import Owner
from journal.outcomes import CALLING, Outcome
from journal.permits import MAX_CLAIM, Asked, claim
from journal.reports import GENERATION_BITS
from journal.store import work as works
from journal.worker import drive
from tests.support.faults import fail_log, fail_store
from tests.support.releases import Yard, lane_settings, releasing
from tests.support.tenants import operation

# A release is due from the moment on in which it was permitted.


async def test_what_was_permitted_in_this_millisecond_is_due(yard: Yard) -> None:
    assert yard.record.store is not None
    for _ in range(500):
        before = yard.record.clock.now()
        ((now,),) = (await yard.record.store.read([works.READ_NOW]))[0]
        assert before <= now


# P3: the journal holds the commitment first.


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("limit", [1, 3])
def test_p3_no_permit_comes_out_while_the_journal_cannot_hold_its_commitment(
    yard: Yard, when: str, limit: int
) -> None:
    for number in range(limit):
        yard.release(f"payment/{number}")
    fail_log(yard.record, **{when: [EngineError("the journal is away")]})
    with pytest.raises(JournalUnavailable):
        yard.claim("pay", id="c-1", limit=limit)
    # The commitment may be in the store; nobody has a permit. The same claim finishes it.
    given = yard.claim("pay", id="c-1", limit=limit).permits
    assert len(given) == limit
    held = {row.digest for row in drive(yard.log.decisions(0, 1000))}
    assert {permit.commitment for permit in given} <= held
    for number in range(limit):
        assert yard.actions(f"payment/{number}").count("release.committed") == 1
    assert yard.claim("pay", limit=limit).permits == []


def test_p3_a_store_that_refuses_the_commitment_gives_no_permit(yard: Yard) -> None:
    first = yard.release("payment/1")
    fail_store(yard.record, before=[EngineError("the store is away")])
    with pytest.raises(JournalUnavailable):
        yard.claim("pay", id="c-1")
    assert yard.status(first) == "ready"
    assert yard.permit("pay", id="c-1").id == first


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", ["store", "journal"])
def test_p3_after_a_disk_error_nothing_more_is_permitted_until_a_restart(
    yard: Yard, where: str, when: str
) -> None:
    first = yard.release("payment/1")
    fail = fail_store if where == "store" else fail_log
    errors: list[EngineError] = [DiskFailed("EIO")]
    fail(yard.record, **{when: errors})
    for _ in range(2):
        with pytest.raises(WriterStopped):
            yard.claim("pay", id="c-1")
    yard.crash()
    yard.open()
    permit = yard.permit("pay", id="c-1")
    assert permit.id == first
    assert yard.actions("payment/1").count("release.committed") == 1


def test_p3_every_attempt_is_journalled_before_it_begins_not_the_first_alone(yard: Yard) -> None:
    first = yard.release("letter/1")
    for number in range(1, 4):
        yard.let_come(first)
        fail_log(yard.record, before=[EngineError("the journal is away")])
        with pytest.raises(JournalUnavailable):
            yard.claim("post", id=f"c-{number}")
        permit = yard.permit("post", id=f"c-{number}")
        assert permit.attempt == number
        assert yard.actions("letter/1").count("release.committed") == number
        yard.report(permit, "failed", evidence="the printer is on fire")
    assert yard.row(first).committed == yard.first_commitment("letter/1")


def test_p3_a_commitment_names_the_claim_that_made_it(yard: Yard) -> None:
    yard.release("payment/1")
    permit = yard.permit("pay", id="c-77", worker="w-7")
    (found,) = drive(yard.log.operations(["c-77"]))
    assert found.digest == permit.commitment
    assert found.entry().envelope.actor == "w-7"
    facts = msgspec.json.decode(found.body)
    assert facts["release"] == permit.id
    assert facts["lease"] == permit.lease


# P4: what is known to have happened is not sent again.


def test_p4_a_release_whose_receipt_is_known_is_given_to_nobody(yard: Yard) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.report(permit, "confirmed", receipt="r-1")
    for outcome in ("failed", "unknown", "refused", "pending"):
        with pytest.raises((LeaseLost, TransitionRefused)):
            yard.report(permit, outcome)
    yard.let_expire(first)
    assert yard.sweep().count == 0
    assert yard.claim("pay").permits == []
    assert yard.do(handling.replay, [first], "once more").done == []


def test_p4_an_observed_receipt_counts_as_known(yard: Yard) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.report(permit, "unknown")
    yard.observe(permit, "confirmed", receipt="r-1")
    yard.let_come(first)
    assert yard.claim("pay").permits == []
    assert yard.row(first).step.startswith("done: observed: ")
    yard.sweep()
    assert yard.row(first).status == "done"


def test_p4_a_refusal_of_an_earlier_attempt_says_nothing_of_a_later_one(yard: Yard) -> None:
    first = yard.release("payment/1")
    old = yard.permit("pay")
    yard.let_expire(first)
    yard.sweep()
    new = yard.permit("pay")
    assert new.lease > old.lease
    with pytest.raises(LeaseLost):
        yard.report(old, "refused")
    yard.observe(old, "refused")
    yard.sweep()
    assert yard.status(first) == "running"
    assert yard.report(new, "confirmed", receipt="r-2").status == "done"


def test_p4_an_old_refusal_keeps_no_later_attempt_back(yard: Yard) -> None:
    first = yard.release("payment/1")
    old = yard.permit("pay")
    yard.let_expire(first)
    yard.sweep()
    new = yard.permit("pay")
    yard.observe(old, "refused")
    yard.report(new, "failed")
    yard.let_come(first)
    assert yard.permit("pay").id == first


def test_p4_a_receipt_for_other_content_is_no_receipt(yard: Yard) -> None:
    sent, other = "a" * 64, "b" * 64
    first = yard.release("letter/1", digest=sent)
    permit = yard.permit("post")
    yard.report(permit, "confirmed", receipt="r-1", digest=other)
    row = yard.row(first)
    assert row.status == "unknown"
    assert row.last_error == f"the receipt is for content {other}, not {sent}"


def test_p4_an_observed_receipt_for_other_content_is_no_receipt_either(yard: Yard) -> None:
    sent, other = "a" * 64, "b" * 64
    first = yard.release("payment/1", digest=sent)
    old = yard.permit("pay")
    yard.let_expire(first)
    yard.sweep()
    yard.observe(old, "confirmed", receipt="r-1", digest=other)
    yard.sweep()
    row = yard.row(first)
    assert (row.status, row.receipt) == ("unknown", None)
    assert row.last_error is not None
    assert other in row.last_error


# P5: one entity's flaw holds its releases and nobody else's.


@pytest.mark.parametrize("attempted", [False, True])
def test_p5_an_incomplete_history_holds_its_releases_and_nobody_elses(
    yard: Yard, attempted: bool
) -> None:
    held = yard.release("payment/1")
    if attempted:
        yard.report(yard.permit("pay"), "failed")
        yard.let_come(held)
    other = yard.release("payment/2")
    yard.flaw("payment/1")
    given = yard.claim("pay", limit=1).permits
    assert [permit.id for permit in given] == [other]
    assert "the history of payment/1 is incomplete" in yard.row(held).step
    yard.report(given[0], "confirmed")
    yard.flaw("payment/1", mend=True)
    yard.let_come(held)
    assert yard.permit("pay").id == held


def test_p5_an_outcome_for_an_incomplete_history_is_kept_and_settled_once_it_is_whole(
    yard: Yard,
) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.flaw("payment/1")
    with pytest.raises(HistoryIncomplete):
        yard.report(permit, "confirmed", receipt="r-1")
    yard.observe(permit, "confirmed", receipt="r-1")
    for _ in range(2):
        yard.sweep()
        assert yard.status(first) == "running"
    yard.flaw("payment/1", mend=True)
    yard.sweep()
    assert yard.status(first) == "done"


# P7: what belongs to an ended generation.


def test_p7_a_report_under_a_claim_of_an_ended_generation_decides_nothing(yard: Yard) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    yard.recover()
    revisions = yard.actions("payment/1")
    for outcome in Outcome:
        with pytest.raises(StaleGeneration):
            yard.report(permit, str(outcome))
    assert yard.actions("payment/1") == revisions
    assert yard.status(first) == "running"


def test_p7_a_claim_of_an_ended_generation_is_kept_alive_by_nobody(yard: Yard) -> None:
    first = yard.release("payment/1")
    permit = yard.permit("pay")
    assert yard.beat(permit) == [(first, permit.lease)]
    yard.recover()
    before = yard.row(first)
    assert yard.beat(permit) == []
    assert yard.beat(permit, CALLING) == []
    assert yard.row(first) == before


def test_p7_repeating_a_claim_of_an_ended_generation_gives_no_permit(yard: Yard) -> None:
    yard.release("payment/1")
    yard.permit("pay", id="c-1")
    yard.recover()
    with pytest.raises(StaleGeneration):
        yard.claim("pay", id="c-1")


def test_p7_lease_numbers_rise_through_recoveries(yard: Yard) -> None:
    first = yard.release("payment/1")
    leases = []
    for _ in range(3):
        yard.let_come(first)
        permit = yard.permit("pay")
        leases.append(permit.lease)
        assert permit.lease >> GENERATION_BITS == yard.control().authority.generation
        yard.report(permit, "failed")
        yard.recover()
    assert leases == sorted(set(leases))


@pytest.mark.parametrize("stage", [Stage.CLOSED, Stage.READING, Stage.INTERNAL])
def test_p7_no_effect_is_committed_to_in_a_stage_that_allows_none(yard: Yard, stage: Stage) -> None:
    first = yard.release("payment/1")
    yard.put_in_force(stage=stage)
    if stage.decides:
        claimed = yard.claim("pay")
        assert claimed.permits == []
        assert claimed.held is not None
        assert "internal" in claimed.held
    else:
        with pytest.raises(Recovering):
            yard.claim("pay")
    yard.put_in_force(stage=Stage.OPEN)
    assert yard.permit("pay").id == first


def test_p7_in_a_stage_without_effects_nothing_begins_and_no_permit_is_repeated(
    yard: Yard,
) -> None:
    yard.release("payment/1")
    permit = yard.permit("pay", id="c-1")
    yard.put_in_force(stage=Stage.INTERNAL)
    with pytest.raises(Recovering):
        yard.beat(permit, CALLING)
    repeated = yard.claim("pay", id="c-1")
    assert repeated.permits == []
    assert repeated.held is not None
    # What was done may be told in any stage that takes decisions.
    assert yard.report(permit, "confirmed").status == "done"
    yard.put_in_force(stage=Stage.OPEN)


def test_p7_internal_work_goes_on_in_a_stage_without_effects(yard: Yard) -> None:
    yard.put_in_force(stage=Stage.INTERNAL)
    yard.accept(operation("task/1", "start"))
    assert yard.permit("mail").name == "first"
    yard.put_in_force(stage=Stage.OPEN)


# Claims.


def test_a_claim_repeated_gives_the_same_permits(yard: Yard) -> None:
    for number in range(3):
        yard.release(f"payment/{number}")
    first = yard.claim("pay", id="c-1", limit=2).permits
    assert len(first) == 2
    again = yard.claim("pay", id="c-1", limit=2).permits
    assert {permit.id: permit for permit in again} == {permit.id: permit for permit in first}
    yard.report(first[0], "confirmed")
    assert [permit.id for permit in yard.claim("pay", id="c-1", limit=2).permits] == [first[1].id]


def test_a_claim_repeated_names_the_commitment_to_its_own_attempt(yard: Yard) -> None:
    first = yard.release("letter/1")
    before = yard.permit("post", id="c-1")
    yard.report(before, "failed")
    yard.let_come(first)
    permit = yard.permit("post", id="c-2")
    assert yard.permit("post", id="c-2") == permit
    assert permit.commitment != before.commitment


def test_a_commitment_that_the_application_refuses_holds_its_own_release_alone(
    tmp_path: Path,
) -> None:
    voucher = msgspec.structs.replace(
        releasing("pay"), owner=Owner.EMBEDDED, projection="tests.support.ledger:Closed"
    )
    made = Yard(lane_settings(tmp_path, lifecycle={"voucher": voucher}))
    closed = made.release("voucher/closed")
    others = [made.release(f"voucher/{number}") for number in range(2)]
    given = made.claim("pay", id="c-1", limit=3).permits
    assert [permit.id for permit in given] == others
    assert made.status(closed) == "ready"
    assert "this account is closed" in made.row(closed).step
    # Committed in halves, each runs under the claim all the same, and for its whole time.
    assert made.sweep().moved == []
    assert {made.row(identity).claim for identity in others} == {"c-1"}
    assert [permit.id for permit in made.claim("pay", id="c-1", limit=3).permits] == others
    made.finish()


@pytest.mark.parametrize("outcome", ["confirmed", "refused", "failed", "unknown"])
def test_a_finished_claims_repeat_is_refused(yard: Yard, outcome: str) -> None:
    first = yard.release("payment/1")
    yard.report(yard.permit("pay", id="c-1"), outcome)
    yard.release("payment/2")
    with pytest.raises(LeaseLost) as refused:
        yard.claim("pay", id="c-1")
    assert refused.value.members == {"release": first}


def test_a_finished_claims_repeat_is_refused_after_a_second_attempt_too(yard: Yard) -> None:
    first = yard.release("letter/1")
    yard.report(yard.permit("post", id="c-1"), "failed")
    yard.let_come(first)
    yard.report(yard.permit("post", id="c-2"), "confirmed")
    yard.release("letter/2")
    for identity in ("c-1", "c-2"):
        with pytest.raises(LeaseLost):
            yard.claim("post", id=identity)


@pytest.mark.parametrize("field", ["worker", "lane"])
def test_p6_a_claims_id_used_by_another_gives_it_no_permit(yard: Yard, field: str) -> None:
    yard.release("payment/1")
    yard.release("letter/1")
    yard.permit("pay", id="c-1", worker="w1")
    lane, worker = ("pay", "w2") if field == "worker" else ("post", "w1")
    with pytest.raises(OperationReused) as refused:
        yard.claim(lane, id="c-1", worker=worker)
    assert refused.value.members == {"differing": [field]}


def test_p6_a_claim_needs_an_id_that_no_decision_has(yard: Yard) -> None:
    yard.accept(operation("case/1", "set", id="op-1"))
    yard.release("payment/1")
    with pytest.raises(Invalid, match="belongs to set of case/1"):
        yard.claim("pay", id="op-1")


WRONG_CLAIMS: dict[str, Asked] = {
    "no operation": Asked("pay", "w", ""),
    "an operation too long": Asked("pay", "w", "o" * 249),
    "no worker": Asked("pay", "", "c"),
    "a worker too long": Asked("pay", "w" * 1025, "c"),
    "an execution too long": Asked("pay", "w", "c", execution="e" * 1025),
    "none at all": Asked("pay", "w", "c", 0),
    "too many": Asked("pay", "w", "c", MAX_CLAIM + 1),
}


@pytest.mark.parametrize("what", WRONG_CLAIMS)
def test_a_claim_that_nobody_can_mean_is_refused(yard: Yard, what: str) -> None:
    yard.release("payment/1")
    with pytest.raises(Invalid):
        yard.do(claim, WRONG_CLAIMS[what])


def test_a_lane_that_is_not_declared_is_named_with_those_that_are(yard: Yard) -> None:
    with pytest.raises(NotFound, match=r"declared: .*delivery.*pay"):
        yard.claim("nowhere")


def test_a_permit_has_what_its_contract_allows(yard: Yard) -> None:
    yard.release("payment/1", recipient="ada", digest="a" * 64)
    yard.release("letter/1")
    idempotent, opaque = yard.permit("pay"), yard.permit("post")
    assert (idempotent.contract, idempotent.key) == ("idempotent", idempotent.id)
    assert (opaque.contract, opaque.key) == ("opaque", None)
    assert (idempotent.recipient, idempotent.digest) == ("ada", "a" * 64)
    assert msgspec.json.decode(idempotent.data) == {"recipient": "ada", "digest": "a" * 64}
    lane = yard.settings.lanes["pay"]
    assert idempotent.beat_every * 2 < lane.lease


def test_l11_an_expired_claims_late_report_is_refused_once_another_holds(yard: Yard) -> None:
    first = yard.release("payment/1")
    old = yard.permit("pay")
    yard.let_expire(first)
    yard.sweep()
    new = yard.permit("pay", worker="w2")
    for outcome in Outcome:
        with pytest.raises(LeaseLost):
            yard.report(old, str(outcome))
    assert yard.beat(old) == []
    assert yard.beat(new) == [(first, new.lease)]


def test_a_late_confirmation_of_the_newest_claim_is_taken_after_its_time(yard: Yard) -> None:
    first = yard.release("letter/1")
    permit = yard.permit("post")
    yard.let_expire(first)
    yard.sweep()
    assert yard.status(first) == "unknown"
    assert yard.report(permit, "confirmed", receipt="r-1").status == "done"
