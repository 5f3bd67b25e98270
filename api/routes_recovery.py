"""Recovery over HTTP: begin, plan, apply, reopen, and where it stands."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Literal

import msgspec
from litestar import Request, get, post
from msgspec import Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import Call, Parameter, described
from api.requests import body_of, journal_of, positive, query, shape
from journal import Journal
from journal.control import Control, HistoryRecord, Opening, Role, Stage
from journal.entry import MAX_STRING, check_name
from journal.errors import Invalid, Refused
from journal.record import Record
from journal.status import Status, status
from reconstruct import inflight, recovery, reporting
from reconstruct.evidence import Given
from reconstruct.inflight import InFlight
from reconstruct.planning import Plan
from reconstruct.reporting import RecoveryReport


class BeginRequest(Struct, forbid_unknown_fields=True):
    """Why the tenant is stopped; `note` is kept with the evidence.

    `wait` is for how many seconds to wait for calls in flight to end, at most 600; null: as long as
    one may last, at most 60.
    """

    reason: str
    note: str | None = None
    wait: float | None = None


class ApplyRequest(Struct, forbid_unknown_fields=True):
    """The plan to apply, by its ID; null: whatever a plan would say now.

    To undo more than the setting `max_undo`, name how many in `max_undo`, the tenant and the
    history in force. `accept_loss` names the loss that healing a rewound journal cannot mend.
    """

    plan: str | None = None
    max_undo: int | None = None
    confirm_tenant: str | None = None
    confirm_history: str | None = None
    accept_loss: str | None = None


ReopenTo = Literal["reading", "internal", "external", "open"]


class ReopenRequest(Struct, forbid_unknown_fields=True):
    """How far to reopen. `to` null: as far as the tests hold; `external` names what it lets out.

    `despite` waives tests by their keys, and then says why in `reason`. `rate` is in releases a
    second over all lanes, 0: no limit.
    """

    to: ReopenTo | None = None
    lanes: list[str] = []
    releases: list[str] = []
    rate: float = 0.0
    despite: list[str] = []
    reason: str | None = None


class Nothing(Struct, forbid_unknown_fields=True):
    """No fields."""


class RecoveryView(Struct, frozen=True):
    """Where the recovery stands. `begun` is the generation of one that has not started its history.

    `reconciled` is the generation whose releases were reconciled last, `opening` what the stage
    external lets out.
    `last` is control's last action, since `since`, for `reason`.
    """

    stage: str
    verdict: str
    detail: str
    stopped: dict[str, Any] | None
    history: str
    generation: int
    begun: int | None
    reconciled: int | None
    opening: Opening | None
    last: str
    reason: str
    since: str
    histories: tuple[HistoryRecord, ...]


_BEGIN = shape(BeginRequest)
_APPLY = shape(ApplyRequest)
_REOPEN = shape(ReopenRequest)
_NOTHING = shape(Nothing)
GENERATION = Parameter(
    "generation",
    "query",
    {"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
    "The recovery that gave this generation; the newest if absent.",
)
_LONGEST_WAIT = 600.0
_LOOK_EVERY = 0.25
_STEP = ("refused", "request-timeout", "too-large", "unsupported-media-type")


async def _read(request: Request[Any, Any, Any], form: Any) -> Any:
    raw = await body_of(request, journal_of(request).settings.max_request)
    return form.read(raw or b"{}")


@post(
    "/recovery/begin",
    opt=described(
        Call(
            "Stop the tenant, keep the evidence, raise the generation, tell what is in flight.",
            Role.OPERATOR,
            {200: recovery.Begun},
            _STEP,
            body=BeginRequest,
        )
    ),
)
async def begin(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/begin`."""
    asked: BeginRequest = await _read(request, _BEGIN)
    check_name("reason", asked.reason, MAX_STRING)
    if asked.wait is not None and not 0 <= asked.wait <= _LONGEST_WAIT:
        raise Invalid(f"wait must be from 0 to {_LONGEST_WAIT:g} seconds", field="wait")
    journal = journal_of(request)
    # The stop file goes up at once, also when the writer's thread is busy or hangs.
    try:
        stopped = await asyncio.to_thread(
            recovery.stop, journal.settings, asked.reason, Given(asked.note)
        )
    except OSError as error:
        raise Refused(f"the stop file cannot be written: {error.strerror or error}") from error
    begun = await journal.write(recovery.begin, asked.reason, principal(request), stopped.evidence)
    calls = await _wait(journal, begun.in_flight, asked.wait)
    return reply(msgspec.structs.replace(begun, in_flight=calls))


