"""A second reading of the entry format, version 1, from its description alone.

It imports nothing of the project, so that a mistake in `journal` and one here would have to agree.
Sources: DESIGN.md section 3, RFC 8259 (JSON), RFC 8785 (canonical form), RFC 6962 (leaf hash).

    python -m tests.journal.independent tests/vectors/entries.json
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Json: TypeAlias = "bool | int | str | list[Json] | dict[str, Json] | None"
Rule: TypeAlias = "Callable[[str, Json], None]"

INTEGER_LIMIT = 2**53
DEPTH_LIMIT = 64

_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]*)")
_HEX4 = re.compile(r"[0-9a-fA-F]{4}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})\.([0-9]{6})Z"
)
_WORDS: Mapping[str, Json] = {"true": True, "false": False, "null": None}
_UNESCAPE = {
    '"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t",
}  # fmt: skip
_ESCAPE = {
    '"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t",
}  # fmt: skip


# -- JSON -----------------------------------------------------------------------------------------


class _Reader:
    """Any JSON text of strings, integers, booleans, null, arrays and objects; nothing else."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def document(self) -> Json:
        """Return the one value that the text holds."""
        value = self._value(0)
        if self._at != len(self._text):
            raise self._error("trailing text")
        return value

    def _error(self, what: str) -> ValueError:
        return ValueError(f"{what} at character {self._at}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _space(self) -> None:
        while self._peek() in {" ", "\t", "\n", "\r"}:
            self._at += 1

    def _take(self, expected: str) -> None:
        if not self._text.startswith(expected, self._at):
            raise self._error(f"expected {expected!r}")
        self._at += len(expected)

    def _value(self, depth: int) -> Json:
        if depth > DEPTH_LIMIT:
            raise self._error(f"nested deeper than {DEPTH_LIMIT}")
        self._space()
        value: Json
        match self._peek():
            case "{":
                value = self._object(depth)
            case "[":
                value = self._array(depth)
            case '"':
                value = self._string()
            case "t" | "f" | "n":
                value = self._word()
            case _:
                value = self._integer()
        self._space()
        return value

    def _object(self, depth: int) -> dict[str, Json]:
        members: dict[str, Json] = {}
        self._take("{")
        self._space()
        if self._peek() == "}":
            self._at += 1
            return members
        while True:
            self._space()
            key = self._string()
            if key in members:
                raise self._error(f"duplicate key {key!r}")
            self._space()
            self._take(":")
            members[key] = self._value(depth + 1)
            if self._peek() == "}":
                self._at += 1
                return members
            self._take(",")

    def _array(self, depth: int) -> list[Json]:
        items: list[Json] = []
        self._take("[")
        self._space()
        if self._peek() == "]":
            self._at += 1
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._peek() == "]":
                self._at += 1
                return items
            self._take(",")

    def _word(self) -> Json:
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        raise self._error("not a JSON value")

    def _integer(self) -> int:
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            raise self._error("not a JSON value")
        if _INTEGER.fullmatch(found.group()) is None:
            raise self._error(f"{found.group()} is not an integer")
        if len(found.group()) > len(str(-INTEGER_LIMIT)):
            raise self._error("integer of 2^53 or more")
        value = int(found.group())
        if abs(value) >= INTEGER_LIMIT:
            raise self._error("integer of 2^53 or more")
        self._at = found.end()
        return value

    def _string(self) -> str:
        self._take('"')
        parts: list[str] = []
        while (char := self._peek()) != '"':
            if char == "":
                raise self._error("unfinished string")
            if char < " ":
                raise self._error("unescaped control character")
            self._at += 1
            parts.append(self._escaped() if char == "\\" else char)
        self._at += 1
        return "".join(parts)

    def _escaped(self) -> str:
        char = self._peek()
        self._at += 1
        if char in _UNESCAPE:
            return _UNESCAPE[char]
        if char != "u":
            raise self._error("unknown escape")
        unit = self._unit()
        if 0xD800 <= unit <= 0xDBFF and self._text.startswith("\\u", self._at):
            self._at += 2
            low = self._unit()
            if 0xDC00 <= low <= 0xDFFF:
                return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))
        if 0xD800 <= unit <= 0xDFFF:
            raise self._error("lone surrogate")
        return chr(unit)

    def _unit(self) -> int:
        found = _HEX4.match(self._text, self._at)
        if found is None:
            raise self._error("escape without four hex digits")
        self._at = found.end()
        return int(found.group(), 16)


def parse(envelope: bytes) -> Json:
    """Return the JSON value of `envelope`, canonical or not.

    Raises ValueError for bytes that are not UTF-8 or not JSON, for duplicate keys, lone surrogates,
    floats, integers of 2^53 and more, and nesting deeper than `DEPTH_LIMIT`.
    """
    return _Reader(envelope.decode("utf-8", "strict")).document()


