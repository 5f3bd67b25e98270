"""Reconciling over HTTP: `POST recovery/reconcile` and what it found."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from msgspec import Meta, Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import AFTER, LIMIT, Call, Parameter, described
from api.reconciling import reconcile as run
from api.requests import body_of, integer, journal_of, positive, query, shape, text
from journal.control import Role
from journal.errors import Invalid
from reconstruct import auditing
from reconstruct.auditing import FindingPage, Reconciled
from reconstruct.judging import Finding

MOST = 1000
"""Releases that one call looks at, unless it says less."""


class ReconcileRequest(Struct, forbid_unknown_fields=True):
    """How much to do in this call: at most `limit` releases, 1,000 where null.

    `rate` is in questions a second, 0: no limit beyond the receivers' own. `record_incidents`
    records releases that were made without authority.
    """

    limit: Annotated[int, Meta(ge=1)] | None = None
    rate: Annotated[float, Meta(ge=0)] = 0.0
    record_incidents: bool = False


def _finding(name: str, value: str) -> str:
    if value not in {*map(str, Finding)}:
        raise Invalid(f"{name} is none of: {', '.join(Finding)}", field=name)
    return value


_RECONCILE = shape(ReconcileRequest)


@post(
    "/recovery/reconcile",
    opt=described(
        Call(
            "Ask receivers what became of releases; call again until it is `complete`.",
            Role.OPERATOR,
            {200: Reconciled},
            ("refused", "request-timeout", "too-large", "unsupported-media-type"),
            body=ReconcileRequest,
            body_optional=True,
        )
    ),
)
async def reconcile(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/reconcile`."""
    journal = journal_of(request)
    raw = await body_of(request, journal.settings.max_request)
    asked: ReconcileRequest = _RECONCILE.read(raw or b"{}")
    done = await run(
        journal.write,
        journal.settings,
        limit=MOST if asked.limit is None else min(asked.limit, MOST),
        rate=asked.rate,
        incidents=asked.record_incidents,
        principal=principal(request),
    )
    return reply(done)


@get(
    "/recovery/findings",
    opt=described(
        Call(
            "What the reconciliation of a generation found of each release.",
            Role.OPERATOR,
            {200: FindingPage},
            parameters=(
                Parameter(
                    "found",
                    "query",
                    {"type": "string", "enum": [*map(str, Finding)]},
                    "Only these findings.",
                ),
                Parameter(
                    "generation",
                    "query",
                    {"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
                    "Of this generation; if absent of the one in force.",
                ),
                AFTER,
                LIMIT,
            ),
        )
    ),
)
async def findings(request: Request[Any, Any, Any]) -> Answer:
    """`GET recovery/findings`."""
    asked = query(request, found=_finding, generation=positive, after=text, limit=integer)
    page = await journal_of(request).read(
        auditing.read_findings,
        asked["generation"],
        asked["found"],
        asked["after"],
        asked["limit"],
    )
    return reply(page)


ROUTES = [reconcile, findings]
