"""Requests: reading and judging what was sent, before anything is done with it.

Everything here raises Invalid (or its kin in ``api.problems``) for what this API does not take.
Unknown, repeated and malformed parts are refused, never guessed at or dropped in silence.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import quote, unquote, unquote_to_bytes

import msgspec
from litestar import Request
from litestar.types import Scope

from api.problems import BodyLate, TooLarge, UnsupportedMedia
from api.rounds import Many
from api.served import TENANT, Served
from journal import Journal
from journal.entry import MAX_ACTION, MAX_INTEGER, check_entity, check_name
from journal.errors import Invalid
from journal.work import Status

BODY_SECONDS = 30.0
"""How long a body may take to arrive."""

MAX_WORK_ID = len("item_") + 64 + len("_") + MAX_ACTION
"""Bytes of the longest ID of work: an item's, with the names of its lane and of itself in it."""

_JSON = b"application/json"
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_INTEGER = re.compile(r"[0-9]{1,16}\Z", re.ASCII)


# The path.


def clean_path(raw: bytes) -> str:
    """The path with each segment in one normal form of its percent-encoding.

    Segments stay encoded, so that a `/` within an ID does not divide it. ``path_value`` decodes.
    """
    try:
        path = raw.partition(b"?")[0].decode("ascii")
    except UnicodeDecodeError:
        raise Invalid("the path holds bytes that are not percent-encoded") from None
    if "%" in path:
        path = "/".join([_clean_segment(segment) for segment in path.split("/")])
    if "//" in path or (path.endswith("/") and len(path) > 1):
        raise Invalid("the path has an empty segment; no name or ID is empty")
    return path


def _clean_segment(segment: str) -> str:
    if _ESCAPE.search(segment):
        raise Invalid("the path holds a % that is not followed by two hexadecimal digits")
    return quote(_utf8(unquote_to_bytes(segment), "the path"), safe="")


def _utf8(raw: bytes, where: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{where} is not UTF-8") from None


def path_value(request: Request[Any, Any, Any], name: str) -> str:
    """A part of the path, decoded."""
    return unquote(request.scope["path_params"][name])


def work_of(request: Request[Any, Any, Any]) -> str:
    """The release, command or item that the path names. Raises Invalid for what can be none."""
    return work_id("id", path_value(request, "id"))


def work_id(name: str, value: str) -> str:
    """The ID of a release, command or item, whether or not there is one."""
    check_name(name, value, MAX_WORK_ID)
    return value


def entity_of(request: Request[Any, Any, Any]) -> str:
    """The entity that the path names."""
    return f"{path_value(request, 'type')}/{path_value(request, 'id')}"


# The query.


def integer(name: str, text: str) -> int:
    """An integer from 0 to 2^53-1."""
    if not _INTEGER.match(text) or int(text) > MAX_INTEGER:
        raise Invalid(f"{name} must be an integer from 0 to 2^53-1", field=name)
    return int(text)


def positive(name: str, text: str) -> int:
    """An integer from 1 to 2^53-1."""
    value = integer(name, text)
    if value < 1:
        raise Invalid(f"{name} must be at least 1", field=name)
    return value


def text(_: str, value: str) -> str:
    """Any text."""
    return value


def entity(_: str, value: str) -> str:
    """The name of an entity."""
    check_entity(value)
    return value


def action(name: str, value: str) -> str:
    """The name of an action."""
    check_name(name, value, MAX_ACTION)
    return value


def status(name: str, value: str) -> str:
    """A status of work."""
    known = [str(each) for each in Status]
    if value not in known:
        raise Invalid(f"{name} is none of: {', '.join(known)}", field=name)
    return value


def query(request: Request[Any, Any, Any], **known: Callable[[str, str], Any]) -> dict[str, Any]:
    """The query's parameters, each read by its function; absent ones are None.

    `+` stands for itself, as in a time's offset, not for a space.
    """
    values: dict[str, Any] = dict.fromkeys(known)
    raw: bytes = request.scope["query_string"]
    if not raw:
        return values
    for part in raw.decode("latin-1").split("&"):
        name, _, value = (_query_text(side) for side in part.partition("="))
        read = known.get(name)
        if read is None:
            names = ", ".join(known) or "none"
            raise Invalid(f"there is no query parameter {name!r} here; known: {names}", field=name)
        if values[name] is not None:
            raise Invalid(f"the query repeats {name}", field=name)
        values[name] = read(name, value)
    return values


def _query_text(value: str) -> str:
    if _ESCAPE.search(value):
        raise Invalid("the query holds a % that is not followed by two hexadecimal digits")
    return _utf8(unquote_to_bytes(value.encode("latin-1")), "the query")


# Headers and body.


async def body_of(request: Request[Any, Any, Any], limit: int) -> bytes:
    """The body of a JSON request, at most ``limit`` bytes of it.

    Litestar's own limit does not hold for who reads ``receive``, so this one is ours.
    """
    _check_headers(request.scope, limit)
    receive = request.receive
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise Invalid("the client went away before its body was complete")
                chunk = message["body"]
                size += len(chunk)
                if size > limit:
                    raise _too_large(limit)
                if not message["more_body"] and not chunks:
                    return chunk
                chunks.append(chunk)
                if not message["more_body"]:
                    return b"".join(chunks)
    except TimeoutError:
        raise BodyLate(f"the body was not complete after {BODY_SECONDS:g} seconds") from None


def _check_headers(scope: Scope, limit: int) -> None:
    for name, value in scope["headers"]:
        if name == b"content-type":
            if value != _JSON and not _is_json(value):
                raise UnsupportedMedia
        elif name == b"content-length":
            if value.isdigit() and int(value) > limit:
                raise _too_large(limit)
        elif name == b"content-encoding" and value.lower() != b"identity":
            raise UnsupportedMedia


def _is_json(value: bytes) -> bool:
    kind, _, parameters = value.partition(b";")
    charset = parameters.strip().lower().replace(b'"', b"")
    return kind.strip().lower() == _JSON and charset in {b"", b"charset=utf-8"}


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"a request may have at most {limit} bytes", limit=limit)


