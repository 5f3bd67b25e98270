"""The vectors that must be accepted."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from tests.vectors.fields import (
    CANCEL_BODY,
    EMPTY_TYPE,
    LARGEST,
    SECOND_HISTORY,
    SEQUENCE_JUMP,
    SUBMIT_BODY,
    Fields,
    Item,
    after,
    body_of,
    canonical,
    digest_of,
    entry,
    release,
    sha256,
)


def valid_item(name: str, fields: Fields, body: bytes = b"") -> Item:
    """Return the vector of an entry that must be accepted."""
    text = canonical(fields)
    return {
        "name": name,
        "envelope_fields": fields,
        "envelope": text,
        "envelope_hex": text.encode().hex(),
        "body_base64": base64.b64encode(body).decode(),
        "digest": digest_of(fields),
    }


def valid_items() -> Iterator[Item]:
    """Yield the vectors that must be accepted, in the order of the file."""
    yield valid_item("minimal", entry())
    yield from _chain()
    yield from _two_histories()
    yield from _releases()
    yield from _bodies()
    yield from _texts()
    yield from _edges()
    yield from _later_versions()


def _chain() -> Iterator[Item]:
    submit = entry(
        entity="document/inv-2042",
        operation="op-chain-1",
        sequence=2,
        version="1",
        actor="clerk-7",
        principal="front-desk",
        outcome={"data": sha256(SUBMIT_BODY), "state": "submitted"},
        body=body_of(SUBMIT_BODY),
    )
    approve = after(
        submit,
        operation="op-chain-2",
        action="approve",
        actor="reviewer-3",
        at="2026-03-14T10:00:00.250000Z",
        recorded="2026-03-14T10:00:00.251000Z",
        outcome={"data": sha256(SUBMIT_BODY), "state": "approved"},
        body=body_of(b""),
    )
    merged = b'{"reason":"duplicate of inv-2040","total":1250}'
    cancel = after(
        approve,
        operation="op-chain-3",
        action="cancel",
        at="2026-03-14T11:30:00.000000Z",
        recorded="2026-03-14T11:30:00.004500Z",
        outcome={"data": sha256(merged), "state": "cancelled"},
        body=body_of(CANCEL_BODY),
    )
    yield valid_item("chain-revision-1", submit, SUBMIT_BODY)
    yield valid_item("chain-revision-2", approve)
    yield valid_item("chain-revision-3", cancel, CANCEL_BODY)


def _two_histories() -> Iterator[Item]:
    old = entry(entity="document/inv-2043", operation="op-history-1", sequence=41)
    new = after(
        old,
        operation="op-history-2",
        action="approve",
        history=SECOND_HISTORY,
        generation=2,
        sequence=old["sequence"] + SEQUENCE_JUMP,
        outcome={"data": None, "state": "approved"},
    )
    yield valid_item("two-histories-old", old)
    yield valid_item("two-histories-new", new)


def _releases() -> Iterator[Item]:
    one = release("one release")
    yield valid_item(
        "release-one-with-nulls",
        entry(entity="document/inv-2044", operation="op-release-1", version="1", releases=[one]),
    )
    first = release(
        "first of two",
        digest=sha256(b"rendered page"),
        receiver="postroom",
        recipient="dept-12",
        version="4",
    )
    second = release(
        "second of two",
        corrects=one["id"],
        digest=sha256(b"ledger line"),
        lane="ledger",
        receiver="books",
        recipient="account-90",
        version="4",
    )
    yield valid_item(
        "release-two-with-correction",
        entry(
            entity="document/inv-2045",
            operation="op-release-2",
            version="4",
            releases=[first, second],
        ),
    )
    yield valid_item(
        "release-order-is-kept",
        entry(
            entity="document/inv-2046",
            operation="op-release-3",
            version="4",
            releases=[second, first],
        ),
    )


def _bodies() -> Iterator[Item]:
    bodies = {
        "body-binary": (bytes(range(256)), EMPTY_TYPE),
        "body-json-duplicate-keys": (b'{"total":1,"total":2}', "application/json"),
        "body-json-nan": (b'{"total":NaN}', "application/json"),
        "body-json-large-integer": (b'{"total":9007199254740993}', "application/json"),
        "body-json-spaced": (b'{ "total" : 1.0 }\n', "application/json"),
        "body-text-utf-8": ("r\u00e9sum\u00e9 \U0001f4c4".encode(), "text/plain; charset=utf-8"),
    }
    for name, (data, kind) in bodies.items():
        fields = entry(entity=f"document/{name}", operation=f"op-{name}", body=body_of(data, kind))
        yield valid_item(name, fields, data)


def _texts() -> Iterator[Item]:
    actors = {
        "text-controls": "".join(map(chr, range(0x20))),
        "text-quote-and-backslash": 'a "quoted" c:\\path',
        "text-slash-is-bare": "a/b",
        "text-delete-is-bare": "a\x7fb",
        "text-c1-controls-are-bare": "a\x80\x85\x9fb",
        "text-line-separators-are-bare": "a\u2028b\u2029c",
        "text-byte-order-mark-is-bare": "\ufeffa\ufeff",
        "text-last-of-basic-plane": "\ue000\ufffd\ufffe\uffff",
        "text-surrogate-neighbours": "\ud7ff\ue000",
        "text-beyond-basic-plane": "\U0001f4c4\U00010000\U0001ffff\U0010ffff",
        "text-html-is-bare": "<a href='#'>&amp;</a>",
        "text-composed": "r\u00e9sum\u00e9",
        "text-decomposed": "re\u0301sume\u0301",
        "text-escape-lookalike": "\\u0041\\n",
        "text-empty": "",
        "text-1024-bytes": "\U0001f4c4" * 256,
    }
    for name, actor in actors.items():
        yield valid_item(
            name, entry(entity=f"document/{name}", operation=f"op-{name}", actor=actor)
        )


def _edges() -> Iterator[Item]:
    changes: dict[str, Fields] = {
        "sequence-null": {"sequence": None},
        "sequence-largest": {"sequence": LARGEST},
        "generation-largest": {"generation": LARGEST},
        "version-set": {"version": "2026-03 draft B"},
        "moments-with-microseconds": {
            "at": "2026-03-14T09:26:53.123456Z",
            "recorded": "2026-03-14T09:26:53.999999Z",
        },
        "moment-of-one-microsecond": {"at": "2026-01-01T00:00:00.000001Z"},
        "moment-on-leap-day": {"at": "2024-02-29T23:59:59.999999Z"},
        "moment-on-leap-day-of-a-400th-year": {"at": "2000-02-29T00:00:00.000000Z"},
        "moment-claimed-after-recorded": {"at": "2026-03-15T00:00:00.000000Z"},
        "entity-type-longest": {"entity": f"t{'9_-a' * 15}xyz/1"},
        "entity-id-512-bytes": {"entity": "document/" + "\u00e9" * 256},
        "entity-id-with-slash": {"entity": "document/2026/inv-2041"},
        "entity-id-beyond-basic-plane": {"entity": "document/\U0001f4c4 \u00a0\u2028"},
        "operation-256-bytes": {"operation": "o" * 256},
        "action-128-bytes": {"action": "a" * 128},
        "tenant-longest": {"tenant": "0" + "t_-9" * 15 + "abc"},
        "history-of-zeros": {"history": "0" * 32},
        "outcome-with-data": {"outcome": {"data": sha256(b"{}"), "state": "submitted"}},
    }
    for name, change in changes.items():
        base = {"entity": f"document/{name}", "operation": f"op-{name}"}
        yield valid_item(name, entry(**{**base, **change}))


LATER_FIELDS: Fields = {
    "\U00010000": "written first of these two: its first code unit is D800",
    "\ue000": "written second, though its code point is lower",
    "\ufb33": 0,
    "\u20ac": LARGEST,
    "\u0080": -LARGEST,
    "\r": True,
    "": False,
    "10": None,
    "9": [],
    "Zone": {},
    "a": {"\U0010ffff": [1, {"\uffff": 1, "\U0001f4c4": 2}], "\uffff": "\x1f"},
    "aa": [[], {}, [None, True, -1]],
}


def _later_versions() -> Iterator[Item]:
    yield valid_item(
        "later-version-key-order",
        entry(v=2, entity="document/later-1", operation="op-later-1", **LATER_FIELDS),
    )
    nested = entry(
        v=2,
        entity="document/later-2",
        operation="op-later-2",
        version="1",
        outcome={"data": None, "state": "submitted", "note": "kept"},
        releases=[release("later", priority=3)],
        body={**body_of(b""), "encoding": None},
    )
    yield valid_item("later-version-nested", nested)
    following = after(nested, operation="op-later-3", v=LARGEST)
    following["predecessor"]["sequence"] = nested["sequence"]
    yield valid_item("later-version-largest", following)
