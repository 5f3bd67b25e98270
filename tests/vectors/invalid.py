"""The vectors that must be refused, each for one fault."""

from __future__ import annotations

import base64
import copy
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vectors.fields import (
    FIRST_HISTORY,
    LARGEST,
    SUBMIT_BODY,
    Fields,
    Item,
    after,
    body_of,
    canonical,
    entry,
    release,
    sha256,
)


def invalid_item(name: str, why: str, envelope: str | bytes, body: bytes = b"") -> Item:
    """Return the vector of an entry that must be refused: text, or bytes that are not UTF-8."""
    item: Item = {"name": name}
    if isinstance(envelope, bytes):
        item["envelope_hex"] = envelope.hex()
    else:
        item["envelope"] = envelope
    return {**item, "body_base64": base64.b64encode(body).decode(), "why": why}


def invalid_items() -> Iterator[Item]:
    """Yield the vectors that must be refused, in the order of the file."""
    yield from _broken_texts()
    yield from _broken_bytes()
    yield from _missing_and_unknown()
    yield from _wrong_types()
    yield from _wrong_values()
    yield from _wrong_bodies()


FULL = after(
    entry(operation="op-0000"),
    version="1",
    actor="A",
    releases=[release("one release", version="1")],
)
"""An entry in which every object of the format is present, one fault short of every vector."""


def edited(old: str, new: str, fields: Fields | None = None) -> str:
    """Return the canonical text with `old`, which stands in it once, replaced."""
    text = canonical(FULL if fields is None else fields)
    if text.count(old) != 1:
        raise ValueError(f"{old!r} stands {text.count(old)} times")
    return text.replace(old, new)


