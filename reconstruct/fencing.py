"""Fencing: what every step of a recovery does before it touches the store."""

from __future__ import annotations

from journal.acceptance import Place
from journal.control import Authority, Control, Stage
from journal.errors import EngineError, FileChanged
from journal.record import Record
from journal.standing import LOGGER
from journal.store import tables


def at_stage(control: Control, generation: int, stage: Stage = Stage.CLOSED) -> Authority:
    """The authority in force, in another generation and stage."""
    before = control.authority
    return Authority(before.history, generation, stage, before.first, before.digest)


async def open_anew(record: Record) -> None:
    """Let go of pages that a connection has cached of a file that somebody else wrote to."""
    try:
        touched = record.store is not None and record.touched()
    except FileChanged:
        touched = True
    if touched:
        with record.lock.held():
            await record.open_files()


async def raise_in_store(record: Record, generation: int) -> None:
    """Second fence, where the store can be read; control alone is enough without it."""
    settings = record.settings
    try:
        marker = await record.marker()
        if marker is None or record.store is None or marker.place.generation == generation:
            return
        if (marker.tenant, marker.instance) != (settings.tenant, settings.instance):
            return
        trusted = not record.touched()
        place = marker.place
        raised = Place(place.history, generation, place.sequence, place.digest)
        await record.store.batch([tables.fence(marker, raised, marker.journalled)])
        if trusted:
            record.saw()
    except EngineError as error:
        LOGGER.warning("the generation stands in control alone, the store refused: %s", error)
