"""Reading: every question that is answered from journalled state.

Coroutines over a read-only ``Record``. An answer rests on journalled decisions only (P1): state is
read from the store and shown when the journal holds what it rests on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from journal import gate as gates
from journal.abandonment import abandoned_operation
from journal.acceptance import DUPLICATE, Acceptance, EntityHead, receipt
from journal.control import Authority, tip_of
from journal.data import EMPTY, after, hash_of
from journal.detection import Verdict
from journal.entry import Entry, parse_time
from journal.errors import (
    Damaged,
    EngineError,
    HistoryIncomplete,
    Invalid,
    JournalUnavailable,
    NotFound,
    Recovering,
    UnrewindError,
)
from journal.feed import MAX_PAGE, Page, clamp, decode_cursor, encode_cursor
from journal.holding import limits_of
from journal.lifecycle import Lifecycle, Owner, lifecycle_of
from journal.log import CONTROL, FIRST_FLAW, OBSERVATIONS, PAGE_BYTES, FlawKey, FlawRow, Log, Row
from journal.record import Record
from journal.store import tables

_NO_OPERATIONS = frozenset({CONTROL, OBSERVATIONS})
ABANDONED = "abandoned"
_MAX_REPLAY = 100_000
_REVISION = re.compile(r"[0-9]{1,15}\Z")
_NEIGHBOURS = 8


class Pending(UnrewindError):
    """The entity's newest decision is not yet in the journal; ask again in a moment."""


class EntityView(Struct, frozen=True):
    """An entity at its durable boundary. ``data`` is null for a caller-owned one."""

    entity: str
    state: str
    revision: int
    durable_through: int
    complete: bool
    version: str | None
    history: str
    digest: str
    data: Any
    newest: int


async def _authority(record: Record) -> Authority:
    look = await record.look()
    return (await record.current_control(look)).authority


async def check_readable(record: Record) -> None:
    """Entity reads need an open stage: a closed tenant may show a revoked right as valid."""
    record.stop.check()
    authority = await _authority(record)
    if not authority.stage.reads:
        raise Recovering(f"the tenant's stage is {authority.stage}", stage=str(authority.stage))


async def check_journalled(record: Record) -> None:
    """What was read of the store before this rests on journalled decisions alone (P1).

    Raises Pending where some of it may still wait for its handoff.
    """
    marker = await record.marker()
    look = await record.look()
    tip = tip_of((await record.current_control(look)).authority, look.last)
    place = None if marker is None else marker.place
    if place is not None and place.history == tip.history and place.sequence > tip.sequence:
        raise Pending


async def read_heads(record: Record, statement: Any) -> dict[str, EntityHead]:
    """Heads from the store, in one transaction with its marker, all of them journalled.

    Raises Pending, or Recovering when the store is behind its journal, stale, damaged or gone.
    """
    await check_readable(record)
    before = await record.look()
    if record.store is None or record.control is None:
        raise Recovering("the store is missing or unreadable")
    try:
        marker_rows, rows = await record.store.read([tables.READ_MARKER, statement])
    except Damaged as error:
        raise Recovering(f"the store is damaged: {error}") from error
    marker = tables.marker_of(marker_rows)
    tip = tip_of(record.control.authority, before.last)
    place = None if marker is None else marker.place
    if place is None or place.history != tip.history or place.sequence < tip.sequence:
        raise Recovering("the store is behind its journal", verdict=str(Verdict.REWOUND))
    heads = tables.heads_of(rows)
    newest = max((head.sequence for head in heads.values()), default=0)
    if newest > tip.sequence:
        later = tip_of(record.control.authority, (await record.look()).last)
        if newest > later.sequence:
            raise Pending
    flawed = await record.journal().flawed() if before.flawed else {}
    for head in heads.values():
        if head.entity not in flawed:
            await _vouch(record.journal(), head, tip.sequence)
    return heads


async def _vouch(log: Log, head: EntityHead, through: int) -> None:
    """Raise Recovering unless the journal says of the entity what its row in the store says.

    No marker sees an older file beside a newer `-wal`, and the next batch may be a while off: until
    then a stale row would show a revoked right as valid.
    """
    rows = await log.history(head.entity, head.revision, head.revision + 1, _NEIGHBOURS)
    own = [row for row in rows if row.digest == head.digest]
    later = [row for row in rows if row.revision > head.revision and (row.sequence or 0) <= through]
    if later or not own or _is_other_data(own[0], head.data):
        raise Recovering(
            f"the store's row of {head.entity} is not what the journal says",
            verdict=str(Verdict.REWOUND),
        )


def _is_other_data(row: Row, data: str) -> bool:
    try:
        return row.head().data != hash_of(data.encode())
    except Invalid:  # `verify` names the damage; the row's digest is the journal's
        return False


