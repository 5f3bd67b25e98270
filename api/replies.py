"""What the answer to a call proves, and when to call again: the pure half of ``api.receivers``.

Only a body of ours says more than the status: ``{"release", "state", "digest", "receipt"}``, all of
them optional in the answer to a delivery.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from msgspec import Struct

DAY = 86_400.0
"""Seconds: the longest wait that a receiver's Retry-After is believed for."""

_MAX_REASON = 300
_MAX_FIELD = 256
_MAX_LOCATION = 200
_MAX_DOUBLINGS = 1023
_OURS = frozenset({"release", "state", "digest", "receipt"})
_USER_IN_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:)?([/\\]{2})[^/\\]*@")

# None of these says that the request was not passed on before, or is not under way.
_MAY_HAVE_PASSED = frozenset(
    {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.CONFLICT}
)
# These are about how it was sent, not about what: a wrong token must not end every release.
_NOT_TAKEN = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.NOT_ACCEPTABLE,
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        HTTPStatus.LENGTH_REQUIRED,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.EXPECTATION_FAILED,
        HTTPStatus.MISDIRECTED_REQUEST,
        HTTPStatus.UPGRADE_REQUIRED,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    }
)


class Result(StrEnum):
    """What a call proved.

    *done*, *refused*, *pending*: the receiver says so. *not-sent* and *limited*: surely not taken.
    *unknown*: the effect may have happened. *redirected*: the receiver is elsewhere, and nobody
    followed. Only a question ends as *not-found* (proves nothing while a request may be on its
    way), *void* (nothing was or will be done under this ID) or *failed* (no usable answer).
    """

    DONE = "done"
    PENDING = "pending"
    REFUSED = "refused"
    NOT_SENT = "not-sent"
    LIMITED = "limited"
    UNKNOWN = "unknown"
    REDIRECTED = "redirected"
    NOT_FOUND = "not-found"
    VOID = "void"
    FAILED = "failed"


_SENT = {str(result): result for result in (Result.DONE, Result.PENDING, Result.REFUSED)}
_ASKED = {**_SENT, **{str(result): result for result in (Result.UNKNOWN, Result.VOID)}}


class Reply(Struct, frozen=True):
    """What came of a call. ``evidence`` is one printable sentence without secrets.

    ``digest`` and ``receipt`` are what the receiver says, each at most 256 characters.
    ``retry_after`` is in seconds, where the receiver asks for time.
    """

    result: Result
    evidence: str
    status: int | None = None
    digest: str | None = None
    receipt: str | None = None
    retry_after: float | None = None


class Parcel(Struct, frozen=True):
    """One attempt of a release. ``content`` is the body, the same bytes in every attempt."""

    release: str
    attempt: int
    content: bytes
    digest: str | None


class Answer(Struct, frozen=True):
    """An answer whose head was read; ``flaw`` says why the ``content`` was not, if it is None."""

    status: int
    headers: Mapping[str, str]
    content: bytes | None
    flaw: str = ""


class Miss(Struct, frozen=True):
    """No answer. ``sent`` is false only where not one byte of the request can have left."""

    sent: bool
    why: str


Tell = Callable[[str, int], str]
"""Makes what a receiver said fit to be kept: so many characters of it, and none of our secrets."""


def judge_sent(heard: Answer | Miss, parcel: Parcel, now: datetime, tell: Tell) -> Reply:
    """What the answer to a delivery proves."""
    if isinstance(heard, Miss):
        why = tell(heard.why, _MAX_REASON)
        if heard.sent:
            return Reply(Result.UNKNOWN, f"sent, but no answer could be read: {why}")
        return Reply(Result.NOT_SENT, f"no connection could be made: {why}")
    status, kind = heard.status, heard.status // 100
    if kind == 2:  # noqa: PLR2004 - success
        return _judge_success(heard, parcel, tell)
    if kind == 3:  # noqa: PLR2004 - redirection
        said = f"answered {status}{_location(heard, tell)}; redirects are not followed"
        return Reply(Result.REDIRECTED, said, status)
    # From here on the status alone decides: a body that breaks off or is too long changes nothing.
    said = f"answered {status}{_reason(_fields(heard)[0], tell)}"
    wait = retry_after(heard.headers.get("retry-after"), now)
    if status in _NOT_TAKEN:
        return Reply(Result.LIMITED, said, status, retry_after=wait)
    if kind == 4 and status not in _MAY_HAVE_PASSED:  # noqa: PLR2004 - the client's errors
        return Reply(Result.REFUSED, said, status)
    return Reply(Result.UNKNOWN, said, status, retry_after=wait)


