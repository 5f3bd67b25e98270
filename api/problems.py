"""Problem documents (RFC 9457): the one table from error class to HTTP.

A type is a stable relative reference, `/problems/<slug>`, and its title never changes. What is
worth repeating carries `Retry-After` and says to keep the operation ID. No document has internals.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil
from typing import Any

from litestar import Request
from litestar.exceptions import HTTPException
from litestar.types import Scope
from msgspec import Struct

from api.answers import PROBLEM, Answer, encode
from journal import errors
from journal.control import ControlUnreadable
from journal.reading import Pending
from journal.witness import WitnessUnreadable

LOGGER = logging.getLogger("unrewind")
REPEAT = "keep the operation ID"
BASE = "/problems/"


# Errors that only HTTP can have.


class TooLarge(errors.Invalid):
    """The request is larger than this server takes."""


class UnsupportedMedia(errors.Invalid):
    """Send JSON: `Content-Type: application/json`, without a content encoding."""


class BodyLate(errors.Invalid):
    """The request's body did not arrive in time."""


class MethodNotAllowed(errors.Invalid):
    """This path has no such method."""


class Kind(Struct, frozen=True):
    """One problem type. ``retry_after`` is in seconds; None where repeating alone will not help."""

    slug: str
    status: int
    title: str
    about: str
    retry_after: int | None = None


INTERNAL = Kind(
    "internal",
    500,
    "The server failed",
    "A fault of the server; its log has the details. Whether an operation became a decision is "
    "told by repeating it under the same operation ID.",
)

KINDS: Mapping[type[Exception], Kind] = {
    errors.Invalid: Kind(
        "invalid",
        400,
        "The request is not valid",
        "Something in the request is not what this call takes; `field` names it where one field is "
        "at fault. Nothing was stored.",
    ),
    errors.Unauthenticated: Kind(
        "unauthenticated",
        401,
        "A valid bearer token is needed",
        "Send `Authorization: Bearer unr_…` with a token that was not revoked. `unrewind token "
        "create` makes one.",
    ),
    errors.Forbidden: Kind(
        "forbidden",
        403,
        "The token's role does not allow this call",
        "Operators may do what writers may, and writers what readers may; `needed` names the role.",
    ),
    errors.NotFound: Kind(
        "not-found",
        404,
        "There is nothing under this name",
        "No such path, tenant, entity, operation, release, lane or token. An operation that is not "
        "found made no decision that the journal holds: if it was sent, repeat it under the same "
        "ID.",
    ),
    MethodNotAllowed: Kind(
        "method-not-allowed",
        405,
        "This path has no such method",
        "The `Allow` header names the methods of the path.",
    ),
    BodyLate: Kind(
        "request-timeout",
        408,
        "The request did not arrive in time",
        "The body has to be complete within the server's limit. Nothing was stored.",
        1,
    ),
    errors.RevisionMismatch: Kind(
        "revision-mismatch",
        409,
        "The entity is not at the expected revision",
        "`actual` is the revision it is at. Read the entity and decide again; another intention "
        "needs another operation ID.",
    ),
    errors.TransitionRefused: Kind(
        "transition-refused",
        409,
        "The lifecycle does not allow this action now",
        "`allowed` names the actions that the entity's state allows.",
    ),
    errors.HistoryIncomplete: Kind(
        "history-incomplete",
        409,
        "The entity's history is incomplete",
        "The journal lacks or disputes a revision of this entity; `GET …/gaps` says which. Nothing "
        "about it is decided until it is whole. Other entities go on.",
    ),
    errors.LeaseLost: Kind(
        "lease-lost",
        409,
        "The claim has ended",
        "Another claim of this work was made since, or the work has ended: begin nothing more "
        "under this claim. What was begun is reported all the same, to `releases/{id}/outcome`.",
    ),
    errors.StaleGeneration: Kind(
        "stale-generation",
        409,
        "The work belongs to a generation or history that has ended",
        "A recovery put another history in force, which `history` and `generation` name.",
    ),
    errors.Forked: Kind(
        "forked",
        409,
        "Another decision already stands at this place",
        "Two decisions claim one place of a history: a rewound store, or two writers. The stored "
        "one is not displaced.",
    ),
    errors.Refused: Kind(
        "refused",
        409,
        "The command was refused because it could do harm",
        "Nothing was changed; the detail says what stands in the way.",
    ),
    errors.HistoryChanged: Kind(
        "history-changed",
        410,
        "The cursor's history was ended by a recovery",
        "`history` is the one in force; `resume` is a cursor to go on from, null: from the start.",
    ),
    TooLarge: Kind(
        "too-large",
        413,
        "The request is too large",
        "Send less at once; `limit` is the limit in bytes. Nothing was stored.",
    ),
    UnsupportedMedia: Kind(
        "unsupported-media-type",
        415,
        "The request's media type is not supported",
        "Bodies are JSON in UTF-8, `application/json`, without a content encoding.",
    ),
    errors.OperationReused: Kind(
        "operation-reused",
        422,
        "The operation ID belongs to a different decision",
        "`differing` names the fields in which this request differs from the first one. Use a new "
        "ID for a new intention.",
    ),
    errors.Overloaded: Kind(
        "overloaded",
        429,
        "Too much is waiting",
        "More operations wait than the server queues, or a lane would not get to the end of its "
        "work in time. Repeat later under the same operation ID.",
        1,
    ),
    errors.JournalUnavailable: Kind(
        "journal-unavailable",
        503,
        "The journal cannot be written or read now",
        "Nothing is acknowledged without the journal. Whether an operation became a decision is "
        "told by repeating it under the same operation ID.",
        2,
    ),
    errors.Recovering: Kind(
        "recovering",
        503,
        "The tenant is closed for a recovery",
        "The store does not agree with the journal, or an operator stopped the tenant. "
        "`GET …/status` says why. Repeat later under the same operation ID.",
        10,
    ),
    errors.Held: Kind(
        "held",
        503,
        "This type or action is stopped",
        "An operator stopped it alone; everything else goes on. Nothing was stored. Repeat later "
        "under the same operation ID; one that is known is answered all the same.",
        30,
    ),
    errors.LockHeld: Kind(
        "busy",
        503,
        "Another process is at work on the tenant",
        "Its lock could not be had in time. Repeat under the same operation ID.",
        1,
    ),
}


