"""What the receiver does with a call, with a question about one, and with work that it began."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, Literal

from examples.receiver.behaviours import (
    OK,
    AnyRule,
    CallbackKind,
    Delay,
    NotFoundInFlight,
    Pending,
    Refuse,
    Rules,
    Void,
)
from examples.receiver.calls import (
    GIVEN_UP,
    Call,
    Contract,
    Terms,
    attempt_of,
    given_up,
    known,
    malformed,
    read_call,
    told,
    unauthorised,
    without_token,
)
from examples.receiver.memory import Held, Memory, digest_of, receipt_of
from examples.receiver.record import Kind, Line, Record
from examples.receiver.wire import Answer, Manner, Request, problem
from examples.receiver.work import Bench, Work


class NotPossible(Exception):
    """A command that does not fit what the receiver holds."""


class Delivery:
    """The service itself: it judges calls, keeps its contract, and misbehaves as told.

    Judging, recording and executing are one step without a pause, so of two calls with one ID only
    one is new. Whatever takes time stands before that step or after it.
    """

    def __init__(self, terms: Terms, record: Record, memory: Memory, rules: Rules) -> None:
        self.terms = terms
        self.record = record
        self.memory = memory
        self.rules = rules
        self.bench = Bench()
        self.follow_up: Callable[[str, CallbackKind], None] | None = None

    def remember(self) -> None:
        """Know again what the record tells. Raises ValueError where it cannot be read."""
        for line in self.record.read():
            self.memory.fold(line)

    def resume(self) -> None:
        """Take up the pending work of earlier runs."""
        now = datetime.now(UTC)
        for line in self.memory.pending.values():
            self._take_up(line, (now - line.at).total_seconds())

    # Calls.

    async def call(self, request: Request) -> Answer:
        """Judge one call, and answer it as told."""
        call = read_call(request)
        if (answer := unauthorised(request, self.terms)) is not None:
            self._note(call, "unauthorised", answer)
            return answer
        if (answer := malformed(call, request, self.terms)) is not None:
            self._note(call, "refused", answer)
            return answer
        rule = self.rules.take("call", call.release)
        if self.terms.contract is not Contract.OPAQUE:
            working = self.bench.known(call.release)
            before = known(call, self.held(call.release), working)
            if before is not None:
                answer = rule.answer(before.answer)
                self._note(call, rule.outcome or before.outcome, answer, rule)
                return await self._late(call, rule, answer)
        return await self._new(call, rule)

    async def _new(self, call: Call, rule: AnyRule) -> Answer:
        """Do with a new call what the rule says."""
        match rule:
            case Refuse():
                answer = problem(rule.status, rule.detail)
                self._note(call, "refused", answer, rule, state="refused", detail=rule.detail)
                return answer
            case Void():
                answer = Answer(204, manner=Manner.DROP)
                through = max(call.attempt or 1, self.memory.highest_attempt(call.release))
                self._note(call, "voided", answer, rule, state="void", through=through)
                return answer
            case Pending():
                answer = told(rule.status, call.release, "pending", call.digest)
                self._take_up(self._note(call, "pending", answer, rule, state="pending"), 0.0)
                if rule.callback == "early":
                    self._call_back(call.release, rule)
                return answer
            case Delay(before="executing") | NotFoundInFlight():
                line = self._note(call, "delayed", None, rule)
                shown = line if isinstance(rule, Delay) else None
                work = Work(call.release, partial(self._execute, line), shown)
                return await self.bench.begin(work, rule.seconds)
        answer = rule.answer(self._done(call.release, call.digest))
        if rule.executes:
            outcome = rule.outcome or "executed"
            self._note(call, outcome, answer, rule, executed=True, state="done")
        else:
            self._note(call, rule.outcome or "refused", answer, rule)
        return await self._late(call, rule, answer)

    async def _late(self, call: Call, rule: AnyRule, answer: Answer) -> Answer:
        """Give the answer, which is settled, as late as the rule says."""
        if not isinstance(rule, Delay):
            return answer
        return await self.bench.begin(Work(call.release, lambda: answer), rule.seconds)

    # Work that ends later.

    def _take_up(self, line: Line, elapsed: float) -> None:
        """Work on an accepted call, which has been waiting for so many seconds."""
        rule = line.behaviour
        if not isinstance(rule, Pending) or line.release is None:
            return
        seconds = None if rule.seconds is None else rule.seconds - elapsed
        self.bench.begin(Work(line.release, partial(self._complete, line, rule), line), seconds)

    def _complete(self, line: Line, rule: Pending) -> Answer:
        """Execute an accepted call, and call back about what became of it."""
        answer = self._execute(line)
        held = self.held(line.release or "")
        if rule.callback != "early" and held is not None and held.state in {"done", "refused"}:
            self._call_back(line.release, rule)
        return answer

    def _call_back(self, release: str | None, rule: Pending) -> None:
        if release is not None and rule.callback is not None and self.follow_up is not None:
            self.follow_up(release, rule.callback)

    def _execute(self, line: Line) -> Answer:
        """Execute a call that waited, unless its ID was given up or refused meanwhile."""
        release = line.release or ""
        held = self.held(release)
        if held is not None and given_up(line.attempt, held):
            return GIVEN_UP
        if held is not None and held.state == "refused":
            return problem(held.status or 400, held.detail or "refused")
        answer = self._done(release, digest_of(line.content))
        self._change(
            release,
            "executed",
            attempt=line.attempt,
            body_sha256=line.body_sha256,
            content=line.content,
            executed=True,
            state="done",
            answer=answer.status,
            of=line.number,
        )
        return answer

    # Commands.

    def finish(self, release: str, state: Literal["done", "refused", "void"]) -> None:
        """End the work on a release now, in this state. Raises NotPossible."""
        if state == "void":
            self.give_up(release)
            return
        if not self.bench.busy(release):
            raise NotPossible(f"nothing is at work on {release}")
        if state == "refused":
            if self.is_done(release):
                raise NotPossible(f"{release} was executed and cannot be refused")
            self._change(release, "refused", state="refused", answer=400, detail="told to refuse")
        self.bench.end_all(release)

    def give_up(self, release: str, attempt: int = 1) -> None:
        """Promise that no attempt seen so far, nor any up to ``attempt``, will be executed.

        Raises NotPossible if one was.
        """
        if self.is_done(release):
            raise NotPossible(f"{release} was executed and cannot be given up")
        through = max(self.memory.highest_attempt(release), attempt)
        self._change(release, "voided", state="void", through=through)
        self.bench.end_all(release)

    def forget(self, release: str) -> None:
        """Forget an ID, as at the end of the window."""
        if self.held(release) is None:
            raise NotPossible(f"{release} is not held")
        self._change(release, "forgotten")

    # Lookups.

    async def look_up(self, release: str, request: Request) -> Answer:
        """Say what became of a release, as told."""
        attempt = attempt_of(request)
        if (answer := without_token(request, self.terms)) is not None:
            self.note("lookup", release, "unauthorised", attempt=attempt, answer=answer.told)
            return answer
        rule = self.rules.take("lookup", release)
        look = partial(self._look, release, attempt, rule)
        if isinstance(rule, Delay):
            return await self.bench.begin(Work(release, look), rule.seconds)
        return look()

    def _look(self, release: str, attempt: int | None, rule: AnyRule) -> Answer:
        if isinstance(rule, Void) and not self.is_done(release):
            self.give_up(release, attempt or 1)
        state, truth = self._state(release)
        answer = rule.answer(truth)
        outcome = rule.outcome or state
        self.note("lookup", release, outcome, attempt=attempt, answer=answer.told, behaviour=rule)
        return answer

    def _state(self, release: str) -> tuple[str, Answer]:
        """What is true of a release, and the answer that says so."""
        if self.terms.contract is Contract.OPAQUE:
            return "not-found", problem(404, "this receiver cannot be asked about a release")
        held = self.held(release)
        if held is not None:
            return held.state, told(200, release, held.state, held.digest, held.receipt)
        if working := self.bench.known(release):
            return "pending", told(200, release, "pending", digest_of(working[0].content))
        return "not-found", problem(404, "no such release")

    # The record.

    def held(self, release: str) -> Held | None:
        """What is held of a release now."""
        return self.memory.held(release, datetime.now(UTC))

    def is_done(self, release: str) -> bool:
        """Whether it was ever executed, also before its ID was forgotten."""
        count = self.memory.counts.get(release)
        return count is not None and count.executions > 0

    def _done(self, release: str, digest: str | None) -> Answer:
        """The true answer of the execution that the next line tells of."""
        return told(200, release, "done", digest, receipt_of(self.record.next))

    def _note(
        self, call: Call, outcome: str, answer: Answer | None, rule: AnyRule = OK, **fields: Any
    ) -> Line:
        """Record a call. An opaque receiver holds no state of it."""
        if self.terms.contract is Contract.OPAQUE:
            fields.pop("state", None)
        return self.note(
            "call",
            call.release or None,
            outcome,
            attempt=call.attempt,
            idempotency_key=call.idempotency_key,
            body_sha256=call.body_sha256,
            content=call.content,
            answer=None if answer is None else answer.told,
            behaviour=rule,
            **fields,
        )

    def _change(self, release: str, outcome: str, **fields: Any) -> Line:
        return self.note("change", release, outcome, **fields)

    def note(self, kind: Kind, release: str | None, outcome: str, **fields: Any) -> Line:
        """Record a line, and remember what it says. This is the moment when things happen."""
        line = self.record.write(kind, release, outcome, **fields)
        self.memory.fold(line)
        return line