def canonicalise(value: Json) -> bytes:
    """Return the RFC 8785 form of `value`, in UTF-8.

    Raises ValueError for what the format excludes: floats, integers of 2^53 and more, surrogates.
    """
    return "".join(_pieces(value)).encode("utf-8", "strict")


def _pieces(value: Json) -> list[str]:
    if value is None:
        return ["null"]
    if isinstance(value, bool):
        return ["true" if value else "false"]
    if isinstance(value, int):
        if abs(value) >= INTEGER_LIMIT:
            raise ValueError(f"integer of 2^53 or more: {value}")
        return [str(value)]
    if isinstance(value, str):
        return [_quoted(value)]
    pieces: list[str] = []
    if isinstance(value, list):
        for item in value:
            pieces += [",", *_pieces(item)]
        return ["[", *pieces[1:], "]"]
    if isinstance(value, dict):
        for key in sorted(value, key=_code_units):
            pieces += [",", _quoted(key), ":", *_pieces(value[key])]
        return ["{", *pieces[1:], "}"]
    raise ValueError(f"not a value of the format: {type(value).__name__}")


def _code_units(key: str) -> list[int]:
    """Return the UTF-16 code units of `key`: RFC 8785 sorts by these, not by code points."""
    units: list[int] = []
    for point in map(ord, key):
        if point < 0x10000:
            units.append(point)
        else:
            units += [0xD800 + ((point - 0x10000) >> 10), 0xDC00 + ((point - 0x10000) & 0x3FF)]
    return units


def _quoted(text: str) -> str:
    parts = [_ESCAPE.get(char) or (char if char >= " " else f"\\u{ord(char):04x}") for char in text]
    return f'"{"".join(parts)}"'


# -- the envelope's rules -------------------------------------------------------------------------


def _text(least: int = 0, most: int | None = None, *, control: bool = True) -> Rule:
    """Rule: a string of `least` to `most` UTF-8 bytes, without control characters if said so."""

    def rule(path: str, value: Json) -> None:
        if not isinstance(value, str):
            raise ValueError(f"{path}: not a string")
        size = len(value.encode())
        if size < least or (most is not None and size > most):
            raise ValueError(f"{path}: {size} bytes, not {least} to {most}")
        if not control and _CONTROL.search(value):
            raise ValueError(f"{path}: holds a control character")

    return rule


def _pattern(pattern: str) -> Rule:
    compiled = re.compile(pattern, re.ASCII)

    def rule(path: str, value: Json) -> None:
        if not isinstance(value, str):
            raise ValueError(f"{path}: not a string")
        if compiled.fullmatch(value) is None:
            raise ValueError(f"{path}: {value[:80]!r} does not match {pattern}")

    return rule


def _integer(least: int) -> Rule:
    def rule(path: str, value: Json) -> None:
        # bool is an int in Python, and true is not 1 in JSON.
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{path}: not an integer")
        if value < least:
            raise ValueError(f"{path}: {value} is below {least}")

    return rule


def _or_null(inner: Rule) -> Rule:
    def rule(path: str, value: Json) -> None:
        if value is not None:
            inner(path, value)

    return rule


def _array(inner: Rule) -> Rule:
    def rule(path: str, value: Json) -> None:
        if not isinstance(value, list):
            raise ValueError(f"{path}: not an array")
        for index, item in enumerate(value):
            inner(f"{path}[{index}]", item)

    return rule


def _object(fields: Mapping[str, Rule], *, extra: bool) -> Rule:
    """Rule: an object of exactly these fields, or of at least these when `extra`."""

    def rule(path: str, value: Json) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{path}: not an object")
        if missing := fields.keys() - value.keys():
            raise ValueError(f"{path}: missing {', '.join(sorted(missing))}")
        if not extra and (unknown := value.keys() - fields.keys()):
            raise ValueError(f"{path}: unknown {', '.join(sorted(unknown))}")
        for name, field in fields.items():
            field(f"{path}.{name}", value[name])

    return rule


def _moment(path: str, value: Json) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{path}: not a string")
    found = _MOMENT.fullmatch(value)
    if found is None:
        raise ValueError(f"{path}: {value!r} is not YYYY-MM-DDTHH:MM:SS.ffffffZ")
    year, month, day, hour, minute, second, micro = map(int, found.groups())
    try:
        datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{path}: {value!r} does not exist: {error}") from error


