"""Releases: what became permitted, and what became of it."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from msgspec import Meta, Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import (
    AFTER,
    LIMIT,
    OF_ENTITY,
    OF_LANE,
    OF_STATUS,
    RELEASE,
    WORK,
    Call,
    described,
)
from api.requests import (
    entity,
    form_of,
    integer,
    journal_of,
    query,
    shape,
    status,
    text,
    work_of,
)
from journal import Journal
from journal.control import Role
from journal.entry import MAX_INTEGER, MAX_STRING, check_name
from journal.errors import Invalid, LeaseLost, NotFound, Recovering, Refused
from journal.inquiry import Filter, WorkView
from journal.lanes import Effect
from journal.outcomes import PICKED_UP, Outcome, Reported
from journal.reports import Beating, Reception
from journal.work import after_seconds, note

LONGEST_RETRY = 2_592_000
"""Seconds: a report may put the next attempt off for thirty days."""

Lease = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class Releases(Struct):
    """A page of releases, lane by lane. It may be short; `next` is null at the end."""

    items: list[WorkView]
    next: str | None


class OutcomeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """What became of an attempt, and the claim under which it was made.

    `failed` says that surely nothing happened, `unknown` that something may have. `evidence` is
    kept as one line of 300 characters, `receipt` as it is. `digest` is the SHA-256 of the content
    that the receipt is for. `retry_after` is in seconds, as the receiver asked.
    """

    lease: Lease
    outcome: Outcome
    evidence: str | None = None
    receipt: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)] | None = None
    digest: Annotated[str, Meta(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")] | None = (
        None
    )
    retry_after: Annotated[float, Meta(ge=0, le=LONGEST_RETRY)] | None = None
    worker: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)] | None = None
    execution: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)] | None = None


class HeartbeatRequest(Struct, forbid_unknown_fields=True):
    """A sign of life of a claim; `step` says what it is about to do."""

    lease: Lease
    step: Annotated[str, Meta(min_length=1)] | None = None


class Heartbeat(Struct, frozen=True):
    """The claim holds, until then unless another sign of life comes."""

    id: str
    lease: int
    holds: bool
    until: str


class ReasonRequest(Struct, forbid_unknown_fields=True):
    """Why; it is kept with what is done."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)]


class SettleRequest(Struct, forbid_unknown_fields=True):
    """Whether it happened, on what evidence a person says so, and which status is expected."""

    happened: bool
    evidence: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)]
    receipt: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)] | None = None
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)] | None = None
    expected: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)] | None = None


_OUTCOME = shape(OutcomeRequest)
_HEARTBEAT = shape(HeartbeatRequest)
_REASON = shape(ReasonRequest)
_SETTLE = shape(SettleRequest)

SENT = ("request-timeout", "too-large", "unsupported-media-type")
_DECIDED = (
    *SENT,
    "not-found",
    "transition-refused",
    "history-incomplete",
    "operation-reused",
    "lease-lost",
    "stale-generation",
    "overloaded",
)


def check_names(**values: str | None) -> None:
    """Refuse what is there and is no printable name of at most 1,024 bytes. Raises Invalid."""
    for field, value in values.items():
        if value is not None:
            check_name(field, value, MAX_STRING)


async def read_work(
    request: Request[Any, Any, Any], effects: tuple[Effect, ...], *, dead: bool = False
) -> Answer:
    """A page of the work of these effects, as the query asks for it."""
    asked = (
        query(request, lane=text, after=text, limit=integer)
        if dead
        else query(request, lane=text, status=status, entity=entity, after=text, limit=integer)
    )
    wanted = Filter(asked["lane"], asked.get("status"), asked.get("entity"), dead)
    lanes = journal_of(request).lanes
    return reply(await lanes.work(effects, wanted, asked["after"], asked["limit"]))


async def read_one(request: Request[Any, Any, Any], *, external: bool) -> Answer:
    """The release, or the command or item, that the path names. Raises NotFound."""
    query(request)
    view = await journal_of(request).lanes.one(work_of(request))
    if (view.effect == Effect.EXTERNAL) is not external:
        where = "commands" if external else "releases"
        raise NotFound(f"{view.id} is {view.effect} work: see {where}/{view.id}", id=view.id)
    return reply(view)


@get(
    "/releases",
    opt=described(
        Call(
            "Releases: effects outside that decisions permitted.",
            Role.READER,
            {200: Releases},
            ("not-found",),
            parameters=(OF_LANE, OF_STATUS, OF_ENTITY, AFTER, LIMIT),
        )
    ),
)
async def list_releases(request: Request[Any, Any, Any]) -> Answer:
    """`GET releases`."""
    return await read_work(request, (Effect.EXTERNAL,))


@get(
    "/releases/{id:str}",
    opt=described(
        Call(
            "Where a release stands.",
            Role.READER,
            {200: WorkView},
            ("not-found",),
            parameters=(RELEASE,),
        )
    ),
)
async def read_release(request: Request[Any, Any, Any]) -> Answer:
    """`GET releases/{id}`."""
    return await read_one(request, external=True)


