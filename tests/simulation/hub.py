"""The hub: everything that runs in the simulated world, one fiber at a time, on a virtual clock.

A *fiber* is a greenlet that stands for a thread. Synchronous code suspends wherever it calls a
port, takes a lock or sleeps, and the hub goes on with any other one, chosen by the seed. Time moves
only while nothing can run. A *process* owns fibers, connections and handles: killed, it is never
resumed, not even to clean up, and what it held is let go of as a kernel would.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any, Protocol

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

_EVERY = 24
"""Points at which a fiber may be left, on the average, between two where it is."""

_LATENCY = 0.004
"""Seconds that a slow call takes, at the most, of those at which a fiber is left."""


class Stuck(Exception):
    """Nothing can run any more, and something waits."""


class Closes(Protocol):
    """What a process holds, to be let go of when it is killed."""

    def let_go(self) -> None:
        """As the kernel does it: nothing is finished, nothing is flushed."""


class Process:
    """A process of the simulated machine. ``frozen`` is what a stop signal does to it."""

    def __init__(self, hub: Hub, name: str, pid: int) -> None:
        self.hub, self.name, self.pid = hub, name, pid
        self.alive = True
        self.frozen = False
        self.handles: set[int] = set()
        self.connections: dict[int, Closes] = {}
        self.fibers: list[Fiber] = []
        self._backlog: list[Fiber] = []
        self.ended: list[Callable[[], None]] = []
        """Called once it has ended, however that came."""

    def kill(self) -> None:
        """End it here and now. The fiber that does it to itself never comes back."""
        if self.alive:
            self._end()
            self.hub.killed += 1
        if self.hub.current is not None and self.hub.current.process is self:
            self.hub.leave()

    def exit(self) -> None:
        """It came to its end by itself, having let go of everything."""
        if self.alive:
            self._end()

    def _end(self) -> None:
        self.alive = False
        for connection in [*self.connections.values()]:
            connection.let_go()
        for handle in sorted(self.handles):
            with suppress(OSError):
                os.close(handle)
        self.handles.clear()
        self.connections.clear()
        for callback in self.ended:
            callback()

    def freeze(self) -> None:
        """It stands still until ``thaw``; time goes on."""
        self.frozen = True

    def thaw(self) -> None:
        """It goes on."""
        self.frozen = False
        for fiber in self._backlog:
            self.hub.make_ready(fiber)
        self._backlog.clear()

    def keep(self, fiber: Fiber) -> None:
        """A fiber that can run as soon as the process is thawed."""
        self._backlog.append(fiber)


class Fiber:
    """One thread of one process. ``result`` is what its function returned or raised."""

    def __init__(self, hub: Hub, process: Process, name: str, run: Callable[[], Any]) -> None:
        self.process, self.name = process, name
        self.number = next(hub.numbers)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.waiting = 0
        """The number of the wait it is in; 0: it can run."""
        self.woken = False
        self._hub = hub
        self._run = run
        self.greenlet = greenlet(self._main, hub.main)
        process.fibers.append(self)

    def _main(self, _woken: bool) -> None:
        try:
            self.result = self._run()
        except Exception as error:  # noqa: BLE001 - told to whoever joins
            self.error = error
        self.done = True
        self._hub.finished(self)


class Hub:
    """Runs fibers until nothing is left to do; its ``random`` decides about everything."""

    def __init__(self, seed: int | str) -> None:
        self.random = Random(seed)
        self.main = getcurrent()
        self.now = 0.0
        self.current: Fiber | None = None
        self.numbers = count(1)
        self.steps = 0
        self.killed = 0
        self.processes: list[Process] = []
        self.own: list[Process] = []
        self.every_step: Callable[[], None] | None = None
        self._pids = count(1001)
        self._ready: list[Fiber] = []
        self._timers: list[tuple[float, int, Fiber, int]] = []
        self._waits = count(1)
        self._joined: dict[int, list[Fiber]] = {}
        self._left = 1

    # Making.

    def process(self, name: str) -> Process:
        """A new process, with a number of its own."""
        made = Process(self, name, next(self._pids))
        self.processes.append(made)
        return made

    def is_alive(self, pid: int) -> bool:
        """Whether a process of this number lives."""
        return any(one.pid == pid and one.alive for one in self.processes)

    def spawn(self, process: Process, name: str, run: Callable[[], Any]) -> Fiber:
        """A new fiber that can run at once."""
        fiber = Fiber(self, process, name, run)
        self.make_ready(fiber)
        return fiber

    def make_ready(self, fiber: Fiber) -> None:
        """Let it run when its turn comes."""
        fiber.waiting = 0
        self._ready.append(fiber)

    # Within a fiber.

    def pause(self) -> None:
        """A point at which the fiber may be left for another one, or take its time."""
        self._left -= 1
        if self._left > 0 or self.current is None:
            return
        self._left = self.random.randrange(1, 2 * _EVERY)
        if self.random.random() < 0.3:
            self.sleep(self.random.random() * _LATENCY)
        elif self._ready:
            self._ready.append(self.current)
            self.leave()

    def sleep(self, seconds: float) -> None:
        """Stand still for so long."""
        self.wait(max(seconds, 0.0))

    def wait(self, seconds: float | None = None) -> bool:
        """Stand still until woken (True), or for so long (False)."""
        fiber = self.current
        if fiber is None:
            raise Stuck("the hub itself cannot wait")
        fiber.waiting = token = next(self._waits)
        if seconds is not None:
            heapq.heappush(self._timers, (self.now + seconds, token, fiber, token))
        return bool(self.leave())

    def wake(self, fiber: Fiber) -> None:
        """Let it go on if it waits."""
        if fiber.waiting:
            self.make_ready(fiber)
            fiber.woken = True

    def leave(self) -> Any:
        """Back to the hub; what this returns is whether somebody woke the fiber."""
        return self.main.switch()

    def join(self, fiber: Fiber, seconds: float | None = None) -> bool:
        """Wait for a fiber's end, or for that of its process; whether it came."""
        deadline = None if seconds is None else self.now + seconds
        while not fiber.done and fiber.process.alive:
            left = None if deadline is None else deadline - self.now
            if left is not None and left <= 0:
                return False
            self._joined.setdefault(fiber.number, []).append(self._me())
            self.wait(left if left is not None else 5.0)
        return fiber.done

    def _me(self) -> Fiber:
        if self.current is None:
            raise Stuck("no fiber runs")
        return self.current

    def finished(self, fiber: Fiber) -> None:
        """A fiber has come to its end. What one of the world's own raises is the world's fault."""
        if fiber.error is not None and fiber.process in self.own:
            self.main.throw(fiber.error)
        for other in self._joined.pop(fiber.number, []):
            self.wake(other)

    # Running.

    def run(self, until: float | None = None, stop: Callable[[], bool] | None = None) -> None:
        """Run what can, until a time or until ``stop`` says so. Raises what a step breaks."""
        while stop is None or not stop():
            if self._ready:
                self._step()
                continue
            if not self._timers:
                return
            if until is not None and self._timers[0][0] > until:
                self.now = max(self.now, until)
                return
            when, _, fiber, token = heapq.heappop(self._timers)
            if fiber.waiting == token and fiber.process.alive:
                self.now = max(self.now, when)
                self.make_ready(fiber)

    def _step(self) -> None:
        ready = self._ready
        place = self.random.randrange(len(ready)) if len(ready) > 1 else 0
        fiber, ready[place] = ready[place], ready[-1]
        ready.pop()
        process = fiber.process
        if fiber.done or not process.alive:
            return
        if process.frozen:
            process.keep(fiber)
            return
        self.steps += 1
        self.current = fiber
        woken, fiber.woken = fiber.woken, False
        if fiber.loop is not None:
            asyncio._set_running_loop(fiber.loop)
        fiber.greenlet.switch(woken)
        self.current = None
        fiber.loop = asyncio._get_running_loop()
        if fiber.loop is not None:
            asyncio._set_running_loop(None)
        if self.every_step is not None:
            self.every_step()
