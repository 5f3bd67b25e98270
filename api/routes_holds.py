"""Stops over HTTP: one entity type, or one of its actions, alone."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from msgspec import Meta, Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import Call, described
from api.requests import form_of, journal_of, query, shape
from journal import stopping
from journal.control import Hold, Role
from journal.entry import MAX_ACTION, MAX_STRING


class StopRequest(Struct, forbid_unknown_fields=True):
    """What to stop or to let go on, and why. Without `action` it is the whole type."""

    type: Annotated[str, Meta(min_length=1, max_length=MAX_ACTION)]
    reason: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)]
    action: Annotated[str, Meta(min_length=1, max_length=MAX_ACTION)] | None = None


class Stop(Struct, frozen=True):
    """A stop that stands. `action` null: of the whole type."""

    type: str
    action: str | None
    reason: str
    since: str
    principal: str | None


class Stops(Struct, frozen=True):
    """Stops, by name."""

    items: list[Stop]


_STOP = shape(StopRequest)
_ANSWERS = ("request-timeout", "too-large", "unsupported-media-type", "not-found", "refused")


def _shown(hold: Hold) -> Stop:
    return Stop(hold.kind, hold.action, hold.reason, hold.since, hold.principal)


@post(
    "/stops",
    status_code=200,
    opt=described(
        Call(
            "Stop an entity type, or one of its actions, alone: its operations are refused as "
            "`held` and nothing that it permitted begins. Reports are taken. Survives a rewind.",
            Role.OPERATOR,
            {200: Stop},
            _ANSWERS,
            body=StopRequest,
        )
    ),
)
async def stop(request: Request[Any, Any, Any]) -> Answer:
    """`POST stops`."""
    query(request)
    asked: StopRequest = await form_of(request, _STOP)
    return reply(
        _shown(
            await journal_of(request).write(
                stopping.stop_action, asked.type, asked.action, asked.reason, principal(request)
            )
        )
    )


@post(
    "/stops/resume",
    status_code=200,
    opt=described(
        Call(
            "Let a type or an action go on; what of this type is still stopped.",
            Role.OPERATOR,
            {200: Stops},
            _ANSWERS,
            body=StopRequest,
        )
    ),
)
async def resume(request: Request[Any, Any, Any]) -> Answer:
    """`POST stops/resume`."""
    query(request)
    asked: StopRequest = await form_of(request, _STOP)
    left = await journal_of(request).write(
        stopping.resume_action, asked.type, asked.action, asked.reason, principal(request)
    )
    return reply(Stops([_shown(hold) for hold in left]))


@get("/stops", opt=described(Call("Every stop that stands.", Role.OPERATOR, {200: Stops})))
async def list_stops(request: Request[Any, Any, Any]) -> Answer:
    """`GET stops`."""
    query(request)
    return reply(Stops([_shown(hold) for hold in await journal_of(request).read(stopping.stops)]))


ROUTES = [stop, resume, list_stops]
