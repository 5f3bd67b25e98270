"""Rolling a copied store back: what stood there some decisions ago, made of journal and store.

Composed with the ports: the recovery's own rebuild works over a journal that ends earlier.
"""

from __future__ import annotations

from journal.acceptance import Place, beginning
from journal.driving import drive
from journal.errors import Refused
from journal.log import DECISIONS, Row
from journal.log.engine import SqlLog
from journal.projection import clearing
from journal.record import Record
from journal.settings import Settings
from journal.sql import Rows, Statement
from journal.store import tables
from journal.store import work as works
from reconstruct.applying import commit, rebuild_entity, rebuild_together, the_marker
from reconstruct.replay import Replay

_PAGE = 1000


class EarlierLog(SqlLog):
    """A journal that ends at a sequence: later decisions are not shown."""

    def __init__(self, log: SqlLog, through: int) -> None:
        super().__init__(log.database)
        self._through = through

    async def decisions(self, after: int, limit: int) -> list[Row]:
        rows = await super().decisions(after, limit)
        return [row for row in rows if (row.sequence or 0) <= self._through]

    async def history(
        self, entity: str, first: int, last: int, limit: int, *, dropped: bool = False
    ) -> list[Row]:
        rows = await super().history(entity, first, last, limit, dropped=dropped)
        return [
            row for row in rows if row.stream != DECISIONS or (row.sequence or 0) <= self._through
        ]


def roll_back(settings: Settings, count: int) -> tuple[int, int]:
    """Put the store back by its newest ``count`` decisions; the last sequence before and after.

    Raises Refused when store and journal do not agree on any.
    """
    record = Record(settings)
    drive(record.open(create=False))
    try:
        with record.lock.held():
            return drive(_roll_back(record, count))
    finally:
        drive(record.close())


async def _roll_back(record: Record, count: int) -> tuple[int, int]:
    if record.store is None:
        raise Refused("the copied store cannot be opened: rehearse with a snapshot")
    marker = await the_marker(record)
    statement = Statement(
        "SELECT sequence FROM unrewind_decisions ORDER BY sequence DESC LIMIT 1 OFFSET ?", (count,)
    )
    rows = (await record.store.read([statement]))[0]
    target: int = rows[0][0] if rows else 0
    place = await record.journal().place(target)
    if target and place is None:
        raise Refused(f"the journal does not hold the store's sequence {target}: see `status`")
    generation = marker.place.generation
    if place is None:
        first = (await record.read_control()).histories[0]
        back = beginning(first.history, first.generation)
    else:
        back = Place(place.history, generation, target, place.digest)
    entities = await _entities_above(record, target)
    fence = tables.fence(marker, back, min(back.sequence, marker.journalled))
    statements: list[Statement | Rows] = [
        fence,
        tables.delete_heads(entities),
        works.delete_derived(entities, target),
        tables.delete_decisions_above(target),
    ]
    kinds = record.projections
    embedded = {entity for entity in entities if entity.partition("/")[0] in kinds}
    for entity in embedded:
        statements += clearing(kinds[entity.partition("/")[0]], entity)
    await commit(record, statements)
    await _rebuild(record, target, entities, embedded)
    return marker.place.sequence, target


async def _entities_above(record: Record, target: int) -> list[str]:
    found: set[str] = set()
    after = target
    while rows := await record.journal().decisions(after, _PAGE):
        found |= {row.entity for row in rows}
        after = rows[-1].sequence or after
    return sorted(found)


async def _rebuild(record: Record, target: int, entities: list[str], embedded: set[str]) -> None:
    """The rows of these entities as they were, with the journal's end put back for a while."""
    log = record.journal()
    record.log = EarlierLog(log, target)
    try:
        replay = Replay(record.lifecycles)
        for entity in entities:
            if entity not in embedded:
                await rebuild_entity(record, entity, replay)
        if embedded:
            await rebuild_together(record, embedded, replay)
    finally:
        record.log = log
