"""Outcomes: every rule about what follows from a report, an answer, or silence."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import Invalid
from journal.lanes import Contract, Effect, Lane, Terms
from journal.outcomes import (
    CALLING,
    PICKED_UP,
    Change,
    Decide,
    Outcome,
    Put,
    Reported,
    Told,
    after_answer,
    after_command,
    after_expiry,
    after_report_of_worker,
    before_attempt,
    can_ask,
    check_reported,
    jitter,
    may_have_called,
    repeatable,
)
from journal.release import Report
from journal.work import Status, Work, after_seconds, seconds_since
from tests.support.releases import row_of_work

NOW = "2026-03-14T12:00:00.000000Z"
INSIDE = "2026-03-14T11:00:00.000000Z"
OUTSIDE = "2026-03-13T11:59:59.000000Z"
DAY = 86_400.0
LEASE = (1 << 32) + 7
SENT, OTHER = "a" * 64, "b" * 64

LANE = Lane(attempts=3, expirations=2)


def row(**changes: Any) -> Work:
    return row_of_work(
        **{"lease": LEASE, "step": CALLING, "committed": INSIDE, "claimed": INSIDE, **changes}
    )


def terms(contract: Contract) -> Terms:
    return Terms(contract, 0.0 if contract is Contract.OPAQUE else DAY, 10.0, 60.0)


def said(outcome: Outcome, **fields: Any) -> Reported:
    return Reported("rel_1", outcome, LEASE, **fields)


def kind_of(change: Change) -> str:
    """The change in one word: a decision's name, `dead`, or the status that a row is put to."""
    if isinstance(change, Put):
        return change.row.status
    return "dead" if change.report.dead else change.action.removeprefix("release.")


def report(work: Work, outcome: Outcome, contract: Contract, **fields: Any) -> Change:
    ask = fields.pop("ask", False)
    chance = fields.pop("chance", 0.5)
    heard = said(outcome, **fields)
    return after_report_of_worker(work, heard, LANE, terms(contract), NOW, chance, ask=ask)


# A worker reports: the whole table.


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("outcome", Outcome)
def test_every_report_under_every_contract_leads_where_the_table_says(
    contract: Contract, outcome: Outcome
) -> None:
    flags = list(product([False, True], repeat=5))
    for before, inside, ask, cancel, spent in flags:
        work = row(
            maybe=int(before),
            committed=INSIDE if inside else OUTSIDE,
            cancel_requested=int(cancel),
            failures=LANE.attempts - 1 if spent else 0,
            attempts=2,
        )
        change = report(work, outcome, contract, ask=ask)
        assert kind_of(change) == wanted(contract, outcome, before, inside, ask, cancel, spent), (
            before,
            inside,
            ask,
            cancel,
            spent,
        )


def wanted(
    contract: Contract,
    outcome: Outcome,
    before: bool,
    inside: bool,
    ask: bool,
    cancel: bool,
    spent: bool,
) -> str:
    if outcome is Outcome.CONFIRMED:
        return "confirmed"
    if outcome is Outcome.REFUSED:
        return "unknown" if before else "refused"
    maybe = before or outcome is not Outcome.FAILED
    suppressed = contract is Contract.IDEMPOTENT and inside
    if outcome is Outcome.PENDING:
        return "pending" if ask else "retry" if suppressed else "unknown"
    if maybe and not suppressed:
        return "unknown"
    if cancel:
        return "unknown" if maybe else "cancelled"
    return "dead" if spent else "retry"


ROWS = st.builds(
    row,
    maybe=st.sampled_from([0, 1]),
    committed=st.sampled_from([INSIDE, OUTSIDE, None]),
    cancel_requested=st.sampled_from([0, 1]),
    failures=st.integers(0, 5),
    expired=st.integers(0, 5),
    attempts=st.integers(1, 9),
    digest=st.sampled_from([None, SENT]),
    step=st.sampled_from([CALLING, f"{PICKED_UP} by w1", "permit given to w1", "half way"]),
    started=st.sampled_from([None, INSIDE]),
)
CONTRACTS = st.sampled_from(list(Contract))
OUTCOMES = st.sampled_from(list(Outcome))
CHANCES = st.floats(0, 1, exclude_max=True)
DIGESTS = st.sampled_from([None, SENT, OTHER])
WAITS = st.one_of(st.none(), st.floats(-1e9, 1e300))


def is_suppressed(work: Work, contract: Contract) -> bool:
    """Whether the receiver still suppresses a repeat, counted from the first commitment."""
    inside = work.committed is not None and seconds_since(work.committed, NOW) < DAY
    return contract is Contract.IDEMPOTENT and inside