@post(
    ["/releases/{id:str}/outcome", "/work/{id:str}/outcome"],
    status_code=200,
    opt=described(
        Call(
            "Report what became of an attempt. 202: it was kept as an observation, for it can be "
            "no decision now; an observed receipt counts as known all the same.",
            Role.WRITER,
            {200: Reception, 202: Reception},
            _DECIDED,
            body=OutcomeRequest,
            parameters=(WORK,),
        )
    ),
)
async def report_outcome(request: Request[Any, Any, Any]) -> Answer:
    """`POST releases/{id}/outcome`, and `POST work/{id}/outcome` for every kind of work."""
    query(request)
    identity = work_of(request)
    said: OutcomeRequest = await form_of(request, _OUTCOME)
    check_names(receipt=said.receipt, worker=said.worker, execution=said.execution)
    reported = Reported(
        id=identity,
        outcome=said.outcome,
        lease=said.lease,
        evidence=said.evidence,
        receipt=said.receipt,
        digest=said.digest,
        retry_after=said.retry_after,
        worker=said.worker,
        execution=said.execution,
    )
    journal = journal_of(request)
    await _check_pulled(journal, identity)
    reception = await journal.lanes.report(reported, principal(request))
    return reply(reception, 202 if reception.observed else 200)


def check_pulled(journal: Journal, name: str) -> None:
    """Refuse a lane whose work unrewind attempts itself, telling from its own steps how far it is.

    After another's attempt it would take work for untouched that may be done. Raises Refused.
    """
    lane = journal.settings.lanes.get(name)
    if lane is not None and not lane.pulled:
        runs = f"sent to receiver {lane.receiver}" if lane.receiver else f"run by {lane.handler}"
        raise Refused(
            f"the work of lane {name} is {runs}; workers claim from lanes that name neither",
            lane=name,
        )


async def _check_pulled(journal: Journal, identity: str) -> None:
    """Refuse to be told of an attempt that unrewind itself makes. Raises Refused.

    A report on what is unknown here, or comes while the tenant is closed, is evidence all the same.
    """
    try:
        lane = (await journal.lanes.one(identity)).lane
    except (NotFound, Recovering):
        return
    check_pulled(journal, lane)


@post(
    ["/releases/{id:str}/heartbeat", "/work/{id:str}/heartbeat"],
    status_code=200,
    opt=described(
        Call(
            "Keep a claim alive. Nothing may be begun under one that does not hold.",
            Role.WRITER,
            {200: Heartbeat},
            (*SENT, "not-found", "lease-lost"),
            body=HeartbeatRequest,
            parameters=(WORK,),
        )
    ),
)
async def beat(request: Request[Any, Any, Any]) -> Answer:
    """`POST releases/{id}/heartbeat`, and `POST work/{id}/heartbeat` for every kind of work."""
    query(request)
    identity = work_of(request)
    said: HeartbeatRequest = await form_of(request, _HEARTBEAT)
    step = None if said.step is None else note(said.step)
    if step is not None and (not step or step.startswith(PICKED_UP)):
        raise Invalid(
            f"step must say what is about to be done; {PICKED_UP!r} is what unrewind writes before "
            "anything is",
            field="step",
        )
    journal = journal_of(request)
    lane = (await journal.lanes.one(identity)).lane
    check_pulled(journal, lane)
    held = await journal.lanes.beat(Beating(lane, [(identity, said.lease)], step))
    view = await journal.lanes.one(identity)
    if (identity, said.lease) not in held or view.heartbeat is None:
        raise LeaseLost(
            f"{identity} is {view.status} under claim {view.lease}; claim {said.lease} has ended: "
            "begin nothing more under it",
            id=identity,
            work_status=view.status,
        )
    until = after_seconds(view.heartbeat, journal.settings.lanes[lane].lease)
    return reply(Heartbeat(identity, said.lease, holds=True, until=until))


@post(
    "/releases/{id:str}/cancel",
    status_code=200,
    opt=described(
        Call(
            "Cancel a release before its commitment. 202: it is committed already, so this is only "
            "requested, and its outcome is still recorded.",
            Role.WRITER,
            {200: Reception, 202: Reception},
            _DECIDED,
            body=ReasonRequest,
            parameters=(RELEASE,),
        )
    ),
)
async def cancel(request: Request[Any, Any, Any]) -> Answer:
    """`POST releases/{id}/cancel`."""
    query(request)
    identity = work_of(request)
    reason = (await form_of(request, _REASON)).reason
    reception = await journal_of(request).lanes.cancel(identity, reason, principal(request))
    return reply(reception, 202 if reception.status == "cancel-requested" else 200)


@post(
    "/releases/{id:str}/settle",
    status_code=200,
    opt=described(
        Call(
            "Say what became of a release of unknown outcome, on evidence that a person has.",
            Role.OPERATOR,
            {200: Reception},
            _DECIDED,
            body=SettleRequest,
            parameters=(RELEASE,),
        )
    ),
)
async def settle(request: Request[Any, Any, Any]) -> Answer:
    """`POST releases/{id}/settle`."""
    query(request)
    identity = work_of(request)
    said: SettleRequest = await form_of(request, _SETTLE)
    check_names(receipt=said.receipt, reason=said.reason, expected=said.expected)
    lanes = journal_of(request).lanes
    return reply(
        await lanes.settle(
            identity,
            said.happened,
            said.evidence,
            said.receipt,
            principal(request),
            reason=said.reason,
            expected=said.expected,
        )
    )


@post(
    "/releases/{id:str}/incident",
    status_code=200,
    opt=described(
        Call(
            "Record that a release should not have been.",
            Role.OPERATOR,
            {200: Reception},
            _DECIDED,
            body=ReasonRequest,
            parameters=(RELEASE,),
        )
    ),
)
async def record_incident(request: Request[Any, Any, Any]) -> Answer:
    """`POST releases/{id}/incident`."""
    query(request)
    identity = work_of(request)
    reason = (await form_of(request, _REASON)).reason
    lanes = journal_of(request).lanes
    return reply(await lanes.record_incident(identity, reason, principal(request)))


ROUTES = [
    list_releases,
    read_release,
    report_outcome,
    beat,
    cancel,
    settle,
    record_incident,
]
