"""Begin: stop every writer, keep the evidence, raise the generation, tell what is in flight."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from journal.clock import SystemClock
from journal.control import ControlUnreadable
from journal.detection import Finding, Seen, Verdict, compare
from journal.errors import (
    EngineError,
    FileChanged,
    JournalUnavailable,
    Recovering,
    Refused,
    Unreachable,
)
from journal.handoff import hand_off
from journal.locks import StopFile
from journal.places import lock_of
from journal.record import Record
from journal.settings import Settings
from journal.standing import LOGGER, change_control, examine
from reconstruct.evidence import (
    NOTHING,
    Evidence,
    Given,
    capture,
    kept_of_this,
    name_in_control,
    named,
)
from reconstruct.fencing import at_stage, has_only_started, open_anew, raise_in_store
from reconstruct.inflight import InFlight, under_way

NOT_FENCED = "stopped, not fenced: do not restore"
UNREACHABLE = "unreachable"


class Stopped(Struct, frozen=True):
    """The stop file stands; what was found is kept as evidence."""

    evidence: Evidence


class Begun(Struct, frozen=True):
    """A recovery has begun: nothing older than ``generation`` can decide any more.

    ``verdict`` is `unreachable` where the store's server does not answer: then only the journal
    is fenced, which is enough, and the bundle is without the store.

    ``in_flight`` are the attempts that were under way: whatever becomes of them is kept as an
    observation, so that the store may be restored meanwhile. ``evidence`` is where the bundle is,
    relative to the data directory if it lies within, and ``evidence_sha256`` its manifest's hash.
    """

    generation: int
    history: str
    verdict: str
    detail: str
    resumed: bool
    safe_to_restore: bool
    in_flight: list[InFlight]
    evidence: str
    evidence_sha256: str


def stop(settings: Settings, reason: str, given: Given = NOTHING) -> Stopped:
    """Put the stop file up at once, then keep the store's files before anything opens them.

    The first step of `recover begin`: it needs neither the store nor the journal nor a lock to
    stop. Raises LockHeld when a process hangs inside a turn, Refused when the evidence finds no
    room; the stop stands all the same.
    """
    clock = SystemClock()
    StopFile(settings.beside("stop")).put_up(reason, clock.now())
    lock = lock_of(settings)
    try:
        return Stopped(capture(settings, lock, clock.now(), reason, given))
    finally:
        lock.close()


async def begin(
    record: Record, reason: str, principal: str | None = None, kept: Evidence | None = None
) -> Begun:
    """Close the tenant and raise its generation, in control and then in a readable store.

    When this returns, work that carries an older generation makes no decision in the journal, and
    the control entry names the hash of the evidence: of ``kept``, of what an earlier step kept of
    the same files, or of a bundle made now. Run again it resumes. Raises Refused when the journal
    was rewound or is another's ("stopped, not fenced: do not restore"), LockHeld or
    JournalUnavailable; the stop file stands in every case.
    """
    record.stop.put_up(reason, record.clock.now())
    with record.lock.held():
        kept = kept or kept_of_this(record.settings) or _capture(record, reason)
        await open_anew(record)
        found = await _examine(record, kept)
        marker = found.seen.marker
        if found.verdict == Verdict.CRASHED:
            try:
                await hand_off(record, found.seen)
            except Recovering as error:
                LOGGER.warning("what waits cannot be handed off and will be undone: %s", error)
        control = await record.read_control()
        resumed = control.begun is not None or has_only_started(control, await record.look())
        known = 0 if marker is None else marker.place.generation
        generation = max(control.authority.generation, known) + (0 if resumed else 1)
        if not resumed:
            control = await change_control(
                record,
                "begin",
                lambda now: at_stage(now, generation),
                {"reason": reason, "verdict": found.verdict, "evidence": named(kept)},
                principal=principal,
            )
        else:
            await name_in_control(record, kept, principal)
        record.stop.carry((await record.current_control(await record.look())).sequence)
        await raise_in_store(record, generation)
        calls = await under_way(record, record.clock.now())
    return Begun(
        generation=generation,
        history=control.authority.history,
        verdict=found.verdict,
        detail=found.detail,
        resumed=resumed,
        safe_to_restore=True,
        in_flight=calls,
        evidence=kept.directory,
        evidence_sha256=kept.sha256,
    )


def _capture(record: Record, reason: str) -> Evidence:
    return capture(record.settings, record.lock, record.clock.now(), reason)


class _Found(NamedTuple):
    """How store and journal stand; a store whose server does not answer has no verdict."""

    verdict: str
    detail: str
    seen: Seen


async def _examine(record: Record, kept: Evidence) -> _Found:
    """How store and journal stand. Raises Refused where nothing can be fenced."""
    try:
        away = await _away(record)
        if away is not None:
            finding, seen = await _without_store(record)
        else:
            finding, seen = await examine(record)
            if record.store is None:
                # A rollback journal beside it is rolled back by whoever may write; its bytes are
                # kept.
                await record.open_for_writing()
                finding, seen = await examine(record)
    except JournalUnavailable as error:
        raise Refused(f"{NOT_FENCED}. {error.detail}", evidence=kept.directory) from error
    if finding.verdict is Verdict.JOURNAL_REWOUND:
        raise Refused(
            f"{NOT_FENCED}. {finding.detail}. Bring the journal back, or see what healing it would "
            "take: unrewind recover plan",
            evidence=kept.directory,
        )
    if finding.verdict is Verdict.CLOSED:
        raise Refused(f"{NOT_FENCED}. {finding.detail}", evidence=kept.directory)
    if away is not None:
        return _Found(UNREACHABLE, f"the store cannot be reached: {away}", seen)
    return _Found(str(finding.verdict), finding.detail, seen)


async def _away(record: Record) -> Unreachable | None:
    """Why the store's server does not answer, while it is being restored perhaps."""
    if record.store_place.file is not None:
        return None
    try:
        await record.marker()
    except FileChanged:
        return None
    except Unreachable as error:
        return error
    return None


async def _without_store(record: Record) -> tuple[Finding, Seen]:
    """Whether control can be raised in the journal, whatever becomes of the store."""
    log = record.journal()
    look = await record.look()
    seen = Seen(look, None)
    try:
        control = await record.current_control(look)
        witness = record.witness.read()
        if witness is not None:
            row = await log.at(witness.position) if witness.position else None
            seen = Seen(look, None, witness=witness, at_witness=None if row is None else row.digest)
    except ControlUnreadable as error:
        return Finding(Verdict.CLOSED, error.detail), seen
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be read: {error}") from error
    return compare(control, seen, record.settings.instance), seen
