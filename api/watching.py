"""Watching: looking over the lanes on a schedule, and raising what a person has to know."""

from __future__ import annotations

import time
from contextlib import suppress

from api.alerts import Alerts, Kind
from journal import Journal
from journal.errors import UnrewindError
from journal.inquiry import LaneView


class Watch:
    """Compares the lanes with how it last saw them. What stands at a start is raised once too."""

    def __init__(self, journal: Journal, alerts: Alerts) -> None:
        self._journal = journal
        self._alerts = alerts
        self._dead: dict[str, int] = {}
        self._swept: float | None = None
        self._began = time.monotonic()

    async def look(self) -> None:
        """Look once. Raises what the store raises, after looking at what needs none."""
        await self._look_at_sweeps()
        for lane in await self._journal.lanes.lanes():
            self._look_at_letters(lane)
            self._look_at_delay(lane)

    def _look_at_letters(self, lane: LaneView) -> None:
        new = lane.dead - self._dead.get(lane.lane, 0)
        self._dead[lane.lane] = lane.dead
        if new > 0:
            self._alerts.raise_now(
                Kind.DEAD_LETTER,
                f"lane {lane.lane} has {lane.dead} dead letters, {new} of them new",
                lane=lane.lane,
                dead=lane.dead,
                new=new,
            )

    def _look_at_delay(self, lane: LaneView) -> None:
        if not lane.late:
            self._alerts.cleared(Kind.LANE_LATE, lane.lane)
            return
        when = "never" if lane.drain is None else f"in {lane.drain:.0f} s"
        self._alerts.raise_once(
            Kind.LANE_LATE,
            lane.lane,
            f"lane {lane.lane}: what waits will be done {when}, later than {lane.tolerance:g} s",
            drain=lane.drain,
            waiting=lane.waiting,
        )

    async def _look_at_sweeps(self) -> None:
        # Sweeps fail where the store does, so its age grows on while the store cannot be read.
        with suppress(UnrewindError):
            last = await self._journal.lanes.last_sweep()
            self._swept = None if last is None else time.monotonic() - last.age
        tenant, most = self._journal.settings.tenant, self._journal.settings.sweep_overdue
        age = time.monotonic() - (self._began if self._swept is None else self._swept)
        if age <= most:
            self._alerts.cleared(Kind.SWEEP_OVERDUE, tenant)
            return
        when = "unknown" if self._swept is None else f"{age:.0f} s ago"
        self._alerts.raise_once(
            Kind.SWEEP_OVERDUE,
            tenant,
            f"the last good sweep was {when}: work whose worker died stays where it is; "
            "run `unrewind sweep`",
            age=age,
        )
