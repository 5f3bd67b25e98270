"""Fencing: what every step of a recovery does before it touches the store."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from journal.acceptance import Place
from journal.control import Authority, Control, Stage, tip_of
from journal.detection import is_outlived
from journal.errors import EngineError, FileChanged, Refused, Unreachable
from journal.log import Look
from journal.places import recovering_alone
from journal.record import Record
from journal.settings import Settings
from journal.sql import Rows, Statement
from journal.standing import LOGGER
from journal.store import tables
from journal.store.tables import Marker


@contextmanager
def alone(settings: Settings) -> Iterator[None]:
    """Hold the recovery lock: one step that changes a tenant's standing at a time.

    Raises Refused while another process, or another step of this one, holds it: of this machine, or
    where store and journal are on servers, of any.
    """
    path = settings.beside("recovery")
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(
                "another recovery of this tenant is at work right now: wait until it has ended"
            ) from None
        with recovering_alone(settings):
            yield
    finally:
        os.close(handle)


def at_stage(control: Control, generation: int, stage: Stage = Stage.CLOSED) -> Authority:
    """The authority in force, in another generation and stage."""
    before = control.authority
    return Authority(before.history, generation, stage, before.first, before.digest)


def has_only_started(control: Control, look: Look) -> bool:
    """Whether a recovery has started its history, and nothing was decided in it yet.

    Up to there its steps can be run again as they are. What a reconciliation decided makes a
    further recovery a new one.
    """
    tip = tip_of(control.authority, look.last)
    return control.last == "history" and tip.sequence < control.authority.first


async def open_anew(record: Record) -> None:
    """Let go of pages that a connection has cached of a file that somebody else wrote to."""
    try:
        touched = record.store is not None and record.touched()
    except FileChanged:
        touched = True
    except Unreachable:
        touched = False
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
        if await _is_given_up(record, marker):
            return
        trusted = not record.touched()
        await record.open_for_writing()
        place = marker.place
        raised = Place(place.history, generation, place.sequence, place.digest)
        statements: list[Statement | Rows] = [tables.fence(marker, raised, marker.journalled)]
        control = record.control
        if control is not None and is_outlived(control, marker):
            # Of the generation in force they would say that the journal lost them.
            statements.append(tables.drop_control_above(control.sequence))
        await record.store.batch(statements)
        if trusted:
            record.saw()
    except EngineError as error:
        LOGGER.warning("the generation stands in control alone, the store refused: %s", error)


async def _is_given_up(record: Record, marker: Marker) -> bool:
    """Whether the store is ahead of a journal that was healed without it.

    Of the generation in force it would look as if its decisions only waited for their handoff.
    """
    control = record.control
    if control is None or not is_outlived(control, marker):
        return False
    return await record.journal().place(marker.place.sequence) is None
