"""Abandoning over HTTP: cutting off a history that can never be made whole."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from msgspec import Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import Call, described
from api.requests import body_of, journal_of, shape
from journal.control import Role
from reconstruct.abandoning import Ended, Named, abandon


class AbandonRequest(Struct, forbid_unknown_fields=True):
    """Which entity goes on without what stands above its last continuous revision, and why.

    `drop` names every decision that is dropped by this and can be read, by operation ID or digest.
    `confirm_tenant` and `confirm_history` (the one in force) are safeguards.
    """

    entity: str
    reason: str
    evidence: str
    confirm_tenant: str
    confirm_history: str
    drop: list[str] = []


_ABANDON = shape(AbandonRequest)


@post(
    "/recovery/abandon",
    opt=described(
        Call(
            "Cut an entity's history off at its last continuous revision. Again: says what was "
            "done.",
            Role.OPERATOR,
            {200: Ended},
            ("not-found", "refused", "request-timeout", "too-large", "unsupported-media-type"),
            body=AbandonRequest,
        )
    ),
)
async def abandon_entity(request: Request[Any, Any, Any]) -> Answer:
    """`POST recovery/abandon`."""
    journal = journal_of(request)
    asked: AbandonRequest = _ABANDON.read(await body_of(request, journal.settings.max_request))
    done = await journal.write(
        abandon,
        asked.entity,
        asked.reason,
        asked.evidence,
        asked.drop,
        principal(request),
        Named(asked.confirm_tenant, asked.confirm_history),
    )
    return reply(done)


ROUTES = [abandon_entity]
