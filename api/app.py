"""The application: one tenant behind HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler

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
    routes_tokens,
    routes_watching,
    routes_work,
)
from api.alerts import Alerts
from api.answers import encode
from api.auth import Authentication
from api.dispatcher import Dispatcher
from api.health import Health
from api.requests import clean_path
from api.routes_decisions import base_of
from api.working import working
from journal import Journal, Settings
from journal.errors import Invalid


class Application(Litestar):
    """Litestar over one tenant. Routes on the path as it was sent, its segments still encoded."""

    def __init__(self, journal: Journal, **options: Any) -> None:
        self.journal = journal
        super().__init__(**options)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] == "http":
            try:
                scope["path"] = clean_path(scope["raw_path"])
            except Invalid as error:
                await problems.answer(error, scope)(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def create_app(settings: Settings, journal: Journal | None = None) -> Application:
    """The application over the settings' tenant, or over a ``journal`` that is started already.

    Its lifespan starts and stops the tenant (a given one is left to its owner), the dispatcher and
    the schedule. Raises SettingsInvalid for a handler that cannot be imported or a secret that is
    not set.
    """
    owned = journal is None
    tenant = Journal(settings) if journal is None else journal
    alerts = Alerts(settings)
    dispatcher = Dispatcher(tenant, alerts)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        if owned:
            await tenant.start()
        try:
            async with working(tenant, alerts, dispatcher):
                yield
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
            *routes_service.OF_TENANT,
            *routes_watching.OF_TENANT,
        ],
    )
    of_server = [*routes_service.OF_SERVER, *routes_watching.OF_SERVER]
    app = build(tenant, [of_tenant, *of_server], [lifespan])
    app.state["alerts"] = alerts
    app.state["dispatcher"] = dispatcher
    app.state["openapi"] = encode(openapi.document(app, _version()))
    return app


def build(
    journal: Journal,
    handlers: Sequence[Router | HTTPRouteHandler],
    lifespan: Sequence[Any] = (),
) -> Application:
    """These handlers behind everything that a request to the tenant passes on its way."""
    return Application(
        journal,
        route_handlers=handlers,
        lifespan=list(lifespan),
        middleware=[Authentication(journal)],
        exception_handlers={Exception: problems.handle},
        state=State({"health": Health(journal)}),
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
