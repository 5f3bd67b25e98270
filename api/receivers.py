"""Receivers: the calls that leave the house.

`send` delivers a release, `ask` looks one up. Each is one HTTP request, which nothing here repeats:
whether to call again is decided where the attempts are counted.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any, Self
from urllib.parse import quote

import httpx

from api import signing
from api.replies import Answer, Miss, Parcel, Reply, Result, judge_asked, judge_sent, printable
from journal.errors import Invalid, SettingsInvalid
from journal.lanes import Contract, Receiver

MAX_ANSWER = 65_536
"""Bytes of an answer's body that are read."""

MAX_CALLS = 256
"""Calls at the same time, over all receivers."""

_MAX_CAUSES = 10
_MAX_PORT = 65_535
_TOKEN = re.compile(r"[!-~]+")

# Steps of httpcore's trace before which not one byte of a request can have left.
_CONNECTING = frozenset({"connection.connect_tcp", "connection.start_tls"})
_NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@cache
def _trusted(_file: str | None, _directory: str | None) -> ssl.SSLContext:
    """The certificates that are trusted; reading them takes longer than all else of an opening."""
    return httpx.create_ssl_context(trust_env=True)


class Caller:
    """Calls receivers. An async context manager; every call ends within its receiver's timeout.

    What a receiver does never raises out of `send` and `ask`, it becomes a Reply. Each call has a
    connection of its own: on one that is kept open, a surplus answer would be taken for that to the
    next release, and one that the receiver closes while idle would make an outcome unknown.
    Redirects, cookies and the environment's proxies are not followed, kept or used. Certificates
    are trusted as `certifi` or ``SSL_CERT_FILE`` or ``SSL_CERT_DIR`` says.
    """

    def __init__(
        self, receivers: Mapping[str, Receiver], environment: Mapping[str, str] | None = None
    ) -> None:
        """Read the secrets that the receivers name.

        Raises SettingsInvalid with the name of a variable that is missing or not what it has to
        be, never with its value.
        """
        environment = os.environ if environment is None else environment
        self._lines = {
            name: _Line(name, receiver, environment) for name, receiver in receivers.items()
        }
        # The transport without a client: a client keeps cookies, reads Location and logs every URL.
        limits = httpx.Limits(max_connections=MAX_CALLS, max_keepalive_connections=0)
        try:
            trusted = _trusted(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))
            self._transport = httpx.AsyncHTTPTransport(verify=trusted, retries=0, limits=limits)
        except OSError as error:
            raise SettingsInvalid(f"SSL_CERT_FILE, SSL_CERT_DIR: {error}") from None

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._transport.__aexit__()

    def callback_secret(self, receiver: str) -> str | None:
        """The secret that this receiver signs its callbacks with, if it has one."""
        line = self._lines.get(receiver)
        return line.callback_secret if line is not None else None

    async def send(self, receiver: str, parcel: Parcel) -> Reply:
        """Deliver the parcel, once. MUST NOT answer *not-sent* when any of it may have left."""
        line = self._lines.get(receiver)
        if line is None:
            return Reply(Result.NOT_SENT, "this receiver is not declared")
        try:
            request = line.post(parcel)
        except Invalid as error:
            return Reply(Result.NOT_SENT, f"there is no such request: {error.detail}")
        heard = await self._call(request, line.receiver.timeout)
        return judge_sent(heard, parcel, datetime.now(UTC), line.tell)

    async def ask(self, receiver: str, release: str, digest: str | None, attempt: int = 1) -> Reply:
        """Ask what became of a release, up to its newest ``attempt``.

        MUST NOT take what is said about another one for it.
        """
        line = self._lines.get(receiver)
        if line is None:
            return Reply(Result.FAILED, "this receiver is not declared")
        try:
            request = line.get(release, attempt)
        except Invalid as error:
            return Reply(Result.FAILED, f"there is no such question: {error.detail}")
        heard = await self._call(request, line.receiver.timeout)
        return judge_asked(heard, release, digest, datetime.now(UTC), line.tell)

    async def _call(self, request: httpx.Request, seconds: float) -> Answer | Miss:
        progress = _Progress()
        # One deadline for all phases together. Only waiting for a place, TCP and TLS end before it:
        # cancelled in a handshake, httpcore would leave the socket open.
        timeout = httpx.Timeout(None, pool=seconds / 3, connect=seconds / 3).as_dict()
        request.extensions = {"timeout": timeout, "trace": progress.note}
        head: tuple[int, Mapping[str, str]] | None = None
        content: bytes | None = None
        flaw = ""
        try:
            async with asyncio.timeout(seconds):
                response = await self._transport.handle_async_request(request)
                head = response.status_code, response.headers
                try:
                    content = await _read(response)
                    flaw = f"it is longer than {MAX_ANSWER} bytes"
                finally:
                    await response.aclose()
        except Exception as error:  # noqa: BLE001 - whatever a receiver causes is an outcome
            late = isinstance(error, TimeoutError | httpx.TimeoutException)
            why = f"it took too long, of {seconds:g} s in all" if late else _cause(error)
            if head is None:
                unsent = progress.connecting or isinstance(error, _NEVER_SENT)
                return Miss(not unsent, why)
            flaw = flaw or why
        return Answer(*head, content, flaw)


