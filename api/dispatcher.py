"""The dispatcher: everything that carries work of the lanes out in one process.

Each lane has a carrier, and with a receiver an asker, each with a loop of its own: none waits for
another. Workers pull the other lanes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import Struct

from api import handlers
from api.alerts import Alerts
from api.asker import Asker
from api.carrier import Act, Carrier
from api.heart import Heart
from api.keeping import Keeper
from api.parcels import parcel_of, report_of
from api.receivers import Caller
from journal import Journal
from journal.asking import worker_name
from journal.errors import UnrewindError
from journal.lanes import Lane
from journal.outcomes import Reported
from journal.permits import Permit
from journal.work import Status

LOGGER = logging.getLogger("unrewind")


class Ran(Struct, frozen=True):
    """What became of a command that ran in the request; a failure is no exception."""

    id: str
    kind: str | None
    lane: str | None
    status: str
    result: str | None
    error: str | None


class Dispatcher:
    """Carries out every lane that has a receiver or a handler.

    Raises SettingsInvalid for a handler that cannot be imported or a secret that is not set.
    """

    def __init__(self, journal: Journal, alerts: Alerts) -> None:
        settings = journal.settings
        self._journal = journal
        self._heart = Heart(settings)
        self._keeper = Keeper(journal, alerts, worker_name("push"))
        self._caller = Caller(settings.receiver if settings.dispatch else {})
        lanes = {name: lane for name, lane in settings.lanes.items() if not lane.pulled}
        functions = handlers.load_handlers(lanes)
        self._carriers = {
            name: Carrier(
                journal,
                self._heart,
                self._keeper,
                name,
                functions[name].run if name in functions else self._sender(lane),
                together=name in functions,
            )
            for name, lane in lanes.items()
        }
        askers = [
            Asker(journal, self._caller, self._carriers[name])
            for name, lane in lanes.items()
            if lane.receiver is not None
        ]
        self._loops = [carrier.loop for carrier in self._carriers.values()]
        self._loops += [asker.loop for asker in askers]
        self._handled = frozenset(functions)
        self._tasks: list[asyncio.Task[None]] = []

    def _sender(self, lane: Lane) -> Act:
        """What makes the calls of a lane."""
        settings = self._journal.settings
        receiver = lane.receiver or ""
        poll = settings.receiver[receiver].poll

        async def send(permits: Sequence[Permit]) -> list[Reported]:
            (permit,) = permits
            reply = await self._caller.send(receiver, parcel_of(permit, settings.tenant))
            return [report_of(permit, reply, poll, self._keeper.worker)]

        return send

    async def start(self, *, loops: bool = True) -> None:
        """Start the heart, and with ``loops`` what looks for work."""
        await self._caller.__aenter__()
        self._heart.start()
        if loops:
            self._tasks = [asyncio.create_task(loop.run()) for loop in self._loops]

    async def stop(self) -> None:
        """Claim nothing more, wait for what is under way, and let go.

        Every call and every run of a handler ends within its timeout, and its report within a
        moment more.
        """
        self._keeper.hurry()
        for loop in self._loops:
            loop.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)
        for carrier in self._carriers.values():
            await carrier.settle()
        await asyncio.to_thread(self._heart.stop)
        await self._caller.__aexit__(None, None, None)

    @property
    def busy(self) -> bool:
        """Whether work is under way in this process."""
        return any(carrier.busy for carrier in self._carriers.values())

    def looks(self) -> list[int]:
        """How many looks for work each loop has begun."""
        return [loop.begun for loop in self._loops]

    def looked_since(self, before: Sequence[int]) -> bool:
        """Whether every loop has begun and ended a look since ``looks`` said this."""
        pairs = zip(self._loops, before, strict=True)
        return all(loop.looks > begun or loop.stopping for loop, begun in pairs)

    async def ended(self) -> None:
        """Wait until a loop has ended of itself: nothing can be written any more."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def wake(self) -> None:
        """Look for work now instead of at the next tick."""
        for loop in self._loops:
            loop.ring()

    # In the request.

    async def run_now(self, ids: Sequence[str]) -> list[Ran]:
        """Run these commands now, in the order given; what became of each. Raises nothing.

        A command that cannot be run now stays in its lane and is run from there.
        """
        return [await self._run_one(identity) for identity in ids]

    async def _run_one(self, identity: str) -> Ran:
        try:
            row = await self._journal.lanes.one(identity)
            if row.lane in self._handled:
                await self._carriers[row.lane].carry(identity)
                row = await self._journal.lanes.one(identity)
        except UnrewindError as fault:
            return Ran(identity, None, None, "unknown", None, fault.detail)
        except Exception as fault:
            LOGGER.exception("%s: it could not be run in its request", identity)
            return Ran(identity, None, None, "unknown", None, type(fault).__name__)
        error = None if row.status == Status.DONE else row.last_error
        return Ran(identity, row.kind, row.lane, row.status, row.receipt, error)
