"""Begin: stop every writer, keep the evidence, raise the generation, tell what is in flight."""

from __future__ import annotations

from msgspec import Struct

from journal.clock import SystemClock
from journal.detection import Finding, Seen, Verdict
from journal.errors import JournalUnavailable, Recovering, Refused
from journal.locks import StopFile, TurnLock
from journal.record import Record
from journal.settings import Settings
from journal.standing import LOGGER, change_control, examine
from journal.writepath import hand_off
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


class Stopped(Struct, frozen=True):
    """The stop file stands; what was found is kept as evidence."""

    evidence: Evidence


class Begun(Struct, frozen=True):
    """A recovery has begun: nothing older than ``generation`` can decide any more.

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
    lock = TurnLock(settings.beside("lock"), settings.lock_timeout)
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
        finding, seen = await _examine(record, kept)
        if finding.verdict is Verdict.CRASHED:
            try:
                await hand_off(record, seen)
            except Recovering as error:
                LOGGER.warning("what waits cannot be handed off and will be undone: %s", error)
        control = await record.read_control()
        resumed = control.begun is not None or has_only_started(control, await record.look())
        known = 0 if seen.marker is None else seen.marker.place.generation
        generation = max(control.authority.generation, known) + (0 if resumed else 1)
        if not resumed:
            control = await change_control(
                record,
                "begin",
                lambda now: at_stage(now, generation),
                {"reason": reason, "verdict": str(finding.verdict), "evidence": named(kept)},
                principal=principal,
            )
        else:
            await name_in_control(record, kept, principal)
        await raise_in_store(record, generation)
        calls = await under_way(record, record.clock.now())
    return Begun(
        generation=generation,
        history=control.authority.history,
        verdict=str(finding.verdict),
        detail=finding.detail,
        resumed=resumed,
        safe_to_restore=True,
        in_flight=calls,
        evidence=kept.directory,
        evidence_sha256=kept.sha256,
    )


def _capture(record: Record, reason: str) -> Evidence:
    return capture(record.settings, record.lock, record.clock.now(), reason)


async def _examine(record: Record, kept: Evidence) -> tuple[Finding, Seen]:
    """How store and journal stand. Raises Refused where nothing can be fenced."""
    try:
        finding, seen = await examine(record)
        if record.store is None:
            # A rollback journal beside it is rolled back by whoever may write; its bytes are kept.
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
    return finding, seen
