"""The application: a service's tenants behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from litestar import Litestar, Request, Router
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.routes import BaseRoute, HTTPRoute

from api import (
    openapi,
    problems,
    routes_abandon,
    routes_callbacks,
    routes_decisions,
    routes_holds,
    routes_lanes,
    routes_ledger,
    routes_letters,
    routes_reading,
    routes_reconcile,
    routes_recovery,
    routes_releases,
    routes_service,
    routes_tenants,
    routes_tokens,
    routes_watching,
    routes_work,
)
from api.alerts import Alerts
from api.answers import encode
from api.auth import NEEDS, Authentication
from api.calls import STRAIGHT
from api.dispatcher import Dispatcher
from api.requests import clean_path
from api.rounds import Many, Rounds
from api.routes_decisions import base_of
from api.served import TENANT, Served
from api.tenants import Tenants
from api.working import working
from journal import Journal, Settings
from journal.errors import Invalid

_VERSION = "/v1/"


class Application(Litestar):
    """Litestar over a service's tenants: its ``own``, and ``many`` others where it has a registry.

    Routes on the path as it was sent, its segments still encoded. The routes are those of the own
    tenant: the path of a request about another one is brought to them, with that tenant's name
    beside it, and who it is for is found out behind the routes, where the token is looked at.
    """

    def __init__(self, own: Served, many: Many | None, **options: Any) -> None:
        self.own = own
        self.journal = own.journal
        self.many = many
        self._base = f"{base_of(own.journal)}/"
        self._authentication = Authentication(own, None if many is None else many.tenants)
        super().__init__(middleware=[self._authentication], **options)
        self.straight = straight_of(self.routes)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] == "http":
            try:
                path = clean_path(scope["raw_path"])
            except Invalid as error:
                await problems.answer(error, scope)(scope, receive, send)
                return
            scope[TENANT] = self.own
            if path.startswith(_VERSION) and not path.startswith(self._base):
                name, slash, rest = path[len(_VERSION) :].partition("/")
                if slash:
                    scope[TENANT] = name
                    path = self._base + rest
            scope["path"] = path
            handler = self.straight.get(path)
            if handler is not None and scope["method"] == "POST" and scope[TENANT] is self.own:
                await self._answer(handler, scope, receive, send)
                return
        await super().__call__(scope, receive, send)

    async def _answer(self, handler: HTTPRouteHandler, scope: Any, receive: Any, send: Any) -> None:
        """What the router, its middleware and its exception handlers do for such a handler."""
        scope["app"] = scope["litestar_app"] = self
        scope["path_params"] = {}
        request: Request[Any, Any, Any] = Request(scope, receive, send)
        try:
            await self._authentication.let_in(scope, handler.opt[NEEDS])
            answer = await handler.fn(request)
        except Exception as error:  # noqa: BLE001 - as the router's exception handler
            answer = problems.handle(request, error)
        await answer(scope, receive, send)


def straight_of(routes: Sequence[BaseRoute]) -> dict[str, HTTPRouteHandler]:
    """By path, the handlers of POST that ask to be called without a router. See ``STRAIGHT``."""
    return {
        route.path: handler
        for route in routes
        if isinstance(route, HTTPRoute) and not route.path_parameters
        for handler in route.route_handlers
        if handler.opt.get(STRAIGHT) and handler.http_methods == {"POST"}
    }


def create_app(settings: Settings, journal: Journal | None = None) -> Application:
    """The application over the settings' tenant, or over a ``journal`` that is started already.

    Beside it the tenants of its registry are served. Its lifespan starts and stops the tenant (a
    given one is left to its owner), the dispatcher and the schedule, and the rounds of the others.
    Raises SettingsInvalid for a handler that cannot be imported or a secret that is not set.
    """
    owned = journal is None
    tenant = Journal(settings) if journal is None else journal
    own = Served(tenant, Alerts(settings))
    dispatcher = own.dispatcher = Dispatcher(tenant, own.alerts)
    tenants = Tenants(settings, own)
    many = Many(tenants, Rounds(tenants))

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        if owned:
            await tenant.start()
        try:
            async with working(tenant, own.alerts, dispatcher):
                many.rounds.start()
                try:
                    yield
                finally:
                    await many.rounds.stop()
                    await tenants.stop()
        finally:
            if owned:
                await tenant.stop()

    of_tenant = Router(
        base_of(tenant),
        route_handlers=[
            *routes_decisions.ROUTES,
            *routes_ledger.ROUTES,
            *routes_reading.ROUTES,
            *routes_releases.ROUTES,
            *routes_work.ROUTES,
            *routes_lanes.ROUTES,
            *routes_letters.ROUTES,
            *routes_holds.ROUTES,
            *routes_callbacks.ROUTES,
            *routes_recovery.ROUTES,
            *routes_abandon.ROUTES,
            *routes_reconcile.ROUTES,
            *routes_tokens.ROUTES,
            *routes_tenants.ROUTES,
            *routes_service.OF_TENANT,
            *routes_watching.OF_TENANT,
        ],
    )
    of_server = [*routes_service.OF_SERVER, *routes_watching.OF_SERVER]
    app = _build(own, many, [of_tenant, *of_server], [lifespan])
    app.state["openapi"] = cache(lambda: encode(openapi.document(app, _version())))
    return app


def build(
    journal: Journal,
    handlers: Sequence[Router | HTTPRouteHandler],
    lifespan: Sequence[Any] = (),
) -> Application:
    """These handlers behind everything that a request to the tenant passes on its way."""
    return _build(Served(journal, Alerts(journal.settings)), None, handlers, lifespan)


def _build(
    own: Served,
    many: Many | None,
    handlers: Sequence[Router | HTTPRouteHandler],
    lifespan: Sequence[Any],
) -> Application:
    return Application(
        own,
        many,
        route_handlers=handlers,
        lifespan=list(lifespan),
        exception_handlers={Exception: problems.handle},
        state=State({}),
        # The document is our own (api.openapi); debug pages and Litestar's logs could show secrets.
        openapi_config=None,
        logging_config=None,
        debug=False,
    )


def _version() -> str:
    try:
        return version("unrewind")
    except PackageNotFoundError:
        return "0"
