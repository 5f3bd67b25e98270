"""Reading: entities, histories, gates, gaps and the feed."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from msgspec import Struct

from api.answers import Answer, reply
from api.calls import (
    AFTER,
    AT,
    ENTITY_ID,
    ENTITY_TYPE,
    FIRST,
    LIMIT,
    OF_TYPE,
    REVISION,
    Call,
    described,
)
from api.requests import entity_of, integer, journal_of, positive, query, text
from journal.control import Role
from journal.entry import check_type
from journal.feed import Feed
from journal.gate import Ruling
from journal.log import FlawRow
from journal.reading import EntityView
from journal.tracing import HistoryView


class Entities(Struct):
    """A page of entities by name; `next` is null at the end."""

    items: list[EntityView]
    next: str | None


class Gaps(Struct):
    """A page of the reasons why histories are incomplete; `next` is null at the end."""

    items: list[FlawRow]
    next: str | None


def _type(name: str, value: str) -> str:
    del name
    return check_type(value)


@get(
    "/entities",
    opt=described(
        Call(
            "Entities by name, each at its durable boundary.",
            Role.READER,
            {200: Entities},
            parameters=(OF_TYPE, AFTER, LIMIT),
        )
    ),
)
async def list_entities(request: Request[Any, Any, Any]) -> Answer:
    """`GET entities`."""
    asked = query(request, type=_type, after=text, limit=integer)
    page = await journal_of(request).entities(asked["type"], asked["after"], asked["limit"])
    return reply(page)


@get(
    "/entities/{type:str}/{id:str}",
    opt=described(
        Call(
            "An entity at its durable boundary, or as it was at an earlier revision or time.",
            Role.READER,
            {200: EntityView},
            ("not-found",),
            parameters=(ENTITY_TYPE, ENTITY_ID, AT),
        )
    ),
)
async def read_entity(request: Request[Any, Any, Any]) -> Answer:
    """`GET entities/{type}/{id}`."""
    asked = query(request, at=_revision_or_time)
    return reply(await journal_of(request).entity(entity_of(request), asked["at"]))


def _revision_or_time(name: str, value: str) -> str:
    return str(positive(name, value)) if value.isdecimal() else value


@get(
    "/entities/{type:str}/{id:str}/history",
    opt=described(
        Call(
            "An entity's chain of decisions with its gaps marked.",
            Role.READER,
            {200: HistoryView},
            ("not-found",),
            parameters=(ENTITY_TYPE, ENTITY_ID, FIRST, LIMIT),
        )
    ),
)
async def read_history(request: Request[Any, Any, Any]) -> Answer:
    """`GET entities/{type}/{id}/history`."""
    asked = query(request, first=positive, limit=integer)
    view = await journal_of(request).history(
        entity_of(request), asked["first"] or 1, asked["limit"]
    )
    return reply(view)


@get(
    "/entities/{type:str}/{id:str}/gate",
    opt=described(
        Call(
            "Whether a revision may have effects now: `gate` is `go`, or `held` with every reason.",
            Role.READER,
            {200: Ruling},
            ("not-found",),
            parameters=(ENTITY_TYPE, ENTITY_ID, REVISION),
        )
    ),
)
async def read_gate(request: Request[Any, Any, Any]) -> Answer:
    """`GET entities/{type}/{id}/gate`."""
    asked = query(request, revision=positive)
    return reply(await journal_of(request).gate(entity_of(request), asked["revision"]))


@get(
    "/gaps",
    opt=described(
        Call(
            "Every reason why a history is incomplete: kind, range, what it holds, since when.",
            Role.READER,
            {200: Gaps},
            parameters=(AFTER, LIMIT),
        )
    ),
)
async def list_gaps(request: Request[Any, Any, Any]) -> Answer:
    """`GET gaps`."""
    return reply(await journal_of(request).gaps(**query(request, after=text, limit=integer)))


@get(
    "/entries",
    opt=described(
        Call(
            "The journal's entries of every order, tokens left out. The cursor names its history "
            "and is refused once a recovery has ended that.",
            Role.READER,
            {200: Feed},
            ("history-changed",),
            parameters=(AFTER, LIMIT),
        )
    ),
)
async def read_feed(request: Request[Any, Any, Any]) -> Answer:
    """`GET entries`."""
    return reply(await journal_of(request).feed(**query(request, after=text, limit=integer)))


ROUTES = [
    list_entities,
    read_entity,
    read_history,
    read_gate,
    list_gaps,
    read_feed,
]
