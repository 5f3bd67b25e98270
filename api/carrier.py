"""The carrier: carries out the work of one lane.

    claim ──► step "calling" ──► act ──► report

Nothing here decides what may be sent: a claim commits and journals first, the step before an act
is written only while the tenant stands as it should, and what a reply means is for
``journal.outcomes`` to say.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from api.heart import Heart
from api.keeping import Keeper
from api.loops import Loop
from journal import Journal
from journal.errors import LeaseLost, UnrewindError
from journal.outcomes import CALLING, Reported
from journal.permits import MAX_CLAIM, Asked, Permit
from journal.reports import Beating

LOGGER = logging.getLogger("unrewind")

Act = Callable[[Sequence[Permit]], Awaitable[Sequence[Reported]]]
"""Does the work of permits, once, and tells what became of each. MUST NOT raise."""

_FRESH = 1.0
"""Seconds after which a step is written anew before its act: the process may have stood still."""


class Carrier:
    """Carries out one lane's work, as many groups at once as its ``concurrency``.

    ``together`` says that an act takes up to ``batch`` permits at once; else they are its slot's
    work one after the other, each with a step of its own.
    """

    def __init__(
        self,
        journal: Journal,
        heart: Heart,
        keeper: Keeper,
        name: str,
        act: Act,
        *,
        together: bool,
    ) -> None:
        self._journal = journal
        self._heart = heart
        self._keeper = keeper
        self.name = name
        self.worker = keeper.worker
        self._lane = journal.settings.lanes[name]
        self._act = act
        self._together = together
        self._running: set[asyncio.Task[None]] = set()
        self._carried: Counter[str] = Counter()
        self._operation = _fresh()
        self._more = False
        self.loop = Loop(f"lane {name}", self._look, journal.settings.dispatch_every)

    # The lane's loop.

    async def _look(self) -> bool:
        """Claim for the slots that are free; whether more may wait for one that still is."""
        free = self._lane.concurrency - len(self._running)
        if free <= 0:
            return False
        limit = min(free * self._lane.batch, MAX_CLAIM)
        permits = await self._claim(limit)
        self._more = len(permits) == limit
        begun = await self._begin(permits)
        return self._more and bool(begun) and len(self._running) < self._lane.concurrency

    async def _claim(self, limit: int) -> Sequence[Permit]:
        """Claim. One whose answer was lost is repeated, and gives the permits that it gave."""
        asked = Asked(self.name, self.worker, self._operation, limit)
        try:
            claimed = await self._journal.lanes.claim(asked)
        except LeaseLost:
            self._operation = _fresh()
            raise
        self._operation = _fresh()
        self._hold(claimed.permits)
        return claimed.permits

    async def settle(self) -> None:
        """Wait for what is under way."""
        if self._running:
            await asyncio.wait(self._running)

    @property
    def busy(self) -> bool:
        """Whether anything is under way."""
        return bool(self._running)

    def carries(self, identity: str) -> bool:
        """Whether this process is at work on it: an act may yet be made, or its end is not told."""
        return self._carried[identity] > 0

    async def carry(self, identity: str) -> None:
        """Carry out this one piece of work now, if it can be claimed."""
        asked = Asked(self.name, self.worker, _fresh(), only=(identity,))
        permits = (await self._journal.lanes.claim(asked)).permits
        self._hold(permits)
        begun = await self._begin(permits)
        if begun:
            await asyncio.wait(begun)

    # One group.

    async def _begin(self, permits: Sequence[Permit]) -> list[asyncio.Task[None]]:
        """Begin with the permits whose first step could be written, all of them in one go."""
        size = self._lane.batch
        groups = [permits[start : start + size] for start in range(0, len(permits), size)]
        now = time.monotonic()
        first = permits if self._together else [group[0] for group in groups]
        held = {permit.id for permit in await self._step(first)}
        begun = []
        for group in groups:
            ready = [permit for permit in group if permit.id in held] if self._together else group
            if not ready or ready[0].id not in held:
                self._let_go(group)
                continue
            self._carried.update(permit.id for permit in group)
            task = asyncio.create_task(self._carry_out(group, ready, now))
            self._running.add(task)
            task.add_done_callback(self._ended)
            begun.append(task)
        return begun

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if self._more:
            self.loop.ring()

    async def _carry_out(
        self, group: Sequence[Permit], ready: Sequence[Permit], stepped: float
    ) -> None:
        acts = [ready] if self._together else [[permit] for permit in ready]
        try:
            for number, act in enumerate(acts):
                if number and self.loop.stopping:
                    break
                fresh = number == 0 and time.monotonic() - stepped < min(
                    _FRESH, self._lane.lease / 3
                )
                going = act if fresh else await self._step(act)
                if going:
                    said = await self._act(going)
                    await self._keeper.keep_all(said, self._lane.cap)
                self._let_go(act)
        except Exception:
            LOGGER.exception("lane %s: work failed", self.name)
        finally:
            self._let_go(group)
            self._carried.subtract(permit.id for permit in group)
            self._carried = +self._carried

    async def _step(self, permits: Sequence[Permit]) -> Sequence[Permit]:
        """Write the step before the act; those whose claim still holds.

        Where it cannot be written nobody may act, and the claims are left to the sweeper.
        """
        claims = [(permit.id, permit.lease) for permit in permits]
        holding: set[tuple[str, int]] = set()
        try:
            if claims:
                beating = Beating(self.name, claims, CALLING)
                holding = set(await self._journal.lanes.beat(beating))
        except UnrewindError as error:
            LOGGER.warning("lane %s: nothing is begun: %s", self.name, error.detail)
        except Exception:
            LOGGER.exception("lane %s: nothing is begun", self.name)
        return [permit for permit in permits if (permit.id, permit.lease) in holding]

    def _hold(self, permits: Sequence[Permit]) -> None:
        self._heart.hold(self.name, [(permit.id, permit.lease) for permit in permits])

    def _let_go(self, permits: Sequence[Permit]) -> None:
        self._heart.let_go(self.name, [(permit.id, permit.lease) for permit in permits])


def _fresh() -> str:
    return f"claim-{secrets.token_hex(16)}"