def _broken_texts() -> Iterator[Item]:
    good = canonical(FULL)
    actor = '"actor":"A"'
    sequence = '"sequence":2'
    edits = {
        "float-in-a-field": ("a float", sequence, '"sequence":2.5'),
        "float-that-is-whole": ("2.0 is a float", sequence, '"sequence":2.0'),
        "float-by-exponent": ("2e0 is a float", sequence, '"sequence":2e0'),
        "integer-2-53": ("an integer of 2^53", sequence, '"sequence":9007199254740992'),
        "integer-of-400-digits": ("an integer beyond 2^53", sequence, f'"sequence":{"9" * 400}'),
        "integer-with-leading-zero": ("not JSON", sequence, '"sequence":02'),
        "integer-with-plus": ("not JSON", sequence, '"sequence":+2'),
        "integer-minus-zero": (
            "RFC 8785 writes 0", '"size":0', '"size":-0',
        ),
        "nan": ("not JSON", sequence, '"sequence":NaN'),
        "infinity": ("not JSON", sequence, '"sequence":Infinity'),
        "space-after-colon": ("whitespace", actor, '"actor": "A"'),
        "newline-after-comma": ("whitespace", actor + ",", actor + ",\n"),
        "duplicate-key": ("a key twice", actor, f"{actor},{actor}"),
        "duplicate-key-differing": ("a key twice", actor, f'{actor},"actor":"B"'),
        "duplicate-key-escaped": (
            "a key twice, once escaped", actor, f'{actor},"\\u0061ctor":"A"',
        ),
        "duplicate-key-nested": ("a key twice", '"size":0', '"size":0,"size":0'),
        "lone-high-surrogate": ("a lone surrogate", actor, '"actor":"\\ud83d"'),
        "lone-low-surrogate": ("a lone surrogate", actor, '"actor":"\\udcc4"'),
        "surrogates-reversed": ("lone surrogates", actor, '"actor":"\\udcc4\\ud83d"'),
        "surrogate-before-escape": ("a lone surrogate", actor, '"actor":"\\ud83d\\u0041"'),
        "surrogate-before-letter": ("a lone surrogate", actor, '"actor":"\\ud83dA"'),
        "escape-needless": ("RFC 8785 writes A", actor, '"actor":"\\u0041"'),
        "escape-needless-in-key": ("RFC 8785 writes actor", actor, '"\\u0061ctor":"A"'),
        "escape-slash": ("RFC 8785 writes /", actor, '"actor":"\\/"'),
        "escape-uppercase-hex": ("RFC 8785 writes \\u001f", actor, '"actor":"\\u001F"'),
        "escape-long-newline": ("RFC 8785 writes \\n", actor, '"actor":"\\u000a"'),
        "escape-long-quote": ('RFC 8785 writes \\"', actor, '"actor":"\\u0022"'),
        "escape-delete": ("RFC 8785 writes U+007F bare", actor, '"actor":"\\u007f"'),
        "escape-line-separator": ("RFC 8785 writes U+2028 bare", actor, '"actor":"\\u2028"'),
        "escape-surrogate-pair": (
            "RFC 8785 writes the character", actor, '"actor":"\\ud83d\\udcc4"',
        ),
        "escape-unknown": ("not JSON", actor, '"actor":"\\x41"'),
        "escape-cut-short": ("not JSON", actor, '"actor":"\\u00"'),
        "control-character-bare": ("not JSON", actor, '"actor":"\x1f"'),
        "tab-bare": ("not JSON", actor, '"actor":"\t"'),
        "single-quotes": ("not JSON", actor, "\"actor\":'A'"),
        "comma-trailing": ("not JSON", '"version":"1"}]', '"version":"1",}]'),
        "word-uppercase": ("not JSON", '"principal":null', '"principal":NULL'),
    }  # fmt: skip
    for name, (why, old, new) in edits.items():
        yield invalid_item(name, why, edited(old, new))
    yield invalid_item("keys-unsorted", "the first key is last", json.dumps(
        dict(sorted(FULL.items(), reverse=True)), separators=(",", ":")))  # fmt: skip
    size = '"size":0,"type":"application/octet-stream"'
    swapped = '"type":"application/octet-stream","size":0'
    yield invalid_item("keys-unsorted-nested", "type before size", edited(size, swapped))
    yield invalid_item("keys-by-code-point", "keys sorted by code point, not UTF-16 code unit",
        json.dumps(dict(sorted(entry(v=2, **{"\ue000": 1, "\U00010000": 2}).items())),
            ensure_ascii=False, separators=(",", ":")))  # fmt: skip
    yield invalid_item("float-in-later-field", "a float in an unknown field of a later version",
        canonical(entry(v=2, weight=0.5)))  # fmt: skip
    yield invalid_item("integer-minus-2-53-in-later-field", "an integer of -2^53",
        canonical(entry(v=2, weight=-LARGEST - 1)))  # fmt: skip
    wholes = {
        "space-leading": ("whitespace", " " + good),
        "newline-trailing": ("trailing bytes", good + "\n"),
        "nul-trailing": ("trailing bytes", good + "\x00"),
        "object-trailing": ("trailing bytes", good + "{}"),
        "brace-trailing": ("trailing bytes", good + "}"),
        "cut-short": ("not JSON", good[:-1]),
        "byte-order-mark": ("begins with U+FEFF", "\ufeff" + good),
        "empty-text": ("not JSON", ""),
        "null-envelope": ("not an object", "null"),
        "array-envelope": ("not an object", f"[{good}]"),
        "string-envelope": ("not an object", '"envelope"'),
        "empty-object": ("every field is missing", "{}"),
    }
    for name, (why, text) in wholes.items():
        yield invalid_item(name, why, text)


def _broken_bytes() -> Iterator[Item]:
    sequences = {
        "utf-8-stray-byte": b"\xff",
        "utf-8-cut-short": b"\xc3",
        "utf-8-overlong": b"\xc0\xaf",
        "utf-8-surrogate": b"\xed\xa0\x80",
        "utf-8-surrogate-pair": b"\xed\xa0\xbd\xed\xb3\x84",
        "utf-8-beyond-last": b"\xf4\x90\x80\x80",
    }
    before, after_ = canonical(FULL).encode().split(b'"actor":"A"')
    for name, raw in sequences.items():
        why = f"not UTF-8: {raw.hex()} inside actor"
        yield invalid_item(name, why, before + b'"actor":"' + raw + b'"' + after_)
    yield invalid_item("utf-16", "UTF-16, not UTF-8", canonical(FULL).encode("utf-16-le"))


