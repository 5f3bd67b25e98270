"""HTTP/1.1 on plain sockets, with the means to misbehave: drop, reset, and answer with garbage."""

from __future__ import annotations

import asyncio
import contextlib
import http
import socket
import struct
import sys
import traceback
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import h11
import msgspec
from msgspec import Struct

MAX_BODY = 16 * 1024 * 1024
READ_SIZE = 64 * 1024
IDLE_SECONDS = 120.0
"""How long a connection may stay silent before it is closed."""


class Request(Struct, frozen=True):
    """A request in full. Names of ``headers`` are in lower case; a repeated one counts once."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


class Manner(StrEnum):
    """How an answer goes out. Only *whole* is HTTP; every other manner ends the connection."""

    WHOLE = "whole"
    DROP = "drop"
    RESET = "reset"
    NOT_HTTP = "not-http"
    SHORT = "short"


class Answer(Struct, frozen=True):
    """An answer, and the manner in which it is sent."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    manner: Manner = Manner.WHOLE

    @property
    def told(self) -> int | None:
        """The status that a client can read, if it can read one."""
        readable = self.manner in {Manner.WHOLE, Manner.SHORT}
        return self.status if readable else None


Handler = Callable[[Request], Awaitable[Answer]]


def answer_json(status: int, content: Any, *headers: tuple[str, str]) -> Answer:
    """An answer with a JSON body."""
    body = msgspec.json.encode(content)
    return Answer(status, body, (("Content-Type", "application/json"), *headers))


def problem(status: int, detail: str, *headers: tuple[str, str]) -> Answer:
    """An answer with a problem document (RFC 9457), whose ``detail`` is for people."""
    body = msgspec.json.encode({"title": _phrase(status), "status": status, "detail": detail})
    return Answer(status, body, (("Content-Type", "application/problem+json"), *headers))


async def listen(host: str, port: int, handler: Handler) -> asyncio.Server:
    """Serve until the server is closed. Each connection carries one request at a time."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer)
        try:
            # A peer that hangs up or stays silent is no error of ours.
            with contextlib.suppress(ConnectionError, TimeoutError):
                while await connection.turn(handler):
                    pass
        finally:
            if not writer.is_closing():
                writer.close()

    return await asyncio.start_server(connected, host, port, backlog=512)


class Connection:
    """One client's connection, and how far its HTTP is."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.SERVER)

    async def turn(self, handler: Handler) -> bool:
        """Answer one request. Returns whether another may follow.

        The handler runs to its end though the client hangs up meanwhile, as work at a service does.
        """
        try:
            request = await self._request()
        except h11.RemoteProtocolError as error:
            await self._send_whole(problem(error.error_status_hint, str(error)))
            return False
        if request is None:
            return False
        try:
            answer = await handler(request)
        except Exception:  # noqa: BLE001 - one broken call must not end the service
            # A disk that is full for the record may be full for stderr too.
            with contextlib.suppress(OSError):
                traceback.print_exc(file=sys.stderr)
            answer = problem(500, "the receiver failed; its stderr says why")
        if request.method == "HEAD":
            answer = Answer(answer.status, manner=answer.manner)
        return await self._send(answer)

    async def _request(self) -> Request | None:
        """The next request; None when the client is done."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self.http.next_event()
            if event is h11.NEED_DATA:
                await self._read()
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > MAX_BODY:
                    raise h11.RemoteProtocolError(f"more than {MAX_BODY} bytes", 413)
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return _assemble(head, bytes(body))
            else:
                return None

    async def _read(self) -> None:
        if self.http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[]))
        async with asyncio.timeout(IDLE_SECONDS):
            self.http.receive_data(await self.reader.read(READ_SIZE))

    async def _send(self, answer: Answer) -> bool:
        match answer.manner:
            case Manner.WHOLE:
                return await self._send_whole(answer)
            case Manner.DROP:
                pass
            case Manner.RESET:
                # A linger of 0 seconds makes closing send RST instead of FIN.
                linger = struct.pack("ii", 1, 0)
                raw = self.writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                self.writer.transport.abort()
            case Manner.NOT_HTTP:
                self.writer.write(b"\x00\xff this is not HTTP\r\n\r\n")
                await self.writer.drain()
            case Manner.SHORT:
                head = f"HTTP/1.1 {answer.status} {_phrase(answer.status)}\r\n"
                fields = f"Content-Length: {len(answer.body) + 100}\r\n\r\n"
                self.writer.write((head + fields).encode() + answer.body)
                await self.writer.drain()
        return False

    async def _send_whole(self, answer: Answer) -> bool:
        headers = list(answer.headers)
        if answer.status != http.HTTPStatus.NO_CONTENT:
            headers.append(("Content-Length", str(len(answer.body))))
        reason = _phrase(answer.status)
        self._write(h11.Response(status_code=answer.status, headers=headers, reason=reason))
        if answer.body:
            self._write(h11.Data(data=answer.body))
        self._write(h11.EndOfMessage())
        await self.writer.drain()
        if self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
            return False
        self.http.start_next_cycle()
        return True

    def _write(self, event: h11.Event) -> None:
        self.writer.write(self.http.send(event) or b"")


def _assemble(head: h11.Request, body: bytes) -> Request:
    target = urlsplit(head.target.decode("latin-1"))
    return Request(
        method=head.method.decode("ascii"),
        path=unquote(target.path),
        query=dict(parse_qsl(target.query)),
        headers={name.decode("ascii"): value.decode("latin-1") for name, value in head.headers},
        body=body,
    )


def _phrase(status: int) -> str:
    try:
        return http.HTTPStatus(status).phrase
    except ValueError:
        return "Status"