@given(ROWS, OUTCOMES, CONTRACTS, st.booleans(), CHANCES, DIGESTS, WAITS)
def test_p4_nothing_that_may_have_happened_is_tried_again_unless_the_receiver_suppresses_it(
    work: Work,
    outcome: Outcome,
    contract: Contract,
    ask: bool,
    chance: float,
    digest: str | None,
    wait: float | None,
) -> None:
    change = report(
        work, outcome, contract, ask=ask, chance=chance, digest=digest, retry_after=wait
    )
    if isinstance(change, Put) and change.row.status == Status.RETRY:
        assert not change.row.maybe or is_suppressed(work, contract)
        assert change.row.due is not None
        assert change.row.due >= NOW
        assert change.row.failures <= work.failures + 1
    if isinstance(change, Put):
        assert change.row.status in {Status.RETRY, Status.PENDING}
        assert (change.row.claim, change.row.sweep_at) == (None, None)
        # It may have happened before, or may have now: that is never unsaid.
        assert change.row.maybe >= work.maybe
        assert change.row.maybe or outcome is Outcome.FAILED


@given(ROWS, OUTCOMES, CONTRACTS, st.booleans(), DIGESTS)
def test_l16_a_lost_reply_never_ends_as_refused_or_as_surely_not_done(
    work: Work, outcome: Outcome, contract: Contract, ask: bool, digest: str | None
) -> None:
    change = report(work, outcome, contract, ask=ask, digest=digest)
    if outcome in {Outcome.CONFIRMED, Outcome.REFUSED} and digest != OTHER:
        return
    if isinstance(change, Decide):
        lost = outcome in {Outcome.UNKNOWN, Outcome.PENDING} or bool(work.maybe)
        if lost and outcome is not Outcome.REFUSED:
            assert change.action in {"release.unknown", "release.confirmed"}
        if change.action == "release.unknown" and lost:
            assert change.report.maybe
        if change.action == "release.cancelled":
            assert not lost


@given(ROWS, CONTRACTS, st.booleans())
def test_p4_a_receipt_for_other_content_is_no_receipt(
    work: Work, contract: Contract, ask: bool
) -> None:
    change = report(work, Outcome.CONFIRMED, contract, ask=ask, digest=OTHER)
    if work.digest is None:
        assert kind_of(change) == "confirmed"
        return
    assert isinstance(change, Decide)
    assert kind_of(change) == "unknown"
    assert change.report.evidence == f"the receipt is for content {OTHER}, not {SENT}"
    assert change.report.maybe
    assert change.report.ask is ask


def test_a_late_refusal_of_the_only_attempt_is_one() -> None:
    swept = row(status="unknown", maybe=1)
    assert kind_of(report(swept, Outcome.REFUSED, Contract.OPAQUE)) == "refused"
    second = row(status="unknown", maybe=1, attempts=2)
    assert kind_of(report(second, Outcome.REFUSED, Contract.OPAQUE)) == "unknown"


def test_a_report_says_who_saw_what() -> None:
    change = report(
        row(),
        Outcome.CONFIRMED,
        Contract.OPAQUE,
        evidence="200 OK\n\x00twice",
        receipt="r-1",
        digest=SENT,
        worker="w2",
        execution="run-3",
    )
    assert isinstance(change, Decide)
    assert change.report == Report(
        "rel_1",
        LEASE,
        "w2",
        "run-3",
        "200 OK twice",
        "r-1",
        SENT,
        dead=False,
        maybe=False,
        ask=False,
    )
    silent = report(row(execution="run-1"), Outcome.CONFIRMED, Contract.OPAQUE)
    assert isinstance(silent, Decide)
    assert (silent.report.worker, silent.report.execution) == ("w1", "run-1")


@pytest.mark.parametrize("field", ["receipt", "digest", "worker", "execution"])
def test_a_report_that_no_entry_could_hold_is_refused(field: str) -> None:
    check_reported(said(Outcome.CONFIRMED, **{field: "x" * 1024}))
    with pytest.raises(Invalid):
        check_reported(said(Outcome.CONFIRMED, **{field: "x" * 1025}))


# Waiting.


@given(st.integers(1, 10_000), CHANCES, st.floats(0.001, 100), st.floats(0.001, 10_000))
def test_full_jitter_lies_between_nothing_and_a_bound_that_doubles_up_to_its_cap(
    failures: int, chance: float, backoff: float, cap: float
) -> None:
    lane = Lane(backoff=backoff, backoff_cap=cap)
    wait = jitter(failures, lane, chance)
    bound = min(cap, backoff * 2.0 ** min(failures - 1, 200))
    assert 0 <= wait <= bound
    assert jitter(failures, lane, 0.0) == 0
    assert jitter(failures, lane, 0.5) <= jitter(failures + 1, lane, 0.5)


