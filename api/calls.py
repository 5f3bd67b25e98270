"""Calls: what a handler tells the authentication and the OpenAPI document about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from api.auth import NEEDS, PUBLIC
from journal.control import Role
from journal.work import Status

CALL = "call"
STRAIGHT = "straight"
"""In a handler's ``opt``: it is called straight from the application, without the router.

For calls that come by the thousand a second: finding a route, the middleware stack and the
rendering of an answer take half as long as all of HTTP. The handler has one method, POST, a
path without parameters and a role, answers with an ``Answer``, and asks its Request for ``scope``
and ``receive`` alone.
"""


class Parameter(Struct, frozen=True):
    """One parameter of a path, query or header, with its JSON schema. A path's is required."""

    name: str
    where: str
    schema: Mapping[str, Any]
    about: str
    required: bool = False


class Call(Struct, frozen=True):
    """One call as the OpenAPI document describes it.

    ``answers`` maps a status to the type of its content (None: there is none), which is JSON unless
    ``media_type`` says otherwise; ``problems`` names the problem types beyond those that every
    authenticated call may answer with.
    """

    about: str
    needs: Role | None
    answers: Mapping[int, Any]
    problems: tuple[str, ...] = ()
    body: Any = None
    body_optional: bool = False
    parameters: tuple[Parameter, ...] = ()
    media_type: str = "application/json"


def described(call: Call, *, straight: bool = False) -> dict[str, Any]:
    """The ``opt`` of the handler that answers the call."""
    needs = PUBLIC if call.needs is None else call.needs
    return {NEEDS: needs, CALL: call, STRAIGHT: straight}


def _integer(least: int, most: int = 2**53 - 1) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


_NAME = {"type": "string", "minLength": 1}
_DECLARED = {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,63}$"}

ENTITY_TYPE = Parameter(
    "type",
    "path",
    _DECLARED,
    "The entity's type.",
)
ENTITY_ID = Parameter("id", "path", _NAME, "The entity's ID; `/` within it is sent as `%2F`.")
OPERATION = Parameter("id", "path", _NAME, "The operation ID; `/` within it is sent as `%2F`.")
TOKEN = Parameter("id", "path", _NAME, "The token's ID, the part between `unr_` and the next `_`.")
SLUG = Parameter("slug", "path", _NAME, "The last part of a problem's `type`.")
AFTER = Parameter("after", "query", _NAME, "The cursor `next` of the page before.")
LIMIT = Parameter("limit", "query", _integer(1, 1000), "How many items a page has; 100 if absent.")
OF_TYPE = Parameter("type", "query", ENTITY_TYPE.schema, "Only entities of this type.")
AT = Parameter(
    "at", "query", _NAME, "An earlier revision, or an RFC 3339 time; `+` stands for itself."
)
FIRST = Parameter("first", "query", _integer(1), "The revision to begin with; 1 if absent.")
REVISION = Parameter("revision", "query", _integer(1), "The revision asked for; else the newest.")
IDEMPOTENCY_KEY = Parameter(
    "Idempotency-Key",
    "header",
    {"type": "string", "minLength": 1, "maxLength": 258},
    "The operation ID, bare or as a quoted string, where the body has none. If both are there they "
    "must be equal.",
)
RELEASE = Parameter("id", "path", _NAME, "The release's ID, which the permitting receipt names.")
WORK = Parameter("id", "path", _NAME, "The ID of a release, a command or an item.")
LANE = Parameter("lane", "path", _DECLARED, "The lane's name.")
RECEIVER = Parameter("receiver", "path", _DECLARED, "The receiver's name, which is the token's.")
OF_LANE = Parameter("lane", "query", _DECLARED, "Only what stands in this lane.")
OF_STATUS = Parameter(
    "status", "query", {"type": "string", "enum": [*map(str, Status)]}, "Only what has this status."
)
OF_ENTITY = Parameter(
    "entity",
    "query",
    {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,63}/"},
    "Only what belongs to this entity, `type/id`.",
)
OF_ACTION = Parameter("action", "query", _NAME, "Only decisions of this action.")
SIGNED = (
    Parameter(
        "webhook-id",
        "header",
        {"type": "string", "minLength": 1, "maxLength": 128},
        "The callback's own ID, by which it is taken once. It may not hold a full stop.",
        required=True,
    ),
    Parameter(
        "webhook-timestamp",
        "header",
        {"type": "string", "pattern": "^[1-9][0-9]{0,11}$"},
        "When it was signed, in whole seconds since 1970; within five minutes of now.",
        required=True,
    ),
    Parameter(
        "webhook-signature",
        "header",
        {"type": "string", "minLength": 1, "maxLength": 2048},
        "`v1,` and the base64 of HMAC-SHA256 over `<id>.<timestamp>.<body>`, under the receiver's "
        "callback secret (Standard Webhooks).",
        required=True,
    ),
)
