"""The wire: the generators of ``core`` driven over httpx, blocking or in an event loop.

One attempt is one request. The transports repeat nothing, follow no redirect, keep no cookies and
use no proxy of the environment; certificates are trusted as `certifi`, ``SSL_CERT_FILE`` or
``SSL_CERT_DIR`` says.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

import httpx

from api.client.attempts import Event, Heard, Missed, Pause, Send, Steps

T = TypeVar("T")

MOST_BYTES = 67_108_864
"""Bytes of an answer's body that are read."""

_CONNECTIONS = httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=5.0)
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
_TOKEN = re.compile(r"[!-~]+")
_TOO_LONG = f"its answer is longer than {MOST_BYTES} bytes"


class Address:
    """Where a tenant is served, and the token for it, which shows in no representation.

    Raises ValueError for what cannot be one.
    """

    def __init__(self, url: str, token: str, tenant: str) -> None:
        try:
            base = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise ValueError(f"the server's URL: {error}") from None
        if base.scheme not in {"http", "https"} or not base.host:
            raise ValueError("the server's URL begins with http:// or https:// and names a host")
        if base.userinfo or base.query or base.fragment:
            raise ValueError("the server's URL has no user, no query and no fragment")
        if not _TOKEN.fullmatch(token):
            raise ValueError("a token is visible ASCII without spaces")
        if not re.fullmatch(r"[A-Za-z0-9_-]+", tenant):
            raise ValueError(f"{tenant!r} is no tenant's name")
        self.shown = f"{str(base).rstrip('/')}/v1/{tenant}"
        self._tls = httpx.create_ssl_context() if base.scheme == "https" else False
        self._headers = {
            "accept": "application/json",
            "accept-encoding": "identity",
            "authorization": f"Bearer {token}",
            "user-agent": "unrewind-client",
        }

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """How a transport verifies the server."""
        return self._tls

    def request(self, step: Send) -> httpx.Request:
        """The request of an attempt.

        Connecting ends early, so that an attempt that sent nothing is told from one that hangs.
        """
        call, seconds = step.call, step.seconds
        headers = dict(self._headers)
        if call.content is not None:
            headers["content-type"] = "application/json"
        timeout = httpx.Timeout(seconds, connect=seconds / 3, pool=seconds / 3)
        return httpx.Request(
            call.method,
            f"{self.shown}/{call.path}",
            headers=headers,
            content=call.content,
            extensions={"timeout": timeout.as_dict()},
        )


def blocking(address: Address) -> httpx.HTTPTransport:
    """A transport for threads."""
    return httpx.HTTPTransport(verify=address.tls, retries=0, limits=_CONNECTIONS)


def concurrent(address: Address) -> httpx.AsyncHTTPTransport:
    """A transport for an event loop."""
    return httpx.AsyncHTTPTransport(verify=address.tls, retries=0, limits=_CONNECTIONS)


def drive(
    steps: Steps[T],
    address: Address,
    transport: httpx.HTTPTransport,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """Bring a generator to its end, blocking. What interrupts a step is thrown into it first."""
    try:
        step = next(steps)
        while True:
            try:
                event: Event = None
                if isinstance(step, Pause):
                    pause(step.seconds)
                else:
                    event = _hear(transport, address.request(step), step.seconds)
            except BaseException as error:  # noqa: BLE001 - the generator raises it again
                step = steps.throw(error)
            else:
                step = steps.send(event)
    except StopIteration as end:
        result: T = end.value
        return result


async def adrive(steps: Steps[T], address: Address, transport: httpx.AsyncHTTPTransport) -> T:
    """The same in an event loop."""
    try:
        step = next(steps)
        while True:
            try:
                event: Event = None
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                else:
                    event = await _ahear(transport, address.request(step), step.seconds)
            except BaseException as error:  # noqa: BLE001 - the generator raises it again
                step = steps.throw(error)
            else:
                step = steps.send(event)
    except StopIteration as end:
        result: T = end.value
        return result


def _hear(transport: httpx.HTTPTransport, request: httpx.Request, seconds: float) -> Heard | Missed:
    until = time.monotonic() + seconds
    content = bytearray()
    try:
        response = transport.handle_request(request)
        try:
            for part in response.iter_raw():
                content += part
                if len(content) > MOST_BYTES:
                    return Missed(sent=True, why=_TOO_LONG)
                if time.monotonic() > until:
                    return Missed(sent=True, why=_late(seconds))
        finally:
            response.close()
    except httpx.RequestError as error:
        return _missed(error, seconds)
    return _heard(response, content)


async def _ahear(
    transport: httpx.AsyncHTTPTransport, request: httpx.Request, seconds: float
) -> Heard | Missed:
    content = bytearray()
    try:
        async with asyncio.timeout(seconds):
            response = await transport.handle_async_request(request)
            try:
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > MOST_BYTES:
                        return Missed(sent=True, why=_TOO_LONG)
            finally:
                await response.aclose()
    except (httpx.RequestError, TimeoutError) as error:
        return _missed(error, seconds)
    return _heard(response, content)


def _heard(response: httpx.Response, content: bytearray) -> Heard:
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Heard(response.status_code, headers, bytes(content))


def _missed(error: Exception, seconds: float) -> Missed:
    late = isinstance(error, TimeoutError | httpx.TimeoutException)
    why = _late(seconds) if late else str(error) or type(error).__name__
    return Missed(sent=not isinstance(error, _NEVER_SENT), why=why)


def _late(seconds: float) -> str:
    return f"no whole answer within {seconds:g} s"
