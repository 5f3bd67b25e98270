"""Inquiry: what stands in the lanes, and which boundary a piece of work has reached.

Coroutines over a read-only ``Record``; pages come from indexes and counts from counters, however
many rows there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from journal.admission import MEASURED_OVER, Load, drain_seconds, sustainable
from journal.control import Running
from journal.errors import Damaged, NotFound, Recovering
from journal.feed import Page, clamp, decode_cursor, encode_cursor
from journal.lanes import Effect, terms_of
from journal.log import OBSERVATIONS
from journal.observing import Observed, last_observed, observation_of
from journal.reading import read_operation
from journal.record import Record
from journal.reports import read_row
from journal.sql import Result, Statement
from journal.store import work as works
from journal.work import Status, Work
from journal.writepath import loads_of

DEAD_LETTERS = (Status.DEAD, Status.REFUSED)
"""What a lane's dead letters are: spent budgets, and what a receiver would not have."""


_MOST_LOOKS = 100
"""Reads that one page makes: one that finds little is short, and its cursor goes on."""


class WorkView(Struct, frozen=True):
    """A release, command or item as it is shown. Times in UTC; ``lease`` is the newest claim."""

    id: str
    lane: str
    effect: str
    kind: str
    status: str
    entity: str | None
    revision: int | None
    operation: str | None
    version: str | None
    receiver: str | None
    recipient: str | None
    digest: str | None
    corrects: str | None
    due: str | None
    created: str
    committed: str | None
    claimed: str | None
    started: str | None
    finished: str | None
    heartbeat: str | None
    lease: int
    worker: str | None
    execution: str | None
    attempts: int
    failures: int
    expired: int
    step: str
    last_error: str | None
    receipt: str | None
    owner: str | None
    cancel_requested: bool
    incident: str | None


def view_of(row: Work) -> WorkView:
    """A row as it is shown."""
    return WorkView(
        id=row.id,
        lane=row.lane,
        effect=row.effect,
        kind=row.name,
        status=row.status,
        entity=row.entity,
        revision=row.revision,
        operation=row.operation,
        version=row.version,
        receiver=row.receiver,
        recipient=row.recipient,
        digest=row.digest,
        corrects=row.corrects,
        due=row.due,
        created=row.created,
        committed=row.committed,
        claimed=row.claimed,
        started=row.started,
        finished=row.finished,
        heartbeat=row.heartbeat,
        lease=row.lease,
        worker=row.worker,
        execution=row.execution,
        attempts=row.attempts,
        failures=row.failures,
        expired=row.expired,
        step=row.step,
        last_error=row.last_error,
        receipt=row.receipt,
        owner=row.owner,
        cancel_requested=bool(row.cancel_requested),
        incident=row.incident,
    )


class Filter(Struct, frozen=True):
    """Which rows are asked for; what is None does not matter."""

    lane: str | None = None
    status: str | None = None
    entity: str | None = None
    dead: bool = False


class LaneView(Struct, frozen=True):
    """A lane: how it is declared, how it runs, what stands in it, and how long that will take.

    ``counts`` has items by status. ``waiting`` and the rates (a second) are by weight. ``drain`` is
    in seconds: None where the lane never gets to the end of what waits, as ``drains`` says.
    """

    lane: str
    effect: str
    mode: str
    receiver: str | None
    contract: str
    running: str
    reason: str | None
    counts: dict[str, int]
    dead: int
    waiting: float
    arrival: float
    completion: float
    drains: bool
    drain: float | None
    oldest_due: str | None
    tolerance: float
    late: bool


async def _ask(record: Record, statements: Sequence[Statement]) -> list[Result]:
    if record.store is None:
        raise Recovering("the store is missing or unreadable")
    try:
        return await record.store.read(statements)
    except Damaged as error:
        raise Recovering(f"the store is damaged: {error}") from error