def judge_asked(
    heard: Answer | Miss, release: str, digest: str | None, now: datetime, tell: Tell
) -> Reply:
    """What the answer to a question about a release proves."""
    if isinstance(heard, Miss):
        return Reply(Result.FAILED, f"no answer: {tell(heard.why, _MAX_REASON)}")
    status = heard.status
    fields, fault = _fields(heard)
    if status == HTTPStatus.NOT_FOUND:
        said = f"answered 404{_reason(fields, tell)}"
        return Reply(Result.NOT_FOUND, said, status)
    if status != HTTPStatus.OK:
        said = f"answered {status}{_location(heard, tell)}{_reason(fields, tell)}"
        wait = retry_after(heard.headers.get("retry-after"), now)
        return Reply(Result.FAILED, said, status, retry_after=wait)
    if not fault and fields.get("release") != release:
        fault = "its body is not about this release"
    result = _state(fields, _ASKED)
    if fault or result is None:
        said = f"answered 200, but {tell(fault or _strange(fields), _MAX_REASON)}"
        return Reply(Result.FAILED, said, status)
    return _settled(result, status, fields, digest, tell)


def _judge_success(heard: Answer, parcel: Parcel, tell: Tell) -> Reply:
    status = heard.status
    fields, fault = _fields(heard)
    if not fault and not _same(fields.get("release"), parcel.release):
        fault = "its body is about another release"
    if status == HTTPStatus.ACCEPTED:
        result: Result | None = Result.PENDING
    elif fields.get("state") is None:
        result = Result.DONE
    else:
        result = _state(fields, _SENT)
    if fault or result is None:
        said = f"answered {status}, but {tell(fault or _strange(fields), _MAX_REASON)}"
        return Reply(Result.UNKNOWN, said, status)
    return _settled(result, status, fields, parcel.digest, tell)


def _settled(
    result: Result, status: int, fields: Mapping[str, Any], digest: str | None, tell: Tell
) -> Reply:
    """The receiver's word, unless it is about other content than that of the release."""
    theirs, receipt = (
        tell(value, _MAX_FIELD) if isinstance(value, str) else None
        for value in (fields.get("digest"), fields.get("receipt"))
    )
    if digest is not None and not _same(fields.get("digest"), digest):
        said = f"answered {status}, but with the digest of other content"
        return Reply(Result.UNKNOWN, said, status, theirs, receipt)
    said = f"answered {status}: {result}{_reason(fields, tell)}"
    return Reply(result, said, status, theirs, receipt)


def _same(said: Any, sent: str) -> bool:
    """Whether the receiver says the same, or nothing."""
    return said is None or said == sent


def _state(fields: Mapping[str, Any], states: Mapping[str, Result]) -> Result | None:
    state = fields.get("state")
    return states.get(state) if isinstance(state, str) else None


def _strange(fields: Mapping[str, Any]) -> str:
    return f"its state cannot be read: {fields.get('state')!r}"


def _fields(heard: Answer) -> tuple[dict[str, Any], str]:
    """The JSON object in an answer, empty if there is none; and what is wrong with its body."""
    if heard.content is None:
        return {}, f"its body could not be read: {heard.flaw}"
    content = heard.content.removeprefix(b"\xef\xbb\xbf").strip()
    if not content:
        return {}, ""
    if heard.headers.get("content-encoding", "identity").strip().lower() != "identity":
        return {}, "its body is encoded, which accept-encoding ruled out"
    if not content.startswith(b"{") and "json" not in heard.headers.get("content-type", ""):
        return {}, ""
    try:
        fields = json.loads(content, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        return {}, f"its body is no JSON that can be read: {error}"
    return (fields, "") if isinstance(fields, dict) else ({}, "")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. One that says two things about a release says nothing."""
    names = [name for name, _ in pairs if name in _OURS]
    if len(names) != len(set(names)):
        raise ValueError("a field stands there twice")
    return dict(pairs)


def _reason(fields: Mapping[str, Any], tell: Tell) -> str:
    for name in ("detail", "title", "error"):
        value = fields.get(name)
        if isinstance(value, str) and value.strip():
            return f": {tell(value, _MAX_REASON)}"
    return ""


def _location(heard: Answer, tell: Tell) -> str:
    """Where an answer points, without what may be secret in a URL."""
    location = re.split(r"[?#]", heard.headers.get("location", ""), maxsplit=1)[0]
    public = _USER_IN_URL.sub(r"\1\2", location)
    return f" to {tell(public, _MAX_LOCATION)}" if public else ""


def printable(text: str, limit: int) -> str:
    """The text on one line, cut to ``limit`` characters."""
    shown = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(shown.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def backoff(attempt: int, base: float, cap: float, chance: float) -> float:
    """Seconds to wait after this attempt, counted from 1: any share of a doubling, capped time.

    ``chance`` is from 0 up to 1 and spreads callers over all of it ("full jitter").
    """
    doublings = min(max(attempt - 1, 0), _MAX_DOUBLINGS)
    return chance * min(cap, base * 2.0**doublings)


def retry_after(value: str | None, now: datetime) -> float | None:
    """The seconds that a Retry-After header (RFC 9110, section 10.2.3) asks for, at most a day.

    None where it asks for nothing that can be read.
    """
    text = (value or "").strip()
    if not text.isascii() or len(text) > _MAX_FIELD:
        return None
    if text.isdigit():
        return min(float(text), DAY)
    try:
        at = parsedate_to_datetime(text)
        wait = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(wait.total_seconds(), 0.0), DAY)
