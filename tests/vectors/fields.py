"""Entries to make test vectors of: their fields, canonical text and digest.

The canonical form is made by another road than the one in `tests/journal/independent.py`, so that
the two have to agree.
"""

from __future__ import annotations

import copy
import hashlib
import json
from typing import Any, TypeAlias

Fields: TypeAlias = dict[str, Any]
Item: TypeAlias = dict[str, Any]

FIRST_HISTORY = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
SECOND_HISTORY = "00112233445566778899aabbccddeeff"
LARGEST = 2**53 - 1
SEQUENCE_JUMP = 65_537
CANCEL_BODY = b'{"reason":"duplicate of inv-2040"}'
SUBMIT_BODY = b'{"total":1250}'
EMPTY_TYPE = "application/octet-stream"


def sha256(data: bytes) -> str:
    """Return the SHA-256 of `data` in lowercase hex."""
    return hashlib.sha256(data).hexdigest()


def canonical(fields: object) -> str:
    """Return the RFC 8785 text: UTF-16BE bytes compare as UTF-16 code units do."""
    return json.dumps(_ordered(fields), ensure_ascii=False, separators=(",", ":"))


def _ordered(value: object) -> object:
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be"))
        return {key: _ordered(value[key]) for key in keys}
    if isinstance(value, list):
        return [_ordered(item) for item in value]
    return value


def digest_of(fields: Fields) -> str:
    """Return the digest of the entry whose envelope holds `fields`."""
    return sha256(b"\x00" + canonical(fields).encode())


def body_of(data: bytes, kind: str = "application/json") -> Fields:
    """Return the `body` member for these bytes."""
    return {"sha256": sha256(data), "size": len(data), "type": kind if data else EMPTY_TYPE}


def entry(**changes: object) -> Fields:
    """Return revision 1 of a document with the empty body, and `changes` over it."""
    fields: Fields = {
        "v": 1,
        "tenant": "main",
        "entity": "document/inv-2041",
        "operation": "op-0001",
        "action": "submit",
        "history": FIRST_HISTORY,
        "generation": 1,
        "revision": 1,
        "predecessor": None,
        "sequence": 1,
        "version": None,
        "actor": None,
        "principal": None,
        "at": "2026-03-14T09:26:53.000000Z",
        "recorded": "2026-03-14T09:26:53.000000Z",
        "lifecycle": "document-1",
        "outcome": {"data": None, "state": "submitted"},
        "releases": [],
        "body": body_of(b""),
    }
    fields.update(copy.deepcopy(changes))
    return fields


def after(previous: Fields, **changes: object) -> Fields:
    """Return the decision that follows `previous`, and `changes` over it."""
    follows = {
        "digest": digest_of(previous),
        "history": previous["history"],
        "revision": previous["revision"],
    }
    sequence = previous["sequence"]
    fields = copy.deepcopy(previous)
    fields.update(
        revision=previous["revision"] + 1,
        predecessor=follows,
        sequence=None if sequence is None else sequence + 1,
    )
    fields.update(copy.deepcopy(changes))
    return fields


def release(name: str, **changes: object) -> Fields:
    """Return a release whose unknown members are null, and `changes` over it."""
    fields: Fields = {
        "corrects": None,
        "digest": None,
        "id": sha256(name.encode()),
        "lane": "mail",
        "receiver": None,
        "recipient": None,
        "version": None,
    }
    fields.update(changes)
    return fields