async def read_work(
    record: Record,
    effects: Sequence[Effect],
    wanted: Filter,
    after: str | None,
    limit: int | None,
) -> Page:
    """A page of rows of these effects, lane by lane, in the order in which they were made.

    A page may be short; ``next`` is null at the end. Raises NotFound for a lane that is not
    declared and holds nothing, Invalid for a cursor of something else, Recovering without a
    readable store.
    """
    size = clamp(limit)
    lanes = await _lanes(record, effects, wanted)
    statuses: Sequence[str | None] = (
        [str(status) for status in DEAD_LETTERS] if wanted.dead else [wanted.status]
    )
    # A lane by its name, for one may come or go between two pages.
    lane, place, number = (
        ("", 0, 0) if after is None else decode_cursor(after, tuple[str, int, int])
    )
    steps = [
        (name, at) for name in lanes for at in range(len(statuses)) if (name, at) >= (lane, place)
    ]
    found: list[WorkView] = []
    for _ in range(_MOST_LOOKS):
        if not steps or len(found) == size:
            break
        name, at = steps[0]
        if (name, at) != (lane, place):
            lane, place, number = name, at, 0
        room = size - len(found)
        statement = works.read_page(lane, statuses[place], wanted.entity, number, room)
        rows = _page((await _ask(record, [statement]))[0])
        # A lane that is declared no more may hold work of any effect.
        found += [view_of(row) for _, row in rows if row.effect in effects]
        if len(rows) < room:
            del steps[0]
        else:
            number = rows[-1][0]
    if not steps:
        return Page(found, None)
    name, at = steps[0]
    return Page(found, encode_cursor(name, at, number if (name, at) == (lane, place) else 0))


def _page(rows: Result) -> list[tuple[int, Work]]:
    try:
        return works.page_of(rows)
    except msgspec.MsgspecError as error:
        raise Recovering(f"a row of unrewind_work cannot be read: {error}") from None


async def _lanes(record: Record, effects: Sequence[Effect], wanted: Filter) -> list[str]:
    """The lanes to look into, declared or not, by name."""
    counts = works.counts_of((await _ask(record, [works.READ_COUNTS]))[0])
    declared = record.settings.lanes
    known = {lane for lane, one in declared.items() if one.effect in effects}
    known |= {count.lane for count in counts if count.lane not in declared}
    if wanted.lane is None:
        return sorted(known)
    if wanted.lane not in known:
        raise NotFound(
            f"there is no such lane {wanted.lane}; known: {', '.join(sorted(known)) or 'none'}",
            lane=wanted.lane,
        )
    return [wanted.lane]


async def read_one(record: Record, identity: str) -> WorkView:
    """One release, command or item. Raises NotFound."""
    return view_of(await read_row(record, identity))


async def read_lanes(record: Record) -> list[LaneView]:
    """Every lane, declared or still holding something, by name."""
    counts, flow, now = await _ask(
        record, [works.READ_COUNTS, works.read_flow(MEASURED_OVER), works.READ_NOW]
    )
    loads, _ = loads_of(counts, flow)
    by_lane: dict[str, dict[str, int]] = {lane: {} for lane in record.settings.lanes}
    for count in works.counts_of(counts):
        by_lane.setdefault(count.lane, {})[count.status] = count.items
    control = await record.current_control(await record.look())
    views = []
    for lane, found in sorted(by_lane.items()):
        oldest = (await _ask(record, [works.read_oldest(lane)]))[0][0][0]
        state = control.lanes.get(lane)
        running = Running.ON if state is None else state.running
        reason = None if state is None else state.reason
        load = loads.get(lane, Load(0.0, 0.0, 0.0))
        views.append(_lane(record, lane, found, load, running, reason, oldest, now[0][0]))
    return views


