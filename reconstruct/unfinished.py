"""Unfinished: a journal that was healed, and not put in place before the healing was ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from journal.control import REBASE, Control, ControlUnreadable, fold
from journal.detection import is_outlived
from journal.entry import GENESIS
from journal.errors import EngineError, Invalid
from journal.files import HEALING, has_content
from journal.log.sqlite import SqliteLog
from journal.record import Record
from journal.store import tables
from journal.store.tables import Marker
from reconstruct.remains import HealingSurvey, Known, known_of


async def interrupted(record: Record) -> HealingSurvey | None:
    """What a healing had built, that was ended after it moved the old journal aside.

    None where there is none, or where it was not built of the journal that was moved aside last, of
    the store as it stands and under the present witness: then it is built anew.
    """
    file = record.log_place.file
    if file is None:
        return None
    built = file.with_name(file.name + HEALING[-1])
    if has_content(file) or not has_content(built):
        return None
    try:
        log = SqliteLog(built, read_only=True)
        try:
            entries = [row.entry() for row in await log.control()]
            look = await log.look()
        finally:
            await log.close()
        before = fold(entries[:-1], record.settings.tenant)
        control = fold(entries, record.settings.tenant)
    except (ControlUnreadable, EngineError, Invalid):
        return None
    if entries[-1].envelope.action != REBASE:
        return None
    facts: dict[str, Any] = msgspec.json.decode(entries[-1].body)
    witness = record.witness.read()
    saw = None if witness is None or witness.ended(before) else witness.digest
    if control.replaced != saw or not await is_kept(record, before, facts["store"]):
        return None
    if not await _was_replaced(file, facts["journal"]):
        return None
    last = look.last
    return HealingSurvey(
        detail="the journal was healed and not yet put in place: apply does that",
        journal=known_of(look),
        store=None,
        witness=witness,
        control=0,
        decisions=0,
        first=0,
        last=0 if last is None else last.sequence,
        actions={},
        broken=[],
        others=facts["others"],
        loss=None,
        generation=control.authority.generation,
    )


async def is_kept(record: Record, control: Control, known: dict[str, Any] | None) -> bool:
    """Whether the store stands where ``known`` says; None: it was of no use."""
    marker = await record.marker()
    ours = (record.settings.tenant, record.settings.instance)
    if record.store is None or marker is None or (marker.tenant, marker.instance) != ours:
        return known is None
    if known is None:
        return is_outlived(control, marker)
    copied: int = (await record.store.read([tables.READ_CONTROL_SEQUENCE]))[0][0][0]
    return kept(copied, marker) == msgspec.convert(known, Known)


async def _was_replaced(file: Path, known: dict[str, Any] | None) -> bool:
    """Whether the journal that was moved aside last stands where ``known`` says.

    Of a journal that could not be read nobody can tell which one it was.
    """
    aside = newest_aside(file)
    if known is None or aside is None:
        return False
    try:
        log = SqliteLog(aside / file.name, read_only=True)
        try:
            return known_of(await log.look()) == msgspec.convert(known, Known)
        finally:
            await log.close()
    except EngineError:
        return False


def newest_aside(file: Path) -> Path | None:
    """The directory into which a journal was moved last; None: there is none."""
    found = sorted(file.parent.glob(f"replaced-{file.stem}-*"))
    return found[-1] if found else None


def kept(beyond: int, marker: Marker | None) -> Known:
    """How far a store reaches, with copies of control through ``beyond``."""
    return Known(
        control=beyond,
        sequence=0 if marker is None else marker.place.sequence,
        history=None if marker is None else marker.place.history,
        digest=GENESIS if marker is None else marker.place.digest,
    )
