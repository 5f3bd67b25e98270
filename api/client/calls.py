"""Calls: how each is asked, and what an answer to it must look like. Pure.

Answers are read for what is needed and kept whole: a server that says more breaks no client.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from api.client.attempts import Call, Partly, Tally, Unreadable, repeatable, say
from api.client.ids import time_ordered
from api.client.results import Kept, Outcome, Reception, Refused, Result
from journal.outcomes import Outcome as Said

MOST_ITEMS = 1000


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation to be decided, as `POST decisions` takes it.

    ``body`` is any JSON value; a ``msgspec.Raw`` is sent byte for byte, and None sends none.
    ``at`` is an RFC 3339 time or a datetime with its time zone.
    """

    entity: str
    action: str
    operation: str | None = None
    body: Any = None
    version: str | None = None
    expected_revision: int | None = None
    actor: str | None = None
    at: str | datetime | None = None


def named(item: Item) -> tuple[Item, str]:
    """The item with its operation ID, chosen before anything is sent; and the ID."""
    operation = item.operation or time_ordered()
    return msgspec.structs.replace(item, operation=operation), operation


class _Receipt(Struct):
    """What of a receipt the outcome depends on."""

    operation: str
    outcome: str
    releases: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


def segment(text: str) -> str:
    """A part of a path. A dot that would mean a folder is hidden from whoever tidies paths up."""
    quoted = quote(text, safe="")
    return quoted.replace(".", "%2E") if quoted in {".", ".."} else quoted


def _as_is(_: int, content: Any) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise Unreadable("it is no JSON object")
    return content


def _naming(member: str, value: str, content: Any) -> dict[str, Any]:
    """The answer, if it is about what was asked: not one that a connection had left over."""
    if not isinstance(content, dict) or content.get(member) != value:
        raise Unreadable(f"its {member} is not {value}")
    return content


# Decisions.


def decide(item: Item, operation: str, tally: Tally) -> Call:
    """`POST decisions`."""
    return Call(
        "POST",
        "decisions",
        lambda _, content: result_of(content, operation, tally),
        msgspec.json.encode(item),
        frozenset({200, 201}),
    )


def result_of(content: Any, operation: str, tally: Tally, unanswered: int = 0) -> Result:
    """The result that a receipt stands for. Raises Unreadable or msgspec.ValidationError."""
    receipt = _naming("operation", operation, content)
    read = msgspec.convert(receipt, _Receipt)
    if read.outcome == "duplicate":
        outcome, reason = Outcome.DUPLICATE, "the operation had been decided before"
    elif read.outcome != "accepted":
        raise Unreadable(f"{read.outcome} is no outcome")
    elif read.releases or read.commands:
        outcome, reason = Outcome.ACCEPTED, "it is decided"
    else:
        outcome, reason = Outcome.IGNORED, "it is decided; neither releases nor commands follow"
    return Result(
        outcome=outcome,
        operation=operation,
        receipt=receipt,
        reason=reason,
        attempts=tally.attempts,
        unanswered=tally.unanswered + unanswered,
    )


class Batch:
    """Up to 1,000 operations in one call, each with an answer of its own.

    Answers that are definite are kept in ``answers``; what is left is asked again, in its order and
    under the same operation IDs.
    """

    def __init__(self, items: Sequence[Item], tally: Tally) -> None:
        if not 1 <= len(items) <= MOST_ITEMS:
            raise ValueError(f"send 1 to {MOST_ITEMS} items at once, not {len(items)}")
        pairs = [named(item) for item in items]
        self.operations = [operation for _, operation in pairs]
        self.answers: list[Result | Refused | None] = [None] * len(items)
        self.unanswered = [0] * len(items)
        self._texts = [msgspec.Raw(msgspec.json.encode(item)) for item, _ in pairs]
        self._tally = tally

    @property
    def left(self) -> list[int]:
        """The places of the items that have no answer yet."""
        return [place for place, answer in enumerate(self.answers) if answer is None]

    def call(self) -> Call:
        """`POST decisions/batch` for what is left."""
        left = self.left
        content = msgspec.json.encode({"items": [self._texts[place] for place in left]})
        return Call("POST", "decisions/batch", partial(self._read, left), content)

    def _read(self, left: list[int], _: int, content: Any) -> None:
        items = content.get("items") if isinstance(content, dict) else None
        if not isinstance(items, list) or len(items) != len(left):
            raise Unreadable(f"it does not answer {len(left)} items")
        judged = [self._judge(place, item) for place, item in zip(left, items, strict=True)]
        waiting = ""
        for place, answer in zip(left, judged, strict=True):
            if isinstance(answer, str):
                waiting = answer
                self.unanswered[place] += 1
            else:
                self.answers[place] = answer
        if waiting:
            raise Partly(self.call(), f"{len(self.left)} items wait: {waiting}")

    def _judge(self, place: int, item: Any) -> Result | Refused | str:
        """An item's answer; a string says why it has to be asked again."""
        if not isinstance(item, dict):
            raise Unreadable("an item's answer is no JSON object")
        problem = item.get("problem")
        before = self.unanswered[place]
        if problem is None:
            return result_of(item.get("acceptance"), self.operations[place], self._tally, before)
        if not isinstance(problem, dict) or not isinstance(problem.get("type"), str):
            raise Unreadable("an item's problem names no type")
        if repeatable(int(item.get("status", 0)), problem):
            return say(problem)
        return Refused(
            problem,
            self.operations[place],
            self._tally.attempts,
            self._tally.unanswered + before,
        )


