"""Intake: appending what callers sealed, all or nothing, and answering with each boundary."""

from __future__ import annotations

from collections.abc import Sequence

from journal.abandonment import abandoned_operation
from journal.entry import Entry, admit
from journal.errors import (
    DiskFailed,
    EngineError,
    FileChanged,
    Invalid,
    JournalUnavailable,
    UnrewindError,
)
from journal.history import Link, link_of
from journal.holding import limits_of
from journal.log import FIRST_FLAW, Append, Log, Moved
from journal.record import Record
from journal.sealed import (
    MAX_AHEAD,
    Around,
    Held,
    SealedAnswer,
    SealedRuling,
    Surroundings,
    check_owner,
    empty_chain,
    judge_sealed,
    stream_of,
)
from journal.standing import poison
from journal.writepath import Ready, make_ready

MAX_ENTRIES = 1000
_ATTEMPTS = 3


async def append_sealed(record: Record, items: Sequence[tuple[bytes, bytes]]) -> list[SealedAnswer]:
    """Append (envelope, body) pairs in order; where each one's entity stands then.

    Nothing is acknowledged by this alone: an entry counts once ``durable_through`` has reached its
    revision. Raises Invalid naming the item, Forked, StaleGeneration, OperationReused, Overloaded,
    Held, Recovering or JournalUnavailable; then nothing of the request was taken.
    """
    if not 1 <= len(items) <= MAX_ENTRIES:
        raise Invalid(f"send 1 to {MAX_ENTRIES} entries at once", field="entries")
    entries: list[Entry] = []
    for number, (text, body) in enumerate(items):
        try:
            entry = admit(text, body)
            check_owner(entry, record.settings.tenant, record.lifecycles)
        except Invalid as error:
            members = {**error.members, "item": number}
            raise Invalid(f"entry {number}: {error.detail}", **members) from None
        entries.append(entry)
    with record.lock.held():
        for _ in range(_ATTEMPTS):
            try:
                return await _append(record, await make_ready(record), entries)
            except FileChanged:
                await record.open_files()
            except Moved:
                continue
    raise JournalUnavailable("the journal keeps moving")


async def _append(record: Record, ready: Ready, entries: Sequence[Entry]) -> list[SealedAnswer]:
    try:
        around = await _surroundings(record, ready, entries)
        _check_stops(ready, entries, around)
        ruling = judge_sealed(entries, around)
        if ruling.entries or ruling.rivals:
            await record.journal().append(_append_of(ruling), ready.look)
    except (FileChanged, Moved):
        raise
    except DiskFailed as error:
        raise poison(record, f"the journal's commit failed: {error}") from error
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be written: {error}") from error
    if ruling.fault is not None:
        raise ruling.fault
    return list(ruling.answers)


def _check_stops(ready: Ready, entries: Sequence[Entry], around: Surroundings) -> None:
    """Refuse what is new of a type or action that is stopped; what fills a gap is evidence.

    Raises Held.
    """
    limits = limits_of(ready.control)
    for entry in entries:
        envelope = entry.envelope
        newest = around.entities[envelope.entity].chain.newest
        if envelope.operation not in around.operations and envelope.revision > newest:
            limits.check_action(envelope.entity, envelope.action)


def _append_of(ruling: SealedRuling) -> Append:
    return Append(
        entries=ruling.entries,
        rivals=ruling.rivals,
        chains=ruling.chains,
        settled=[chain.entity for chain in ruling.chains],
        flaws=ruling.flaws,
    )


async def _surroundings(record: Record, ready: Ready, entries: Sequence[Entry]) -> Surroundings:
    log = record.journal()
    by_entity: dict[str, list[Entry]] = {}
    for entry in entries:
        by_entity.setdefault(entry.envelope.entity, []).append(entry)
    around = {entity: await _around(log, entity, group) for entity, group in by_entity.items()}
    known = await log.operations([entry.envelope.operation for entry in entries])
    cuts = ready.control.abandoned
    places: dict[tuple[str, str, int], str] = {}
    for entry in entries:
        envelope = entry.envelope
        if envelope.sequence is None:
            continue
        place = (stream_of(envelope.entity), envelope.history, envelope.sequence)
        stored = await log.place_in(*place)
        if stored is not None:
            places[place] = stored
    return Surroundings(
        authority=ready.control.authority,
        histories=ready.control.histories,
        entities=around,
        operations={row.operation: row.digest for row in known},
        dropped={row.operation: abandoned_operation(row, cuts) for row in known if row.dropped},
        cuts=cuts,
        places=places,
        lifecycles=record.lifecycles,
        now=record.clock.now(),
    )


async def _around(log: Log, entity: str, entries: Sequence[Entry]) -> Around:
    """The chain, every entry beyond its boundary, and the neighbours of the new ones."""
    chain = await log.chain(entity) or empty_chain(entity)
    held: dict[Link, str] = {}
    wanted = [(chain.boundary.revision, chain.newest)]
    wanted += [
        (entry.envelope.revision - 1, entry.envelope.revision + 1)
        for entry in entries
        if entry.envelope.revision <= chain.boundary.revision + 1
    ]
    for first, last in wanted:
        try:
            held.update(await log.links(entity, first, last))
        except Invalid as error:
            raise _damaged(entity, first, last, error) from None
    rivals = [
        link_of(rival.entry.envelope, rival.entry.digest) for rival in await log.rivals(entity)
    ]
    flaws = await log.flaws(entity, FIRST_FLAW, MAX_AHEAD)
    since = {(flaw.flaw, flaw.first): flaw.since for flaw in flaws}
    return Around(
        chain, tuple(Held(link, state) for link, state in held.items()), tuple(rivals), since
    )


def _damaged(entity: str, first: int, last: int, error: Invalid) -> UnrewindError:
    return JournalUnavailable(
        f"{entity}, revisions {first} to {last}: a journal entry is damaged: {error}; "
        "run `unrewind verify`"
    )
