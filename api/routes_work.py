"""What else is asked about work: commands, decisions as events, observations, boundaries passed."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from msgspec import Struct

from api.answers import Answer, reply
from api.calls import (
    AFTER,
    LIMIT,
    OF_ACTION,
    OF_ENTITY,
    OF_LANE,
    OF_STATUS,
    OPERATION,
    WORK,
    Call,
    described,
)
from api.requests import action, entity, integer, journal_of, path_value, query, text
from api.routes_releases import read_one, read_work
from journal.control import Role
from journal.events import Event, Wanted, read_events
from journal.inquiry import ObservationView, Where, WorkView
from journal.lanes import Effect


class Commands(Struct):
    """A page of commands and items, lane by lane. It may be short; `next` is null at the end."""

    items: list[WorkView]
    next: str | None


class Events(Struct):
    """A page of decisions as the journal took them. It may be short; `next` is null at the end."""

    items: list[Event]
    next: str | None


class Observations(Struct):
    """A page of reports that could be no decision; `next` is null at the end."""

    items: list[ObservationView]
    next: str | None


@get(
    "/commands",
    opt=described(
        Call(
            "Work that stays in the house: commands of decisions, and best-effort items.",
            Role.READER,
            {200: Commands},
            ("not-found",),
            parameters=(OF_LANE, OF_STATUS, OF_ENTITY, AFTER, LIMIT),
        )
    ),
)
async def list_commands(request: Request[Any, Any, Any]) -> Answer:
    """`GET commands`."""
    return await read_work(request, (Effect.INTERNAL, Effect.BEST_EFFORT))


@get(
    "/commands/{id:str}",
    opt=described(
        Call(
            "Where a command or an item stands.",
            Role.READER,
            {200: WorkView},
            ("not-found",),
            parameters=(WORK,),
        )
    ),
)
async def read_command(request: Request[Any, Any, Any]) -> Answer:
    """`GET commands/{id}`."""
    return await read_one(request, external=False)


@get(
    "/events",
    opt=described(
        Call(
            "Decisions in the order in which the journal took them; of one entity or action, or "
            "all.",
            Role.READER,
            {200: Events},
            ("history-incomplete",),
            parameters=(OF_ENTITY, OF_ACTION, AFTER, LIMIT),
        )
    ),
)
async def list_events(request: Request[Any, Any, Any]) -> Answer:
    """`GET events`."""
    asked = query(request, entity=entity, action=action, after=text, limit=integer)
    wanted = Wanted(asked["entity"], asked["action"])
    journal = journal_of(request)
    return reply(await journal.read(read_events, wanted, asked["after"], asked["limit"]))


@get(
    "/observations",
    opt=described(
        Call(
            "Reports that could be no decision when they came. `status` is the release's; null: "
            "nobody here knows of such a release.",
            Role.READER,
            {200: Observations},
            parameters=(AFTER, LIMIT),
        )
    ),
)
async def list_observations(request: Request[Any, Any, Any]) -> Answer:
    """`GET observations`."""
    asked = query(request, after=text, limit=integer)
    return reply(await journal_of(request).lanes.observations(**asked))


@get(
    "/operations/{id:str}/where",
    opt=described(
        Call(
            "How far an operation and the work that follows from it have come, boundary by "
            "boundary.",
            Role.READER,
            {200: Where},
            ("not-found",),
            parameters=(OPERATION,),
        )
    ),
)
async def read_where(request: Request[Any, Any, Any]) -> Answer:
    """`GET operations/{id}/where`."""
    query(request)
    return reply(await journal_of(request).lanes.where(path_value(request, "id")))


ROUTES = [list_commands, read_command, list_events, list_observations, read_where]
