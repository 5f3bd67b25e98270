"""Rows of a decision log, CSV or JSON lines, as operations.

Every row comes out as an operation or as the error that says what is wrong with it; only a file
that cannot be read on raises. Memory grows with the file only where operation IDs are derived.
"""

from __future__ import annotations

import csv
import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Struct

from journal.acceptance import Operation
from journal.data import parse
from journal.entry import JSON_TYPE, parse_time, time_of
from journal.errors import Invalid

Row = tuple[int, Operation | Invalid]
"""The line where a row begins, counted from 1, and what it came to."""

CSV = "csv"
JSON_LINES = "jsonl"
STDIN = "-"
_SUFFIXES = {".csv": CSV, ".tsv": CSV, ".jsonl": JSON_LINES, ".ndjson": JSON_LINES}
_BOM = b"\xef\xbb\xbf"
_NAIVE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,6})?\Z", re.ASCII)
_OFFSET = re.compile(r"([+-])(\d\d):(\d\d)\Z", re.ASCII)
_FIXED = 32


class Unreadable(Invalid):
    """The file cannot be read on: it is damaged, or not what its name says."""


_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_decode_raw = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Mapping(Struct, frozen=True):
    """Which column is what; every other column becomes a member of the body.

    Without ``operation``, IDs are derived from the row's content. ``zone`` is for times that have
    no offset; without it they are refused.
    """

    entity_type: str
    entity: str
    action: str
    at: str | None = None
    actor: str | None = None
    operation: str | None = None
    version: str | None = None
    zone: tzinfo | None = None

    def columns(self) -> list[str]:
        """The columns that are named."""
        named = (self.entity, self.action, self.at, self.actor, self.operation, self.version)
        return [column for column in named if column is not None]


