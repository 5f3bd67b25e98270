"""Handoff: bringing what the store has committed into the journal, whoever committed it.

A turn hands its own decisions off. What a crash left in the store alone, the next turn of any
process does; so a process that stood still between the two may find that another was quicker.
"""

from __future__ import annotations

from collections.abc import Sequence

from journal.control import tip_of
from journal.detection import Finding, Seen, Verdict
from journal.entry import Entry, admit
from journal.errors import (
    ConstraintFailed,
    DiskFailed,
    EngineError,
    Invalid,
    JournalUnavailable,
    Recovering,
)
from journal.log import DECISIONS, Append, Look, Moved
from journal.record import Record
from journal.standing import LOGGER, close_tenant, examine, poison
from journal.store import tables

_HANDOFF = 500
_ATTEMPTS = 5


def append_of(entries: Sequence[Entry]) -> Append:
    """What brings decisions into the journal."""
    return Append(entries=[(DECISIONS, entry) for entry in entries])


async def journal_entries(record: Record, entries: Sequence[Entry], look: Look) -> None:
    """Append decisions that the store has committed. Until this returns they are obligations.

    Raises Moved where the journal stands elsewhere by now, JournalUnavailable (they stay pending),
    WriterStopped, or Recovering when another decision already stands at one of their places.
    """
    try:
        await record.journal().append(append_of(entries), look)
    except Moved:
        raise
    except ConstraintFailed as error:
        finding = Finding(Verdict.FORKED, f"the journal holds another decision there: {error}")
        await close_tenant(record, finding)
        raise Recovering(f"the tenant is closed: {finding.detail}", verdict="forked") from error
    except DiskFailed as error:
        raise poison(record, f"the journal's commit failed: {error}") from error
    except EngineError as error:
        raise JournalUnavailable(
            f"the decision is committed but not yet in the journal: {error}"
        ) from error


async def catch_up(record: Record, entries: Sequence[Entry]) -> None:
    """Make sure that the journal holds these decisions, after another process was quicker there.

    It may have handed them off itself, or appended something else. Raises JournalUnavailable where
    they are not in the journal in the end: whoever repeats the operation IDs learns their fate.
    """
    for _ in range(_ATTEMPTS):
        finding, seen = await examine(record)
        try:
            if finding.verdict is Verdict.CRASHED:
                await hand_off(record, seen)
                continue
        except Moved:
            continue
        held = {
            row.digest
            for row in await record.journal().operations([e.envelope.operation for e in entries])
        }
        if finding.verdict.sound and held >= {entry.digest for entry in entries}:
            LOGGER.info("another process was quicker: %d decisions are handed off", len(entries))
            return
        break
    raise JournalUnavailable("another process was quicker, and this decision is not in the journal")


async def hand_off(record: Record, seen: Seen) -> None:
    """Append the decisions that a crash left in the store alone; identical bytes, in order.

    Raises Moved where the journal stands elsewhere by now, else as ``journal_entries`` does.
    """
    if record.store is None or record.control is None or seen.marker is None:
        return
    tip = tip_of(record.control.authority, seen.look.last)
    look = seen.look
    after = tip.sequence
    while after < seen.marker.place.sequence:
        limit = min(_HANDOFF, seen.marker.place.sequence - after)
        rows = (await record.store.read([tables.read_decisions(after, limit)]))[0]
        stored = tables.decisions_of(rows)
        sequences = [decision.sequence for decision in stored]
        if not stored or sequences != [*range(after + 1, after + 1 + len(stored))]:
            lacking = f"the store lacks its own decision after sequence {after}"
            raise await _unfit(record, look, lacking)
        try:
            entries = [admit(decision.text, decision.body) for decision in stored]
        except Invalid as error:
            damaged = f"a decision that waits is damaged: {error}"
            raise await _unfit(record, look, damaged) from error
        if [entry.digest for entry in entries] != [decision.digest for decision in stored]:
            raise await _unfit(record, look, "a decision that waits does not hash to its digest")
        await journal_entries(record, entries, look)
        look = await record.look()
        after = stored[-1].sequence
    LOGGER.info("handed off the decisions through sequence %d", after)


async def _unfit(record: Record, look: Look, detail: str) -> Recovering:
    """Close the tenant: what waits was never acknowledged and cannot be handed off.

    Raises Moved where the journal has moved since: then something else may be true by now.
    """
    if await record.look() != look:
        raise Moved("the journal has moved on while decisions were handed off")
    finding = Finding(Verdict.REPLACED, detail)
    await close_tenant(record, finding)
    return Recovering(f"the tenant is closed: {detail}", verdict=str(finding.verdict))
