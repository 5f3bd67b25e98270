"""The tenants of a service: listing, creating and closing them. For its own tenant's operators."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Request, get, post
from msgspec import Meta, Struct

from api import registering
from api.answers import Answer, reply
from api.auth import principal
from api.calls import LIMIT, Call, Parameter, described
from api.registering import Created, TenantView
from api.requests import form_of, many_of, path_value, positive, query, served_of, shape, text
from api.rounds import Many
from api.tenants import Tenants
from journal.control import Role
from journal.entry import check_tenant
from journal.errors import Forbidden
from journal.feed import clamp

_TENANT = {"type": "string", "pattern": "^[a-z0-9_-]{1,64}$"}

NAME = Parameter("name", "path", _TENANT, "The tenant's name.")
AFTER = Parameter("after", "query", _TENANT, "The name `next` of the page before.")


class TenantRequest(Struct, forbid_unknown_fields=True):
    """The name of a new tenant. It is put where the service's own tenant is.

    Another place is named on the command line: `unrewind tenant create`.
    """

    name: Annotated[str, Meta(pattern="^[a-z0-9_-]{1,64}$")]


class CloseRequest(Struct, forbid_unknown_fields=True):
    """Why a tenant is closed; the reason is journalled."""

    reason: Annotated[str, Meta(min_length=1, max_length=registering.MAX_REASON, pattern="\\S")]


class TenantPage(Struct, frozen=True):
    """Tenants by name, the service's own first.

    `registered` counts all of them, `open` those that this process has open now, of `most` that may
    be beside its own.
    """

    items: list[TenantView]
    next: str | None
    registered: int
    open: int
    most: int


_CREATE = shape(TenantRequest)
_CLOSE = shape(CloseRequest)
_SENT = ("request-timeout", "too-large", "unsupported-media-type")


def _many(request: Request[Any, Any, Any]) -> Many:
    """The service's tenants. Raises Forbidden for a token of another tenant than its own."""
    many = many_of(request)
    if many is None or served_of(request) is not many.tenants.own:
        raise Forbidden(
            "the service's tenants are for the operators of its own tenant",
            needed=str(Role.OPERATOR),
            role="operator of another tenant",
        )
    return many


@get(
    "/tenants",
    opt=described(
        Call(
            "The tenants of the service, and how each of them stands. For operators of the "
            "service's own tenant.",
            Role.OPERATOR,
            {200: TenantPage},
            parameters=(AFTER, LIMIT),
        )
    ),
)
async def list_tenants(request: Request[Any, Any, Any]) -> Answer:
    """`GET tenants`."""
    tenants = _many(request).tenants
    asked = query(request, after=text, limit=positive)
    limit = clamp(asked["limit"])
    after = asked["after"]
    names = await asyncio.to_thread(registering.names_of, tenants.base)
    rest = names
    if after is not None:
        check_tenant(after)
        rest = [name for name in names[1:] if after == tenants.own.name or name > after]
    items = [await _view(tenants, name) for name in rest[:limit]]
    more = items[-1].tenant if len(rest) > limit else None
    held = 1 + len(tenants.open_ones())
    return reply(TenantPage(items, more, len(names), held, tenants.base.tenants_open))


async def _view(tenants: Tenants, name: str) -> TenantView:
    """How a tenant stands: from its files, so that asking opens none."""
    opened = tenants.is_open(name)

    def look() -> TenantView:
        return registering.view(tenants.base, name, opened=opened)

    found: TenantView = await tenants.apart(look)
    return found


@post(
    "/tenants",
    opt=described(
        Call(
            "Create a tenant beside the service's own, with a first operator token. For operators "
            "of the service's own tenant.",
            Role.OPERATOR,
            {201: Created},
            ("refused", *_SENT),
            body=TenantRequest,
        )
    ),
)
async def create_tenant(request: Request[Any, Any, Any]) -> Answer:
    """`POST tenants`."""
    tenants = _many(request).tenants
    asked: TenantRequest = await form_of(request, _CREATE)
    who = principal(request)

    def create() -> Created:
        return registering.create(tenants.base, asked.name, principal=who)

    return reply(await asyncio.to_thread(create), 201)


@get(
    "/tenants/{name:str}",
    opt=described(
        Call(
            "One tenant of the service. For operators of the service's own tenant.",
            Role.OPERATOR,
            {200: TenantView},
            ("not-found",),
            parameters=(NAME,),
        )
    ),
)
async def read_tenant(request: Request[Any, Any, Any]) -> Answer:
    """`GET tenants/{name}`."""
    tenants = _many(request).tenants
    query(request)
    return reply(await _view(tenants, path_value(request, "name")))


@post(
    "/tenants/{name:str}/close",
    status_code=200,
    opt=described(
        Call(
            "Close a tenant to decisions; closing it again changes nothing. Its data stays, and "
            "`unrewind recover reopen` opens it again. For operators of the service's own tenant.",
            Role.OPERATOR,
            {200: TenantView},
            ("not-found", "refused", *_SENT),
            body=CloseRequest,
            parameters=(NAME,),
        )
    ),
)
async def close_tenant(request: Request[Any, Any, Any]) -> Answer:
    """`POST tenants/{name}/close`."""
    tenants = _many(request).tenants
    name = path_value(request, "name")
    settings = registering.settings_of(tenants.base, name)
    asked: CloseRequest = await form_of(request, _CLOSE)
    await asyncio.to_thread(registering.close, settings, asked.reason, principal(request))
    return reply(await _view(tenants, name))


ROUTES = [list_tenants, create_tenant, read_tenant, close_tenant]