def _spots(fields: Fields) -> dict[str, Fields]:
    """Return each object of the format inside `fields`, by the prefix of its vectors' names."""
    return {
        "": fields,
        "body-": fields["body"],
        "outcome-": fields["outcome"],
        "predecessor-": fields["predecessor"],
        "release-": fields["releases"][0],
    }


def _replaced(spot: str, field: str, value: object) -> str:
    """Return the text of `FULL` with `value` as the `field` of the object at `spot`."""
    fields = copy.deepcopy(FULL)
    _spots(fields)[spot][field] = value
    return canonical(fields)


def _missing_and_unknown() -> Iterator[Item]:
    for spot, fields in _spots(FULL).items():
        for field in sorted(fields):
            damaged = copy.deepcopy(FULL)
            del _spots(damaged)[spot][field]
            why = "a field is missing"
            yield invalid_item(f"missing-{spot}{field}", why, canonical(damaged))
        text = _replaced(spot, "note", None)
        yield invalid_item(f"unknown-{spot}field", "an unknown field in version 1", text)
    later = entry(v=2)
    del later["lifecycle"]
    yield invalid_item("missing-in-later-version", "a field is missing", canonical(later))


_NEVER_NULL = frozenset(FULL) - {"predecessor", "sequence", "version", "actor", "principal"}


def _wrong_types() -> Iterator[Item]:
    for field in sorted(FULL):
        value = FULL[field]
        other: Any = "1" if isinstance(value, int) else 1
        name, why = f"type-{field}", f"a value of the wrong type in {field}"
        yield invalid_item(name, why, canonical({**FULL, field: other}))
    for field in sorted(_NEVER_NULL):
        text = canonical({**FULL, field: None})
        yield invalid_item(f"null-{field}", f"{field} is never null", text)
    for field in ("v", "generation", "revision", "sequence"):
        text = canonical({**entry(), field: True})
        yield invalid_item(f"true-{field}", "true is not the integer 1", text)
    for spot in ("body-", "outcome-", "predecessor-", "release-"):
        for field in sorted(_spots(FULL)[spot]):
            text = _replaced(spot, field, {})
            why = "an object where a plain value belongs"
            yield invalid_item(f"type-{spot}{field}", why, text)
    nulls = {
        "body-": ("sha256", "size", "type"),
        "outcome-": ("state",),
        "predecessor-": ("digest", "history", "revision"),
        "release-": ("id", "lane"),
    }
    for spot, names in nulls.items():
        for field in names:
            text = _replaced(spot, field, None)
            yield invalid_item(f"null-{spot}{field}", "a null that the format excludes", text)
    for name, value in {"releases-of-null": [None], "releases-as-object": {}}.items():
        yield invalid_item(name, "not an array of objects", canonical({**FULL, "releases": value}))


def _wrong_values() -> Iterator[Item]:
    for name, (why, change) in {**_WRONG_MOMENTS, **_WRONG_FIELDS}.items():
        yield invalid_item(name, why, canonical({**FULL, **change}))
    for name, (why, change) in _WRONG_PLACES.items():
        yield invalid_item(name, why, canonical({**entry(), **change}))
    nested: Mapping[str, tuple[str, str, str, Any]] = {
        "outcome-data-uppercase": ("uppercase hex", "outcome-", "data", "AB" * 32),
        "outcome-data-63-digits": ("63 digits", "outcome-", "data", "a" * 63),
        "outcome-data-empty": ("empty, not null", "outcome-", "data", ""),
        "body-sha256-uppercase": ("uppercase hex", "body-", "sha256", sha256(b"").upper()),
        "body-size-negative": ("a size below 0", "body-", "size", -1),
        "predecessor-digest-65-digits": ("65 digits", "predecessor-", "digest", "a" * 65),
        "predecessor-digest-uppercase": ("uppercase hex", "predecessor-", "digest", "AB" * 32),
        "predecessor-history-31-digits": ("31 digits", "predecessor-", "history", "a" * 31),
        "predecessor-revision-0": ("a revision below 1", "predecessor-", "revision", 0),
        "predecessor-same-revision": ("not revision - 1", "predecessor-", "revision", 2),
        "release-digest-uppercase": ("uppercase hex", "release-", "digest", "AB" * 32),
    }
    for name, (why, spot, field, value) in nested.items():
        yield invalid_item(name, why, _replaced(spot, field, value))
    skipped = {**FULL, "revision": 4}
    yield invalid_item("predecessor-two-before", "not revision - 1", canonical(skipped))


