"""The tenants of a service: which of them are open, and what happens to those that are not.

The service's own tenant is open for as long as the service runs. Another one is opened at its first
request, or when a visit finds that it has work, and let go of again when more would be open than
the setting ``tenants_open`` allows: the one first that nobody has used for longest, never one with
work under way. Nothing is lost by that: an open tenant keeps nothing that its files do not.

Everything here runs on the event loop; only what blocks is in threads.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from api.alerts import Alerts
from api.glancing import token_of
from api.registering import registry_of, settings_of
from api.served import Served, tell, to_open
from journal import Settings
from journal.control import Token
from journal.errors import (
    JournalUnavailable,
    NotFound,
    Overloaded,
    Unauthenticated,
    UnrewindError,
)
from journal.registry import Mark

T = TypeVar("T")

LOGGER = logging.getLogger("unrewind")
UNKNOWN = "the token is unknown or was revoked"
GLANCES = 2
"""Glances at tenants that are not open, at once: each needs a thread while it lasts."""

ROOM_SECONDS = 10.0
"""How long an opening waits for room before it is refused as overloaded."""

_LOOK_AGAIN = 1.0
"""Seconds in which the registry is not asked again whether an open tenant has moved."""

_PAUSE = 0.05


class Tenants:
    """What a server holds open. ``own`` is its own tenant, which its owner opens and closes.

    ``counts`` has how many were opened, closed and visited, and how often that failed.
    """

    def __init__(self, settings: Settings, own: Served) -> None:
        self.own = own
        self.base = settings
        self.registry = registry_of(settings)
        self.counts: Counter[str] = Counter()
        self._open: OrderedDict[str, Served] = OrderedDict()
        self._opening: dict[str, asyncio.Task[Served]] = {}
        self._starting: set[str] = set()
        self._wanted: Counter[str] = Counter()
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._alerts: dict[str, Alerts] = {}
        self._threads = ThreadPoolExecutor(GLANCES, thread_name_prefix="glance")
        self._stopping = False

    # Which there are.

    @property
    def held(self) -> int:
        """How many are open beside the service's own, those among them that open or close now."""
        return len(self._open) + len(self._starting) + len(self._closing)

    def is_open(self, name: str) -> bool:
        """Whether this process has the tenant open."""
        return name == self.own.name or name in self._open

    def open_ones(self) -> list[Served]:
        """Those that are open beside the service's own."""
        return [*self._open.values()]

    def let_go_of_moved(self) -> None:
        """Let go of the open tenants whose place is another one by now."""
        for served in self.open_ones():
            if self.mark_of(served.name) != served.mark:
                self._let_go(served)

    def mark_of(self, name: str) -> Mark | None:
        """Which version of the registry has the tenant; None: it has none of that name."""
        return self.registry.mark(name)

    def has_alerts(self, name: str) -> bool:
        """Whether an alert of the tenant may stand."""
        return name in self._alerts

    def alerts_of(self, name: str) -> Alerts:
        """The tenant's alerts: those that stand are remembered while it is not open."""
        found = self._alerts.get(name)
        if found is None:
            found = Alerts(msgspec.structs.replace(self.base, tenant=name))
            found.named = True
            found.raised = self.own.alerts.raised
            self._alerts[name] = found
        return found

    async def apart(self, function: Any, *args: Any) -> Any:
        """Run a function that blocks in one of the few threads for tenants that are not open."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    # Requests.

    async def admit(self, name: str, presented: str) -> tuple[Served, Token]:
        """Let a request in: the tenant, held until ``leave``, and whose token it is.

        A tenant that there is none of answers as one that does not know the token. Nobody can have
        a tenant opened without a token of it.

        Raises Unauthenticated, JournalUnavailable or ControlUnreadable when nobody can be told from
        anybody, Overloaded when there is no room.
        """
        if name not in self._open:
            if self.mark_of(name) is None:
                raise Unauthenticated(UNKNOWN)
            await self._check_token(name, presented)
        served = await self.take(name)
        token: Token | None = None
        try:
            token = await served.journal.authenticate(presented)
        finally:
            if token is None:
                self.leave(served)
        if token is None:
            raise Unauthenticated(UNKNOWN)
        return served, token

    async def _check_token(self, name: str, presented: str) -> None:
        try:
            settings = settings_of(self.base, name)
            token = await self.apart(token_of, settings, presented)
        except (UnrewindError, OSError) as error:
            raise self._unopened(name, error) from error
        if token is None:
            raise Unauthenticated(UNKNOWN)

    def leave(self, served: Served) -> None:
        """A request, or a visit, has ended."""
        served.leave()

    # Opening.

    async def take(self, name: str) -> Served:
        """The tenant, open, and not let go of until ``leave``.

        Raises NotFound when the service has none of that name, JournalUnavailable when it cannot be
        opened now, Overloaded when there is no room.
        """
        while not self._stopping:
            served = self._open.get(name)
            if served is not None:
                if self._has_moved(served):
                    self._let_go(served)
                    continue
                served.hold()
                self._open.move_to_end(name)
                return served
            closing = self._closing.get(name)
            if closing is not None:
                await asyncio.wait([closing])
                continue
            opening = self._opening.get(name)
            if opening is None:
                opening = asyncio.create_task(self._bring_up(name), name=f"open {name}")
                self._opening[name] = opening
                opening.add_done_callback(lambda task: self._brought_up(name, task))
            # Whoever waits for it and goes away does not keep it from the others.
            self._wanted[name] += 1
            try:
                await asyncio.wait([opening])
            finally:
                self._wanted[name] -= 1
                self._wanted += Counter()
            error = opening.exception()
            if error is not None:
                raise _copy(error)
        raise Overloaded("the service is stopping")

    def _has_moved(self, served: Served) -> bool:
        """Whether the registry says another place than the one that is open."""
        now = time.monotonic()
        if now - served.looked < _LOOK_AGAIN:
            return False
        served.looked = now
        return self.mark_of(served.name) != served.mark

    def _brought_up(self, name: str, task: asyncio.Task[Served]) -> None:
        del self._opening[name]
        self._starting.discard(name)
        if task.cancelled() or task.exception() is not None:
            return
        self._open[name] = task.result()
        self.counts["opened"] += 1

    async def _bring_up(self, name: str) -> Served:
        mark = self.mark_of(name)
        if mark is None:
            raise NotFound(f"there is no tenant {name} here", tenant=name)
        await self._make_room(name)
        try:
            settings = await self.apart(settings_of, self.base, name)
            alerts = self.alerts_of(name)
            served = to_open(settings, alerts, mark)
            finding = await served.open()
        except (UnrewindError, OSError) as error:
            raise self._unopened(name, error) from error
        how = f"closed, {finding.verdict}: {finding.detail}"
        tell(alerts, name, how, sound=finding.verdict.sound)
        return served

    def _unopened(self, name: str, error: Exception) -> UnrewindError:
        """What a caller is told: why is for the log and the alerts, since nobody was let in yet."""
        self.counts["failed"] += 1
        detail = error.detail if isinstance(error, UnrewindError) else str(error)
        LOGGER.warning("tenant %s cannot be opened: %s", name, detail)
        return JournalUnavailable(f"tenant {name} cannot be opened now: the service's log says why")

    async def _make_room(self, name: str) -> None:
        """Let go of the tenant that nobody has used for longest, until there is room for one."""
        until = time.monotonic() + ROOM_SECONDS
        while self.held >= self.base.tenants_open:
            oldest = self._oldest()
            if oldest is not None:
                self._let_go(oldest)
            if self._closing:
                await asyncio.wait([*self._closing.values()], return_when=asyncio.FIRST_COMPLETED)
            elif oldest is None:
                if time.monotonic() > until:
                    raise Overloaded(
                        f"{self.base.tenants_open} tenants are open and all of them are at work: "
                        "repeat this later, or raise the setting tenants_open",
                        open=self.base.tenants_open,
                    )
                await asyncio.sleep(_PAUSE)
        self._starting.add(name)

    def _oldest(self) -> Served | None:
        """The tenant that nobody has used for longest, of those that can be let go of."""
        for served in self._open.values():
            if served.idle and not self._wanted[served.name]:
                return served
        return None

    # Closing.

    def _let_go(self, served: Served) -> None:
        """Give nobody the tenant any more, and close it when nobody has it."""
        name = served.name
        del self._open[name]
        task = asyncio.create_task(self._close(served), name=f"close {name}")
        self._closing[name] = task
        task.add_done_callback(lambda _: self._closing.pop(name))

    async def _close(self, served: Served) -> None:
        try:
            await served.close()
        except Exception:
            LOGGER.exception("tenant %s did not close as it should", served.name)
        if not served.alerts.stands:
            self._alerts.pop(served.name, None)
        self.counts["closed"] += 1

    async def stop(self) -> None:
        """Open nothing more, and close everything when what is under way has ended."""
        self._stopping = True
        while self._opening:
            await asyncio.wait([*self._opening.values()])
            await asyncio.sleep(0)
        for served in [*self._open.values()]:
            self._let_go(served)
        while self._closing:
            await asyncio.wait([*self._closing.values()])
            await asyncio.sleep(0)
        self._threads.shutdown(wait=True)


def _copy(error: BaseException) -> BaseException:
    """An exception of its own for each who waited."""
    if isinstance(error, UnrewindError):
        return type(error)(error.detail, **error.members)
    return error
