"""Copying a tenant to another place, entry by entry and row by row, and comparing what arrived.

Both sides stand still: the journal that is copied takes no entry any more. What a kill left at the
target is gone on with where it is the beginning of the same, and done anew where it is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec

from journal.acceptance import Place
from journal.control import Control, fold
from journal.entry import Entry, read
from journal.errors import Invalid, Refused
from journal.files import whole_or_absent
from journal.log import CONTROL, FIRST_FLAW, Append, Look, Rival, Row
from journal.log.engine import SqlLog
from journal.places import LogPlace, StorePlace
from journal.sql import Database, Projected, Rows, Statement
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.sqlite import schema
from reconstruct.verification import state_digest

Progress = Callable[[int, int, str], None]

_PAGE = 500
_ENTRIES = 256
"""Entries of one append: an engine may have to send them as one message."""

_BYTES = 512 * 1024
_NOTHING = Look(0, None, None, 0, flawed=False)

_TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (unrewind_\w+) \((.*?)\n\)", re.DOTALL)
_COLUMN = re.compile(r"^\s*([a-z_]+)\s+(?:INTEGER|TEXT|BLOB|REAL)\b", re.MULTILINE)
_COUNTED = ("unrewind_counts", "unrewind_flow")
"""Kept by triggers while the work is written, so they are copied after it."""

_MARKER = "unrewind_marker"
ENVELOPE = "envelope"


# The journal.


async def copy_journal(source: SqlLog, place: LogPlace, tenant: str, progress: Progress) -> None:
    """Every entry of the journal at another place: the same bytes at the same positions.

    Raises Refused where another journal stands there, or an entry is damaged or missing.
    """
    if place.exists():
        target = place.open()
        try:
            await _go_on(source, target, place, tenant, progress)
        finally:
            target.database.close()
        return
    with place.created() as target:
        await _fill(source, target, _NOTHING, [], tenant, progress)


async def _go_on(
    source: SqlLog, target: SqlLog, place: LogPlace, tenant: str, progress: Progress
) -> None:
    """Go on where an earlier copy was killed, or where the tenant once left this place."""
    look = await target.look()
    ours, theirs = await source.at(look.position), await target.at(look.position)
    if look.position and (ours is None or theirs is None or ours.digest != theirs.digest):
        raise Refused(
            f"another journal stands at {place.label}: move it away, or name another place"
        )
    control = [row.entry() for row in await target.control()]
    await _fill(source, target, look, control, tenant, progress)


async def _fill(
    source: SqlLog,
    target: SqlLog,
    look: Look,
    control: list[Entry],
    tenant: str,
    progress: Progress,
) -> None:
    total = (await source.look()).position
    while rows := await source.feed(look.position, _ENTRIES):
        page = _page(rows, look.position)
        entries = [(row.stream, _entry(row)) for row in page]
        decrees = [entry for stream, entry in entries if stream == CONTROL]
        control += decrees
        becomes = fold(control, tenant, moved=True).authority if decrees else None
        await target.append(Append(entries, becomes), look)
        look = await target.look()
        progress(look.position, total, "entries copied")
    await _copy_derived(source, target, look, fold(control, tenant, moved=True))


def _page(rows: list[Row], after: int) -> list[Row]:
    """As many of the rows as one append takes. Raises Refused where a position is missing."""
    size = 0
    for number, row in enumerate(rows):
        if row.position != after + number + 1:
            raise Refused(
                f"the journal has nothing at position {after + number + 1}, so that its entries "
                "would not stand where they stood: such a journal is not moved"
            )
        size += len(row.text) + len(row.body)
        if size >= _BYTES:
            return rows[: number + 1]
    return rows


def _entry(row: Row) -> Entry:
    try:
        return row.entry()
    except Invalid as error:
        raise Refused(
            f"the entry at position {row.position} is damaged: {error.detail}; see unrewind verify"
        ) from None


async def _copy_derived(source: SqlLog, target: SqlLog, look: Look, control: Control) -> None:
    """Rivals, and what is derived from entries: chains, flaws, and which ones were dropped."""
    after = 0
    while rivals := _rivals(source.database, after):
        await target.append(Append(rivals=[rival for _, rival in rivals]), look)
        after = rivals[-1][0]
        look = await target.look()
    entity = ""
    while chains := await source.chains(None, entity, _PAGE):
        await target.append(Append(chains=chains), look)
        entity = chains[-1].entity
        look = await target.look()
    key = FIRST_FLAW
    while flaws := await source.flaws(None, key, _PAGE):
        await target.append(Append(flaws=flaws), look)
        key = flaws[-1].key
        look = await target.look()
    cuts = [cut for line in control.abandoned.values() for cut in line]
    if cuts:
        await target.append(Append(drops=cuts), look)


def _rivals(journal: Database, after: int) -> list[tuple[int, Rival]]:
    query = Statement(
        "SELECT number, CAST(envelope AS BLOB), body, stored, seen FROM rivals WHERE number > ?"
        " ORDER BY number LIMIT ?",
        (after, _ENTRIES),
    )
    return [
        (number, Rival(read(bytes(text), bytes(body)), stored, seen))
        for number, text, body, stored, seen in journal.read([query])[0]
    ]


async def compare_journals(source: SqlLog, target: SqlLog, progress: Progress) -> int:
    """Compare every entry and everything beside them; how many entries there are.

    Each entry of the target is hashed anew. Raises Refused where anything differs.
    """
    total = (await source.look()).position
    position = 0
    while rows := await source.feed(position, _PAGE):
        copies = {row.position: row for row in await target.feed(position, len(rows))}
        for row in rows:
            copy = copies.get(row.position)
            if copy is None:
                break  # the copy's page ended early, by its bytes
            if _entry(copy) != _entry(row) or copy != row:
                raise Refused(f"the copy of the entry at position {row.position} is another one")
            position = row.position
        if not copies:
            raise Refused(f"the copy ends at position {position}, the journal at {total}")
        progress(position, total, "entries compared")
    for what, query in _BESIDE.items():
        if _digest(source.database, query) != _digest(target.database, query):
            raise Refused(f"the copy's {what} are not those of the journal")
    return position


_BESIDE = {
    "rivals": "SELECT entity, stored, seen, digest, CAST(envelope AS BLOB), body FROM rivals",
    "chains": "SELECT entity, revision, history, digest, state, newest FROM chains ORDER BY entity",
    "flaws": "SELECT entity, flaw, first, last, digests, through, holds, since, detail FROM flaws",
    "dropped entries": "SELECT position FROM dropped",
}


# The store.


def copy_store(
    source: SqlStore, origin: StorePlace, place: StorePlace, now: str, progress: Progress
) -> None:
    """The store at another place: all of it between two files, else unrewind's own tables.

    What an earlier copy, or an earlier stay of the tenant, left there is taken where it is the
    same, and set aside where it is not. Raises Refused where another tenant's store stands there.
    """
    marker = _marker_of(source)
    begun = False
    if place.exists():
        found = place.open(read_only=True)
        try:
            theirs = tables.marker_of(found.database.read([tables.READ_MARKER])[0])
            if theirs == marker and rows_digest(found.database) == rows_digest(source.database):
                return
        finally:
            found.database.close()
        if theirs is None:
            begun = place.file is None
        elif (theirs.tenant, theirs.instance) != (marker.tenant, marker.instance):
            raise Refused(
                f"the store of tenant {theirs.tenant} stands at {place.label}: move it away, or "
                "name another place"
            )
        if not begun:
            place.set_aside(now)
    if origin.file is not None and place.file is not None:
        place.file.parent.mkdir(parents=True, exist_ok=True)
        with whole_or_absent(place.file) as aside:
            source.copy_to(aside)
        return
    if begun:
        target = place.open()
        try:
            _copy_tables(source.database, target.database, progress)
        finally:
            target.database.close()
        return
    with place.created() as target:
        _copy_tables(source.database, target.database, progress)


def _marker_of(store: SqlStore) -> tables.Marker:
    marker = tables.marker_of(store.database.read([tables.READ_MARKER])[0])
    if marker is None:
        raise Refused(f"{store.database.label} is a store without a marker")
    return marker


def columns_of() -> dict[str, list[str]]:
    """The tables of unrewind in a store with their columns, in the order in which they are copied.

    The marker comes last: a store is there once its marker is.
    """
    found = {name: _COLUMN.findall(body) for name, body in _TABLE.findall(schema())}
    last = [*_COUNTED, _MARKER]
    return {name: found[name] for name in [*[each for each in found if each not in last], *last]}


def _copy_tables(source: Database, target: Database, progress: Progress) -> None:
    columns = columns_of()
    # The marker goes first, and comes back last.
    target.batch([Statement(f"DELETE FROM {name}") for name in reversed(columns)])
    for name, names in columns.items():
        insert = f"INSERT INTO {name} ({', '.join(names)}) VALUES {{rows}}"
        if name in _COUNTED:
            target.batch([Statement(f"DELETE FROM {name}")])
        done = 0
        for rows in _pages(source, _select(name, names)):
            target.batch([Rows(insert, [_written(names, row) for row in rows])])
            done += len(rows)
            progress(done, done, f"rows of {name} copied")
    _count_on(target, [name for name, names in columns.items() if "number" in names])


def _count_on(target: Database, names: list[str]) -> None:
    """Let a server number further rows after those that were copied with their numbers."""
    schema = getattr(getattr(target, "where", None), "quoted", None)
    if schema is None:
        return  # SQLite numbers a row after the highest one that is there
    target.batch(
        [
            Projected(
                f"SELECT setval(pg_get_serial_sequence('{schema}.{name}', 'number'), max(number))"
                f" FROM {schema}.{name} HAVING max(number) IS NOT NULL"
            )
            for name in names
        ]
    )


def _select(table: str, names: list[str]) -> str:
    """A query of a table's rows, envelopes as bytes: an engine may keep them as text or as such."""
    read_as = [f"CAST({name} AS BLOB)" if name == ENVELOPE else name for name in names]
    return f"SELECT {', '.join(read_as)} FROM {table}"