@given(ROWS, WAITS, CHANCES)
def test_the_receivers_wish_to_be_left_alone_is_kept_within_reason(
    work: Work, wait: float | None, chance: float
) -> None:
    work = msgspec.structs.replace(work, maybe=0, cancel_requested=0, failures=0)
    change = report(work, Outcome.FAILED, Contract.OPAQUE, retry_after=wait, chance=chance)
    assert isinstance(change, Put)
    assert change.row.due is not None
    waits = seconds_since(NOW, change.row.due)
    assert waits <= 30 * DAY
    assert waits >= min(wait or 0.0, 30 * DAY) - 0.001


# Nobody reports.


@given(ROWS, CONTRACTS, st.booleans())
def test_l6_an_expired_lease_spends_no_failure(work: Work, contract: Contract, ask: bool) -> None:
    change = after_expiry(work, LANE, terms(contract), NOW, ask=ask)
    if isinstance(change, Put):
        assert change.row.failures == work.failures
        assert change.row.expired == work.expired + 1


@given(ROWS, CONTRACTS, st.booleans())
def test_p4_elapsed_time_alone_sends_nothing_again(
    work: Work, contract: Contract, ask: bool
) -> None:
    change = after_expiry(work, LANE, terms(contract), NOW, ask=ask)
    called = bool(work.maybe) or may_have_called(work)
    if called and not is_suppressed(work, contract):
        assert isinstance(change, Decide)
        assert kind_of(change) == "unknown"
        assert (change.report.maybe, change.report.ask) == (True, ask)
    if isinstance(change, Put) and change.row.status == Status.RETRY:
        assert not called or is_suppressed(work, contract)
        assert change.row.maybe == int(called)
    # L16: silence is never taken for a refusal, nor for a cancellation of what may have happened.
    assert kind_of(change) in {"unknown", "retry", "dead", "cancelled"}
    assert kind_of(change) != "cancelled" or not called


@given(ROWS, CONTRACTS, st.booleans())
def test_l6_the_evidence_of_an_expiry_is_the_step_that_it_was_in(
    work: Work, contract: Contract, ask: bool
) -> None:
    change = after_expiry(work, LANE, terms(contract), NOW, ask=ask)
    evidence = change.report.evidence if isinstance(change, Decide) else change.row.last_error
    assert evidence is not None
    assert work.step in evidence


@pytest.mark.parametrize("effect", [Effect.INTERNAL, Effect.BEST_EFFORT])
def test_l6_a_dead_letter_of_lost_workers_shows_its_last_evidence(effect: Effect) -> None:
    work = row(effect=str(effect), step="half way", last_error="broken", failures=1)
    for expired in range(1, LANE.expirations):
        change = after_expiry(work, LANE, terms(Contract.OPAQUE), NOW, ask=False)
        assert isinstance(change, Put)
        assert (change.row.status, change.row.expired) == ("retry", expired)
        work = msgspec.structs.replace(change.row, status="running", step="half way")
    change = after_expiry(work, LANE, terms(Contract.OPAQUE), NOW, ask=False)
    assert isinstance(change, Put)
    assert (change.row.status, change.row.failures, change.row.due) == ("dead", 1, None)
    assert change.row.last_error == "its time was over in step: half way"


STEPS = {
    f"{PICKED_UP} by w1": (None, False),
    CALLING: (INSIDE, True),
    "permit given to w1": (None, True),
    f"{PICKED_UP} the parcel": (INSIDE, True),
    "committed; how far its attempt got is not known here": (None, True),
}


@pytest.mark.parametrize("step", STEPS)
def test_only_what_was_picked_up_and_never_started_has_surely_not_called(step: str) -> None:
    started, called = STEPS[step]
    assert may_have_called(row(step=step, started=started)) is called


# Before another attempt.


@given(ROWS, CONTRACTS, st.booleans())
def test_p4_an_attempt_begins_only_where_nothing_stands_in_its_way(
    work: Work, contract: Contract, ask: bool
) -> None:
    stop = before_attempt(work, LANE, terms(contract), NOW, ask=ask)
    free = not work.maybe or is_suppressed(work, contract)
    assert (stop is None) == (free and not work.cancel_requested and work.failures < LANE.attempts)
    if stop is None:
        return
    assert stop.report.lease is None
    if work.maybe:
        assert kind_of(stop) in {"unknown", "dead"}
        assert stop.report.maybe
    elif work.cancel_requested:
        assert kind_of(stop) == "cancelled"
    else:
        assert kind_of(stop) == "dead"


