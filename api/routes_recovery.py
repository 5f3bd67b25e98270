"""Recovery over HTTP: begin, plan, apply, reopen, and where it stands."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, get, post
from msgspec import Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import Call, described
from api.requests import body_of, journal_of, query, shape
from journal.control import Control, HistoryRecord, Role
from journal.entry import MAX_STRING, check_name
from journal.errors import Refused
from journal.record import Record
from journal.status import Status, status
from reconstruct import recovery
from reconstruct.planning import Plan


class BeginRequest(Struct, forbid_unknown_fields=True):
    """Why the tenant is stopped."""

    reason: str


class ApplyRequest(Struct, forbid_unknown_fields=True):
    """The plan to apply, by its ID; null: whatever a plan would say now."""

    plan: str | None = None


class Nothing(Struct, forbid_unknown_fields=True):
    """No fields."""


class RecoveryView(Struct, frozen=True):
    """Where the recovery stands. `begun` is the generation of one that has not started its history.

    `last` is control's last action, since `since`, for `reason`.
    """

    stage: str
    verdict: str
    detail: str
    stopped: dict[str, Any] | None
    history: str
    generation: int
    begun: int | None
    last: str
    reason: str
    since: str
    histories: tuple[HistoryRecord, ...]


_BEGIN = shape(BeginRequest)
_APPLY = shape(ApplyRequest)
_NOTHING = shape(Nothing)
_STEP = ("refused", "request-timeout", "too-large", "unsupported-media-type")


async def _read(request: Request[Any, Any, Any], form: Any) -> Any:
    raw = await body_of(request, journal_of(request).settings.max_request)
    return form.read(raw or b"{}")


@post(
    "/recovery/begin",
    opt=described(
        Call(
            "Stop the tenant, keep a copy of the store, raise the generation. Again: resumes.",
            Role.OPERATOR,
            {200: recovery.Begun},
            _STEP,
            body=BeginRequest,
        )
    ),
)
async def begin(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/begin`."""
    reason = (await _read(request, _BEGIN)).reason
    check_name("reason", reason, MAX_STRING)
    journal = journal_of(request)
    # The stop file goes up at once, also when the writer's thread is busy or hangs.
    try:
        await asyncio.to_thread(recovery.stop, journal.settings, reason)
    except OSError as error:
        raise Refused(
            f"stopped, but the store's files could not be copied: {error.strerror or error}"
        ) from error
    return reply(await journal.write(recovery.begin, reason, principal(request)))


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
    done = await journal_of(request).write(recovery.apply, asked.plan, principal(request))
    return reply(done)


@post(
    "/recovery/reopen",
    opt=described(
        Call(
            "Open the tenant for decisions again.",
            Role.OPERATOR,
            {200: recovery.Reopened},
            _STEP,
            body=Nothing,
            body_optional=True,
        )
    ),
)
async def reopen(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/reopen`."""
    await _read(request, _NOTHING)
    return reply(await journal_of(request).write(recovery.reopen, principal(request)))


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
            last=control.last,
            reason=control.reason,
            since=control.since,
            histories=control.histories,
        )
    )


async def _standing(record: Record) -> tuple[Control, Status]:
    control = await record.current_control(await record.look())
    return control, await status(record)


ROUTES = [begin, plan, apply, reopen, read_recovery]
