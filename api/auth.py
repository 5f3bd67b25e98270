"""Authentication: who calls, and whether their role allows the call.

A pure ASGI middleware behind the router. A handler says what it needs in its ``opt``: a role, or
PUBLIC. One that says nothing is for operators.
"""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from journal import Journal
from journal.control import Role, Token
from journal.errors import Forbidden, Unauthenticated

NEEDS = "needs"
PUBLIC = "public"

_SCHEME = b"bearer "


class Authentication:
    """Lets a request pass with ``scope["auth"]``, its Token, or raises for the problem document.

    Raises Unauthenticated, Forbidden, and ControlUnreadable or JournalUnavailable when nobody can
    be told from anybody (P9).
    """

    def __init__(self, journal: Journal) -> None:
        self._authenticate = journal.authenticate

    def __call__(self, app: ASGIApp) -> ASGIApp:
        """The middleware in front of ``app``."""

        async def authenticated(scope: Scope, receive: Receive, send: Send) -> None:
            needs = scope["route_handler"].opt.get(NEEDS, Role.OPERATOR)
            if needs != PUBLIC:
                token = await self._authenticate(bearer(scope))
                if token is None:
                    raise Unauthenticated("the token is unknown or was revoked")
                if token.role is not needs and not token.role.covers(needs):
                    raise Forbidden(
                        f"this call needs the role {needs}; the token {token.id} is a {token.role}",
                        needed=str(needs),
                        role=str(token.role),
                    )
                scope["auth"] = token
            await app(scope, receive, send)

        return authenticated


def bearer(scope: Scope) -> str:
    """The bearer token that was presented. Raises Unauthenticated."""
    for name, value in scope["headers"]:
        if name == b"authorization":
            if value[:7].lower() != _SCHEME:
                break
            return str(value[7:].strip(), "latin-1")
    raise Unauthenticated


def principal(request: Request[Any, Any, Any]) -> str:
    """The ID of the token that the request came with."""
    token: Token = request.scope["auth"]
    return token.id
