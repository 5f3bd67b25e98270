"""Admission: how long what waits will take, and when no more of it is promised.

Pure. Work is counted by the weight that its lane declares (items, pages, seconds), for a queue's
depth alone hides a backlog of unusually expensive items.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from journal.errors import Overloaded
from journal.lanes import Lane
from journal.work import Work

SATURATED = 10.0
"""A lane is saturated when this many seconds of its work wait: then its measured rate counts."""

MEASURED_OVER = 60
"""Seconds over which arrivals and completions are measured."""

_LONGEST_RETRY = 3600.0


class Load(Struct, frozen=True):
    """A lane's backlog and rates, by weight and per second."""

    waiting: float
    arrival: float
    completion: float


def drain_seconds(waiting: float, completion: float, arrival: float) -> float | None:
    """Seconds until a backlog is gone: waiting / (completion - arrival). None: never."""
    if waiting <= 0:
        return 0.0
    rate = completion - arrival
    return waiting / rate if rate > 0 else None


def capacity(lane: Lane) -> float:
    """Items a second that a lane can complete, as it is declared."""
    able = lane.concurrency * lane.batch / lane.expected
    return min(able, lane.rate) if lane.rate else able


def sustainable(lane: Lane, waiting: float, measured: float) -> float:
    """The completion rate to count on: the measured one once the lane is saturated.

    An idle lane completes what arrives and no more, which says nothing of what it could.
    """
    able = capacity(lane)
    return measured if waiting >= able * SATURATED else able


class Door:
    """Counts what one batch of decisions would add to the lanes, and refuses what is too much."""

    def __init__(
        self, lanes: Mapping[str, Lane], loads: Mapping[str, Load], outstanding: float, most: float
    ) -> None:
        self._lanes = lanes
        self._waiting = {name: load.waiting for name, load in loads.items()}
        self._loads = loads
        self._outstanding = outstanding
        self._most = most

    def admit(self, rows: Sequence[Work]) -> None:
        """Let these rows in. Raises Overloaded, with nothing counted, when one is too much."""
        added = sum(row.weight for row in rows)
        if self._outstanding + added > self._most:
            raise Overloaded(
                f"{self._outstanding:g} of work is outstanding, and max_outstanding is "
                f"{self._most:g}",
                waiting=self._outstanding,
                retry_after=60,
            )
        weights: dict[str, float] = {}
        for row in rows:
            weights[row.lane] = weights.get(row.lane, 0.0) + row.weight
        for name, weight in weights.items():
            lane = self._lanes.get(name)
            if lane is not None:
                self._check(name, lane, weight)
        self._outstanding += added
        for name, weight in weights.items():
            self._waiting[name] = self._waiting.get(name, 0.0) + weight

    def _check(self, name: str, lane: Lane, weight: float) -> None:
        waiting = self._waiting.get(name, 0.0) + weight
        if lane.limit and waiting > lane.limit:
            raise Overloaded(
                f"lane {name}: {waiting:g} would wait, and its limit is {lane.limit:g}",
                lane=name,
                waiting=waiting,
                retry_after=60,
            )
        longest = min([bound for bound in (lane.tolerance, lane.replay) if bound], default=None)
        if longest is None:
            return
        load = self._loads.get(name, Load(0.0, 0.0, 0.0))
        rate = sustainable(lane, waiting, load.completion)
        delay = drain_seconds(waiting, rate, load.arrival)
        # An idle lane's own arrival must not look like a flood: below saturation nothing queues.
        if waiting < capacity(lane) * SATURATED:
            delay = waiting / rate if rate > 0 else None
        if delay is None or delay > longest:
            said = "never" if delay is None else f"{delay:.0f} s"
            wait = _LONGEST_RETRY if delay is None else min(delay - longest + 1, _LONGEST_RETRY)
            raise Overloaded(
                f"lane {name}: what waits would be done in {said}, and it may take {longest:g} s",
                lane=name,
                waiting=waiting,
                delay=delay,
                retry_after=max(1, round(wait)),
            )
