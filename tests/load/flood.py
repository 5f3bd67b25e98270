"""More than a service takes, and clients that take their time: sockets of our own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from tests.soak.clients import SECONDS
from tests.soak.processes import Server

CASES = 2000
_FULL = 16 * 1024 * 1024


class Answer(Struct, frozen=True):
    """An answer with the one header that matters here."""

    status: int
    retry_after: str | None
    content: Any


class Caller:
    """One connection of many, and no pause between its calls."""

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._head = (
            f"Host: 127.0.0.1\r\nAuthorization: Bearer {server.site.token}\r\n"
            "Content-Type: application/json\r\nContent-Length: "
        )
        self._pipes: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, content: Any) -> Answer:
        """One call. Raises OSError or IncompleteReadError where the connection is cut."""
        if self._pipes is None:
            self._pipes = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._pipes
        body = json.dumps(content).encode()
        writer.write(f"POST {path} HTTP/1.1\r\n{self._head}{len(body)}\r\n\r\n".encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        raw = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            await self.close()
        return Answer(int(lines[0].split()[1]), headers.get("retry-after"), json.loads(raw))

    async def close(self) -> None:
        pipes, self._pipes = self._pipes, None
        if pipes is not None:
            pipes[1].close()
            with contextlib.suppress(OSError):
                await pipes[1].wait_closed()


class Flood:
    """Callers in closed loops, ``batch`` decisions a call; what they were told."""

    def __init__(self, server: Server, batch: int = 1) -> None:
        self.server, self._batch = server, batch
        self.told: dict[str, bytes] = {}
        self.answers: Counter[int] = Counter()
        self.slices: Counter[int] = Counter()
        """Accepted decisions by the second in which they were answered."""
        self._number = 0

    async def run(self, callers: int, seconds: float) -> float:
        """Accepted decisions a second."""
        before, began = len(self.told), time.monotonic()
        until = began + seconds
        calls = [self._loop(until, began) for _ in range(callers)]
        await asyncio.wait_for(asyncio.gather(*calls), seconds + SECONDS)
        return (len(self.told) - before) / (time.monotonic() - began)

    async def _loop(self, until: float, began: float) -> None:
        caller = Caller(self.server)
        while time.monotonic() < until:
            items = [self._item() for _ in range(self._batch)]
            answer = await caller.post("/v1/main/decisions/batch", {"items": items})
            self._hear(items, answer, int(time.monotonic() - began))
        await caller.close()

    def _item(self) -> dict[str, Any]:
        self._number += 1
        number = self._number
        return {
            "operation": f"flood-{number}",
            "entity": f"case/{number % CASES}",
            "action": "set",
            "body": {"n": number},
        }

    def _hear(self, items: list[dict[str, Any]], answer: Answer, second: int) -> None:
        self.answers[answer.status] += 1
        if answer.status != 200:
            assert answer.status in {429, 503}, answer
            assert answer.retry_after is not None, answer
            assert int(answer.retry_after) >= 1, answer
            assert answer.content["type"] in {
                "/problems/overloaded",
                "/problems/journal-unavailable",
            }, answer
            return
        for item, judged in zip(items, answer.content["items"], strict=True):
            assert judged["status"] == 201, judged
            self.told[item["operation"]] = bytes.fromhex(judged["acceptance"]["digest"])
        self.slices[second] += len(items)


# Clients that take their time.


def connected(server: Server) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


@contextlib.contextmanager
def many(server: Server, count: int, *first: bytes) -> Iterator[list[socket.socket]]:
    """So many connections; each sends ``first``, and nothing more by itself."""
    made: list[socket.socket] = []
    try:
        for _ in range(count):
            one = connected(server)
            made.append(one)
            for part in first:
                with contextlib.suppress(OSError):  # it may be ended already
                    one.sendall(part)
        yield made
    finally:
        for one in made:
            one.close()


def is_ended(one: socket.socket) -> bool:
    """Whether the server has ended a connection. What it sent before is thrown away."""
    one.setblocking(False)
    try:
        return not one.recv(_FULL)
    except BlockingIOError:
        return False
    except OSError:
        return True


def head(server: Server, method: str, path: str, size: int | None = None) -> bytes:
    """A whole head of a request."""
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Authorization: Bearer {server.site.token}",
    ]
    if size is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {size}"]
    return "\r\n".join([*lines, "", ""]).encode()