def _also(error: type[Exception], like: type[Exception]) -> tuple[type[Exception], Kind]:
    return error, KINDS[like]


_TABLE: dict[type[Exception], Kind] = {
    **KINDS,
    **dict(
        [
            _also(ControlUnreadable, errors.Recovering),
            _also(WitnessUnreadable, errors.Recovering),
            _also(errors.EngineError, errors.JournalUnavailable),
            _also(Pending, errors.JournalUnavailable),
        ]
    ),
}

BY_SLUG = {kind.slug: kind for kind in [*KINDS.values(), INTERNAL]}


def kind_of(error: BaseException) -> Kind:
    """The problem type of an error; INTERNAL for what nobody foresaw."""
    for base in type(error).__mro__:
        kind = _TABLE.get(base)
        if kind is not None:
            return kind
    return INTERNAL


def retry_after(error: errors.UnrewindError) -> int | None:
    """After how many seconds a repeat may help; None: repeating alone will not."""
    usual = kind_of(error).retry_after
    said = error.members.get("retry_after")
    if usual is None or not isinstance(said, int | float):
        return usual
    return max(1, ceil(said))


def document(error: errors.UnrewindError, instance: str | None) -> dict[str, Any]:
    """The problem document of an error."""
    kind = kind_of(error)
    problem: dict[str, Any] = {
        "type": BASE + kind.slug,
        "title": kind.title,
        "status": kind.status,
        "detail": INTERNAL.about if kind is INTERNAL else error.detail,
    }
    if instance is not None:
        problem["instance"] = instance
    if kind is not INTERNAL:
        problem.update((name, fact) for name, fact in error.members.items() if name not in problem)
    if kind.retry_after is not None:
        problem["repeat"] = REPEAT
    return problem


def answer(error: errors.UnrewindError, scope: Scope) -> Answer:
    """The HTTP answer for an error."""
    kind = kind_of(error)
    headers: list[tuple[bytes, bytes]] = []
    seconds = retry_after(error)
    if seconds is not None:
        headers.append((b"retry-after", b"%d" % seconds))
    if isinstance(error, errors.Unauthenticated):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, BodyLate):
        headers.append((b"connection", b"close"))
    allow = error.members.get("allow") if isinstance(error, MethodNotAllowed) else None
    if allow is not None:
        headers.append((b"allow", ", ".join(allow).encode()))
    return Answer(kind.status, encode(document(error, _instance(scope))), PROBLEM, headers)


def unforeseen(error: BaseException, scope: Scope) -> Answer:
    """The answer to an exception that nobody foresaw; only the log gets the traceback."""
    LOGGER.error("%s %s failed", scope.get("method", ""), _instance(scope), exc_info=error)
    return answer(errors.UnrewindError(), scope)


def handle(request: Request[Any, Any, Any], error: Exception) -> Any:
    """Litestar's exception handler for everything."""
    scope: Scope = request.scope
    if isinstance(error, errors.UnrewindError) and kind_of(error) is not INTERNAL:
        return answer(error, scope)
    if isinstance(error, HTTPException):
        known = _from_litestar(error, scope)
        if known is not None:
            return answer(known, scope)
    return unforeseen(error, scope)


def _from_litestar(error: HTTPException, scope: Scope) -> errors.UnrewindError | None:
    if error.status_code == 404:  # noqa: PLR2004 - Not Found
        return errors.NotFound(
            f"there is no {_instance(scope)} here; /schema/openapi.json lists every path. "
            "A `/` within an ID is sent as %2F"
        )
    if error.status_code == 405:  # noqa: PLR2004 - Method Not Allowed
        allowed = (error.headers or {}).get("allow", "")
        methods = sorted({name.strip() for name in allowed.split(",")} - {"", "OPTIONS"})
        return MethodNotAllowed(
            f"{scope.get('method', '')} is not a method of {_instance(scope)}", allow=methods
        )
    if 400 <= error.status_code < 500:  # noqa: PLR2004 - the client's errors
        return errors.Invalid(error.detail)
    return None


def _instance(scope: Scope) -> str:
    """The request's path as it was sent, so that it is a valid URI reference; never its query."""
    raw: bytes = scope.get("raw_path") or b""
    return raw.partition(b"?")[0].decode("ascii", "replace").replace("\ufffd", "%EF%BF%BD")
