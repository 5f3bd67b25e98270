"""Entity data: the RFC 7396 merge of the bodies that are JSON objects.

Data is stored as the bytes that this module writes and hashed as stored; nothing is re-encoded to
check it. Bodies must be I-JSON (RFC 7493) to take part: no duplicate keys, no integer that a double
cannot hold, no NaN.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import msgspec

from journal.entry import JSON_TYPE, MAX_INTEGER
from journal.errors import Invalid

EMPTY = b"{}"
MAX_DEPTH = 64

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def hash_of(data: bytes) -> str:
    """SHA-256 of data as stored, lowercase hex: ``outcome.data``."""
    return sha256(data).hexdigest()


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Invalid(f"the body repeats the key {twice!r}", field="body")
    return found


_SCALARS = frozenset({str, bool, float, type(None)})


def _walk(value: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise Invalid(f"the body is nested deeper than {MAX_DEPTH}", field="body")
    items = value.values() if isinstance(value, dict) else value
    for item in items:
        kind = type(item)
        if kind in _SCALARS:
            continue
        if kind is int:
            _check_integer(item)
        else:
            _walk(item, depth + 1)


def _check_integer(value: int) -> None:
    if not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise Invalid(
            f"the integer {value} is beyond 2^53-1 and would change in other programs; "
            "send it as a string",
            field="body",
        )


def parse(body: bytes) -> Any:
    """A JSON body as an object. Raises Invalid when it is not I-JSON."""
    try:
        value = _decode(body)
        if type(value) is dict:
            _walk(value, 1)
        else:
            _walk([value])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}", field="body") from None
    # Equal bytes prove that no key was dropped; only otherwise is the slower parser asked.
    if _encode(value) != body:
        json.loads(body, object_pairs_hook=_no_duplicates)
    return value


def merge(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7396 on objects: null removes, objects merge, anything else replaces."""
    result = dict(target)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            below = result.get(name)
            result[name] = merge(below if isinstance(below, dict) else {}, value)
        else:
            result[name] = value
    return result


def after(previous: bytes, body: bytes, media_type: str) -> bytes:
    """The entity's data after a decision with this body: its bytes as they will be stored.

    ``previous`` is the data before it, ``EMPTY`` for a first decision. A body that is not a JSON
    object leaves the data as it was. Raises Invalid for JSON that is not I-JSON.
    """
    if media_type != JSON_TYPE or not body:
        return previous
    return _merged(previous, parse(body))


def after_again(previous: bytes, body: bytes, media_type: str) -> bytes:
    """``after`` for a body that was accepted once: the same bytes, without asking again.

    Raises Invalid when the body is no JSON after all.
    """
    if media_type != JSON_TYPE or not body:
        return previous
    try:
        return _merged(previous, _decode(body))
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"the body is not JSON: {error}", field="body") from None


def _merged(previous: bytes, patch: Any) -> bytes:
    if not isinstance(patch, dict) or not patch:
        return previous
    return _encode(merge(_decode(previous), patch))
