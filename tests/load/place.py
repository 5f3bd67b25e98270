"""A service under load: one server process, a receiver and workers at its lanes' other ends."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.soak.effects import Running, free_port
from tests.soak.processes import Server, Site

PUSHED, PULLED, HOUSE = "pushed", "pulled", "house"
DIGEST = "5a" * 32

CONFIG = """
[lifecycle.case]
kind = "free"

[lifecycle.document]
initial = "draft"

[lifecycle.document.actions.approve]
from = ["draft"]
to = "approved"
needs_version = true

[lifecycle.document.actions.release-pushed]
from = ["approved"]
to = "approved"
same_version = true
releases = ["pushed"]

[lifecycle.document.actions.release-pulled]
from = ["approved"]
to = "approved"
same_version = true
releases = ["pulled"]

[receiver.world]
url = "{url}"
contract = "opaque"
timeout = {timeout}

[lane.pushed]
receiver = "world"
timeout = {timeout}
concurrency = 16

[lane.pulled]
concurrency = 64

[lane.house]
effect = "internal"
concurrency = 64
"""
"""Nothing suppresses a repeat: each call of the receiver, or of a worker, is an effect."""


class World:
    """The receiver, in this process: it does what it is told at once, each time that it is told."""

    def __init__(self) -> None:
        self.effects: Counter[str] = Counter()
        self.stuck = asyncio.Event()
        """Set: calls are taken and not answered."""
        self.url = ""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            release = json.loads(await reader.readexactly(size))["release"]
            self.effects[release] += 1
            if self.stuck.is_set():
                await reader.read()
            told = json.dumps({"release": release, "state": "done", "receipt": f"r-{release}"})
            length = len(told)
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (length, told.encode())
            )
            await writer.drain()
        writer.close()


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    made = World()
    server = await asyncio.start_server(made.answer, "127.0.0.1", 0, backlog=512)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/releases"
    try:
        yield made
    finally:
        server.close()


@asynccontextmanager
async def site(
    folder: Path, patience: float = 10.0, **environment: str
) -> AsyncIterator[tuple[Site, World]]:
    """A site with its receiver, no server started yet; what it starts is gone at the end.

    A call of the receiver is given up after ``patience`` seconds.
    """
    async with world() as made:
        here = Site(folder, CONFIG.format(url=made.url, timeout=patience), **environment)
        try:
            yield here, made
        finally:
            here.close()


def served(here: Site, patch: str = "", *arguments: str) -> Server:
    """A server of the site, ready for requests; ``patch`` is Python that its process runs first."""
    server = Running(here, "serve", *arguments, "--port", str(free_port()), patch=patch)
    server.wait_until_ready()
    return server
