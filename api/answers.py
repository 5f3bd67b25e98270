"""Answers: finished bytes on their way out.

Litestar sends what a handler returns when it is an ASGI application, so an ``Answer`` passes
through none of the layers that render, convert and merge headers.
"""

from __future__ import annotations

from typing import Any

import msgspec
from litestar.types import Receive, Scope, Send

JSON = b"application/json"
PROBLEM = b"application/problem+json"

_ALWAYS = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]

encode = msgspec.json.Encoder().encode


class Answer:
    """Status, body and headers, already encoded."""

    __slots__ = ("body", "headers", "media_type", "status")

    def __init__(
        self,
        status: int,
        body: bytes,
        media_type: bytes = JSON,
        headers: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.media_type = media_type
        self.headers = headers or []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """The ASGI application."""
        headers = [
            (b"content-type", self.media_type),
            (b"content-length", b"%d" % len(self.body)),
            *_ALWAYS,
            *self.headers,
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})

    def to_asgi_response(self, *_: Any, **__: Any) -> Answer:
        """What Litestar asks of the answer of an exception handler."""
        return self


def reply(content: Any, status: int = 200) -> Answer:
    """An answer of JSON."""
    return Answer(status, encode(content))
