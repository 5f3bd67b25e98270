"""Metrics, and a test call of the alerts."""

from __future__ import annotations

from typing import Any

from litestar import Request, get, post
from msgspec import Struct

from api.answers import Answer, reply
from api.calls import Call, described
from api.metrics import MEDIA_TYPE, gather
from api.requests import many_of, query, served_of
from journal.control import Role


class Reached(Struct, frozen=True):
    """The places that a test alert reached: `log`, `metric`, and `webhook` where it answered."""

    reached: list[str]


@get(
    "/metrics",
    opt=described(
        Call(
            "Metrics in the Prometheus text format.",
            Role.READER,
            {200: str},
            media_type="text/plain",
        )
    ),
)
async def metrics(request: Request[Any, Any, Any]) -> Answer:
    """`GET /metrics`."""
    query(request)
    served = served_of(request)
    found = await gather(served.journal, served.alerts, many_of(request))
    return Answer(200, found, MEDIA_TYPE.encode())


@post(
    "/alerts/test",
    status_code=200,
    opt=described(
        Call("Raise a test alert, and say which places it reached.", Role.OPERATOR, {200: Reached})
    ),
)
async def try_alerts(request: Request[Any, Any, Any]) -> Answer:
    """`POST alerts/test`."""
    query(request)
    return reply(Reached(await served_of(request).alerts.test()))


OF_TENANT = [try_alerts]
OF_SERVER = [metrics]
