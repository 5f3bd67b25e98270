"""Outcomes: what becomes of claimed work when its worker reports, fails, or is heard of no more.

Pure. Each rule takes a row and what was observed, and gives a *change*: a decision to make
(``Decide``), because it says something about the world, or a row to put (``Put``), because it only
says what unrewind will do next. A timeout is an observation, never a failure; elapsed time alone
sends nothing again.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import Struct

from journal.entry import check_text
from journal.lanes import Contract, Effect, Lane, Terms
from journal.lifecycle import RELEASE_ACTIONS
from journal.release import Report
from journal.work import Status, Work, after_seconds, finish, note, seconds_since

_MOST_DOUBLINGS = 32
_LONGEST_WAIT = 30 * 86_400.0


class Outcome(StrEnum):
    """What a worker, or a call to a receiver, says about its attempt."""

    CONFIRMED = "confirmed"
    """It happened."""
    REFUSED = "refused"
    """It was refused for good; nothing happened."""
    FAILED = "failed"
    """Surely nothing happened; it may be attempted again."""
    UNKNOWN = "unknown"
    """It may have happened."""
    PENDING = "pending"
    """The receiver has it and is at work."""


class Reported(Struct, frozen=True):
    """One report. ``lease`` is None where unrewind itself asked the receiver.

    ``retry_after`` is in seconds, as the receiver asked.
    """

    id: str
    outcome: Outcome
    lease: int | None = None
    evidence: str | None = None
    receipt: str | None = None
    digest: str | None = None
    retry_after: float | None = None
    worker: str | None = None
    execution: str | None = None


def check_reported(said: Reported) -> None:
    """Refuse what no entry of the journal can hold. Raises Invalid."""
    for field in ("receipt", "digest", "worker", "execution"):
        check_text(field, getattr(said, field))


class Decide(Struct, frozen=True):
    """A decision of the entity: what became of its release."""

    action: str
    report: Report


class Put(Struct, frozen=True):
    """A row as it is to stand; it is written only while the row is as it was."""

    row: Work


Change = Decide | Put


def jitter(failures: int, lane: Lane, chance: float) -> float:
    """Full jitter: a random part of a bound that doubles with each failure, up to a cap.

    ``chance`` is in [0, 1).
    """
    bound = min(lane.backoff_cap, lane.backoff * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))
    return bound * chance


def asked_wait(said: Reported) -> float:
    """The seconds that a receiver asks to wait for, as far as anybody waits."""
    wait = said.retry_after or 0.0
    return min(max(wait, 0.0), _LONGEST_WAIT)


def repeatable(row: Work, terms: Terms, now: str) -> bool:
    """Whether another attempt is safe whatever became of the ones before.

    It is when none of them can have had its effect, or when the receiver still knows the ID: for
    its window, counted from the first commitment.
    """
    if not row.maybe:
        return True
    since = seconds_since(row.committed, now)
    # The call has to arrive within the window too; a clock that was set back proves nothing.
    return terms.contract is Contract.IDEMPOTENT and 0 <= since < terms.window - terms.timeout


def only_attempt(row: Work) -> bool:
    """Whether what its newest attempt met with is all that can have become of a release."""
    return not row.maybe or row.attempts <= 1


def can_ask(row: Work, terms: Terms, *, asked_by_url: bool) -> bool:
    """Whether anybody but a person can tell what became of the release."""
    return asked_by_url and row.receiver is not None and terms.contract is not Contract.OPAQUE


# A worker reports.


def after_report_of_worker(
    row: Work, said: Reported, lane: Lane, terms: Terms, now: str, chance: float, *, ask: bool
) -> Change:
    """What follows from a report on an external release.

    A receipt for other content than was sent is no receipt. A lost reply is repeated under the same
    ID where the contract allows it, and is never a final failure.
    """
    outcome, evidence = said.outcome, said.evidence
    differs = said.digest is not None and row.digest is not None and said.digest != row.digest
    if outcome is Outcome.CONFIRMED and differs:
        outcome = Outcome.UNKNOWN
        evidence = f"the receipt is for content {said.digest}, not {row.digest}"
    if outcome is Outcome.CONFIRMED:
        return _decide("confirmed", row, said, evidence)
    if outcome is Outcome.REFUSED and only_attempt(row):
        return _decide("refused", row, said, evidence)
    # A refusal of this attempt says nothing of one before that may have had its effect.
    differs = differs or outcome is Outcome.REFUSED
    # ``row.maybe`` is about the attempts before this one.
    maybe = bool(row.maybe) or outcome is not Outcome.FAILED
    row = msgspec.structs.replace(row, maybe=int(maybe))
    if outcome is Outcome.PENDING:
        return _pending(row, said, terms, now, ask=ask)
    if differs or not repeatable(row, terms, now):
        return _decide("unknown", row, said, evidence, maybe=True, ask=ask, ended=True)
    if row.cancel_requested:
        if maybe:
            return _decide("unknown", row, said, evidence, maybe=True, ask=ask, ended=True)
        return _decide("cancelled", row, said, evidence)
    failures = row.failures + 1
    if failures >= lane.attempts:
        return _decide("unknown", row, said, evidence, maybe=maybe, dead=True, ended=True)
    wait = max(jitter(failures, lane, chance), asked_wait(said))
    return Put(
        msgspec.structs.replace(
            row,
            status=str(Status.RETRY),
            failures=failures,
            due=after_seconds(now, wait),
            sweep_at=None,
            claim=None,
            worker=None,
            last_error=note(evidence or "the attempt failed"),
            step="waits for its next attempt",
        )
    )


def _pending(row: Work, said: Reported, terms: Terms, now: str, *, ask: bool) -> Change:
    wait = max(asked_wait(said), 1.0)
    if not ask and repeatable(row, terms, now):
        status, step = Status.RETRY, "the receiver is at work: it is sent again to learn the end"
    elif ask:
        status, step = Status.PENDING, "the receiver is at work: it is asked"
    else:
        return _decide("unknown", row, said, said.evidence, maybe=True, ended=True)
    return Put(
        msgspec.structs.replace(
            row,
            status=str(status),
            started=now,
            due=after_seconds(now, wait),
            sweep_at=None,
            claim=None,
            worker=None,
            step=step,
        )
    )


def _decide(
    what: str,
    row: Work,
    said: Reported,
    evidence: str | None,
    *,
    maybe: bool = False,
    dead: bool = False,
    ask: bool = False,
    ended: bool = False,
) -> Decide:
    return Decide(
        RELEASE_ACTIONS + what,
        Report(
            release=row.id,
            lease=said.lease,
            worker=said.worker or row.worker,
            execution=said.execution or row.execution,
            evidence=None if evidence is None else note(evidence),
            receipt=said.receipt,
            digest=said.digest,
            dead=dead,
            maybe=maybe,
            ask=ask and not dead,
            ended=ended,
        ),
    )


def after_command(row: Work, said: Reported, lane: Lane, now: str, chance: float) -> Put:
    """What follows from a report on a command or an item: run at least once, so failed is again."""
    if said.outcome is Outcome.CONFIRMED:
        done = msgspec.structs.replace(row, maybe=0, receipt=said.receipt, claim=None)
        return Put(finish(done, Status.DONE, now, said.evidence))
    failures = row.failures + 1
    error = note(said.evidence or "the attempt failed")
    dead = said.outcome is Outcome.REFUSED or failures >= lane.attempts
    wait = max(jitter(failures, lane, chance), asked_wait(said))
    return Put(
        msgspec.structs.replace(
            row,
            status=str(Status.DEAD if dead else Status.RETRY),
            failures=failures,
            due=None if dead else after_seconds(now, wait),
            sweep_at=None,
            claim=None,
            worker=None,
            last_error=error,
            step=note(f"dead after: {row.step}") if dead else "waits for its next attempt",
        )
    )


# Nobody reports.


def after_expiry(row: Work, lane: Lane, terms: Terms, now: str, *, ask: bool) -> Change:
    """What follows when the time of a claim is over. It spends no failure.

    Where a call may have been made it is repeated under the same ID if the receiver allows that,
    and is unknown if not. A row that keeps losing its workers ends as a dead letter too.
    """
    expired = row.expired + 1
    said = Reported(row.id, Outcome.UNKNOWN, row.lease)
    evidence = f"its time was over in step: {row.step}"
    spent = expired >= lane.expirations
    if row.effect == Effect.EXTERNAL:
        before = msgspec.structs.replace(row, maybe=int(row.maybe or may_have_called(row)))
        if not repeatable(before, terms, now):
            return _decide("unknown", row, said, evidence, maybe=True, ask=ask)
        if row.cancel_requested and not before.maybe:
            return _decide("cancelled", row, said, evidence)
        if spent or row.cancel_requested:
            return _decide(
                "unknown", row, said, evidence, maybe=bool(before.maybe), dead=spent, ask=ask
            )
        row = before
    return Put(
        msgspec.structs.replace(
            row,
            status=str(Status.DEAD if spent else Status.RETRY),
            expired=expired,
            due=None if spent else now,
            sweep_at=None,
            claim=None,
            last_error=note(evidence),
            step=note(f"swept in step: {row.step}"),
        )
    )


CALLING = "calling"
PICKED_UP = "picked up"


def may_have_called(row: Work) -> bool:
    """Whether a call can have begun: the step before it is written first, so a row tells.

    A step of a worker's own, whatever it says, was written by an attempt that had started.
    """
    return row.started is not None or not row.step.startswith(PICKED_UP)


def before_attempt(row: Work, lane: Lane, terms: Terms, now: str, *, ask: bool) -> Decide | None:
    """What stands in the way of another attempt that is due; None: nothing does."""
    said = Reported(row.id, Outcome.UNKNOWN)
    if row.cancel_requested:
        evidence = "withdrawn, superseded or asked to be cancelled since its commitment"
        if row.maybe:
            return _decide("unknown", row, said, evidence, maybe=True, ask=ask)
        return _decide("cancelled", row, said, evidence)
    if not repeatable(row, terms, now):
        evidence = "the receiver no longer suppresses a repeated ID: its window is over"
        return _decide("unknown", row, said, evidence, maybe=True, ask=ask)
    if row.failures >= lane.attempts:
        last = f"; the last one: {row.last_error}" if row.last_error else ""
        evidence = f"its budget of {lane.attempts} attempts is spent{last}"
        return _decide("unknown", row, said, evidence, maybe=bool(row.maybe), dead=True)
    return None


def before_commitment(row: Work, evidence: str, *, ask: bool) -> Decide:
    """A receipt was kept of a release that was never committed as far as the journal knows.

    Then it has lost the commitment, or somebody acted without one: a person has to look at it.
    """
    said = Reported(row.id, Outcome.UNKNOWN)
    why = f"a receipt of it was observed before its first commitment: {evidence}"
    return _decide("unknown", row, said, why, maybe=True, ask=ask)


# The receiver was asked.


class Told(StrEnum):
    """What a receiver says about a release ID when it is asked."""

    DONE = "done"
    REFUSED = "refused"
    PENDING = "pending"
    NOT_FOUND = "not-found"
    VOID = "void"
    UNKNOWN = "unknown"


def after_answer(
    row: Work,
    told: Told,
    said: Reported,
    terms: Terms,
    now: str,
    poll: float,
    *,
    over: bool,
    asked: str | None = None,
) -> Change:
    """What follows when the receiver was asked about a release.

    ``over`` says that the attempt before is proven to have ended on our side, ``asked`` when the
    question was put, if not now. *Not found* lets the
    release be sent again only then, when the receiver's own time for it has passed too, and while
    it would still know the ID; an ID that the receiver declared void, at once.
    """
    differs = said.digest is not None and row.digest is not None and said.digest != row.digest
    if told is Told.DONE and not differs:
        return _decide("confirmed", row, said, said.evidence)
    if told is Told.REFUSED:
        return _decide("refused", row, said, said.evidence)
    then = asked or now
    passed = seconds_since(row.started or row.claimed, then) > terms.timeout + terms.works
    kept = seconds_since(row.committed, then) < terms.window
    if told is Told.VOID or (told is Told.NOT_FOUND and over and passed and kept):
        if row.cancel_requested:
            return _decide("cancelled", row, said, said.evidence)
        return Put(
            msgspec.structs.replace(
                row,
                status=str(Status.RETRY),
                failures=row.failures + 1,
                maybe=0,
                due=now,
                claim=None,
                worker=None,
                step="the receiver has not done it: waits for its next attempt",
            )
        )
    evidence = said.evidence
    if told is Told.DONE:
        evidence = f"the receipt is for content {said.digest}, not {row.digest}"
    return Put(
        msgspec.structs.replace(
            row,
            status=str(Status.PENDING if told is Told.PENDING else row.status),
            # At work now: its time for the release counts from here.
            started=now if told is Told.PENDING else row.started,
            due=after_seconds(now, poll),
            last_error=note(evidence) if evidence else row.last_error,
        )
    )