def idempotency_key(scope: Scope) -> str | None:
    """The operation ID of the `Idempotency-Key` header: a bare value, or a quoted string."""
    key: bytes | None = None
    for name, value in scope["headers"]:
        if name == b"idempotency-key":
            if key is not None:
                raise Invalid("the Idempotency-Key header is repeated", field="operation")
            key = value
    if key is None:
        return None
    if len(key) > 1 and key[:1] == key[-1:] == b'"':
        key = re.sub(rb'\\(["\\])', rb"\1", key[1:-1])
    return _utf8(key, "the Idempotency-Key header")


class Shape(msgspec.Struct):
    """How to read JSON into one struct, refusing keys that are repeated at its top level."""

    decoder: Any
    names: tuple[bytes, ...]

    def read(self, raw: bytes | msgspec.Raw, where: str = "the request") -> Any:
        """The struct. Raises Invalid."""
        try:
            value = self.decoder.decode(raw)
        except msgspec.ValidationError as error:
            raise Invalid(f"{where} is not what this call takes: {error}") from None
        except msgspec.DecodeError as error:
            raise Invalid(f"{where} is not JSON: {error}") from None
        except RecursionError:
            raise Invalid(f"{where} is nested too deeply") from None
        text = bytes(raw)
        if b"\\u" in text or any(text.count(name) > 1 for name in self.names):
            _refuse_repeated(text, where)
        return value


def shape(kind: type[msgspec.Struct]) -> Shape:
    """The shape of a struct. msgspec keeps the last of several equal keys without a word."""
    names = tuple(b'"%s"' % field.encode() for field in kind.__struct_encode_fields__)
    return Shape(msgspec.json.Decoder(kind), names)


async def form_of(request: Request[Any, Any, Any], form: Shape) -> Any:
    """The body of a request as the struct that it has to be."""
    return form.read(await body_of(request, journal_of(request).settings.max_request))


def _refuse_repeated(text: bytes, where: str) -> None:
    """Only asked when a key could be there twice; the decoder has found the text to be JSON."""
    try:
        pairs = _PAIRS.decode(text.decode())
    except (ValueError, RecursionError):
        raise Invalid(f"{where} is not JSON in UTF-8, or nested too deeply") from None
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise Invalid(f"{where} repeats the key {name!r}", field=name)


_PAIRS = json.JSONDecoder(
    object_pairs_hook=list, parse_int=len, parse_float=len, parse_constant=len
)


def journal_of(request: Request[Any, Any, Any]) -> Journal:
    """The tenant that the request is about."""
    return served_of(request).journal


def served_of(request: Request[Any, Any, Any]) -> Served:
    """The tenant that the request is about, as this process has it open."""
    served: Served = cast("Any", request.scope)[TENANT]
    return served


def many_of(request: Request[Any, Any, Any]) -> Many | None:
    """The tenants of the service beside its own; None: this application serves one alone."""
    many: Many | None = cast("Any", request.app).many
    return many