def _entity(path: str, value: Json) -> None:
    if not isinstance(value, str):
        raise ValueError(f"{path}: not a string")
    kind, slash, name = value.partition("/")
    if not slash:
        raise ValueError(f"{path}: no slash between type and id")
    _pattern(r"[a-z][a-z0-9_-]{0,63}")(f"{path} type", kind)
    _text(1, 512, control=False)(f"{path} id", name)


_HISTORY = _pattern(r"[0-9a-f]{32}")
_SHA256 = _pattern(r"[0-9a-f]{64}")
_LONG = _text(0, 1024)
_NAME = _text(1, 256, control=False)


def _rules(*, later: bool) -> Rule:
    """Rule: an envelope of version 1, or of a `later` one, which may add fields anywhere."""
    predecessor = {"digest": _SHA256, "history": _HISTORY, "revision": _integer(1)}
    release = {
        "corrects": _or_null(_NAME),
        "digest": _or_null(_SHA256),
        "id": _NAME,
        "lane": _NAME,
        "receiver": _or_null(_NAME),
        "recipient": _or_null(_LONG),
        "version": _or_null(_LONG),
    }
    return _object(
        {
            "v": _integer(1),
            "tenant": _pattern(r"[a-z0-9][a-z0-9_-]{0,63}"),
            "entity": _entity,
            "operation": _NAME,
            "action": _text(1, 128, control=False),
            "history": _HISTORY,
            "generation": _integer(1),
            "revision": _integer(1),
            "predecessor": _or_null(_object(predecessor, extra=later)),
            "sequence": _or_null(_integer(1)),
            "version": _or_null(_LONG),
            "actor": _or_null(_LONG),
            "principal": _or_null(_LONG),
            "at": _moment,
            "recorded": _moment,
            "lifecycle": _text(),
            "outcome": _object({"data": _or_null(_SHA256), "state": _text()}, extra=later),
            "releases": _array(_object(release, extra=later)),
            "body": _object({"sha256": _SHA256, "size": _integer(0), "type": _text()}, extra=later),
        },
        extra=later,
    )


_VERSION_1 = _rules(later=False)
_LATER = _rules(later=True)


class _Sealed(NamedTuple):
    """What a chain needs of an envelope whose bytes are in order."""

    digest: str
    tenant: str
    entity: str
    history: str
    revision: int
    predecessor: tuple[str, str, int] | None
    body_sha256: str
    body_size: int


def _unseal(envelope: bytes) -> _Sealed:
    value: Any = parse(envelope)
    if canonicalise(value) != envelope:
        raise ValueError("not in RFC 8785 form")
    version = value.get("v") if isinstance(value, dict) else None
    later = isinstance(version, int) and version > 1
    (_LATER if later else _VERSION_1)("envelope", value)
    before = value["predecessor"]
    if value["revision"] == 1 and before is not None:
        raise ValueError("envelope.predecessor: revision 1 has none")
    if value["revision"] > 1 and before is None:
        raise ValueError(f"envelope.predecessor: null at revision {value['revision']}")
    if before is not None and before["revision"] != value["revision"] - 1:
        raise ValueError(
            f"envelope.predecessor: revision {before['revision']} before {value['revision']}"
        )
    if value["releases"] and value["version"] is None:
        raise ValueError("envelope.version: null, though something is released")
    return _Sealed(
        digest=hashlib.sha256(b"\x00" + envelope).hexdigest(),
        tenant=value["tenant"],
        entity=value["entity"],
        history=value["history"],
        revision=value["revision"],
        predecessor=before and (before["digest"], before["history"], before["revision"]),
        body_sha256=value["body"]["sha256"],
        body_size=value["body"]["size"],
    )


def _check_body(sealed: _Sealed, body: bytes) -> None:
    if len(body) != sealed.body_size:
        raise ValueError(f"body: {len(body)} bytes, the envelope says {sealed.body_size}")
    found = hashlib.sha256(body).hexdigest()
    if found != sealed.body_sha256:
        raise ValueError(f"body: hashes to {found}, the envelope says {sealed.body_sha256}")


def check(envelope: bytes, body: bytes) -> str:
    """Return the digest of an entry that obeys every rule of the format.

    Raises ValueError with the first rule that it breaks.
    """
    sealed = _unseal(envelope)
    _check_body(sealed, body)
    return sealed.digest


# -- chains ---------------------------------------------------------------------------------------


