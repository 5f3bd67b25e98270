"""Calls: what a handler tells the authentication and the OpenAPI document about itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from api.auth import NEEDS, PUBLIC
from journal.control import Role

CALL = "call"


class Parameter(Struct, frozen=True):
    """One parameter of a path, query or header, with its JSON schema."""

    name: str
    where: str
    schema: Mapping[str, Any]
    about: str


class Call(Struct, frozen=True):
    """One call as the OpenAPI document describes it.

    ``answers`` maps a status to the type of its JSON (None: no content); ``problems`` names the
    problem types beyond those that every authenticated call may answer with.
    """

    about: str
    needs: Role | None
    answers: Mapping[int, Any]
    problems: tuple[str, ...] = ()
    body: Any = None
    body_optional: bool = False
    parameters: tuple[Parameter, ...] = ()


def described(call: Call) -> dict[str, Any]:
    """The ``opt`` of the handler that answers the call."""
    return {NEEDS: PUBLIC if call.needs is None else call.needs, CALL: call}


def _integer(least: int, most: int = 2**53 - 1) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


_NAME = {"type": "string", "minLength": 1}

ENTITY_TYPE = Parameter(
    "type",
    "path",
    {"type": "string", "pattern": "^[a-z][a-z0-9_-]{0,63}$"},
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
