"""Healing: a journal that was rolled back, whole again from what it still holds and its store.

An embedded one is built anew beside the old one and takes its place in one step; the old one is
moved aside and kept. One on a server is healed where it is (``reconstruct.mending``). Killed
anywhere and run again it ends the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.control import REBASE, fold, tip_of
from journal.detection import Seen, Verdict, compare
from journal.errors import ConstraintFailed, Damaged, EngineError, Refused
from journal.files import HEALING, has_content, remove_database
from journal.log import CONTROL, DECISIONS, Append, Look
from journal.log.engine import SqlLog
from journal.log.sqlite import SqliteLog
from journal.places import file_of
from journal.record import Record
from journal.sqlite import SIDE_FILES, sync_directory, sync_file
from journal.standing import LOGGER, examine
from journal.store import tables
from reconstruct.mending import half_mended, mend
from reconstruct.rebasing import (
    abandoned_anew,
    check_loss,
    facts_of,
    flaws_of,
    format_entries,
    rebase,
)
from reconstruct.remains import HealingSurvey, Known, Loss, Span
from reconstruct.salvage import Salvage, Taken, pages, salvage_of
from reconstruct.snapshots import move_aside
from reconstruct.unfinished import interrupted, newest_aside

__all__ = ["Healed", "HealingSurvey", "Known", "Loss", "Span", "heal", "survey_healing"]

Progress = Callable[[int, int, str], None]
_ATTEMPTS = 3


class Healed(Struct, frozen=True):
    """What ``heal`` did: see ``HealingSurvey``.

    ``replaced`` is where the old journal lies (None: there was none, or it was healed in place).
    Entries that callers sealed and observations do not come back; ``others`` counts those that are
    known to be missing, which may not be all.
    """

    generation: int
    control: int
    decisions: int
    first: int
    last: int
    others: int | None
    loss: Loss | None
    replaced: str | None


def silent(_done: int, _total: int, _what: str) -> None:
    """No progress shown."""


async def survey_healing(record: Record) -> HealingSurvey:
    """What ``heal`` would do now; changes nothing.

    Raises Refused when the journal was not rolled back, or nothing can be healed from,
    JournalUnavailable or ControlUnreadable.
    """
    finding, seen = await examine(record, witness=True)
    if finding.verdict is not Verdict.JOURNAL_REWOUND:
        raise Refused(f"the journal needs no healing: {finding.verdict}, {finding.detail}")
    begun = await interrupted(record) or await half_mended(record)
    return begun or (await salvage_of(record, finding, seen)).survey


async def heal(
    record: Record,
    principal: str | None = None,
    progress: Progress = silent,
    accept_loss: str | None = None,
) -> Healed:
    """Bring about a journal that holds what the old one and the store hold together.

    Old entries keep their bytes and positions; the store's control entries and decisions follow
    with theirs, byte for byte, and then one control entry that closes the tenant, raises the
    generation and gives the witness a new beginning. Acknowledged decisions that neither side holds
    are lost only where ``accept_loss`` names that loss. Call it under the recovery lock.

    Raises Refused, saying what is known and what is not, when the journal was not rolled back, a
    loss was not accepted, or nothing can be healed from.
    """
    for _ in range(_ATTEMPTS):
        done = await _finish_interrupted(record)
        if done is not None:
            return done
        finding, seen = await examine(record, witness=True)
        if finding.verdict is not Verdict.JOURNAL_REWOUND:
            raise Refused(f"the journal needs no healing: {finding.verdict}, {finding.detail}")
        if record.log_place.file is None:
            if await mend(record, finding, seen, principal, progress, accept_loss):
                return await _told(record)
            continue
        salvage = await salvage_of(record, finding, seen)
        check_loss(salvage.survey, accept_loss)
        if not await _build(record, salvage, seen.look, principal, progress):
            continue
        if await _put_in_place(record, seen.look):
            return await _told(record)
    raise Refused("the journal keeps moving while it is healed: stop the service and try again")


# Building.


def _file(record: Record) -> Path:
    return file_of(record.log_place, "building a journal anew")


def _asides(record: Record) -> tuple[Path, Path]:
    """Where the new journal is while it is built, and where once it is whole."""
    file = _file(record)
    building, whole = (file.with_name(file.name + suffix) for suffix in HEALING)
    return building, whole


async def _build(
    record: Record, salvage: Salvage, look: Look, principal: str | None, progress: Progress
) -> bool:
    """The new journal, whole, beside the old one; False when the old one moved meanwhile."""
    building, whole = _asides(record)
    remove_database(building)
    remove_database(whole)
    building.parent.mkdir(parents=True, exist_ok=True)
    old = record.log
    if old is not None:
        _copy(old, building)
    log = SqliteLog(building, create=old is None)
    try:
        if old is not None and await log.look() != look:
            return False
        await _fill(record, log, salvage, principal, progress)
        await _check_healed(record, log)
    except ConstraintFailed as error:
        raise Refused(f"the store's entries do not fit into the journal: {error}") from error
    finally:
        await log.close()
    for suffix in SIDE_FILES:
        if has_content(building.with_name(building.name + suffix)):
            raise Refused(f"{building} is in use by another process: end it and try again")
        building.with_name(building.name + suffix).unlink(missing_ok=True)
    sync_file(building)
    building.rename(whole)
    sync_directory(building.parent)
    return True


def _copy(log: SqlLog, target: Path) -> None:
    if not isinstance(log, SqliteLog):
        raise Refused("a journal on a server is healed where it is")
    log.database.copy_to(target)


async def _fill(
    record: Record, log: SqlLog, salvage: Salvage, principal: str | None, progress: Progress
) -> None:
    survey = salvage.survey
    entries = [row.entry() for row in await log.control()]
    control = fold([*entries, *salvage.control], record.settings.tenant)
    if salvage.control:
        missing = [(CONTROL, entry) for entry in salvage.control]
        await log.append(Append(missing, control.authority), await log.look())
    done = 0
    taken = Taken(record.settings.tenant, control, salvage.start, survey.witness)
    if record.store is not None and survey.store is not None:
        for rows in pages(record.store, salvage.start.sequence):
            found = [(DECISIONS, entry) for entry in await taken.add(log, rows)]
            if found:
                await log.append(Append(found), await log.look())
            done += len(found)
            progress(done, survey.decisions, "healed")
    if done != survey.decisions:
        raise Refused("the store changed while the journal was healed: try again")
    last = [*format_entries(record, control)]
    control = fold([*entries, *salvage.control, *last], record.settings.tenant)
    last.append(rebase(record, control, survey.generation, facts_of(survey), principal))
    abandoned = [each for line in control.abandoned.values() for each in line]
    await log.append(
        Append(
            [(CONTROL, entry) for entry in last],
            fold([*entries, *salvage.control, *last], record.settings.tenant).authority,
            settled=[*abandoned_anew(salvage.control), *taken.broken],
            flaws=flaws_of(taken.broken.values(), record.clock.now()),
            drops=abandoned,
        ),
        await log.look(),
    )


async def _check_healed(record: Record, log: SqlLog) -> None:
    """Refuse a result beside which the store would show once more that the journal is older."""
    marker = await record.marker()
    if marker is None or record.store is None:
        return
    look = await log.look()
    control = fold([row.entry() for row in await log.control()], record.settings.tenant)
    (copied,), *_ = (await record.store.read([tables.READ_CONTROL_SEQUENCE]))[0]
    at_marker = await log.place(marker.place.sequence)
    at_journalled = await log.place(marker.journalled)
    tip = tip_of(control.authority, look.last).digest  # what the store holds there is no matter
    seen = Seen(look, marker, at_marker, at_journalled, tip, copied)
    finding = compare(control, seen, record.settings.instance)
    if finding.verdict is Verdict.JOURNAL_REWOUND:
        raise Refused(
            f"the journal is left as it is, for healed it would fall short again: {finding.detail}."
            " Move the store's file away and apply again: it is rebuilt from the journal"
        )


# Putting in place.


async def _put_in_place(record: Record, look: Look | None) -> bool:
    """The old journal aside, the new one in its place; False when the old one moved meanwhile."""
    file = _file(record)
    with record.lock.held():
        if look is not None:
            if record.log is None:
                moved = has_content(file) and _readable(file)
            else:
                moved = await record.look() != look
            if moved:
                await record.open_files()
                return False
        await record.close_files()
        move_aside(file)
        _asides(record)[1].rename(file)
        sync_directory(file.parent)
        await record.open_files()
    await record.remember()
    LOGGER.warning("the journal was healed; the old one lies beside it in replaced-…")
    return True


def _readable(file: Path) -> bool:
    """Whether it is no damaged one: also while it cannot be reached."""
    try:
        SqliteLog(file, read_only=True).database.close()
    except Damaged:
        return False
    except EngineError:
        return True
    return True


async def _finish_interrupted(record: Record) -> Healed | None:
    """Put a journal in place that an earlier healing had built and not yet put there."""
    if await interrupted(record) is None:
        return None
    await _put_in_place(record, None)
    return await _told(record)


async def _told(record: Record) -> Healed:
    """What the newest rebase entry says."""
    entries = [row.entry() for row in await record.journal().control()]
    last = next(entry for entry in reversed(entries) if entry.envelope.action == REBASE)
    facts = msgspec.json.decode(last.body)
    loss = facts["loss"]
    known = loss is not None and loss["known"]
    file = record.log_place.file
    aside = None if file is None else newest_aside(file)
    return Healed(
        generation=last.envelope.generation,
        **facts["healed"],
        others=facts["others"],
        loss=msgspec.convert(loss, Loss) if known else None,
        replaced=None if aside is None else str(aside),
    )