def _lane(
    record: Record,
    name: str,
    counts: dict[str, int],
    load: Load,
    running: Running,
    reason: str | None,
    oldest: str | None,
    now: str,
) -> LaneView:
    lane = record.settings.lanes.get(name)
    rate = load.completion if lane is None else sustainable(lane, load.waiting, load.completion)
    drain = drain_seconds(load.waiting, rate, load.arrival)
    if running is not Running.ON and load.waiting:
        drain = None
    tolerance = 0.0 if lane is None else lane.tolerance
    late = bool(tolerance) and (drain is None or drain > tolerance)
    mode = "gone" if lane is None else "push" if lane.receiver else "handler"
    if lane is not None and lane.pulled:
        mode = "pull"
    return LaneView(
        lane=name,
        effect="unknown" if lane is None else str(lane.effect),
        mode=mode,
        receiver=None if lane is None else lane.receiver,
        contract="" if lane is None else str(terms_of(lane, record.settings.receiver).contract),
        running=str(running),
        reason=reason,
        counts=counts,
        dead=counts.get(Status.DEAD, 0) + counts.get(Status.REFUSED, 0),
        waiting=load.waiting,
        arrival=load.arrival,
        completion=rate,
        drains=drain is not None,
        drain=drain,
        oldest_due=None if oldest is None or oldest > now else oldest,
        tolerance=tolerance,
        late=late,
    )


# Which boundary?


class Boundary(Struct, frozen=True):
    """One boundary that an operation's work passes, and whether it has passed it."""

    boundary: str
    passed: bool
    detail: str


class Where(Struct, frozen=True):
    """How far an operation and what follows from it have come."""

    operation: str
    boundaries: list[Boundary]
    work: list[WorkView]
    observations: list[Observed]


async def read_where(record: Record, operation: str) -> Where:
    """Acceptance, journal, lane, attempt, outcome of an operation. Raises NotFound."""
    found = await read_operation(record, operation)
    rows = await _ask(record, [works.read_of_operation(operation, found.entity)])
    work = works.rows_of(rows[0])
    if found.releases:
        named = works.rows_of((await _ask(record, [works.read_work(found.releases)]))[0])
        work += [row for row in named if row.id not in {known.id for known in work}]
    marker = await record.marker()
    stored = found.sequence is None or (
        marker is not None and marker.place.sequence >= found.sequence
    )
    boundaries = [
        Boundary(
            "acceptance", stored, f"{found.entity} revision {found.revision}, state {found.state}"
        ),
        Boundary("journal", True, f"sequence {found.sequence}, digest {found.digest[:12]}"),
    ]
    observations = []
    for row in work:
        boundaries += _of_work(row)
        seen = await last_observed(record, row.id)
        observations += [] if seen is None else [seen]
    if not work:
        boundaries.append(Boundary("lane", True, "nothing follows from it"))
    return Where(operation, boundaries, [view_of(row) for row in work], observations)


def _of_work(row: Work) -> list[Boundary]:
    tried = f"{row.attempts} attempts, {row.failures} failed, {row.expired} timed out"
    why = f"; last: {row.last_error}" if row.last_error else ""
    return [
        Boundary(f"lane {row.lane}", row.attempts > 0, f"{row.id}: {row.step}"),
        Boundary("attempt", row.attempts > 0, f"{tried}{why}"),
        Boundary(
            "outcome",
            row.over,
            row.status if row.receipt is None else f"{row.status}, receipt {row.receipt}",
        ),
    ]


# What was observed.


class ObservationView(Struct, frozen=True):
    """An observation with its place, and the status of its release: null for an orphan.

    An orphan is a report on a release that the store has never heard of. It is evidence, neither
    dropped nor acted upon.
    """

    sequence: int
    digest: str
    recorded: str
    observed: Observed
    status: str | None


async def read_observations(record: Record, after: str | None, limit: int | None) -> Page:
    """Observations in the order in which the journal took them."""
    size = clamp(limit)
    position = 0 if after is None else decode_cursor(after, tuple[int])[0]
    rows = await record.journal().stream(OBSERVATIONS, position, size + 1)
    page = rows[:size]
    found = [(row, observation_of(row)) for row in page]
    ids = [one.release for _, one in found if one is not None]
    stored = works.rows_of((await _ask(record, [works.read_work(ids)]))[0])
    status = {row.id: row.status for row in stored}
    views = [
        ObservationView(
            row.sequence or 0,
            row.digest,
            row.entry().envelope.recorded,
            one,
            status.get(one.release),
        )
        for row, one in found
        if one is not None
    ]
    more = len(rows) > size
    return Page(views, encode_cursor(page[-1].sequence) if more else None)