async def read_entity(record: Record, entity: str, at: str | None) -> EntityView:
    """An entity at its durable boundary, or as it was ``at`` a revision or time.

    Raises NotFound, Recovering, Pending or Invalid.
    """
    lifecycle = lifecycle_of(record.lifecycles, entity)
    if at is not None:
        return await _entity_at(record, entity, lifecycle, at)
    if lifecycle.owner is Owner.CALLER:
        await check_readable(record)
        return await _caller_entity(record, entity)
    heads = await read_heads(record, tables.read_heads([entity]))
    head = heads.get(entity)
    flaws = await _flaws(record, entity)
    if head is None:
        if not flaws and await record.journal().newest(entity) is not None:
            raise Pending  # decided this moment, or lost by the store: asked again, it says which
        raise NotFound(f"{entity}: no decision of it is journalled", entity=entity)
    return _view(head, flaws)


def _view(head: EntityHead, flaws: Sequence[FlawRow]) -> EntityView:
    return EntityView(
        entity=head.entity,
        state=head.state,
        revision=head.revision,
        durable_through=head.revision,
        complete=not flaws,
        version=head.version,
        history=head.history,
        digest=head.digest,
        data=msgspec.Raw(head.data.encode()),
        newest=max([head.revision, *(flaw.last for flaw in flaws)]),
    )


async def _caller_entity(record: Record, entity: str) -> EntityView:
    chain = await record.journal().chain(entity)
    if chain is None:
        raise NotFound(f"{entity}: the journal holds no entry of it", entity=entity)
    flaws = await _flaws(record, entity)
    boundary = chain.boundary
    version = None
    for row in await _rows(record, entity, boundary.revision, boundary.revision, 2):
        if row.digest == boundary.digest:
            version = row.entry().envelope.version
    return EntityView(
        entity=entity,
        state=chain.state,
        revision=boundary.revision,
        durable_through=boundary.revision,
        complete=not flaws,
        version=version,
        history=boundary.history,
        digest=boundary.digest,
        data=None,
        newest=chain.newest,
    )


async def _entity_at(record: Record, entity: str, lifecycle: Lifecycle, at: str) -> EntityView:
    await check_readable(record)
    boundary = (await standing(record, entity, lifecycle)).durable_through
    last, until = boundary, None
    if _REVISION.match(at):
        last = int(at)
        if last > boundary:
            raise NotFound(
                f"{entity}: its history is durable through revision {boundary}, not {last}",
                entity=entity,
                durable_through=boundary,
            )
    else:
        until = parse_time("at", at)
    data = EMPTY
    found: Entry | None = None
    first = 1
    while first <= last:
        rows = await _rows(record, entity, first, last, MAX_PAGE)
        if not rows or first > _MAX_REPLAY:
            break
        for row in rows:
            entry = _entry(row)
            if until is not None and entry.envelope.recorded > until:
                last = 0
                break
            found = entry
            if lifecycle.owner is not Owner.CALLER:
                data = after(data, entry.body, entry.envelope.body.type)
        first = rows[-1].revision + 1
    if found is None:
        raise NotFound(f"{entity}: it had no decision at {at}", entity=entity)
    envelope = found.envelope
    flaws = await _flaws(record, entity)
    return EntityView(
        entity=entity,
        state=envelope.outcome.state,
        revision=envelope.revision,
        durable_through=boundary,
        complete=not flaws,
        version=envelope.version,
        history=envelope.history,
        digest=found.digest,
        data=None if lifecycle.owner is Owner.CALLER else msgspec.Raw(data),
        newest=boundary,
    )


def _entry(row: Row) -> Entry:
    try:
        return row.entry()
    except Invalid as error:
        raise HistoryIncomplete(
            f"{row.entity} revision {row.revision} is damaged: {error.detail}",
            entity=row.entity,
            revision=row.revision,
        ) from None


async def _rows(record: Record, entity: str, first: int, last: int, limit: int) -> list[Row]:
    try:
        return await record.journal().history(entity, first, last, limit)
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be read: {error}") from error


async def _flaws(record: Record, entity: str) -> list[FlawRow]:
    return await record.journal().flaws(entity, FIRST_FLAW, MAX_PAGE)


async def standing(record: Record, entity: str, lifecycle: Lifecycle) -> gates.Standing:
    """What the journal knows of an entity. Raises NotFound."""
    flaws = await _flaws(record, entity)
    sentences = tuple(flaw.detail for flaw in flaws)
    if lifecycle.owner is Owner.CALLER:
        chain = await record.journal().chain(entity)
        if chain is None:
            raise NotFound(f"{entity}: the journal holds no entry of it", entity=entity)
        return gates.Standing(
            entity, chain.newest, chain.boundary.revision, chain.state, not flaws, sentences
        )
    newest = await record.journal().newest(entity)
    if newest is None:
        raise NotFound(f"{entity}: the journal holds no decision of it", entity=entity)
    through = min([newest.revision, *(flaw.durable_through for flaw in flaws)])
    state = ""
    for row in await _rows(record, entity, through, through, 1):
        try:
            state = _entry(row).envelope.outcome.state
        except HistoryIncomplete as damage:
            # An answer all the same: a hold, or a chain with this revision marked in it.
            sentences = (*sentences, damage.detail)
            through -= 1
    return gates.Standing(entity, newest.revision, through, state, not sentences, sentences)


