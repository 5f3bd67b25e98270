"""One tenant as a server has it open: its journal, and everything that works beside the calls."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress

from api.alerts import Alerts, Kind
from api.dispatcher import Dispatcher
from api.health import Health
from api.watching import Watch
from api.working import working
from journal import Journal, Settings
from journal.agreement import agree
from journal.detection import Finding
from journal.errors import UnrewindError
from journal.registry import Mark

TENANT = "tenant"
"""Where a request's scope has its ``Served``; or the name of a tenant that is to be let in yet."""

_PAUSE = 0.05


class Served:
    """A tenant with its alerts, dispatcher, schedule and readiness.

    ``leases`` counts who uses it now, ``mark`` is the version of its file in the registry that it
    was opened by. Raises SettingsInvalid for a handler that cannot be imported or a secret that is
    not set.
    """

    def __init__(self, journal: Journal, alerts: Alerts, *, mark: Mark | None = None) -> None:
        self.journal = journal
        self.alerts = alerts
        self.health = Health(journal)
        self.dispatcher: Dispatcher | None = None
        self.mark = mark
        self.leases = 0
        self._free = asyncio.Event()
        self.looked = time.monotonic()
        self._watch = Watch(journal, alerts)
        self._stack = AsyncExitStack()

    @property
    def name(self) -> str:
        """The tenant's name."""
        return self.journal.settings.tenant

    @property
    def dispatches(self) -> Dispatcher:
        """What carries out its work."""
        if self.dispatcher is None:
            raise RuntimeError("this application serves no work")
        return self.dispatcher

    @property
    def idle(self) -> bool:
        """Whether nobody uses it and no work of its lanes is under way in this process."""
        return self.leases == 0 and not (self.dispatcher is not None and self.dispatcher.busy)

    def hold(self) -> None:
        """Keep it open until ``leave``."""
        self.leases += 1
        self._free.clear()

    def leave(self) -> None:
        """Whoever held it has ended."""
        self.leases -= 1
        if not self.leases:
            self._free.set()

    async def open(self) -> Finding:
        """Open it and begin with its work. Opens nothing where it raises."""
        settings = self.journal.settings
        async with AsyncExitStack() as stack:
            agreement = await asyncio.to_thread(agree, settings)
            stack.callback(agreement.close)
            self.dispatcher = Dispatcher(self.journal, self.alerts)
            finding = await self.journal.start()
            stack.push_async_callback(self.journal.stop)
            # What the others may have left while nobody had it open, before a watch looks at it.
            with suppress(UnrewindError):
                await self.journal.lanes.sweep()
            await stack.enter_async_context(working(self.journal, self.alerts, self.dispatcher))
            self._stack = stack.pop_all()
        return finding

    async def close(self) -> None:
        """Let go of it when nobody holds it and what is under way has ended."""
        if self.leases:
            await self._free.wait()
        await self._stack.aclose()

    async def tend(self, seconds: float) -> None:
        """Do now what the schedule and the lanes would do in time; raises nothing foreseen.

        Waits until the lanes were looked into and what was found there has ended, for ``seconds``
        at most: what takes longer keeps the tenant open.
        """
        await self.journal.settle()
        with suppress(UnrewindError):
            await self.journal.lanes.sweep()
        with suppress(UnrewindError):
            await self._watch.look()
        dispatcher = self.dispatcher
        if dispatcher is None or not self.journal.settings.dispatch:
            return
        until = time.monotonic() + seconds
        before = dispatcher.looks()
        dispatcher.wake()
        while time.monotonic() < until:
            if dispatcher.looked_since(before) and not dispatcher.busy:
                return
            await asyncio.sleep(_PAUSE)


def tell(alerts: Alerts, name: str, how: str, *, sound: bool) -> None:
    """Raise an alert about a tenant that is not sound, and take it back about one that is."""
    if sound:
        alerts.cleared(Kind.TENANT_CLOSED, name)
        return
    alerts.raise_once(
        Kind.TENANT_CLOSED,
        name,
        f"it is {how}; see unrewind status --tenant {name}",
    )


def to_open(settings: Settings, alerts: Alerts, mark: Mark | None) -> Served:
    """A tenant that is to be opened."""
    return Served(Journal(settings), alerts, mark=mark)