def zone_of(name: str) -> tzinfo:
    """A zone by name (`Europe/Amsterdam`) or as an offset (`+01:00`). Raises Invalid."""
    match = _OFFSET.match(name)
    if match is not None and int(match[2]) < 24 and int(match[3]) < 60:  # noqa: PLR2004 - a clock
        offset = timedelta(hours=int(match[2]), minutes=int(match[3]))
        return timezone(-offset if match[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Invalid(
            f"there is no time zone {name!r} here; name one such as Europe/Amsterdam, UTC or +01:00"
        ) from None


# The file.


class Source:
    """A file, gzipped or not, or standard input, as bytes that are read once.

    ``size`` is in bytes as stored, None when it is not known; ``read`` of them have been read.
    """

    def __init__(self, path: str, format_: str | None) -> None:
        self.path = path
        name = Path(path)
        zipped = name.suffix == ".gz"
        suffix = (name.with_suffix("") if zipped else name).suffix
        kind = format_ or _SUFFIXES.get(suffix.lower())
        if kind is None:
            raise Invalid(
                f"{path} does not say by its name what it holds; add --format csv or jsonl"
            )
        self.format = kind
        self.tabs = suffix.lower() == ".tsv"
        self.size: int | None = None
        if path == STDIN:
            self._raw: BinaryIO = sys.stdin.buffer
        else:
            self._raw = name.open("rb")
            self.size = name.stat().st_size or None
        self._file: gzip.GzipFile | BinaryIO = self._raw
        if zipped:
            self._file = gzip.GzipFile(fileobj=self._raw)

    @property
    def read(self) -> int:
        """How many bytes of the file as stored have been read; 0 where it cannot be told."""
        return self._raw.tell() if self.size is not None else 0

    def lines(self, limit: int, skipped: list[int]) -> Iterator[bytes]:
        """Lines of at most ``limit`` bytes; the numbers of longer ones go into ``skipped``.

        Raises Unreadable.
        """
        read = self._file.readline
        number = 0
        try:
            while line := read(limit):
                number += 1
                if number == 1 and line.startswith(_BOM):
                    line = line.removeprefix(_BOM)
                if len(line) == limit and not line.endswith(b"\n"):
                    skipped.append(number)
                    while (rest := read(limit)) and not rest.endswith(b"\n"):
                        pass
                    yield b"\n"
                    continue
                yield line
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise Unreadable(f"{self.path} cannot be read beyond line {number}: {error}") from None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not self._raw:
            self._file.close()
        if self.path != STDIN:
            self._raw.close()


def read_rows(
    source: Source, mapping: Mapping, limit: int, principal: str | None, delimiter: str = ","
) -> Iterator[Row]:
    """The rows of a source, decided by ``principal``. ``limit`` bounds a line in bytes.

    Raises Invalid for a header that does not have the columns, and Unreadable.
    """
    if source.format == CSV:
        return _csv_rows(source, mapping, limit, principal, "\t" if source.tabs else delimiter)
    return _json_rows(source, mapping, limit, principal)


# Parts of a row.


def _time(text: str, zone: tzinfo | None) -> str:
    try:
        return parse_time("at", text)
    except Invalid:
        if not _NAIVE.match(text):
            raise
    if zone is None:
        raise Invalid(
            f"the time {text} has no offset from UTC; say what it means with --timezone",
            field="at",
        )
    try:
        return time_of(datetime.fromisoformat(text).replace(tzinfo=zone).astimezone(UTC))
    except (ValueError, OverflowError) as error:
        raise Invalid(f"at: {text}: {error}", field="at") from None


class _Identities:
    """Operation IDs derived from content: equal rows are told apart by how many went before.

    The same rows get the same IDs in whatever file they stand. IDs begin with the time, so that
    those of a log in time order are in order too, which the journal's index likes.
    """

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def derive(self, at: str | None, parts: Sequence[str | None], body: Any) -> str:
        digest = sha256(_encode_sorted([*parts, at, body]))
        key = digest.digest()[:16]
        count = self._seen.get(key, 0) + 1
        self._seen[key] = count
        again = "" if count == 1 else f"-{count}"
        return f"row-{at or ''}-{digest.hexdigest()[:_FIXED]}{again}"


def _missing(mapping: Mapping, present: Sequence[str]) -> str | None:
    absent = [column for column in mapping.columns() if column not in present]
    if not absent:
        return None
    return f"there is no column {', '.join(absent)}; there are: {', '.join(present) or 'none'}"


# CSV.


def _csv_rows(
    source: Source, mapping: Mapping, limit: int, principal: str | None, delimiter: str
) -> Iterator[Row]:
    skipped: list[int] = []
    lines = source.lines(limit, skipped)
    csv.field_size_limit(limit)
    # Bytes that are no UTF-8 are carried along and refused with their row.
    texts = (line.decode("utf-8", "surrogateescape") for line in lines)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    try:
        header = next(reader, None)
    except csv.Error as error:
        raise Invalid(f"the header of {source.path} is not CSV: {error}") from None
    if not header:
        raise Invalid(f"{source.path} is empty: a CSV file begins with its column names")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise Invalid(f"{source.path} has several columns named {', '.join(twice)}")
    fault = _missing(mapping, header)
    if fault is not None:
        raise Invalid(f"{source.path}: {fault}")
    make = _csv_maker(header, mapping, principal)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader, None)
            if row is None:
                break
            if skipped:
                skipped.clear()
                yield line, Invalid(f"the line is longer than {limit} bytes")
            elif row:
                yield line, make(row)
        except csv.Error as error:
            yield line, Invalid(f"not CSV: {error}")
        except Unreadable:
            raise
        except Invalid as error:
            yield line, error


def _csv_maker(
    header: Sequence[str], mapping: Mapping, principal: str | None
) -> Callable[[Sequence[str]], Operation]:
    def place(column: str | None) -> int:
        return -1 if column is None else header.index(column)

    width = len(header)
    entity_at, action_at = place(mapping.entity), place(mapping.action)
    at_at, actor_at = place(mapping.at), place(mapping.actor)
    operation_at, version_at = place(mapping.operation), place(mapping.version)
    named = frozenset(mapping.columns())
    rest = [(name, number) for number, name in enumerate(header) if name not in named]
    prefix = f"{mapping.entity_type}/"
    zone = mapping.zone
    identities = _Identities()

    def make(row: Sequence[str]) -> Operation:
        if len(row) != width:
            raise Invalid(f"it has {len(row)} fields, the header has {width}")
        entity, action = prefix + row[entity_at], row[action_at]
        if not row[entity_at]:
            raise Invalid(f"{mapping.entity} is empty", field="entity")
        at = None
        if at_at >= 0:
            at = _time(row[at_at], zone)
        actor = row[actor_at] or None if actor_at >= 0 else None
        version = row[version_at] or None if version_at >= 0 else None
        members = {name: row[number] for name, number in rest if row[number]}
        try:
            body = _encode(members)
            if operation_at >= 0:
                operation = row[operation_at]
            else:
                operation = identities.derive(at, (entity, action, actor, version), members)
        except UnicodeEncodeError:
            raise Invalid("it is not text in UTF-8") from None
        return Operation(
            operation, entity, action, body, JSON_TYPE, version, None, actor, principal, at
        )

    return make


# JSON lines.


def _json_rows(
    source: Source, mapping: Mapping, limit: int, principal: str | None
) -> Iterator[Row]:
    skipped: list[int] = []
    identities = _Identities()
    named = frozenset(mapping.columns())
    for number, line in enumerate(source.lines(limit, skipped), 1):
        if skipped:
            skipped.clear()
            yield number, Invalid(f"the line is longer than {limit} bytes")
        elif line.strip():
            try:
                yield number, _json_operation(line, mapping, named, identities, principal)
            except Invalid as error:
                yield number, error


def _json_operation(
    line: bytes,
    mapping: Mapping,
    named: frozenset[str],
    identities: _Identities,
    principal: str | None,
) -> Operation:
    row = parse(line)
    if not isinstance(row, dict):
        raise Invalid("it is not a JSON object")
    fault = _missing(mapping, list(row))
    if fault is not None and not _only_optional(mapping, row):
        raise Invalid(fault)
    # The body keeps the values' own bytes: a number is not written differently than it was read.
    members = {name: raw for name, raw in _decode_raw(line).items() if name not in named}
    entity = _text(row, mapping.entity)
    action = _text(row, mapping.action)
    if entity is None or action is None:
        raise Invalid(f"{mapping.entity if entity is None else mapping.action} is empty")
    at_text = _text(row, mapping.at)
    if mapping.at is not None and at_text is None:
        raise Invalid(f"{mapping.at} is empty", field="at")
    at = None if at_text is None else _time(at_text, mapping.zone)
    actor, version = _text(row, mapping.actor), _text(row, mapping.version)
    entity = f"{mapping.entity_type}/{entity}"
    if mapping.operation is None:
        content = {name: row[name] for name in members}
        operation = identities.derive(at, (entity, action, actor, version), content)
    else:
        operation = _text(row, mapping.operation) or ""
    return Operation(
        operation, entity, action, _encode(members), JSON_TYPE, version, None, actor, principal, at
    )


def _only_optional(mapping: Mapping, row: dict[str, Any]) -> bool:
    """Whether all that is absent may be: JSON lines leave out what a CSV cell leaves empty."""
    absent = {column for column in mapping.columns() if column not in row}
    return absent <= {mapping.actor, mapping.version}


def _text(row: dict[str, Any], column: str | None) -> str | None:
    """A named column as text: strings as they are, integers in decimal, null and "" as None."""
    value = None if column is None else row.get(column)
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise Invalid(f"{column} must be a string or an integer")
