"""A service of the tenant as `unrewind serve` has it: journal, dispatcher and schedule, all real.

It runs in a process of its own, which may be killed or stand still at any point, and is started
anew some seconds later. Whoever calls it gets an answer, an error, or nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from api.alerts import Alerts
from api.served import Served
from journal import Journal
from journal.errors import UnrewindError
from tests.simulation import machine
from tests.simulation.hub import Process
from tests.simulation.loop import VirtualLoop

if TYPE_CHECKING:
    from tests.simulation.world import World

Asking = Callable[[Served], Coroutine[Any, Any, Any]]
Check = Callable[[Any], None]


class Gone(UnrewindError):
    """No answer came: the service is not there, or went away, or took too long."""


class Interval:
    """What APScheduler is to ``api.schedule``: jobs at their intervals, in virtual time."""

    def __init__(self, **_: Any) -> None:
        self._jobs: list[tuple[Callable[[], Coroutine[Any, Any, None]], float]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._running = False

    def add_job(self, job: Callable[[], Any], _kind: str, *, seconds: float, **_: Any) -> None:
        self._jobs.append((job, seconds))

    def start(self) -> None:
        self._running = True
        self._tasks = [asyncio.create_task(self._run(*job)) for job in self._jobs]

    async def _run(self, job: Callable[[], Coroutine[Any, Any, None]], seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            if self._running:
                await job()

    def pause(self) -> None:
        self._running = False

    def shutdown(self, **_: Any) -> None:
        for task in self._tasks:
            task.cancel()


class Service:
    """One slot for a service process: whoever is started in it, one after the other."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.process: Process | None = None
        self.served: Served | None = None
        self._loop: VirtualLoop | None = None
        self._asked: asyncio.Event | None = None

    @property
    def up(self) -> bool:
        """Whether it takes calls."""
        return self.served is not None and self.process is not None and self.process.alive

    @property
    def poisoned(self) -> bool:
        """Whether it takes no decisions any more, and is about to end."""
        return self.served is not None and self.served.journal._writing.poisoned is not None

    def start(self) -> None:
        """Start a process, unless one is there."""
        if self.world.held or not self.world.running:
            return
        if self.process is not None and self.process.alive:
            return
        self.served = None
        self.process = process = machine.hub().process(f"serve-{self.number}")
        process.ended.append(self._ended)
        machine.hub().spawn(process, "loop", self._main)

    def _ended(self) -> None:
        self.served = None
        if self.world.running and not self.world.held:
            self.world.after(self.world.delay(8.0) + 0.5, self.start)

    def _main(self) -> None:
        self._loop = VirtualLoop()
        try:
            self._loop.run(self._serve())
        except (UnrewindError, OSError) as error:
            self.world.note("refused to start", why=type(error).__name__, detail=str(error)[:120])
            self.world.count("starts refused")
        machine.process().exit()

    async def _serve(self) -> None:
        settings = self.world.settings
        journal = Journal(settings)
        served = Served(journal, Alerts(settings))
        self._asked = asyncio.Event()
        finding = await served.open()
        self.world.note("serves", number=self.number, verdict=str(finding.verdict))
        self.world.count("starts")
        self.served = served
        while not self._asked.is_set() and journal._writing.poisoned is None:
            try:
                await asyncio.wait_for(self._asked.wait(), 10.0)
            except TimeoutError:
                continue
        self.served = None
        await served.close()

    def stop(self) -> None:
        """Ask it to end in good order."""
        if self.up and self._loop is not None and self._asked is not None:
            self._loop.call_soon_threadsafe(self._asked.set)

    def kill(self) -> None:
        """End it in the middle of whatever it does."""
        if self.process is not None and self.process.alive:
            self.world.count("kill:service")
            self.process.kill()

    # Calls, from fibers of others.

    def ask(
        self,
        asking: Asking,
        check: Check | None = None,
        *,
        seconds: float = 40.0,
        cancel: float | None = None,
    ) -> Any:
        """Have the service do something; what it answered.

        ``check`` sees the answer in the moment in which it is there, before anybody is told.
        ``cancel`` is after how many seconds the caller breaks its call off. Raises what the service
        raises, or Gone.
        """
        process, loop, call = self.process, self._loop, None
        if self.served is not None and self.up:
            call = Call(self.served, asking, check)
        if process is None or loop is None or call is None:
            raise Gone("the service is not there")
        process.ended.append(call.wake)
        loop.call_soon_threadsafe(call.begin)
        call.wait(process, min(seconds, cancel or seconds))
        process.ended.remove(call.wake)
        if not call.found and cancel is not None and process.alive:
            self.world.count("calls broken off")
            loop.call_soon_threadsafe(call.cancel)
            raise Gone("the caller broke its call off")
        return call.result()


class Call:
    """One call, and whoever waits for it."""

    def __init__(self, served: Served, asking: Asking, check: Check | None) -> None:
        self._served, self._asking, self._check = served, asking, check
        self._caller = machine.hub().current
        self._task: asyncio.Task[None] | None = None
        self.found: list[Any] = []

    def wake(self) -> None:
        """Let the caller look."""
        if self._caller is not None:
            machine.hub().wake(self._caller)

    def begin(self) -> None:
        """In the service's loop: begin."""
        self._task = asyncio.get_running_loop().create_task(self._work())

    def cancel(self) -> None:
        """In the service's loop: whoever called has gone."""
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        self._served.hold()
        try:
            answer = await self._asking(self._served)
            if self._check is not None:
                self._check(answer)
            self.found.append(answer)
        except asyncio.CancelledError:
            self.found.append(Gone("the service is going away"))
        except Exception as error:  # noqa: BLE001 - told to the caller
            self.found.append(error)
        finally:
            self._served.leave()
            self.wake()

    def wait(self, process: Process, seconds: float) -> None:
        """Wait for the answer, for so long, or until the process ends."""
        hub = machine.hub()
        deadline = hub.now + seconds
        while not self.found and process.alive and hub.now < deadline:
            hub.wait(deadline - hub.now)

    def result(self) -> Any:
        """The answer. Raises what was raised instead, or Gone."""
        if not self.found:
            raise Gone("no answer came")
        if isinstance(self.found[0], BaseException):
            raise self.found[0]
        return self.found[0]
