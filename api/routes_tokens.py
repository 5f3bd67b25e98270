"""Tokens: creating, listing and revoking them. No secret and no hash is ever shown again."""

from __future__ import annotations

from typing import Any

from litestar import Request, delete, get, post
from msgspec import Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import TOKEN, Call, described
from api.requests import body_of, journal_of, path_value, query, shape
from journal.control import Control, Role, Token
from journal.record import Record


class TokenRequest(Struct, forbid_unknown_fields=True):
    """The role of a new token, and a name by which people know it."""

    role: Role
    name: str


class NewToken(Struct, frozen=True):
    """A new token; `token` is told this once."""

    id: str
    role: Role
    name: str
    token: str


class TokenView(Struct, frozen=True):
    """A token without its secret."""

    id: str
    role: Role
    name: str
    created: str
    revoked: bool


class Tokens(Struct, frozen=True):
    """Every token, oldest first."""

    items: list[TokenView]


_TOKEN = shape(TokenRequest)


@post(
    "/tokens",
    opt=described(
        Call(
            "Create a token.",
            Role.OPERATOR,
            {201: NewToken},
            ("refused", "request-timeout", "too-large", "unsupported-media-type"),
            body=TokenRequest,
        )
    ),
)
async def create_token(request: Request[Any, Any, Any]) -> Answer:
    """`POST tokens`."""
    journal = journal_of(request)
    asked: TokenRequest = _TOKEN.read(await body_of(request, journal.settings.max_request))
    token = await journal.create_token(asked.role, asked.name, principal(request))
    return reply(NewToken(token.split("_")[1], asked.role, asked.name, token), 201)


@get(
    "/tokens",
    opt=described(Call("Every token, without secrets.", Role.OPERATOR, {200: Tokens})),
)
async def list_tokens(request: Request[Any, Any, Any]) -> Answer:
    """`GET tokens`."""
    query(request)
    control = await journal_of(request).read(current_control)
    return reply(Tokens([_view(token) for token in control.tokens.values()]))


def _view(token: Token) -> TokenView:
    return TokenView(token.id, token.role, token.name, token.created, token.revoked)


async def current_control(record: Record) -> Control:
    """Control as it is now. Raises ControlUnreadable or JournalUnavailable."""
    return await record.current_control(await record.look())


@delete(
    "/tokens/{id:str}",
    status_code=200,
    opt=described(
        Call(
            "Revoke a token; revoking it again changes nothing.",
            Role.OPERATOR,
            {200: TokenView},
            ("not-found", "refused"),
            parameters=(TOKEN,),
        )
    ),
)
async def revoke_token(request: Request[Any, Any, Any]) -> Answer:
    """`DELETE tokens/{id}`."""
    query(request)
    journal = journal_of(request)
    identity = path_value(request, "id")
    await journal.revoke_token(identity, principal(request))
    control = await journal.read(current_control)
    return reply(_view(control.tokens[identity]))


ROUTES = [create_token, list_tokens, revoke_token]
