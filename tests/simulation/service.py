"""A service of the tenant as `unrewind serve` has it: journal, dispatcher, schedule, all of it real.

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
from journal.errors import JournalUnavailable, UnrewindError
from tests.simulation import machine
from tests.simulation.hub import Process
from tests.simulation.loop import VirtualLoop
from tests.simulation.promises import Broken

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
        self, asking: Asking, check: Check | None = None, *, seconds: float = 40.0,
        cancel: float | None = None,
    ) -> Any:  # fmt: skip
        """Have the service do something; what it answered.

        ``check`` sees the answer in the moment in which it is there, before anybody is told.
        ``cancel`` is after how many seconds the caller breaks its call off. Raises what the service
        raises, or Gone.
        """
        hub, process, served, loop = machine.hub(), self.process, self.served, self._loop
        if not self.up or process is None or served is None or loop is None:
            raise Gone("the service is not there")
        found: list[Any] = []
        caller = hub.current
        tasks: list[asyncio.Task[None]] = []

        def wake() -> None:
            if caller is not None:
                hub.wake(caller)

        async def work() -> None:
            served.hold()
            try:
                answer = await asking(served)
                if check is not None:
                    check(answer)
                found.append(answer)
            except Broken:
                raise
            except (Exception, asyncio.CancelledError) as error:
                found.append(error)
            finally:
                served.leave()
                wake()

        process.ended.append(wake)
        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(work())))
        deadline = hub.now + seconds
        broken = None if cancel is None else hub.now + cancel
        while not found and process.alive and hub.now < deadline:
            hub.wait(min(deadline, broken or deadline) - hub.now)
            if broken is not None and hub.now >= broken and not found:
                self.world.count("calls broken off")
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                raise Gone("the caller broke its call off")
        process.ended.remove(wake)
        if not found:
            raise Gone("no answer came")
        if isinstance(found[0], asyncio.CancelledError):
            raise Gone("the service is going away")
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]


def is_final(error: UnrewindError) -> bool:
    """Whether an error tells the caller that nothing was decided, rather than to ask again."""
    return not isinstance(error, (Gone, JournalUnavailable))