def check_chain(entries: Sequence[tuple[bytes, bytes]]) -> list[str]:
    """Return what breaks the chain of one entity, by revision; nothing when it is whole from 1.

    `entries` are (envelope, body), in any order; the same bytes twice count once. Each finding
    begins with its kind:

    - `mismatch`: an entry that fails `check`, or whose predecessor is not the entry held there;
    - `fork`: two entries that follow one predecessor, or take one revision of one history;
    - `gap`: revisions of which nothing readable is held, below the highest one held.

    Raises ValueError for entries of more than one entity.
    """
    findings: list[tuple[int, str]] = []
    held: dict[str, _Sealed] = {}
    for index, (envelope, body) in enumerate(entries):
        try:
            sealed = _unseal(envelope)
        except ValueError as error:
            findings.append((0, f"mismatch: entry {index}: {error}"))
            continue
        held[sealed.digest] = sealed
        try:
            _check_body(sealed, body)
        except ValueError as error:
            findings.append((sealed.revision, f"mismatch: revision {sealed.revision}: {error}"))
    if len({(sealed.tenant, sealed.entity) for sealed in held.values()}) > 1:
        raise ValueError("entries of more than one entity")

    revisions: dict[int, list[_Sealed]] = {}
    for sealed in held.values():
        revisions.setdefault(sealed.revision, []).append(sealed)
    expected = 1
    for revision in sorted(revisions):
        here = revisions[revision]
        if revision > expected:
            missing = str(expected) if revision == expected + 1 else f"{expected}-{revision - 1}"
            findings.append((expected, f"gap: revision {missing} is missing before {revision}"))
        findings += [(revision, found) for found in _forks(revision, here)]
        if revision - 1 in revisions:
            findings += [(revision, found) for sealed in here for found in _misplaced(sealed, held)]
        expected = revision + 1
    return [text for _, text in sorted(dict.fromkeys(findings))]


def _forks(revision: int, here: Sequence[_Sealed]) -> list[str]:
    for index, one in enumerate(here):
        for other in here[:index]:
            if one.predecessor == other.predecessor or one.history == other.history:
                digests = ", ".join(sorted(sealed.digest for sealed in here))
                return [f"fork: revision {revision} is each of {digests}"]
    return []


def _misplaced(sealed: _Sealed, held: Mapping[str, _Sealed]) -> list[str]:
    if sealed.predecessor is None:
        return []
    digest, history, revision = sealed.predecessor
    before = held.get(digest)
    if before is None:
        return [f"mismatch: revision {sealed.revision} follows {digest}, which is not held"]
    if (before.history, before.revision) != (history, revision):
        named, found = f"{revision} of {history}", f"{before.revision} of {before.history}"
        return [f"mismatch: revision {sealed.revision} follows {digest} as {named}; it is {found}"]
    return []


# -- the vectors ----------------------------------------------------------------------------------


def _bytes(item: Mapping[str, Any]) -> tuple[bytes, bytes]:
    text = item.get("envelope")
    envelope = bytes.fromhex(item["envelope_hex"]) if text is None else text.encode()
    return envelope, base64.b64decode(item["body_base64"], validate=True)


def _verify_valid(item: Mapping[str, Any]) -> str:
    envelope, body = _bytes(item)
    if envelope.hex() != item["envelope_hex"]:
        raise ValueError("envelope_hex is not the UTF-8 of envelope")
    if canonicalise(item["envelope_fields"]) != envelope:
        raise ValueError("envelope is not the RFC 8785 form of envelope_fields")
    digest = check(envelope, body)
    if digest != item["digest"]:
        raise ValueError(f"digest is {digest}")
    return digest


def _verify_invalid(item: Mapping[str, Any]) -> str:
    envelope, body = _bytes(item)
    try:
        digest = check(envelope, body)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"accepted as {digest}; expected a refusal: {item['why']}")


def _verify_chains(items: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    chains: dict[tuple[str, str], list[tuple[bytes, bytes]]] = {}
    for item in items:
        fields = item["envelope_fields"]
        chains.setdefault((fields["tenant"], fields["entity"]), []).append(_bytes(item))
    return [(entity, check_chain(chain)) for (_, entity), chain in chains.items() if len(chain) > 1]


def main(arguments: Sequence[str]) -> int:
    """Verify the vector file named by `arguments`, a line a vector; return the exit status."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m tests.journal.independent VECTORS.json\n")
        return 2
    document = json.loads(Path(arguments[0]).read_bytes())
    failures = 0
    for kind, verify in (("valid", _verify_valid), ("invalid", _verify_invalid)):
        for item in document[kind]:
            try:
                result = f"ok    {kind:8}{item['name']}: {verify(item)}"
            except (ValueError, AssertionError, binascii.Error) as error:
                failures += 1
                result = f"FAIL  {kind:8}{item['name']}: {error}"
            sys.stdout.write(result.encode("ascii", "backslashreplace").decode() + "\n")
    for entity, findings in _verify_chains(document["valid"]):
        failures += bool(findings)
        state = "FAIL" if findings else "ok  "
        sys.stdout.write(f"{state}  chain   {entity}: {'; '.join(findings) or 'whole'}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
