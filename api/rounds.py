"""Rounds: looking at every tenant, and after those that are not open, again and again.

A visit is a glance at the tenant's files. One that has work, or whose files somebody else wrote to,
is opened, so that what the schedule does for an open tenant is done for it too: handing off,
comparing, sweeping, sending what is due. One that is open is only looked at, for the alerts. One
that cannot be opened keeps no other from its visit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import suppress

from msgspec import Struct

from api.glancing import Glance, glance
from api.registering import settings_of
from api.served import tell
from api.tenants import GLANCES, Tenants
from journal.errors import Overloaded, UnrewindError

LOGGER = logging.getLogger("unrewind")

SHARE = 8.0
"""After a glance its lane rests for so many times what the glance took: requests come first."""

MOST_REST = 1.0
TEND_SECONDS = 5.0
"""How long a visit waits for what it set going; what takes longer keeps the tenant open."""

_FIRST_REST = 0.001


class Round(Struct, frozen=True):
    """The last round that ended: how long it took, how many tenants it visited, what it found."""

    seconds: float
    visited: int
    opened: int
    unsound: int
    failed: int


class Many(Struct, frozen=True):
    """The tenants of a service, and the rounds that look after those that are not open."""

    tenants: Tenants
    rounds: Rounds


class Rounds:
    """Visits every tenant beside the own, each ``tenants_every`` seconds or as soon as it can.

    ``last`` is None until the first round has ended, ``ended`` counts them; ``unsound`` names the
    tenants that were found closed by a verdict, or that could not be looked at, and what was found.
    """

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants
        self._every = tenants.base.tenants_every
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._counts = [0, 0, 0]
        self.last: Round | None = None
        self.ended = 0
        self.unsound: dict[str, str] = {}

    def start(self) -> None:
        """Start going round."""
        self._task = asyncio.create_task(self._run(), name="rounds")

    async def stop(self) -> None:
        """End after the visits that are under way."""
        self._stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while not self._stopping.is_set():
            begun = time.monotonic()
            try:
                await self._go_round()
            except UnrewindError as error:
                LOGGER.warning("a round of the tenants failed: %s", error.detail)
            except Exception:
                LOGGER.exception("a round of the tenants failed")
            await self._rest(self._every - (time.monotonic() - begun))

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), max(seconds, _FIRST_REST))

    async def _go_round(self) -> None:
        begun = time.monotonic()
        tenants = self._tenants
        names = await tenants.apart(tenants.registry.names)
        tenants.let_go_of_moved()
        known = set(names)
        self.unsound = {name: why for name, why in self.unsound.items() if name in known}
        self._counts = [0, 0, 0]
        waiting = iter([name for name in names if name != tenants.own.name])
        await asyncio.gather(*(self._lane(waiting) for _ in range(GLANCES)))
        if not self._stopping.is_set():
            visited, opened, failed = self._counts
            seconds = time.monotonic() - begun
            self.ended += 1
            self.last = Round(seconds, visited, opened, len(self.unsound), failed)

    async def _lane(self, names: Iterator[str]) -> None:
        """One of the lanes that a round is visited in."""
        for name in names:
            if self._stopping.is_set():
                return
            begun = time.monotonic()
            try:
                await self._visit(name)
            except Overloaded as error:
                LOGGER.info("tenant %s is opened in a later round: %s", name, error.detail)
            except Exception as error:  # noqa: BLE001 - whatever one tenant has, the others go on
                self._failed(name, error)
            await self._rest(min((time.monotonic() - begun) * SHARE, MOST_REST))

    async def _visit(self, name: str) -> None:
        self._counts[0] += 1
        tenants = self._tenants
        tenants.counts["visited"] += 1
        settings = settings_of(tenants.base, name)
        seen: Glance = await tenants.apart(glance, settings)
        self._note(name, seen)
        opened = tenants.is_open(name)
        if not seen.needs_opening or (opened and seen.sound):
            return
        self._counts[1] += 1
        served = await tenants.take(name)
        try:
            if opened:
                await served.journal.detect(deep=False)
            else:
                await served.tend(TEND_SECONDS)
        finally:
            tenants.leave(served)

    def _note(self, name: str, seen: Glance) -> None:
        if seen.sound:
            self.unsound.pop(name, None)
        else:
            self.unsound[name] = seen.verdict
        if name in self.unsound or self._tenants.has_alerts(name):
            alerts = self._tenants.alerts_of(name)
            tell(alerts, name, f"closed, {seen.verdict}: {seen.detail}", sound=seen.sound)

    def _failed(self, name: str, error: Exception) -> None:
        self._counts[2] += 1
        detail = error.detail if isinstance(error, UnrewindError) else f"{error}"
        if not isinstance(error, UnrewindError | OSError):
            LOGGER.error("the visit of tenant %s failed", name, exc_info=error)
        self.unsound[name] = "unopened"
        with suppress(UnrewindError):
            alerts = self._tenants.alerts_of(name)
            tell(alerts, name, f"not to be opened: {detail}", sound=False)