async def read_gate(record: Record, entity: str, revision: int | None) -> gates.Ruling:
    """Whether the revision (None: the newest) may have effects now; never an error for a hold."""
    lifecycle = lifecycle_of(record.lifecycles, entity)
    try:
        known: gates.Standing | None = await standing(record, entity, lifecycle)
    except NotFound:
        known = None
    if record.stop.stands():
        reasons: tuple[str, ...] = (f"closed: {record.stop.facts().get('reason', 'stopped')}",)
    else:
        limits = limits_of(await record.current_control(await record.look()))
        action = None
        if known is not None and limits.stops_actions(entity):
            wanted = known.revision if revision is None else revision
            action = await _action_of(record, entity, wanted)
        reasons = limits.of_gate(entity, action, lifecycle)
    return gates.rule(known, entity, revision, lifecycle, reasons)


async def _action_of(record: Record, entity: str, revision: int) -> str | None:
    """The action of a revision; None where the journal cannot tell it."""
    for row in await _rows(record, entity, revision, revision, 1):
        with suppress(HistoryIncomplete):
            return _entry(row).envelope.action
    return None


async def read_operation(record: Record, operation: str) -> Acceptance:
    """The authoritative status of an operation: the decision it became.

    Raises NotFound, or HistoryIncomplete for one that was abandoned or whose entry is damaged.
    """
    rows = await record.journal().operations([operation])
    rows = [row for row in rows if row.stream not in _NO_OPERATIONS]
    if not rows:
        raise NotFound(
            f"the journal holds no operation {operation}; if it was sent, repeat it",
            operation=operation,
        )
    if rows[0].dropped:
        control = await record.current_control(await record.look())
        raise abandoned_operation(rows[0], control.abandoned)
    return receipt(_entry(rows[0]), DUPLICATE)


async def read_operations(record: Record, after: str | None, limit: int | None) -> Page:
    """Operations in the order in which the journal took them; `abandoned` is their outcome then."""
    size = clamp(limit)
    position = 0 if after is None else decode_cursor(after, tuple[int])[0]
    items: list[Acceptance] = []
    while len(items) < size:
        rows = await record.journal().feed(position, size)
        for row in rows:
            if len(items) == size:
                break
            position = row.position
            if row.stream not in _NO_OPERATIONS:
                items.append(receipt(_entry(row), ABANDONED if row.dropped else DUPLICATE))
        if len(rows) < size:
            break
    more = await record.journal().feed(position, 1)
    return Page(items, encode_cursor(position) if more else None)


async def read_entities(
    record: Record, kind: str | None, after: str | None, limit: int | None
) -> Page:
    """Entities by name, of one type or all: caller-owned and managed alike."""
    size = clamp(limit)
    name = "" if after is None else decode_cursor(after, tuple[str])[0]
    flawed = await record.journal().flawed()
    await check_readable(record)
    if record.store is None:
        raise Recovering("the store is missing or unreadable")
    listed = (await record.store.read([tables.list_entities(kind, name, size + 1)]))[0]
    heads = await read_heads(record, tables.read_heads(_that_fit(listed)))
    views = {
        head.entity: _view(head, await _flaws(record, head.entity) if head.entity in flawed else ())
        for head in heads.values()
    }
    for chain in await record.journal().chains(kind, name, size + 1):
        views[chain.entity] = await _caller_entity(record, chain.entity)
    # Names beyond the last head that fits wait for the next page, caller-owned ones too.
    last = max(heads) if len(heads) < len(listed) else None
    names = [entity for entity in sorted(views) if last is None or entity <= last]
    page = [views[entity] for entity in names[:size]]
    more = last is not None or len(names) > size
    return Page(page, encode_cursor(page[-1].entity) if more else None)


def _that_fit(listed: Sequence[tuple[str, int]]) -> list[str]:
    """The first names whose data together stay within PAGE_BYTES; at least one."""
    names: list[str] = []
    total = 0
    for entity, size in listed:
        total += size
        if names and total > PAGE_BYTES:
            break
        names.append(entity)
    return names


async def read_gaps(record: Record, after: str | None, limit: int | None) -> Page:
    """Every reason why a history is incomplete, in any stage."""
    size = clamp(limit)
    key: FlawKey = FIRST_FLAW if after is None else decode_cursor(after, FlawKey)
    flaws = await record.journal().flaws(None, key, size + 1)
    page = flaws[:size]
    return Page(page, encode_cursor(*page[-1].key) if len(flaws) > size else None)
