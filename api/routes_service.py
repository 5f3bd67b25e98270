"""The service itself: status, health, the OpenAPI document, and what the problem types mean."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from msgspec import Struct

from api.answers import Answer, reply
from api.calls import SLUG, Call, described
from api.problems import BASE, BY_SLUG, REPEAT
from api.requests import journal_of, path_value, query, served_of
from journal.control import Role
from journal.errors import NotFound
from journal.status import Status


class Alive(Struct, frozen=True):
    """The service answers, or is ready for decisions."""

    status: str


class ProblemType(Struct, frozen=True):
    """What a problem type means; `repeat` says how to repeat what is worth repeating."""

    type: str
    title: str
    status: int
    about: str
    retry_after: int | None
    repeat: str | None


@get(
    "/status",
    opt=described(
        Call(
            "Where the tenant stands, and which failures it is not covered against.",
            Role.READER,
            {200: Status},
        )
    ),
)
async def read_status(request: Request[Any, Any, Any]) -> Answer:
    """`GET status`."""
    query(request)
    return reply(await journal_of(request).status())


@get(
    "/health/live",
    opt=described(Call("Whether the process answers.", None, {200: Alive})),
)
async def live() -> Answer:
    """`GET /health/live`."""
    return reply(Alive("live"))


@get(
    "/health/ready",
    opt=described(
        Call(
            "Whether a decision would be taken now, shown by a write, at most once a second.",
            None,
            {200: Alive},
            ("journal-unavailable", "recovering", "busy"),
        )
    ),
)
async def ready(request: Request[Any, Any, Any]) -> Answer:
    """`GET /health/ready`."""
    await served_of(request).health.check()
    return reply(Alive("ready"))


@get(
    ["/schema", "/schema/openapi.json"],
    opt=described(Call("This document.", None, {200: dict[str, Any]})),
)
async def read_schema(request: Request[Any, Any, Any]) -> Answer:
    """`GET /schema`."""
    return Answer(200, request.app.state["openapi"]())


@get(
    "/problems/{slug:str}",
    opt=described(
        Call(
            "What a problem type means.",
            None,
            {200: ProblemType},
            ("not-found",),
            parameters=(SLUG,),
        )
    ),
)
async def read_problem(request: Request[Any, Any, Any]) -> Answer:
    """`GET /problems/{slug}`."""
    slug = path_value(request, "slug")
    kind = BY_SLUG.get(slug)
    if kind is None:
        raise NotFound(f"there is no problem type {slug}; types: {', '.join(BY_SLUG)}")
    repeat = None if kind.retry_after is None else REPEAT
    return reply(
        ProblemType(BASE + slug, kind.title, kind.status, kind.about, kind.retry_after, repeat)
    )


OF_TENANT = [read_status]
OF_SERVER = [live, ready, read_schema, read_problem]
