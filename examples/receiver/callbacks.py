"""Callbacks to the caller, signed as Standard Webhooks: true ones, and those of an attacker."""

from __future__ import annotations

import asyncio
import http.client
import ssl
import sys
import uuid
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from standardwebhooks.webhooks import Webhook

from examples.receiver.behaviours import CallbackKind
from examples.receiver.delivery import Delivery, NotPossible

TRUE_ONES = frozenset({"ok", "late", "twice", "replayed"})
SHIFTS = {"old": timedelta(minutes=-10), "future": timedelta(minutes=10)}
TIMEOUT = 10.0
MAX_ANSWER = 2000
MAX_SENT = 10_000
"""Releases whose last callback is kept to be replayed."""


class Message(Struct, frozen=True):
    """One callback as it goes out, and its ID."""

    id: str
    headers: dict[str, str]
    body: bytes


class Sent(Struct, frozen=True):
    """One callback and what it was answered; ``status`` is None when no answer came."""

    callback: str
    webhook_id: str
    status: int | None
    answer: str


class Callbacks:
    """Sends callbacks about what a delivery holds. Each is tried once and recorded."""

    def __init__(
        self, delivery: Delivery, url: str | None, token: str | None, secret: Webhook | None
    ) -> None:
        self.delivery = delivery
        self.url = url
        self.token = token
        self.secret = secret
        self._last: OrderedDict[str, list[Message]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def follow_up(self, release: str, kind: CallbackKind) -> None:
        """Send a callback in the background, if there is an address for it."""
        if self.url is None:
            return
        task = asyncio.get_running_loop().create_task(self._try(release, kind))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _try(self, release: str, kind: CallbackKind) -> None:
        try:
            await self.send(release, kind)
        except NotPossible as error:
            print(f"receiver: no callback was sent: {error}", file=sys.stderr)

    async def send(self, release: str, kind: CallbackKind, seconds: float = 0.0) -> list[Sent]:
        """Send a callback of this kind. Raises NotPossible where it would not be what it is called.

        ``seconds`` is how long to wait before.
        """
        url = self.url
        if url is None:
            raise NotPossible("say where to: --callback URL, or the command call_back_to")
        await asyncio.sleep(seconds)
        sent = []
        for message in self._messages(release, kind):
            status, answer = await asyncio.to_thread(_post, url, message)
            self.delivery.note(
                "callback",
                release,
                _outcome(status),
                content=msgspec.json.decode(message.body),
                answer=status,
                callback=kind,
                webhook_id=message.id,
            )
            sent.append(Sent(kind, message.id, status, answer))
        return sent

    def _messages(self, release: str, kind: CallbackKind) -> list[Message]:
        if kind == "replayed" and release in self._last:
            return self._last[release]
        content = self._content(release, kind)
        first = sign(kind, content, self.secret, datetime.now(UTC), self.token)
        if kind in TRUE_ONES:
            self._last[release] = [first]
            if len(self._last) > MAX_SENT:
                self._last.popitem(last=False)
        if kind == "twice":
            return [first, sign(kind, content, self.secret, datetime.now(UTC), self.token)]
        return [first, first] if kind == "replayed" else [first]

    def _content(self, release: str, kind: CallbackKind) -> dict[str, Any]:
        """What the callback says: the truth where it is settled, else a claim that it is done."""
        held = self.delivery.held(release)
        done = self.delivery.is_done(release)
        busy = self.delivery.bench.busy(release)
        settled = done or (held is not None and held.state == "refused")
        if kind in TRUE_ONES and not settled:
            raise NotPossible(f"{release} is not settled, so nothing true can be said of it yet")
        if kind == "early" and (done or not busy):
            raise NotPossible(f"a callback about {release} is early only while it is at work")
        if kind == "false-claim" and (done or busy):
            raise NotPossible(f"{release} was executed or is at work: the claim would not be false")
        state = held.state if held is not None and settled else "done"
        digest = None if held is None else held.digest
        receipt = "receipt-claimed" if held is None or not settled else held.receipt
        return {"release": release, "state": state, "digest": digest, "receipt": receipt}


def sign(
    kind: CallbackKind,
    content: dict[str, Any],
    secret: Webhook | None,
    now: datetime,
    token: str | None,
) -> Message:
    """The signed message, with the fault that its kind stands for. No secret, no signature."""
    identity = f"msg_{uuid.uuid4().hex}"
    at = now + SHIFTS.get(kind, timedelta())
    body = msgspec.json.encode(content)
    signer = Webhook(uuid.uuid4().bytes) if kind == "forged" else secret
    headers = {
        "Content-Type": "application/json",
        "webhook-id": identity,
        "webhook-timestamp": str(int(at.timestamp())),
    }
    if signer is not None and kind != "unsigned":
        headers["webhook-signature"] = signer.sign(identity, at, body.decode())
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    if kind == "altered":
        body = msgspec.json.encode({**content, "receipt": "receipt-altered"})
    if kind == "reencoded":
        body = msgspec.json.format(body, indent=1)
    return Message(identity, headers, body)


def _outcome(status: int | None) -> str:
    if status is None:
        return "lost"
    return "accepted" if status < HTTPStatus.MULTIPLE_CHOICES else "refused"


def _post(url: str, message: Message) -> tuple[int | None, str]:
    """POST once, following nothing. The status is None when no answer came."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    connection = (
        http.client.HTTPSConnection(
            host, parts.port, timeout=TIMEOUT, context=ssl.create_default_context()
        )
        if parts.scheme == "https"
        else http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT)
    )
    try:
        connection.request("POST", path, message.body, message.headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return None, f"{type(error).__name__}: {error}"
    finally:
        connection.close()