# Questions.


def operation(identity: str) -> Call:
    """`GET operations/{id}`."""
    return Call("GET", f"operations/{segment(identity)}", _as_is)


def where(identity: str) -> Call:
    """`GET operations/{id}/where`."""
    return Call("GET", f"operations/{segment(identity)}/where", _as_is)


def entity(name: str, at: int | str | datetime | None) -> Call:
    """`GET entities/{type}/{id}`."""
    moment = at.isoformat() if isinstance(at, datetime) else at
    return Call("GET", _entity(name) + _query("at", moment), _as_is)


def gate(name: str, revision: int | None) -> Call:
    """`GET entities/{type}/{id}/gate`."""
    return Call("GET", f"{_entity(name)}/gate{_query('revision', revision)}", _as_is)


def _entity(name: str) -> str:
    kind, slash, identity = name.partition("/")
    if not slash:
        raise ValueError(f"{name} is no entity: say type/id, as in document/inv-2041")
    return f"entities/{segment(kind)}/{segment(identity)}"


def _query(name: str, value: object) -> str:
    return "" if value is None else f"?{name}={quote(str(value), safe='')}"


# Permits.


class Grant(Struct, frozen=True, kw_only=True):
    """A permit as the server gave it: the right to attempt one piece of work.

    ``lease`` is the claim's number. ``key`` is what a receiver may be given as its idempotency key,
    None where the lane's contract allows none. ``until`` is in the server's time; a sign of life is
    due every ``beat_every`` seconds, three of which make a lease.
    """

    id: str
    lane: str
    lease: int
    until: str
    beat_every: float
    data: Any = None
    key: str | None = None
    effect: str = ""
    name: str = ""
    attempt: int = 1
    entity: str | None = None
    revision: int | None = None
    operation: str | None = None
    version: str | None = None
    recipient: str | None = None
    digest: str | None = None
    corrects: str | None = None
    contract: str = ""
    commitment: str | None = None


class Claimed(Struct, frozen=True):
    """What a claim gave: a permit, or why there is none."""

    permits: list[Grant]
    held: str | None = None


def claim(lane: str, operation: str, worker: str, execution: str | None) -> Call:
    """`POST lanes/{lane}/claim` for one permit."""

    def read(_: int, content: Any) -> Claimed:
        claimed = msgspec.convert(_naming("operation", operation, content), Claimed)
        if len(claimed.permits) > 1:
            raise Unreadable("it gives more permits than were asked for")
        return claimed

    content = _lean(worker=worker, operation=operation, limit=1, execution=execution)
    return Call("POST", f"lanes/{segment(lane)}/claim", read, content)


class Beat(Struct, frozen=True):
    """The answer to a sign of life."""

    holds: bool
    until: str


def beat(grant: Grant) -> Call:
    """`POST releases/{id}/heartbeat`."""

    def read(_: int, content: Any) -> Beat:
        return msgspec.convert(_naming("id", grant.id, content), Beat)

    content = _lean(lease=grant.lease)
    return Call("POST", f"releases/{segment(grant.id)}/heartbeat", read, content)


class Report(Struct, frozen=True, kw_only=True):
    """What a worker says about its attempt."""

    outcome: Said
    evidence: str | None = None
    receipt: str | None = None
    digest: str | None = None
    retry_after: float | None = None


class _Reception(Struct):
    """What of the answer to a report is needed."""

    id: str
    status: str
    acceptance: dict[str, Any] | None = None
    observed: bool = False


def report(grant: Grant, said: Report, worker: str, execution: str | None, tally: Tally) -> Call:
    """`POST releases/{id}/outcome`."""

    def read(status: int, content: Any) -> Reception:
        found = msgspec.convert(_naming("id", grant.id, content), _Reception)
        kept = Kept.NOTED if found.acceptance is None else Kept.DECIDED
        if status == 202 or found.observed:  # noqa: PLR2004 - Accepted
            kept = Kept.OBSERVED
        return Reception(
            release=grant.id,
            said=str(said.outcome),
            kept=kept,
            status=found.status,
            receipt=found.acceptance,
            attempts=tally.attempts,
        )

    content = _lean(
        lease=grant.lease,
        worker=worker,
        execution=execution,
        **msgspec.structs.asdict(said),
    )
    path = f"releases/{segment(grant.id)}/outcome"
    return Call("POST", path, read, content, frozenset({200, 202}))


def _lean(**members: object) -> bytes:
    return msgspec.json.encode(
        {name: value for name, value in members.items() if value is not None}
    )
