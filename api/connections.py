"""Connections: how many a server has at once, and how long one keeps its place without getting on.

A connection costs a file handle, and a process that has none left can open neither its databases
nor another connection. What is looked at is uvicorn's own state, once a second: a request passes
nothing of this.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from http import HTTPStatus
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from api import problems
from api.answers import encode
from journal.errors import Overloaded

HEAD_SECONDS = 30.0
"""How long a request's head may take to arrive, and a new connection to send one."""
ANSWER_SECONDS = 30.0
"""How long an answer waits for a client that takes less than ``STEP`` bytes of it."""
STEP = 16 * 1024
LOOK_EVERY = 1.0
FILES = 1024
"""Handles kept for everything but connections, but no more than half of all."""


class Connection(H11Protocol):
    """One connection. It bounds a head to 64 KiB, which not every implementation does."""

    keeper: ClassVar[Keeper | None] = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.keeper is not None:
            self.keeper.admit(self)


class Keeper:
    """Bounds the connections of this process. Where they are too many an idle one has to go.

    Which of them is by chance: who holds most of the places loses most of them. Where none is idle
    the newcomer is told to come again.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._idle: list[Connection] = []
        self._since: dict[Any, tuple[object, float]] = {}

    async def run(self, connections: set[Any]) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY)
            self.look(connections, time.monotonic())

    def look(self, connections: set[Any], now: float) -> None:
        """End those that have stood still for too long, and note which could be done without."""
        since: dict[Any, tuple[object, float]] = {}
        idle: list[Connection] = []
        for each in [*connections]:
            standing = _standing(each)
            if standing is None:
                continue
            what, most = standing
            known, began = self._since.get(each, (None, now))
            if known != what:
                began = now
            if now - began >= most:
                each.transport.abort()
                continue
            since[each] = (what, began)
            if _is_idle(each):
                idle.append(each)
        self._since, self._idle = since, idle

    def admit(self, newcomer: Connection) -> None:
        """Make room for a connection that has just been made, or end it."""
        if len(newcomer.connections) > self.most and not self._make_room(newcomer.connections):
            newcomer.transport.write(_refusal())
            newcomer.transport.close()
            return
        self._idle.append(newcomer)

    def _make_room(self, connections: set[Any]) -> bool:
        while self._idle:
            at = random.randrange(len(self._idle))  # noqa: S311 - no secret
            self._idle[at], each = self._idle[-1], self._idle[at]
            self._idle.pop()
            if each in connections and _is_idle(each):
                connections.discard(each)
                each.transport.abort()
                return True
        return False


def limit_of(wanted: int) -> int:
    """How many connections this process can have, at most ``wanted``.

    Raises its limit of open files as far as that takes and the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + FILES:
        most = wanted + FILES if hard == resource.RLIM_INFINITY else min(hard, wanted + FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft - min(FILES, soft // 2)))


def _standing(each: Any) -> tuple[object, float] | None:
    """What a connection waits for its client to do, as far as that has come; and for how long."""
    cycle = each.cycle
    left = each.transport.get_write_buffer_size()
    if each.transport.is_closing() or each.flow.write_paused:
        return (("answer", cycle, left // STEP), ANSWER_SECONDS)
    if cycle is not None and not cycle.response_complete:
        return None
    if left:
        return (("answer", cycle, left // STEP), ANSWER_SECONDS)
    if each.timeout_keep_alive_task is None:
        return (("head", cycle, 0), HEAD_SECONDS)
    return (("idle", cycle, 0), float("inf"))


def _is_idle(each: Any) -> bool:
    """Whether nothing is under way that was sent whole."""
    return each.cycle is None or bool(each.cycle.response_complete)


def _refusal() -> bytes:
    """The answer to a connection that there is no place for."""
    error = Overloaded("every connection that max_connections allows is in use", retry_after=1)
    document = problems.document(error, None)
    status, content = HTTPStatus(document["status"]), encode(document)
    return (
        b"HTTP/1.1 %d %b\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
        % (status, status.phrase.encode(), len(content), content)
    )