class _Line:
    """A receiver with its secrets, which show in no representation."""

    def __init__(self, name: str, receiver: Receiver, environment: Mapping[str, str]) -> None:
        where = f"[receiver.{name}]"
        self.receiver = receiver
        self._secret = _secret(where, receiver.secret_env, environment)
        self.callback_secret = _secret(where, receiver.callback_secret_env, environment)
        self._token = _variable(where, receiver.token_env, environment)
        if self._token is not None and not _TOKEN.fullmatch(self._token):
            raise SettingsInvalid(
                f"{receiver.token_env}: a bearer token is visible ASCII without spaces"
            )
        _check_url(f"{where}: url", receiver.url)
        if receiver.status_url is not None:
            _check_url(f"{where}: status_url", receiver.status_url)
        known = (self._secret, self.callback_secret, self._token)
        self._hidden = [secret.removeprefix("whsec_") for secret in known if secret]

    def tell(self, text: str, limit: int) -> str:
        """What the receiver said, fit to be kept: it may echo what it was sent."""
        for secret in self._hidden:
            text = text.replace(secret, "[redacted]")
        return printable(text, limit)

    def post(self, parcel: Parcel) -> httpx.Request:
        """The delivery of a parcel. Raises Invalid."""
        signing.check_identity(parcel.release)
        headers = {
            **self._headers(),
            "content-type": "application/json",
            "unrewind-attempt": str(parcel.attempt),
        }
        if self._secret is not None:
            now = datetime.now(UTC)
            headers |= signing.sign(self._secret, parcel.release, now, parcel.content)
        # Whoever promises nothing about a repeated ID must not be taken at a promise.
        if self.receiver.contract is Contract.IDEMPOTENT:
            headers["idempotency-key"] = parcel.release
        return httpx.Request("POST", self.receiver.url, headers=headers, content=parcel.content)

    def get(self, release: str, attempt: int) -> httpx.Request:
        """The question about a release. Raises Invalid."""
        signing.check_identity(release)
        if self.receiver.status_url is None:
            raise Invalid("this receiver has no status_url")
        url = self.receiver.status_url.replace("{release}", quote(release, safe=""))
        # A receiver that has not seen this attempt yet must not declare it void.
        headers = {**self._headers(), "unrewind-attempt": str(attempt)}
        return httpx.Request("GET", url, headers=headers)

    def _headers(self) -> dict[str, str]:
        headers = {
            "accept": "application/json",
            # Compressed, a short answer could be a very long one.
            "accept-encoding": "identity",
            "connection": "close",
            "user-agent": "unrewind",
        }
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        return headers


class _Progress:
    """How far a call came, as httpcore traces it."""

    def __init__(self) -> None:
        self._last = ""

    async def note(self, name: str, _: Mapping[str, Any]) -> None:
        """Remember the step that began or ended."""
        self._last = name

    @property
    def connecting(self) -> bool:
        """Whether the connection was seen being made, and never made."""
        step, _, stage = self._last.rpartition(".")
        return step in _CONNECTING and stage != "complete"


async def _read(response: httpx.Response) -> bytes | None:
    """The body as it was sent, not decoded; None when it is too long."""
    content = bytearray()
    async for part in response.aiter_raw():
        content += part
        if len(content) > MAX_ANSWER:
            return None
    return bytes(content)


def _cause(error: BaseException) -> str:
    """What happened first: httpx wraps what the system said several times over."""
    for _ in range(_MAX_CAUSES):
        inner = error.__cause__ or error.__context__
        if inner is None or isinstance(inner, BaseExceptionGroup):
            break
        error = inner
    return str(error) or type(error).__name__


def _variable(where: str, name: str | None, environment: Mapping[str, str]) -> str | None:
    if name is None:
        return None
    value = environment.get(name)
    if not value:
        raise SettingsInvalid(f"{where}: the environment variable {name} is not set")
    return value


def _secret(where: str, name: str | None, environment: Mapping[str, str]) -> str | None:
    value = _variable(where, name, environment)
    if name is not None and value is not None:
        signing.check_secret(name, value)
    return value


def _check_url(where: str, url: str) -> None:
    authority = url.partition("://")[2].partition("/")[0]
    if "{release}" in authority:
        raise SettingsInvalid(f"{where}: {{release}} has its place after the host")
    try:
        parts = httpx.URL(url.replace("{release}", "rel"))
        host, port = parts.host, parts.port
    except (httpx.InvalidURL, ValueError) as error:
        raise SettingsInvalid(f"{where}: {error}") from None
    if not host or (port is not None and not 0 < port <= _MAX_PORT):
        raise SettingsInvalid(f"{where} names no host, or a port that there is not")
    if parts.userinfo:
        raise SettingsInvalid(f"{where}: a URL holds no user and password; use token_env")
