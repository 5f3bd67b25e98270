"""Receivers: what stands behind the wire, honest about what it did and careless about saying so.

Each keeps its own truth: how many effects there were under a release ID. Calls get lost on their
way or on the way back, arrive after their caller has given up, are answered late, wrongly or with
an error. In a calm world nothing of that happens.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import httpx

from tests.simulation import machine
from tests.simulation.promises import Broken
from tests.simulation.tenant import WINDOW

if TYPE_CHECKING:
    from tests.simulation.world import World

_LONG = 3600.0
_LATE = 15.0
"""Seconds for which a call may still be on its way when its caller has given up."""


class Receiver:
    """One receiver. ``effects`` is the truth."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.effects: Counter[str] = Counter()
        self.seen: dict[str, float] = {}
        self.void: dict[str, int] = {}
        self.pending: dict[str, float] = {}

    def arrive(self, release: str, attempt: int) -> str:
        """A call arrives, on time or not; what became of it: done, refused or pending."""
        now = machine.hub().now
        if self.void.get(release, 0) >= attempt:
            return "refused"
        known = self.seen.get(release)
        if self.name == "same" and known is not None and now - known < WINDOW:
            return "done"
        if known is None:
            self.seen[release] = now
        self.effects[release] += 1
        self.world.count("effects")
        if self.effects[release] > 1 and release not in self.world.mirror.excused:
            raise Broken("P4", f"{release} has its effect a second time at receiver {self.name}")
        if self.name != "blind" and self.world.roll(0.1):
            self.pending[release] = now + 20.0
        return "done"

    def state(self, release: str) -> str:
        """What it tells when it is asked."""
        if release in self.void and release not in self.effects:
            return "void"
        if self.pending.get(release, 0.0) > machine.hub().now:
            return "pending"
        return "done" if self.effects[release] else "unknown"


class Wire(httpx.AsyncBaseTransport):
    """What ``httpx.AsyncHTTPTransport`` is to the callers."""

    def __init__(self, **_: Any) -> None:
        self.world = machine.machine().world

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """One call, or one question."""
        name = request.url.host.partition(".")[0]
        receiver = self.world.receivers[name]
        attempt = int(request.headers["unrewind-attempt"])
        await asyncio.sleep(self.world.delay())
        if request.method == "GET":
            release = request.url.path.rpartition("/")[2]
            return await self._ask(receiver, release, attempt)
        release = json.loads(request.content)["release"]
        return await self._deliver(receiver, release, attempt)

    async def _deliver(self, receiver: Receiver, release: str, attempt: int) -> httpx.Response:
        world = self.world
        world.mirror.called(release, attempt)
        world.count("calls")
        fate = world.choose(_CALLS)
        if fate != "fine":
            world.count(f"receiver:{fate}")
        world.note("call", receiver=receiver.name, release=release[:12], attempt=attempt, fate=fate)
        if fate == "unreachable":
            raise httpx.ConnectError("no route")
        if fate == "lost":
            await asyncio.sleep(_LONG)
        if fate == "busy":
            return _answer(429, wait="5")
        if fate == "later":
            world.after(world.delay(_LATE), lambda: receiver.arrive(release, attempt))
            await asyncio.sleep(_LONG)
        state = receiver.arrive(release, attempt)
        if fate == "unanswered":
            await asyncio.sleep(_LONG)
        if fate == "broken":
            return _answer(500)
        if fate == "garbled":
            return _answer(200, {"release": "rel_another", "state": "done"})
        if state == "refused":
            return _answer(410, {"release": release, "state": "refused"})
        if release in receiver.pending:
            return _answer(202, {"release": release})
        if fate == "slow":
            await asyncio.sleep(world.delay(9.0))
        return _answer(200, {"release": release, "receipt": f"r-{release[4:12]}"})

    async def _ask(self, receiver: Receiver, release: str, attempt: int) -> httpx.Response:
        world = self.world
        fate = world.choose(_QUESTIONS)
        state = receiver.state(release)
        world.count("questions")
        world.note("ask", receiver=receiver.name, release=release[:12], fate=fate, state=state)
        if fate == "lost":
            await asyncio.sleep(_LONG)
        if fate == "broken":
            return _answer(503)
        if state == "unknown":
            if receiver.name == "asked" and world.roll(0.5):
                receiver.void[release] = max(attempt, receiver.void.get(release, 0))
                state = "void"
            else:
                return _answer(404)
        if fate == "slow":
            await asyncio.sleep(world.delay(9.0))
        body = {"release": release, "state": state, "receipt": f"r-{release[4:12]}"}
        return _answer(200, body)


class _Content(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._content


def _answer(status: int, fields: Any = None, *, wait: str | None = None) -> httpx.Response:
    """An answer whose body is yet to be read."""
    content = b"" if fields is None else json.dumps(fields).encode()
    headers = {"content-type": "application/json"} | ({} if wait is None else {"retry-after": wait})
    return httpx.Response(status, headers=headers, stream=_Content(content))


_CALLS = {
    "fine": 60,
    "unreachable": 6,
    "lost": 6,
    "busy": 4,
    "later": 6,
    "unanswered": 8,
    "broken": 6,
    "garbled": 3,
    "slow": 6,
}
_QUESTIONS = {"fine": 70, "lost": 8, "broken": 8, "slow": 8}