def _written(names: list[str], row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as it is written. Raises Refused for an envelope that is damaged."""
    try:
        return tuple(
            bytes(value).decode() if name == ENVELOPE else value
            for name, value in zip(names, row, strict=True)
        )
    except UnicodeDecodeError as error:
        raise Refused(
            f"an envelope in the store is damaged: {error}; see unrewind verify"
        ) from None


def _pages(source: Database, query: str) -> Iterator[list[tuple[Any, ...]]]:
    page: list[tuple[Any, ...]] = []
    size = 0
    for row in source.stream(Statement(query)):
        page.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(page) >= _PAGE or size >= _BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def rows_digest(store: Database) -> str:
    """A digest of every row of unrewind's own tables in a store, whichever engine has it."""
    digest = sha256()
    for name, names in sorted(columns_of().items()):
        query = _select(name, names)
        digest.update(f"{name}\n{_digest(store, query)}\n".encode())
    return digest.hexdigest()


def _digest(database: Database, query: str) -> str:
    """The sum of the SHA-256 of each row of a query: engines may give the rows in any order."""
    total = 0
    for row in database.stream(Statement(query)):
        plain = [value if not isinstance(value, memoryview) else bytes(value) for value in row]
        total += int.from_bytes(sha256(msgspec.msgpack.encode(plain)).digest(), "big")
    return f"{total % (1 << 256):064x}"


def compare_stores(source: SqlStore, target: SqlStore) -> str:
    """Compare every row of two stores; the state digest of both. Raises Refused."""
    ours, theirs = state_digest(source.database), state_digest(target.database)
    if ours is None or ours != theirs:
        raise Refused(f"the copy's state digest is {theirs}, the store's is {ours}")
    if rows_digest(source.database) != rows_digest(target.database):
        raise Refused("the copy's rows of work, budgets or control are not those of the store")
    return ours


async def raise_generation(
    store: SqlStore, generation: int, entries: list[Entry], sequence: int
) -> None:
    """Raise a store's generation, so that older writers are fenced, with copies of control.

    ``entries`` are those of the whole order, through ``sequence``. Doing it again changes nothing.
    """
    marker = _marker_of(store)
    if marker.place.generation >= generation:
        return
    place = marker.place
    raised = Place(place.history, generation, place.sequence, place.digest)
    await store.batch(
        [
            tables.fence(marker, raised, marker.journalled),
            tables.drop_control_above(sequence),
            tables.copy_control(entries),
        ]
    )
