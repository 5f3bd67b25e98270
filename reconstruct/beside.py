"""Beside: the application's tables on a server, which are not put back with unrewind's own.

A file is put back whole. On a server only unrewind's tables are: those that projections keep then
hold what the store does not know of. So everything that they keep is cleared and replayed.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping

import msgspec

from journal.log import Log
from journal.projection import Projection
from journal.record import Record
from journal.settings import Settings
from journal.sql import Statement
from journal.sqlite import sync_directory
from journal.store.engine import SqlStore

_NAMES = Statement(
    "SELECT entity FROM unrewind_entities WHERE sequence >"
    " (SELECT journalled FROM unrewind_marker) ORDER BY entity"
)
_PAGE = 4000
_decode = msgspec.json.Decoder(list[str]).decode


def note_apart(settings: Settings, entities: Iterable[str]) -> None:
    """Note that the store was put back and the application's tables were not, until an apply ends.

    ``entities`` are those of which only the store that was replaced may have known.
    """
    path = settings.beside("apart")
    path.parent.mkdir(parents=True, exist_ok=True)
    names = sorted({*_noted(settings), *entities})
    aside = path.with_name(f"{path.name}.new")
    with aside.open("wb") as out:
        out.write(msgspec.json.encode(names))
        out.flush()
        os.fsync(out.fileno())
    aside.replace(path)
    sync_directory(path.parent)


def forget_apart(settings: Settings) -> None:
    """Everything was replayed."""
    settings.beside("apart").unlink(missing_ok=True)


def _noted(settings: Settings) -> list[str]:
    try:
        return _decode(settings.beside("apart").read_bytes())
    except (OSError, msgspec.MsgspecError, RecursionError):
        return []


def waiting_in(store: SqlStore, projections: Mapping[str, Projection]) -> list[str]:
    """Embedded entities that the journal may not know of. Raises EngineError."""
    names = [name for (name,) in store.database.read([_NAMES])[0]]
    return [name for name in names if name.partition("/")[0] in projections]


def apart(record: Record, *, fresh: bool) -> set[str] | None:
    """What else has to be cleared where all that projections keep is; None: they are in step.

    ``fresh`` says that the store is made anew beside what they keep.
    """
    settings = record.settings
    if record.store_place.file is not None or not record.projections:
        return None
    if fresh or settings.beside("fresh").exists() or settings.beside("apart").exists():
        return set(_noted(settings))
    return None


def is_embedded(record: Record, entity: str) -> bool:
    """Whether the application's own tables hold rows of the entity."""
    return entity.partition("/")[0] in record.projections


async def with_their_kind(
    record: Record, log: Log, entities: set[str], whole: Collection[str] = ()
) -> list[str]:
    """These entities, and for an embedded one all of its type: they are rebuilt together.

    All of the types in ``whole`` too.
    """
    kinds = {entity.partition("/")[0] for entity in entities if is_embedded(record, entity)}
    kinds.update(whole)
    for kind in kinds:
        after: str | None = f"{kind}/"
        while after is not None and after < f"{kind}0":
            page = await log.heads(after, _PAGE)
            entities |= {head.entity for head in page.heads if head.entity < f"{kind}0"}
            after = page.end
    return sorted(entities)
