"""The client's rules, once for both clients: what to send, when again, and what it amounts to.

Every method is a generator over ``attempts``; a driver brings it to its end. What is thrown into
one (a cancelled task, ctrl-C) finds out here whether something was left open, and is told.
"""

from __future__ import annotations

import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from api.client import calls
from api.client.attempts import (
    LOOKED_UP,
    Call,
    Lost,
    Pause,
    Policy,
    Problem,
    Steps,
    Tally,
    Value,
    attempts,
    say,
)
from api.client.results import (
    Abandoned,
    Kept,
    Outcome,
    Reception,
    Refused,
    Result,
)

LOGGER = logging.getLogger("unrewind.client")

_REPORTS = 1000
_POLL = 0.1
_POLL_CAP = 1.0


class Settings(Struct, frozen=True):
    """What both clients are given. Times in seconds.

    ``timeout`` is how long one attempt may wait for the server, ``attempts`` and ``deadline`` bound
    all attempts of a call together. ``report_deadline`` is how long a report on a permit is
    repeated: its effect has happened, so it is worth more patience.
    """

    timeout: float = 10.0
    attempts: int = 10
    deadline: float = 60.0
    report_deadline: float = 300.0
    on_abandoned: Callable[[Result], None] | None = None
    on_unstored: Callable[[Reception], None] | None = None

    def check(self) -> None:
        """Raises ValueError for what makes no sense, TypeError for an alarm that nobody awaits."""
        for name in ("timeout", "attempts", "deadline", "report_deadline"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("on_abandoned", "on_unstored"):
            if inspect.iscoroutinefunction(getattr(self, name)):
                raise TypeError(f"{name} is called, not awaited: give a plain function")


class Claimed(Struct, frozen=True):
    """What a claim came to. ``began`` is a time before the server can have given the permit."""

    grant: calls.Grant | None
    held: str | None
    began: float


class Core:
    """Rules and counts of one client. May be used by many threads at once."""

    def __init__(self, settings: Settings) -> None:
        settings.check()
        self.settings = settings
        self.policy = Policy(settings.timeout, settings.attempts, settings.deadline)
        self.patient = Policy(settings.timeout, _REPORTS, settings.report_deadline)
        self.abandoned = 0
        self.unstored = 0
        self._guard = threading.Lock()

    # Decisions.

    def decide(self, item: calls.Item) -> Steps[Result]:
        """Make an operation a decision. Raises Refused."""
        named, operation = calls.named(item)
        tally = Tally()
        call = calls.decide(named, operation, tally)
        end = yield from self._watched(call, tally, lambda: [operation])
        if isinstance(end, Value):
            result: Result = end.value
            return result
        return self._not_decided(end, operation, tally)

    def decide_many(self, items: Sequence[calls.Item]) -> Steps[list[Result | Refused]]:
        """Judge operations one by one. Raises Refused when all of them were refused as one."""
        tally = Tally()
        batch = calls.Batch(items, tally)
        end = yield from self._watched(
            batch.call(), tally, lambda: [batch.operations[place] for place in batch.left]
        )
        for place in batch.left:
            if isinstance(end, Value):
                break
            counts = Tally(tally.attempts, tally.unanswered + batch.unanswered[place])
            try:
                batch.answers[place] = self._not_decided(end, batch.operations[place], counts)
            except Refused as refused:
                if len(batch.left) == len(items):
                    raise
                batch.answers[place] = refused
        return [answer for answer in batch.answers if answer is not None]

    def _not_decided(self, end: Lost | Problem, operation: str, tally: Tally) -> Result:
        """What an operation without a receipt amounts to: a refusal, or not known."""
        if isinstance(end, Lost):
            return self._abandon(operation, tally, end.reason)
        if not tally.unanswered or end.name in LOOKED_UP:
            raise Refused(end.document, operation, tally.attempts, tally.unanswered)
        return self._abandon(operation, tally, _after(end, tally))

    # Questions.

    def ask(self, call: Call) -> Steps[Any]:
        """The answer to a question. Raises Refused or Abandoned."""
        tally = Tally()
        end = yield from attempts(call, self.policy, tally)
        if isinstance(end, Value):
            return end.value
        if isinstance(end, Problem):
            raise Refused(end.document, None, tally.attempts, 0)
        raise Abandoned(
            Result(
                outcome=Outcome.ABANDONED, operation="", reason=end.reason, attempts=tally.attempts
            )
        )

    # Permits.

    def claim(
        self, lane: str, operation: str, worker: str, execution: str | None, wait: float
    ) -> Steps[Claimed]:
        """One permit of a lane, asked for until something is due or ``wait`` seconds are over.

        All of it goes under one operation ID, so that a permit whose answer was lost is given
        again. Raises Refused, or Abandoned when a permit may have been given that nobody knows.
        """
        call = calls.claim(lane, operation, worker, execution)
        end = time.monotonic() + wait
        bound = _POLL
        tally = Tally()
        while True:
            began = time.monotonic()
            tally.attempts = 0
            answer = yield from self._watched(call, tally, lambda: [operation])
            if isinstance(answer, Problem) and not tally.unanswered:
                raise Refused(answer.document, operation, tally.attempts, 0)
            if not isinstance(answer, Value):
                why = answer.reason if isinstance(answer, Lost) else _after(answer, tally)
                raise Abandoned(self._abandon(operation, tally, f"claim of lane {lane}: {why}"))
            claimed: calls.Claimed = answer.value
            tally.unanswered = 0
            left = end - time.monotonic()
            if claimed.permits or left <= 0:
                grant = claimed.permits[0] if claimed.permits else None
                return Claimed(grant, claimed.held, began)
            yield Pause(min(left, bound * random.random()))  # noqa: S311 - spreads callers out
            bound = min(bound * 2, _POLL_CAP)

    def beat(self, grant: calls.Grant) -> Steps[calls.Beat | Problem | Lost]:
        """A sign of life, tried for as long as one is due."""
        seconds = grant.beat_every
        policy = Policy(min(self.settings.timeout, seconds), self.settings.attempts, seconds)
        end = yield from attempts(calls.beat(grant), policy, Tally())
        return end.value if isinstance(end, Value) else end

    def report(
        self,
        grant: calls.Grant,
        said: calls.Report,
        worker: str,
        execution: str | None,
        policy: Policy,
    ) -> Steps[Reception]:
        """Report what became of a permit. Raises Refused; in either case nobody is left untold."""
        tally = Tally()
        call = calls.report(grant, said, worker, execution, tally)
        end = yield from attempts(call, policy, tally)
        if isinstance(end, Value):
            kept: Reception = end.value
            return kept
        reason = end.reason if isinstance(end, Lost) else say(end.document)
        if isinstance(end, Problem) and tally.unanswered:
            reason = _after(end, tally)
        reception = self.unkept(grant, said, reason, tally.attempts)
        if isinstance(end, Problem) and not tally.unanswered:
            raise Refused(end.document, None, tally.attempts, 0)
        return reception

    def unkept(
        self, grant: calls.Grant, said: calls.Report, reason: str, count: int = 0
    ) -> Reception:
        """A report that is not known to be kept: logged, counted and alarmed."""
        reception = Reception(
            release=grant.id, said=str(said.outcome), kept=Kept.ABANDONED, reason=reason,
            attempts=count,
        )  # fmt: skip
        LOGGER.critical(
            "%s ended as %s, and that could not be stored: %s. Report it by hand: POST "
            "releases/%s/outcome with lease %d",
            grant.id,
            said.outcome,
            reason,
            grant.id,
            grant.lease,
        )
        with self._guard:
            self.unstored += 1
        _tell(self.settings.on_unstored, reception)
        return reception

    # What is not known.

    def _watched(
        self, call: Call, tally: Tally, left: Callable[[], Sequence[str]]
    ) -> Steps[Value | Problem | Lost]:
        """``attempts``; interrupted while something may have been stored, it is abandoned."""
        try:
            return (yield from attempts(call, self.policy, tally))
        except BaseException as error:
            if tally.open:
                for operation in left():
                    self._abandon(operation, tally, f"interrupted by {type(error).__name__}")
            error.add_note(f"unrewind: this interrupted operation {', '.join(left()[:3])}")
            raise

    def _abandon(self, operation: str, tally: Tally, reason: str) -> Result:
        result = Result(
            outcome=Outcome.ABANDONED,
            operation=operation,
            reason=reason,
            attempts=tally.attempts,
            unanswered=tally.unanswered,
        )
        LOGGER.error(
            "operation %s was abandoned after %d attempts, %d of which may have arrived: %s. "
            "Repeat it under the same operation ID to learn what became of it",
            operation,
            tally.attempts,
            tally.unanswered + tally.under_way,
            reason,
        )
        with self._guard:
            self.abandoned += 1
        _tell(self.settings.on_abandoned, result)
        return result


def _after(problem: Problem, tally: Tally) -> str:
    return (
        f"attempt {tally.attempts} was refused ({say(problem.document)}), which does not tell what "
        f"became of the {tally.unanswered} before it that got no answer"
    )


def _tell(alarm: Callable[[Any], None] | None, about: msgspec.Struct) -> None:
    """Raise an alarm. One that fails is logged: it must not hide what it was about."""
    if alarm is None:
        return
    try:
        alarm(about)
    except Exception:
        LOGGER.exception("the alarm about %r failed", about)
