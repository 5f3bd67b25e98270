"""Authentication: who calls, and whether their role allows the call.

A pure ASGI middleware behind the router. A handler says what it needs in its ``opt``: a role, or
PUBLIC. One that says nothing is for operators.
"""

from __future__ import annotations

from typing import Any, cast

from litestar import Request
from litestar.types import ASGIApp, Receive, Scope, Send

from api.served import TENANT, Served
from api.tenants import UNKNOWN, Tenants
from journal.control import Role, Token
from journal.errors import Forbidden, Unauthenticated

NEEDS = "needs"
PUBLIC = "public"

_SCHEME = b"bearer "


class Authentication:
    """Lets a request pass with ``scope["auth"]``, its Token, or raises for the problem document.

    A request about a tenant beside the service's own comes with its name alone: it is let in here,
    and its tenant is kept open until it has been answered.

    Raises Unauthenticated, Forbidden, and ControlUnreadable or JournalUnavailable when nobody can
    be told from anybody (P9).
    """

    def __init__(self, own: Served, tenants: Tenants | None = None) -> None:
        self._own = own
        self._authenticate = own.journal.authenticate
        self._tenants = tenants

    def __call__(self, app: ASGIApp) -> ASGIApp:
        """The middleware in front of ``app``."""

        async def authenticated(scope: Scope, receive: Receive, send: Send) -> None:
            whose: Served | str = cast("Any", scope)[TENANT]
            if whose is not self._own:
                await self._of_another(whose, app, scope, receive, send)
                return
            needs = scope["route_handler"].opt.get(NEEDS, Role.OPERATOR)
            if needs != PUBLIC:
                await self.let_in(scope, needs)
            await app(scope, receive, send)

        return authenticated

    async def let_in(self, scope: Scope, needs: Role) -> None:
        """Let a request about the own tenant pass, or raise as ``Authentication`` does."""
        token = await self._authenticate(bearer(scope))
        if token is None:
            raise Unauthenticated(UNKNOWN)
        _check_role(token, needs)
        scope["auth"] = token

    async def _of_another(
        self, whose: Served | str, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A request about a tenant that the path names."""
        presented = bearer(scope)
        if self._tenants is None or not isinstance(whose, str):
            raise Unauthenticated(UNKNOWN)
        served, token = await self._tenants.admit(whose, presented)
        try:
            _check_role(token, scope["route_handler"].opt.get(NEEDS, Role.OPERATOR))
            scope["auth"] = token
            cast("Any", scope)[TENANT] = served
            await app(scope, receive, send)
        finally:
            self._tenants.leave(served)


def _check_role(token: Token, needs: Role) -> None:
    if token.role is not needs and not token.role.covers(needs):
        raise Forbidden(
            f"this call needs the role {needs}; the token {token.id} is a {token.role}",
            needed=str(needs),
            role=str(token.role),
        )


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
