"""What the receiver can be told to do with a call or a lookup: one small class for each behaviour.

A behaviour is JSON, its name under ``behave``: ``{"behave": "delay", "seconds": 2, "calls": 1}``.
With ``release`` it is for that ID alone, with ``calls`` for so many of them, with neither for good.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from examples.receiver.wire import Answer, Manner, answer_json, problem

Place = Literal["call", "lookup"]
CallbackKind = Literal[
    "ok",  # what is true
    "late",  # the same; the name tells the record's reader why it was sent
    "twice",  # two of them, each with an ID of its own
    "replayed",  # the last one again, byte for byte; if there was none, one and the same twice
    "early",  # says done while the work goes on
    "false-claim",  # says done of a release that was never executed
    "forged",  # signed with another secret
    "altered",  # the content was changed after signing
    "reencoded",  # the same content in other bytes than were signed
    "unsigned",  # without a signature
    "old",  # signed ten minutes ago
    "future",  # signed in ten minutes
]
Seconds = Annotated[float, Meta(ge=0)]


class Rule(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="behave",
    tag=lambda name: "".join(f"-{c.lower()}" if c.isupper() else c for c in name).lstrip("-"),
):
    """A behaviour and whom it is for.

    ``executes`` tells whether a call that is new is executed. ``answer`` turns the true answer into
    the one that is sent, for repeats too. ``outcome`` is what the record calls a call so treated;
    None leaves it at what truly became of it.
    """

    on: Place = "call"
    calls: Annotated[int, Meta(ge=1)] | None = None
    release: str | None = None

    places: ClassVar[tuple[Place, ...]] = ("call", "lookup")
    outcome: ClassVar[str | None] = None

    @property
    def executes(self) -> bool:
        return True

    def answer(self, truth: Answer) -> Answer:
        return truth


class Ok(Rule, frozen=True):
    """Executes and says so. With ``status`` 204 the answer has no body."""

    status: Literal[200, 201, 204] = 200

    def answer(self, truth: Answer) -> Answer:
        if truth.status != HTTPStatus.OK:
            return truth
        if self.status == HTTPStatus.NO_CONTENT.value:
            return Answer(self.status)
        return Answer(self.status, truth.body, truth.headers)


class Delay(Rule, frozen=True):
    """Waits ``seconds``, or until told to ``finish``, before it executes or before it answers.

    Meanwhile a lookup says *pending*, and so does the answer to a repeat.
    """

    seconds: Seconds | None = None
    before: Literal["executing", "answering"] = "executing"


class NotFoundInFlight(Rule, frozen=True):
    """As ``delay``, but nothing is known of the call until it executes, as with a lagging replica.

    A lookup is answered 404 meanwhile, and a second call with the same ID is a second execution.
    """

    seconds: Seconds | None = None

    places = ("call",)


class LoseReply(Rule, frozen=True):
    """Executes, then closes the connection without an answer."""

    outcome = "lost"

    def answer(self, truth: Answer) -> Answer:
        return Answer(truth.status, manner=Manner.DROP)


class Executing(Rule, frozen=True):
    """The base of failures that come before the execution or, with ``execute``, after it."""

    execute: bool = False

    @property
    def executes(self) -> bool:
        return self.execute


class Reset(Executing, frozen=True):
    """Resets the TCP connection."""

    outcome = "lost"

    def answer(self, truth: Answer) -> Answer:
        return Answer(truth.status, manner=Manner.RESET)


class Error(Executing, frozen=True):
    """Answers with an error. ``retry_after`` is sent as it stands: seconds, or an HTTP date."""

    status: Annotated[int, Meta(ge=400, le=599)] = 500
    retry_after: int | str | None = None

    outcome = "failed"

    def answer(self, truth: Answer) -> Answer:  # noqa: ARG002 - whatever is true
        return problem(self.status, "told to fail", *_retry(self.retry_after))


class RateLimit(Rule, frozen=True):
    """Takes nothing and answers 429; ``retry_after`` is sent as it stands."""

    retry_after: int | str | None = 1

    outcome = "limited"

    @property
    def executes(self) -> bool:
        return False

    def answer(self, truth: Answer) -> Answer:  # noqa: ARG002 - whatever is true
        return problem(429, "too many calls", *_retry(self.retry_after))


class Redirect(Rule, frozen=True):
    """Takes nothing and sends the caller elsewhere, to where no caller should follow."""

    location: str
    status: Literal[301, 302, 303, 307, 308] = 307

    outcome = "redirected"

    @property
    def executes(self) -> bool:
        return False

    def answer(self, truth: Answer) -> Answer:  # noqa: ARG002 - whatever is true
        return Answer(self.status, headers=(("Location", self.location),))


class Refuse(Rule, frozen=True):
    """Judges the call and refuses it, for good: a repeat is refused with the same words."""

    status: Annotated[int, Meta(ge=400, le=499)] = 400
    detail: str = "told to refuse"

    places = ("call",)


class Pending(Rule, frozen=True):
    """Accepts the call, and executes it after ``seconds`` or when told to ``finish``.

    ``callback`` is the kind of callback that follows, where there is an address for it; an *early*
    one goes out at once. None sends none. ``status`` 200 says *pending* in the body alone.
    """

    seconds: Seconds | None = None
    status: Literal[200, 202] = 202
    callback: CallbackKind | None = "ok"

    places = ("call",)


class Garbage(Executing, frozen=True):
    """Answers with what cannot be read: bytes that are not HTTP, not JSON, or end too soon."""

    execute: bool = True
    form: Literal["not-http", "not-json", "short"] = "not-http"

    outcome = "garbled"

    def answer(self, truth: Answer) -> Answer:
        if self.form == "not-json":
            return Answer(200, b'{"release": ', (("Content-Type", "application/json"),))
        manner = Manner.SHORT if self.form == "short" else Manner.NOT_HTTP
        return Answer(truth.status, truth.body, manner=manner)


class WrongDigest(Rule, frozen=True):
    """Tells the truth, but of other content: the digest is not the one that was sent."""

    def answer(self, truth: Answer) -> Answer:
        return _with(truth, digest="0" * 64)


class WrongRelease(Rule, frozen=True):
    """Tells the truth, but names another release."""

    def answer(self, truth: Answer) -> Answer:
        return _with(truth, release="rel_" + "0" * 40)


class Void(Rule, frozen=True):
    """Gives the ID up: this attempt and earlier ones will never execute. A call gets no answer.

    On a lookup it does so when asked and says *void*, unless the call was executed before.
    """


class NotFound(Rule, frozen=True):
    """Answers 404 to a lookup, whatever is true."""

    on: Place = "lookup"

    places = ("lookup",)
    outcome = "not-found"

    def answer(self, truth: Answer) -> Answer:  # noqa: ARG002 - whatever is true
        return problem(404, "no such release")


class Unknown(Rule, frozen=True):
    """Answers to a lookup that the receiver cannot tell."""

    on: Place = "lookup"

    places = ("lookup",)
    outcome = "unknown"

    def answer(self, truth: Answer) -> Answer:
        return _with(truth, state="unknown", receipt=None)


OK = Ok()
"""What is done when nothing else was told."""

AnyRule: TypeAlias = (
    Ok
    | Delay
    | NotFoundInFlight
    | LoseReply
    | Reset
    | Error
    | RateLimit
    | Redirect
    | Refuse
    | Pending
    | Garbage
    | WrongDigest
    | WrongRelease
    | Void
    | NotFound
    | Unknown
)


def rule_of(text: bytes | str) -> AnyRule:
    """A rule from JSON, or from a name alone. Raises ValueError that says what is wrong."""
    raw = text.encode() if isinstance(text, str) else text
    if not raw.lstrip().startswith(b"{"):
        raw = msgspec.json.encode({"behave": raw.decode()})
    try:
        rule: AnyRule = msgspec.json.decode(raw, type=AnyRule)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no such behaviour: {error}") from None
    if rule.on not in rule.places:
        raise ValueError(f"this behaviour is for a {rule.places[0]}, not for a {rule.on}")
    return rule


def _retry(after: int | str | None) -> tuple[tuple[str, str], ...]:
    return () if after is None else (("Retry-After", str(after)),)


def _with(truth: Answer, **changes: Any) -> Answer:
    """The answer with other fields in its body; what says nothing of a release stays as it is."""
    content = msgspec.json.decode(truth.body)
    if "release" not in content:
        return truth
    return answer_json(truth.status, {**content, **changes})


class Rules:
    """What was told and is still to be done.

    Rules for one release come before those for any, and among these, rules with a number of calls
    before those without. Rules with a number are taken in the order in which they were told; one
    without replaces the one before it.
    """

    def __init__(self, rules: tuple[AnyRule, ...] = ()) -> None:
        self._waiting: list[tuple[AnyRule, int | None]] = []
        for rule in rules:
            self.tell(rule)

    def tell(self, rule: AnyRule) -> None:
        if rule.calls is None:
            self._waiting = [
                (other, left)
                for other, left in self._waiting
                if left is not None or (other.on, other.release) != (rule.on, rule.release)
            ]
        self._waiting.append((rule, rule.calls))
        self._waiting.sort(key=lambda entry: (entry[0].release is None, entry[1] is None))

    def clear(self) -> None:
        self._waiting.clear()

    def take(self, on: Place, release: str | None) -> AnyRule:
        """The rule for this call or lookup; it is used up by so much."""
        for place, (rule, left) in enumerate(self._waiting):
            if rule.on == on and rule.release in {None, release}:
                if left == 1:
                    del self._waiting[place]
                elif left is not None:
                    self._waiting[place] = (rule, left - 1)
                return rule
        return OK