@given(ROWS, CONTRACTS)
def test_the_window_is_counted_from_the_first_commitment(work: Work, contract: Contract) -> None:
    assert repeatable(work, terms(contract), NOW) == (
        not work.maybe or is_suppressed(work, contract)
    )
    edge = msgspec.structs.replace(work, maybe=1, committed=after_seconds(NOW, -DAY))
    assert not repeatable(edge, terms(contract), NOW)
    # The call has to arrive within it, too; a clock that was set back proves nothing.
    for since in (10 - DAY, 3600):
        other = msgspec.structs.replace(work, maybe=1, committed=after_seconds(NOW, since))
        assert not repeatable(other, terms(contract), NOW)
    just = msgspec.structs.replace(work, maybe=1, committed=after_seconds(NOW, 10.001 - DAY))
    assert repeatable(just, terms(contract), NOW) == (contract is Contract.IDEMPOTENT)


# The receiver was asked.

ASKED = st.builds(
    row,
    status=st.sampled_from(["unknown", "pending"]),
    maybe=st.just(1),
    committed=st.sampled_from([INSIDE, OUTSIDE]),
    started=st.sampled_from([None, INSIDE, after_seconds(NOW, -70.0), after_seconds(NOW, -71.0)]),
    cancel_requested=st.sampled_from([0, 1]),
    digest=st.sampled_from([None, SENT]),
    failures=st.integers(0, 5),
)


@given(ASKED, st.sampled_from(list(Told)), DIGESTS, st.booleans())
def test_p4_only_a_receiver_that_surely_has_not_done_it_gets_it_again(
    work: Work, told: Told, digest: str | None, over: bool
) -> None:
    heard = Reported("rel_1", Outcome.UNKNOWN, evidence="asked", digest=digest)
    agreed = terms(Contract.QUERYABLE)
    change = after_answer(work, told, heard, agreed, NOW, 15.0, over=over)
    passed = seconds_since(work.started or work.claimed, NOW) > agreed.timeout + agreed.works
    kept = work.committed == INSIDE
    proven = told is Told.VOID or (told is Told.NOT_FOUND and over and passed and kept)
    kind = kind_of(change)
    assert (kind in {"retry", "cancelled"}) == proven
    if proven:
        assert kind == ("cancelled" if work.cancel_requested else "retry")
    if isinstance(change, Put) and kind == "retry":
        # And never without end: each round counts.
        assert (change.row.maybe, change.row.failures) == (0, work.failures + 1)
    differs = None not in {digest, work.digest} and digest != work.digest
    assert (kind == "confirmed") == (told is Told.DONE and not differs)
    assert (kind == "refused") == (told is Told.REFUSED)


@pytest.mark.parametrize("told", [Told.PENDING, Told.UNKNOWN, Told.NOT_FOUND])
@pytest.mark.parametrize("status", ["pending", "unknown"])
def test_a_receiver_that_cannot_tell_yet_is_asked_again(told: Told, status: str) -> None:
    work = row(status=status, maybe=1)
    heard = Reported("rel_1", Outcome.UNKNOWN, evidence="still at it")
    change = after_answer(work, told, heard, terms(Contract.QUERYABLE), NOW, 15.0, over=False)
    assert isinstance(change, Put)
    assert change.row.status == ("pending" if told is Told.PENDING else status)
    assert change.row.due == after_seconds(NOW, 15.0)
    assert change.row.last_error == "still at it"


@pytest.mark.parametrize("contract", Contract)
@pytest.mark.parametrize("receiver", ["bank", None])
@pytest.mark.parametrize("by_url", [False, True])
def test_only_a_receiver_with_a_lookup_is_asked(
    contract: Contract, receiver: str | None, by_url: bool
) -> None:
    asked = can_ask(row(receiver=receiver), terms(contract), asked_by_url=by_url)
    assert asked == (by_url and receiver is not None and contract is not Contract.OPAQUE)


# Commands.


@given(st.integers(0, 5), OUTCOMES, CHANCES, WAITS)
def test_a_command_ends_done_or_dead_and_is_run_again_until_then(
    failures: int, outcome: Outcome, chance: float, wait: float | None
) -> None:
    work = row(effect="internal", failures=failures)
    heard = said(outcome, evidence="why", retry_after=wait)
    put = after_command(work, heard, LANE, NOW, chance)
    if outcome is Outcome.CONFIRMED:
        assert (put.row.status, put.row.finished, put.row.failures) == ("done", NOW, failures)
        return
    assert put.row.failures == failures + 1
    spent = failures + 1 >= LANE.attempts or outcome is Outcome.REFUSED
    assert put.row.status == ("dead" if spent else "retry")
    assert (put.row.due is None) == spent
    assert put.row.last_error == "why"