_MOMENTS = {
    "nanoseconds": "2026-03-14T09:26:53.123456789Z",
    "nanoseconds-of-zero": "2026-03-14T09:26:53.123456000Z",
    "five-fractional-digits": "2026-03-14T09:26:53.12345Z",
    "milliseconds": "2026-03-14T09:26:53.123Z",
    "no-fraction": "2026-03-14T09:26:53Z",
    "no-zone": "2026-03-14T09:26:53.000000",
    "offset": "2026-03-14T11:26:53.000000+02:00",
    "offset-of-zero": "2026-03-14T09:26:53.000000+00:00",
    "lowercase": "2026-03-14t09:26:53.000000z",
    "space-for-t": "2026-03-14 09:26:53.000000Z",
    "comma": "2026-03-14T09:26:53,000000Z",
    "newline-after": "2026-03-14T09:26:53.000000Z\n",
    "digits-not-ascii": "\uff12\uff10\uff12\uff16-03-14T09:26:53.000000Z",
    "february-30": "2026-02-30T00:00:00.000000Z",
    "february-29": "2026-02-29T00:00:00.000000Z",
    "february-29-of-a-100th-year": "2100-02-29T00:00:00.000000Z",
    "april-31": "2026-04-31T00:00:00.000000Z",
    "month-0": "2026-00-10T00:00:00.000000Z",
    "month-13": "2026-13-10T00:00:00.000000Z",
    "day-0": "2026-03-00T00:00:00.000000Z",
    "hour-24": "2026-03-14T24:00:00.000000Z",
    "minute-60": "2026-03-14T09:60:00.000000Z",
    "leap-second": "2016-12-31T23:59:60.000000Z",
    "five-digit-year": "12026-03-14T09:26:53.000000Z",
    "empty": "",
}
_WRONG_MOMENTS: dict[str, tuple[str, Fields]] = {
    **{
        f"at-{name}": ("not YYYY-MM-DDTHH:MM:SS.ffffffZ, or no such moment", {"at": moment})
        for name, moment in _MOMENTS.items()
    },
    **{
        f"recorded-{name}": (
            "not YYYY-MM-DDTHH:MM:SS.ffffffZ, or no such moment",
            {"recorded": _MOMENTS[name]},
        )
        for name in ("nanoseconds", "no-zone", "offset", "february-30", "leap-second")
    },
}
_WRONG_FIELDS: dict[str, tuple[str, Fields]] = {
    "v-0": ("v is from 1", {"v": 0}),
    "v-negative": ("v is from 1", {"v": -1}),
    "generation-0": ("generation is from 1", {"generation": 0}),
    "sequence-negative": ("sequence is not negative", {"sequence": -1}),
    "history-31-digits": ("31 digits", {"history": "a" * 31}),
    "history-33-digits": ("33 digits", {"history": "a" * 33}),
    "history-uppercase": ("uppercase hex", {"history": FIRST_HISTORY.upper()}),
    "history-not-hex": ("g is not a hex digit", {"history": "g" * 32}),
    "history-with-dashes": ("dashes", {"history": "0f1e2d3c-4b5a-6978-8796-a5b4c3d2"}),
    "history-newline-after": ("a newline", {"history": FIRST_HISTORY + "\n"}),
    "tenant-empty": ("an empty tenant", {"tenant": ""}),
    "tenant-uppercase": ("an uppercase letter", {"tenant": "Main"}),
    "tenant-leading-dash": ("begins with a dash", {"tenant": "-main"}),
    "tenant-65-bytes": ("65 bytes", {"tenant": "a" * 65}),
    "tenant-not-ascii": ("a letter beyond ASCII", {"tenant": "m\u00e4in"}),
    "entity-empty": ("an empty entity", {"entity": ""}),
    "entity-no-slash": ("no slash", {"entity": "document"}),
    "entity-empty-type": ("an empty type", {"entity": "/inv-2041"}),
    "entity-empty-id": ("an empty id", {"entity": "document/"}),
    "entity-type-uppercase": ("an uppercase letter", {"entity": "Document/inv-2041"}),
    "entity-type-leading-digit": ("begins with a digit", {"entity": "1document/inv-2041"}),
    "entity-type-65-bytes": ("65 bytes", {"entity": "d" * 65 + "/inv-2041"}),
    "entity-type-not-ascii": ("a digit beyond ASCII", {"entity": "document\u0663/inv-2041"}),
    "entity-type-newline": ("a newline", {"entity": "document\n/inv-2041"}),
    "entity-id-513-bytes": ("513 bytes in 257 characters", {"entity": "d/" + "\u00e9" * 256 + "x"}),
    "entity-id-nul": ("a control character", {"entity": "document/inv\x002041"}),
    "entity-id-newline": ("a control character", {"entity": "document/inv-2041\n"}),
    "entity-id-delete": ("a control character", {"entity": "document/inv\x7f2041"}),
    "entity-id-c1-first": ("a control character", {"entity": "document/inv\x802041"}),
    "entity-id-c1-last": ("a control character", {"entity": "document/inv\x9f2041"}),
    "operation-empty": ("an empty operation", {"operation": ""}),
    "operation-257-bytes": ("257 bytes", {"operation": "o" * 257}),
    "operation-257-bytes-of-wide": (
        "257 bytes in 129 characters",
        {"operation": "\u00e9" * 128 + "o"},
    ),
    "operation-control": ("a control character", {"operation": "op\t1"}),
    "operation-c1-control": ("a control character", {"operation": "op\x851"}),
    "action-empty": ("an empty action", {"action": ""}),
    "action-129-bytes": ("129 bytes", {"action": "a" * 129}),
    "action-control": ("a control character", {"action": "sub\x1fmit"}),
    "actor-1025-bytes": ("1025 bytes in 1024 characters", {"actor": "a" * 1023 + "\u00e9"}),
    "principal-1025-bytes": ("1025 bytes", {"principal": "a" * 1025}),
    "version-1025-bytes": ("1025 bytes", {"version": "a" * 1025}),
    "version-null-with-release": (
        "version is required where something is released",
        {"version": None},
    ),
}
_WRONG_PLACES: dict[str, tuple[str, Fields]] = {
    "revision-0": ("revision is from 1", {"revision": 0}),
    "revision-negative": ("revision is from 1", {"revision": -1}),
    "revision-1-with-predecessor": (
        "revision 1 has no predecessor", {"predecessor": {**FULL["predecessor"], "revision": 1}},
    ),
    "revision-2-without-predecessor": ("revision 2 has a predecessor", {"revision": 2}),
}  # fmt: skip


def _wrong_bodies() -> Iterator[Item]:
    good = entry(body=body_of(SUBMIT_BODY))
    sized = copy.deepcopy(good)
    sized["body"]["size"] += 1
    other = SUBMIT_BODY.replace(b"1250", b"1251")
    yield invalid_item(
        "body-size-wrong", "the size is not the body's", canonical(sized), SUBMIT_BODY
    )
    yield invalid_item("body-sha256-wrong", "as long, but other bytes", canonical(good), other)
    yield invalid_item("body-left-out", "no body where one is named", canonical(good))
    yield invalid_item("body-unexpected", "a body where none is named", canonical(FULL), b"\x00")
