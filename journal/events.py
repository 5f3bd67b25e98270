"""Events: decisions as a list to search through, in the order in which the journal took them."""

from __future__ import annotations

from msgspec import Struct

from journal.entry import MAX_INTEGER, check_entity
from journal.errors import HistoryIncomplete, Invalid
from journal.feed import Page, clamp, decode_cursor, encode_cursor
from journal.lifecycle import Owner
from journal.log import CONTROL, OBSERVATIONS, Row
from journal.record import Record

_NO_DECISIONS = frozenset({CONTROL, OBSERVATIONS})
_AT_ONCE = 500
_MOST_LOOKED_AT = 5000
"""Entries that one page looks at: one that finds little is short, and its cursor goes on."""


class Event(Struct, frozen=True):
    """One decision. ``position`` is its place in the journal, ``releases`` are what it permits."""

    position: int
    operation: str
    entity: str
    revision: int
    action: str
    state: str
    version: str | None
    actor: str | None
    at: str
    recorded: str
    sequence: int | None
    digest: str
    releases: tuple[str, ...]


class Wanted(Struct, frozen=True):
    """Which decisions are asked for; what is None does not matter."""

    entity: str | None = None
    action: str | None = None


async def read_events(record: Record, wanted: Wanted, after: str | None, limit: int | None) -> Page:
    """A page of decisions in any stage, caller-owned ones too. A page may be short.

    Raises HistoryIncomplete for an entry that is damaged.
    """
    size = clamp(limit)
    if wanted.entity is not None:
        check_entity(wanted.entity)
    position = 0 if after is None else decode_cursor(after, tuple[int])[0]
    events: list[Event] = []
    looked = 0
    while len(events) < size and looked < _MOST_LOOKED_AT:
        step = size - len(events) if wanted == Wanted() else _AT_ONCE
        rows = await _rows(record, wanted, position, step)
        if not rows:
            return Page(events, None)
        for row in rows:
            if len(events) == size:
                break
            position = row.position
            looked += 1
            event = _event(row, wanted)
            if event is not None:
                events.append(event)
    more = await _rows(record, wanted, position, 1)
    return Page(events, encode_cursor(position) if more else None)


async def _rows(record: Record, wanted: Wanted, position: int, limit: int) -> list[Row]:
    """The next entries that may be wanted, in the order of their positions."""
    log = record.journal()
    entity = wanted.entity
    if entity is None or not _is_in_order(record, entity):
        return await log.feed(position, limit)
    last = await log.at(position) if position else None
    first = last.revision + 1 if last is not None and last.entity == entity else 1
    while True:
        rows = await log.history(entity, first, MAX_INTEGER, limit)
        found = [row for row in rows if row.position > position]
        if found or not rows:
            return found
        first = rows[-1].revision + 1


def _is_in_order(record: Record, entity: str) -> bool:
    """Whether it can be asked for alone: what callers seal may stand in another order."""
    lifecycle = record.lifecycles.get(entity.partition("/")[0])
    return lifecycle is not None and lifecycle.owner is not Owner.CALLER


def _event(row: Row, wanted: Wanted) -> Event | None:
    if row.stream in _NO_DECISIONS or row.dropped or wanted.entity not in {None, row.entity}:
        return None
    try:
        envelope = row.entry().envelope
    except Invalid as error:
        raise HistoryIncomplete(
            f"{row.entity} revision {row.revision} is damaged: {error.detail}",
            entity=row.entity,
            revision=row.revision,
        ) from None
    if wanted.action not in {None, envelope.action}:
        return None
    return Event(
        position=row.position,
        operation=envelope.operation,
        entity=envelope.entity,
        revision=envelope.revision,
        action=envelope.action,
        state=envelope.outcome.state,
        version=envelope.version,
        actor=envelope.actor,
        at=envelope.at,
        recorded=envelope.recorded,
        sequence=envelope.sequence,
        digest=row.digest,
        releases=tuple([release.id for release in envelope.releases]),
    )
