"""HTTP clients that see exactly what was answered, and when a connection was cut instead."""

from __future__ import annotations

import asyncio
import http.client
import json
from typing import Any, Self

SECONDS = 120.0


class Cut(Exception):
    """The connection ended before the answer did. What became of the request is not known."""


class Client:
    """One connection, one call at a time."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """Status and JSON. Raises Cut."""
        try:
            self.send(method, path, content)
            return self.receive()
        except (OSError, http.client.HTTPException) as error:
            raise Cut(str(error)) from error

    def send(self, method: str, path: str, content: Any = None) -> None:
        body = None if content is None else json.dumps(content).encode()
        self.connection.request(method, path, body, self.headers)

    def receive(self) -> tuple[int, Any]:
        response = self.connection.getresponse()
        return response.status, json.loads(response.read() or b"null")


class Stream:
    """One connection of many in an event loop."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        names = (
            "Host: 127.0.0.1",
            f"Authorization: Bearer {token}",
            "Content-Type: application/json",
        )
        self._head = "".join(f"{line}\r\n" for line in names)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """Status and JSON. Raises Cut; the next call connects anew."""
        try:
            return await asyncio.wait_for(self._ask(method, path, content), SECONDS)
        except TimeoutError:
            raise AssertionError(f"{method} {path} was never answered") from None
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            await self.close()
            raise Cut(str(error)) from error

    async def _ask(self, method: str, path: str, content: Any) -> tuple[int, Any]:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        body = b"" if content is None else json.dumps(content).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        body = await self._reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            await self.close()
        return int(lines[0].split()[1]), json.loads(body)

    async def close(self) -> None:
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            writer.close()
            try:
                await writer.wait_closed()
            except OSError:
                return
