"""Calls in flight: attempts that were under way when a recovery began, and when each is over.

The generation is raised before these are looked at: what they report is kept as an observation and
decides nothing. A call that was made all the same still has its effect, so each is accounted for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import Struct

from journal.acceptance import COMMITTED_ACTION
from journal.asking import is_dead, is_of_earlier_boot
from journal.errors import EngineError, Invalid, JournalUnavailable, UnrewindError
from journal.lanes import Lane, terms_of
from journal.lifecycle import RELEASE_ACTIONS
from journal.log import DECISIONS, Log, Row
from journal.observing import OBSERVATION, observation_of
from journal.outcomes import CALLING
from journal.record import Record
from journal.release import report_of
from journal.reports import terms
from journal.settings import Settings
from journal.standing import LOGGER
from journal.store import work as works
from journal.work import Work, after_seconds, seconds_since

LONGEST_WAIT = 60.0
"""Seconds for which a begin waits at most, unless it is told to wait longer."""

_FRESH = 1.0
"""Seconds in which a call begins after its step was written; ``api.carrier`` writes it anew."""
_PAGE = 500
_MOST_LOOKED_AT = 200_000
_ACTION = f'"action":"{RELEASE_ACTIONS}'.encode()


class State(StrEnum):
    """What is known of an attempt that was under way."""

    MAY_LAST = "may last"
    """Its call may be going on."""
    ENDED = "ended"
    """What became of it is in the journal, under its lease."""
    DEAD = "dead"
    """The process that made it is proven dead; its receiver may still be at work."""
    OVER = "over"
    """Its time is over. That proves nothing of a process that stood still meanwhile."""


class InFlight(Struct, frozen=True):
    """An attempt that was under way, and until when its call may last at most.

    ``found`` says where: in the store, or in the journal alone, where the store was put back to
    before it. ``step``, ``execution`` and the like are as its row has them.
    """

    id: str
    lane: str
    effect: str
    receiver: str | None
    worker: str | None
    execution: str | None
    lease: int
    step: str
    since: str
    until: str
    found: str
    state: State
    evidence: str = ""


async def under_way(record: Record, now: str) -> list[InFlight]:
    """Attempts under way: those of the store as it stands, and those that it was put back before.

    Raises nothing for a store or journal that cannot be read: what is known is told.
    """
    rows = await _running(record)
    calls = {(row.id, row.lease): _of_row(record, row, now) for row in rows}
    try:
        for call in await _journalled(record, now):
            calls.setdefault((call.id, call.lease), call)
    except (UnrewindError, msgspec.MsgspecError) as error:
        LOGGER.warning("the journal's newest attempts cannot be told: %s", error)
    return [await _as_of(record, calls[key], now) for key in sorted(calls)]


async def follow(record: Record, calls: Iterable[InFlight]) -> list[InFlight]:
    """The same calls as they stand now: ended, proven dead, over, or perhaps still going on."""
    now = record.clock.now()
    return [await _as_of(record, call, now) for call in calls]


def pending(calls: Iterable[InFlight]) -> list[InFlight]:
    """Those that may still be going on."""
    return [call for call in calls if call.state is State.MAY_LAST]


def default_wait(settings: Settings, calls: Iterable[InFlight]) -> float:
    """Seconds worth waiting: the longest timeout of those that unrewind itself carries out."""
    found = [settings.lanes.get(call.lane, Lane()) for call in pending(calls)]
    own = [terms_of(lane, settings.receiver).timeout for lane in found if not lane.pulled]
    return min(LONGEST_WAIT, max(own) + _FRESH) if own else 0.0


def describe(call: InFlight) -> str:
    """One attempt in a sentence."""
    who = f"{call.id} in lane {call.lane}, lease {call.lease}, by {call.worker or 'nobody named'}"
    if call.state is State.MAY_LAST:
        return f"{who}: may last until {call.until} ({call.step or 'no step told'})"
    if call.state is State.OVER:
        return f"{who}: its time was over at {call.until}; what became of it is not known"
    if call.state is State.DEAD:
        return f"{who}: that process is dead; {call.receiver or 'its receiver'} may still be at it"
    return f"{who}: ended, {call.evidence}"


# The store's rows.


async def _running(record: Record) -> list[Work]:
    found: list[Work] = []
    after = ""
    try:
        while record.store is not None:
            page = (await record.store.read([works.read_running(after, _PAGE)]))[0]
            rows, spoiled = works.readable_of(page)
            for identity, why in spoiled.items():
                LOGGER.warning("work %s is under way and cannot be read: %s", identity, why)
            found += rows
            ids = [*(row.id for row in rows), *spoiled]
            if len(ids) < _PAGE:
                break
            after = max(ids)
    except EngineError as error:
        LOGGER.warning("the store's rows of work cannot be read: %s", error)
    return found


def _of_row(record: Record, row: Work, now: str) -> InFlight:
    since = row.started or row.claimed or row.created
    return InFlight(
        id=row.id,
        lane=row.lane,
        effect=row.effect,
        receiver=row.receiver,
        worker=row.worker,
        execution=row.execution,
        lease=row.lease,
        step=row.step,
        since=since,
        until=_until(record, row.lane, since, row.heartbeat, now, begun=row.step == CALLING),
        found="store",
        state=State.MAY_LAST,
    )


def _until(
    record: Record, name: str, since: str, heartbeat: str | None, now: str, *, begun: bool
) -> str:
    """The latest moment until which a call may last.

    A puller may begin while its lease holds. What unrewind carries out itself writes a step before
    it begins, which the stop refuses from ``now`` on.
    """
    lane = record.settings.lanes.get(name, Lane())
    timeout = terms(record, name).timeout
    if lane.pulled:
        return after_seconds(heartbeat or since, lane.lease + timeout)
    if begun:
        return after_seconds(since, _FRESH + timeout)
    latest = min(after_seconds(since, lane.cap), after_seconds(now, _FRESH))
    return after_seconds(latest, timeout)


# What the journal knows beyond the store.


async def _journalled(record: Record, now: str) -> list[InFlight]:
    """Commitments of the last moments that the store does not know, and of which nothing came.

    Looks back from the journal's tip to the store's marker, and no further than calls can last.
    """
    log = record.journal()
    marker = await record.marker()
    look = await record.look()
    known = 0 if marker is None else marker.place.sequence
    if look.last is None or look.last.sequence <= known:
        return []
    lanes = record.settings.lanes.values()
    longest = max((lane.cap + lane.lease + lane.timeout for lane in lanes), default=0.0)
    begun: dict[tuple[str, int], tuple[Row, str]] = {}
    ended: set[tuple[str, int]] = set()
    before = look.position
    while before > max(0, look.position - _MOST_LOOKED_AT):
        rows = await _above(log, max(0, before - _PAGE), before)
        before = max(0, before - _PAGE)
        for row in reversed(rows):
            if row.stream != DECISIONS:
                continue
            if row.sequence is not None and row.sequence <= known:
                before = 0
                break
            if _ACTION in row.text:
                _note(row, begun, ended)
        oldest = next((row for row in rows if row.stream == DECISIONS), None)
        if oldest is not None and seconds_since(_recorded(oldest), now) > longest:
            break
    calls = []
    stored = await _leases(record, [identity for identity, _ in begun])
    for (identity, lease), (row, recorded) in begun.items():
        if (identity, lease) not in ended and stored.get(identity, -1) < lease:
            calls.append(await _of_entry(record, row, recorded, now))
    return calls


async def _above(log: Log, after: int, through: int) -> list[Row]:
    found: list[Row] = []
    while rows := await log.feed(after, through - after):
        found += rows
        after = rows[-1].position
        if after >= through:
            break
    return found


def _note(
    row: Row, begun: dict[tuple[str, int], tuple[Row, str]], ended: set[tuple[str, int]]
) -> None:
    try:
        entry = row.entry()
        report = report_of(entry.body)
    except (Invalid, msgspec.MsgspecError):
        return
    if report.lease is None:
        return
    key = (report.release, report.lease)
    if entry.envelope.action == COMMITTED_ACTION:
        begun[key] = (row, entry.envelope.recorded)
    else:
        ended.add(key)


def _recorded(row: Row) -> str:
    try:
        return row.entry().envelope.recorded
    except Invalid:
        return "9999-12-31T23:59:59.999999Z"


async def _leases(record: Record, ids: list[str]) -> Mapping[str, int]:
    """The newest claim that the store knows of each of these."""
    if record.store is None or not ids:
        return {}
    try:
        rows, _ = works.readable_of((await record.store.read([works.read_work(ids)]))[0])
    except EngineError:
        return {}
    return {row.id: row.lease for row in rows}


async def _of_entry(record: Record, row: Row, recorded: str, now: str) -> InFlight:
    report = report_of(row.body)
    lane, receiver = await _lane_of(record, row.entity, report.release)
    return InFlight(
        id=report.release,
        lane=lane,
        effect="external",
        receiver=receiver,
        worker=report.worker,
        execution=report.execution,
        lease=report.lease or 0,
        step="",
        since=recorded,
        until=_until(record, lane, recorded, None, now, begun=False),
        found="journal",
        state=State.MAY_LAST,
    )


async def _lane_of(record: Record, entity: str, release: str) -> tuple[str, str | None]:
    """The lane and receiver of a release, from the decision that permitted it."""
    log, first = record.journal(), 1
    while rows := await log.history(entity, first, 1 << 60, _PAGE):
        for row in rows:
            if release.encode() not in row.text:
                continue
            for each in row.entry().envelope.releases:
                if each.id == release:
                    return each.lane, each.receiver
        first = rows[-1].revision + 1
    return "", None


# How each stands.


async def _as_of(record: Record, call: InFlight, now: str) -> InFlight:
    if call.state is State.ENDED:
        return call
    told = await _told(record, call)
    if told is not None:
        return msgspec.structs.replace(call, state=State.ENDED, evidence=told)
    worker = call.worker or ""
    if is_dead(worker) or is_of_earlier_boot(worker, record.settings):
        return msgspec.structs.replace(call, state=State.DEAD, evidence="its process is dead")
    if datetime.fromisoformat(call.until) <= datetime.fromisoformat(now):
        return msgspec.structs.replace(call, state=State.OVER, evidence="its time is over")
    return msgspec.structs.replace(call, state=State.MAY_LAST)


async def _told(record: Record, call: InFlight) -> str | None:
    """What the journal observed of this very attempt; None: nothing, or nobody can tell."""
    try:
        log = record.journal()
        newest = await log.newest(OBSERVATION + call.id)
        if newest is None:
            return None
        first = max(1, newest.revision - _PAGE)
        rows = await log.history(OBSERVATION + call.id, first, 1 << 60, _PAGE + 1)
    except (EngineError, JournalUnavailable):
        return None
    for row in reversed(rows):
        found = observation_of(row)
        if found is not None and found.lease == call.lease:
            return f"observed as {found.outcome} at {found.recorded}"
    return None
