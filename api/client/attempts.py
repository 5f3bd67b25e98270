"""Attempts: one call, tried until an answer tells what became of it. Pure, without a socket.

`attempts` is a generator that says what to do next (``Send`` or ``Pause``) and is sent what came of
it. Whoever drives it brings the wire: blocking, asynchronous, or a heartbeat's own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from api.replies import backoff, printable, retry_after

T = TypeVar("T")

PROBLEMS = "/problems/"
_PROBLEM = "application/problem+json"
_MOST_SHOWN = 200

# Problems of which the server promises that nothing was stored and nothing waits.
_NOTHING_TAKEN = frozenset({"overloaded", "request-timeout", "held"})

# Refusals before which the server looked the operation ID up: nothing stood under it.
LOOKED_UP = frozenset({"revision-mismatch", "transition-refused", "operation-reused"})


# What a driver is told to do, and what it tells in return.


class Call(Struct, frozen=True):
    """One call below the tenant's prefix; its bytes are the same in every attempt.

    ``read`` makes something of the answer's status and JSON. It raises Unreadable for what is no
    answer to this call, and Partly where only a part of the call was answered.
    """

    method: str
    path: str
    read: Callable[[int, Any], Any]
    content: bytes | None = None
    answers: frozenset[int] = frozenset({200})


class Send(Struct, frozen=True):
    """Make the call; wait at most ``seconds`` for the server."""

    call: Call
    seconds: float


class Pause(Struct, frozen=True):
    """Let time pass."""

    seconds: float


class Heard(Struct, frozen=True):
    """An answer. The names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Missed(Struct, frozen=True):
    """No answer. ``sent`` is false when surely nothing of the request left."""

    sent: bool
    why: str


Event = Heard | Missed | None
Steps = Generator[Send | Pause, Event, T]


# What comes out.


class Value(Struct, frozen=True):
    """What ``Call.read`` made of the answer."""

    value: Any


class Problem(Struct, frozen=True):
    """A problem document that repeating will not change."""

    document: dict[str, Any]

    @property
    def name(self) -> str:
        """The last part of its type."""
        return str(self.document["type"]).rpartition("/")[2]


class Lost(Struct, frozen=True):
    """No answer told what became of the call."""

    reason: str


End = Value | Problem | Lost


class Tally(Struct):
    """How often a call was made. It stands in the caller's hands, so that an interrupted one knows.

    ``unanswered`` counts attempts that may have arrived and whose fate no answer told.
    """

    attempts: int = 0
    unanswered: int = 0
    under_way: bool = False

    @property
    def open(self) -> bool:
        """Whether anything may have been stored without our knowing."""
        return self.under_way or self.unanswered > 0


class Policy(Struct, frozen=True):
    """How long to go on. Times in seconds; ``timeout`` is one attempt's, ``deadline`` that of all.

    The pause after a failure is a random part of a bound that doubles from ``base`` to ``cap``.
    """

    timeout: float
    attempts: int
    deadline: float
    base: float = 0.2
    cap: float = 10.0


class Unreadable(ValueError):
    """This is no answer to the call."""


class Partly(Exception):
    """A part of the call is answered; ``rest`` is what is left to ask."""

    def __init__(self, rest: Call, why: str) -> None:
        self.rest = rest
        self.why = why
        super().__init__(why)


class _Again(Struct, frozen=True):
    """Why the call is to be made again. ``maybe``: this attempt may have stored something."""

    why: str
    maybe: bool
    after: float | None = None
    rest: Call | None = None


def attempts(
    call: Call,
    policy: Policy,
    tally: Tally,
    now: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> Steps[End]:
    """Make the call until its answer is definite, or attempts or time are spent."""
    end = now() + policy.deadline
    while True:
        tally.attempts += 1
        tally.under_way = True
        seconds = max(min(policy.timeout, end - now()), 0.001)
        event = yield Send(call, seconds)
        verdict = _judge(call, event)
        tally.under_way = False
        if not isinstance(verdict, _Again):
            return verdict
        tally.unanswered += verdict.maybe
        call = verdict.rest or call
        if tally.attempts >= policy.attempts:
            return Lost(f"{verdict.why} (attempt {tally.attempts}, the last)")
        wait = backoff(tally.attempts, policy.base, policy.cap, chance())
        if verdict.after is not None:
            wait += verdict.after
        if now() + wait >= end:
            return Lost(
                f"{verdict.why} (attempt {tally.attempts}; another one {wait:.1f} s later would "
                f"be beyond the deadline of {policy.deadline:g} s)"
            )
        yield Pause(wait)


def _judge(call: Call, event: Event) -> End | _Again:
    if not isinstance(event, Heard):
        missed = event or Missed(sent=True, why="nothing came")
        return _Again(missed.why, missed.sent)
    status = event.status
    after = retry_after(event.headers.get("retry-after"), datetime.now(UTC))
    if status in call.answers:
        try:
            return Value(call.read(status, msgspec.json.decode(event.content)))
        except Partly as partly:
            return _Again(partly.why, maybe=False, after=after, rest=partly.rest)
        except (Unreadable, msgspec.MsgspecError, UnicodeDecodeError) as error:
            return _Again(f"its answer {status} cannot be read: {error}", maybe=True)
    problem = _problem_of(event)
    if problem is None:
        told = printable(event.headers.get("location", ""), _MOST_SHOWN)
        where = f" to {told}, which is not followed" if 300 <= status < 400 and told else ""  # noqa: PLR2004 - redirects
        return _Again(f"{status}{where} is no answer of unrewind", maybe=True, after=after)
    if not repeatable(status, problem.document):
        return problem
    maybe = problem.name not in _NOTHING_TAKEN
    return _Again(say(problem.document), maybe=maybe, after=after)


def _problem_of(heard: Heard) -> Problem | None:
    """The problem document of unrewind; None for an error that somebody in between made up."""
    if heard.headers.get("content-type", "").partition(";")[0].strip().lower() != _PROBLEM:
        return None
    try:
        found = msgspec.json.decode(heard.content)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    kind = found.get("type") if isinstance(found, dict) else None
    return Problem(found) if isinstance(kind, str) and PROBLEMS in kind else None


def repeatable(status: int, problem: Mapping[str, Any]) -> bool:
    """Whether the same request may have another answer later."""
    return status >= 500 or status in {408, 429} or "repeat" in problem  # noqa: PLR2004 - HTTP


def say(problem: Mapping[str, Any]) -> str:
    """A problem on one line."""
    name = str(problem["type"]).rpartition("/")[2]
    return f"{name}: {printable(str(problem.get('detail', '')), _MOST_SHOWN)}"