async def _wait(journal: Journal, calls: list[InFlight], seconds: float | None) -> list[InFlight]:
    """Wait for calls in flight to end; how each stands then."""
    wait = inflight.default_wait(journal.settings, calls) if seconds is None else seconds
    try:
        async with asyncio.timeout(wait):
            while inflight.pending(calls):
                await asyncio.sleep(_LOOK_EVERY)
                calls = await journal.read(inflight.follow, calls)
    except TimeoutError:
        pass
    return calls


@post(
    "/recovery/plan",
    opt=described(
        Call(
            "What is missing, incomplete and local-only, and what apply would do; changes nothing.",
            Role.OPERATOR,
            {200: Plan},
            _STEP,
            body=Nothing,
            body_optional=True,
        )
    ),
)
async def plan(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/plan`."""
    await _read(request, _NOTHING)
    return reply(await journal_of(request).write(recovery.plan))


@post(
    "/recovery/apply",
    opt=described(
        Call(
            "Bring the store to what the journal holds and start a new history.",
            Role.OPERATOR,
            {200: recovery.Applied},
            _STEP,
            body=ApplyRequest,
            body_optional=True,
        )
    ),
)
async def apply(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/apply`."""
    asked: ApplyRequest = await _read(request, _APPLY)
    consent = recovery.Consent(asked.max_undo, asked.confirm_tenant, asked.confirm_history)
    work = partial(
        recovery.apply,
        plan_id=asked.plan,
        principal=principal(request),
        consent=consent,
        accept_loss=asked.accept_loss,
    )
    return reply(await journal_of(request).write(work))


@post(
    "/recovery/reopen",
    opt=described(
        Call(
            "Let the tenant read, decide and have effects, as far as the tests of each stage hold.",
            Role.OPERATOR,
            {200: recovery.Reopened},
            _STEP,
            body=ReopenRequest,
            body_optional=True,
        )
    ),
)
async def reopen(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/reopen`."""
    asked: ReopenRequest = await _read(request, _REOPEN)
    if asked.despite and asked.reason is None:
        raise Invalid("despite needs a reason: who may answer for it, and why", field="reason")
    if asked.reason is not None:
        check_name("reason", asked.reason, MAX_STRING)
    opening = None
    if asked.lanes or asked.releases or asked.rate:
        opening = Opening(tuple(asked.lanes), tuple(asked.releases), asked.rate)
    step = partial(
        recovery.reopen,
        to=None if asked.to is None else Stage(asked.to),
        opening=opening,
        despite=frozenset(asked.despite),
        reason=asked.reason or "reopened",
    )
    return reply(await journal_of(request).write(step, principal(request)))


@get(
    "/recovery",
    opt=described(
        Call("Where the recovery stands, and every history.", Role.OPERATOR, {200: RecoveryView})
    ),
)
async def read_recovery(request: Request[Any, Any, Any]) -> Answer:
    """`GET recovery`."""
    query(request)
    control, now = await journal_of(request).read(_standing)
    return reply(
        RecoveryView(
            stage=now.stage,
            verdict=now.verdict,
            detail=now.detail,
            stopped=now.stopped,
            history=control.authority.history,
            generation=control.authority.generation,
            begun=control.begun,
            reconciled=control.reconciled,
            opening=control.opening,
            last=control.last,
            reason=control.reason,
            since=control.since,
            histories=control.histories,
        )
    )


@get(
    "/recovery/report",
    opt=described(
        Call(
            "What a recovery did, how long it took against the objectives, and what is left.",
            Role.OPERATOR,
            {200: RecoveryReport},
            ("not-found",),
            parameters=(GENERATION,),
        )
    ),
)
async def read_report(request: Request[Any, Any, Any]) -> Answer:
    """`GET recovery/report`."""
    asked = query(request, generation=positive)
    return reply(await journal_of(request).read(reporting.report, asked["generation"]))


async def _standing(record: Record) -> tuple[Control, Status]:
    control = await record.current_control(await record.look())
    return control, await status(record)


ROUTES = [begin, plan, apply, reopen, read_recovery, read_report]
