"""Exhibits: what stands in an evidence bundle beside the store's files, as documents to read.

Each is written from the files as they are, opened for reading alone. One that cannot be written
keeps no other from being written.
"""

from __future__ import annotations

import base64
import platform
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from journal.errors import Unreachable
from journal.lanes import Effect
from journal.log import FIRST_FLAW
from journal.log.engine import SqlLog
from journal.places import LogPlace, StorePlace, masked
from journal.record import Record
from journal.settings import scheme_of
from journal.sqlite import SIDE_FILES, stamp_of
from journal.store import tables
from journal.store import work as works
from journal.store.engine import SqlStore
from reconstruct import inflight

Exhibit = Callable[[Record, BinaryIO], Awaitable[None]]
"""Writes one document. Raises UnrewindError, MsgspecError or OSError when it cannot."""

_PAGE = 500


def _put(out: BinaryIO, value: Any) -> None:
    out.write(msgspec.json.format(msgspec.json.encode(value)) + b"\n")


async def control(record: Record, out: BinaryIO) -> None:
    """Every control entry in order: its place, digest, envelope and body."""
    found = [
        {
            "position": row.position,
            "sequence": row.sequence,
            "digest": row.digest,
            "envelope": _text(row.text),
            "body": _text(row.body),
        }
        for row in await record.journal().control()
    ]
    _put(out, found)


def _text(raw: bytes) -> str | dict[str, str]:
    """Bytes as text; those of a damaged entry that are none as base64."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}


async def journal(record: Record, out: BinaryIO) -> None:
    """Where the journal stood: its position, its head, what was in force, its engine or files."""
    log = record.journal()
    look = await log.look()
    _put(
        out,
        {
            "position": look.position,
            "control": look.control,
            "authority": look.authority,
            "head": look.last,
            "observations": await log.last_in("observations"),
            "flawed": look.flawed,
            "place": _place(record.log_place, log),
            "files": _stamps(record.log_place.file),
        },
    )


async def marker(record: Record, out: BinaryIO) -> None:
    """Where the store stood, whose it says it is, and what the comparison with the journal says."""
    finding, _ = await record.examine()
    _put(
        out,
        {
            "marker": await record.marker(),
            "verdict": finding.verdict,
            "detail": finding.detail,
            "facts": finding.facts,
            "place": _place(record.store_place, record.store),
            "files": _stamps(record.store_place.file),
        },
    )


def _place(place: StorePlace | LogPlace, engine: SqlStore | SqlLog | None) -> dict[str, Any]:
    """Where it is, and what is known of its engine."""
    return {"where": place.label, **({} if engine is None else engine.facts())}


def _stamps(database: Path | None) -> dict[str, Any]:
    """The stamps of an embedded database's files."""
    found: dict[str, Any] = {}
    if database is None:
        return found
    for suffix in ("", *SIDE_FILES):
        path = database.with_name(database.name + suffix)
        found[path.name] = stamp_of(path)
    return found


async def work(record: Record, out: BinaryIO) -> None:
    """Releases and commands that were not over, row by row, and what was under way of them."""
    store = _store(record)
    out.write(b'{"unfinished": [')
    first = True
    for effect in (Effect.EXTERNAL, Effect.INTERNAL):
        after = ""
        while True:
            page = (await store.read([works.read_open(effect, after, _PAGE)]))[0]
            rows = [dict(zip(works.COLUMNS, row, strict=True)) for row in _decode(page[0][0])]
            for row in rows:
                out.write((b"\n" if first else b",\n") + msgspec.json.encode(row))
                first = False
            if len(rows) < _PAGE:
                break
            after = rows[-1]["id"]
    calls = await inflight.under_way(record, record.clock.now())
    out.write(b'\n], "in_flight": ' + msgspec.json.encode(calls) + b"}\n")


_decode = msgspec.json.Decoder(list[list[Any]]).decode


def _store(record: Record) -> SqlStore:
    if record.store is None:
        raise Unreachable("the store is missing or unreadable")
    return record.store


async def gaps(record: Record, out: BinaryIO) -> None:
    """Every reason why a history was incomplete."""
    found, after = [], FIRST_FLAW
    while page := await record.journal().flaws(None, after, _PAGE):
        found += page
        after = page[-1].key
    _put(out, found)


async def settings(record: Record, out: BinaryIO) -> None:
    """The settings in force, whatever file, environment or flag each came from; no passwords."""
    names = ("store", "journal")
    servers = {name: getattr(record.settings, name) for name in names}
    shown = {name: masked(url) for name, url in servers.items() if scheme_of(url) is not None}
    _put(out, msgspec.structs.replace(record.settings, **shown))


async def versions(_: Record, out: BinaryIO) -> None:
    """What ran: unrewind, the format of its store, Python, SQLite, the platform."""
    try:
        own = version("unrewind")
    except PackageNotFoundError:
        own = None
    _put(
        out,
        {
            "unrewind": own,
            "store_format": tables.FORMAT,
            "python": sys.version,
            "sqlite": sqlite3.sqlite_version,
            "platform": platform.platform(),
        },
    )


EXHIBITS: dict[str, Exhibit] = {
    "control.json": control,
    "journal.json": journal,
    "marker.json": marker,
    "work.json": work,
    "gaps.json": gaps,
    "settings.json": settings,
    "version.json": versions,
}
