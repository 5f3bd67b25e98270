"""Begin: stop every writer, keep the evidence, raise the generation."""

from __future__ import annotations

from msgspec import Struct

from journal.clock import SystemClock
from journal.detection import Verdict
from journal.errors import JournalUnavailable, Recovering, Refused
from journal.locks import StopFile, TurnLock
from journal.record import Record
from journal.settings import Settings
from journal.sqlite import stamp_of
from journal.standing import LOGGER, change_control, examine
from journal.writepath import hand_off
from reconstruct.evidence import Evidence, capture
from reconstruct.fencing import at_stage, open_anew, raise_in_store

_NOT_FENCED = "stopped, not fenced: do not restore"


class Stopped(Struct, frozen=True):
    """The stop file stands; what was found is kept as evidence."""

    evidence: Evidence | None


class Begun(Struct, frozen=True):
    """A recovery has begun: nothing older than ``generation`` can decide any more."""

    generation: int
    history: str
    verdict: str
    detail: str
    resumed: bool
    safe_to_restore: bool


def stop(settings: Settings, reason: str) -> Stopped:
    """Put the stop file up at once, then copy the store's files before anything opens them.

    The first step of `recover begin`: it needs neither the store nor the journal nor a lock to
    stop. Raises LockHeld when a process hangs inside a turn (the stop stands all the same).
    """
    clock = SystemClock()
    StopFile(settings.beside("stop")).put_up(reason, clock.now())
    if stamp_of(settings.store_file) is None:
        return Stopped(None)
    lock = TurnLock(settings.beside("lock"), settings.lock_timeout)
    try:
        return Stopped(capture(settings, lock, clock.now()))
    finally:
        lock.close()


async def begin(record: Record, reason: str, principal: str | None = None) -> Begun:
    """Close the tenant and raise its generation, in control and then in a readable store.

    When this returns, work that carries an older generation makes no decision in the journal. Run
    again it resumes. Raises Refused when the journal was rewound or is another's ("stopped, not
    fenced: do not restore"), LockHeld or JournalUnavailable; the stop file stands in every case.
    """
    record.stop.put_up(reason, record.clock.now())
    with record.lock.held():
        await open_anew(record)
        try:
            finding, seen = await examine(record)
        except JournalUnavailable as error:
            raise Refused(f"{_NOT_FENCED}. {error.detail}") from error
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
            raise Refused(f"{_NOT_FENCED}. {finding.detail}")
        if finding.verdict is Verdict.CRASHED:
            try:
                await hand_off(record, seen)
            except Recovering as error:
                LOGGER.warning("what waits cannot be handed off and will be undone: %s", error)
        control = await record.read_control()
        resumed = control.begun is not None or control.last == "history"
        known = 0 if seen.marker is None else seen.marker.place.generation
        generation = max(control.authority.generation, known) + (0 if resumed else 1)
        if not resumed:
            control = await change_control(
                record,
                "begin",
                lambda now: at_stage(now, generation),
                {"reason": reason, "verdict": str(finding.verdict)},
                principal=principal,
            )
        await raise_in_store(record, generation)
    return Begun(
        generation,
        control.authority.history,
        str(finding.verdict),
        finding.detail,
        resumed,
        safe_to_restore=True,
    )
