"""Alerts: what a person has to know now. To the log always, to the metrics, and to a webhook.

What a client could not establish (`abandoned` in ``api.client``) is known to the client alone: an
operation of which nothing arrived leaves no trace here. Its ``on_abandoned`` and ``on_unstored``
raise that alarm, where the client runs; a permit that it left behind shows here as work that was
swept.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from api.signing import check_secret, sign
from journal import Settings
from journal.entry import time_of
from journal.errors import SettingsInvalid

LOGGER = logging.getLogger("unrewind")
MOST_WAITING = 1000
"""Alerts that may be on their way to the webhook at once."""

ATTEMPTS = 3
FIRST_PAUSE = 1.0


class Kind(StrEnum):
    """What an alert is about."""

    DEAD_LETTER = "dead-letter"
    """Work has become a dead letter: its budget is spent, or its receiver would not have it."""
    LANE_LATE = "lane-late"
    """What waits in a lane will take longer than its tolerance."""
    RESULT_NOT_STORED = "result-not-stored"
    """An effect happened, and its result cannot be kept."""
    SWEEP_OVERDUE = "sweep-overdue"
    """The last good sweep is too old: work whose worker died stays where it is."""
    TENANT_CLOSED = "tenant-closed"
    """A tenant of the service beside its own is closed, or cannot be opened."""
    TEST = "test"
    """Somebody tries whether alerts come through."""


class AlertSent(Struct, frozen=True):
    """An alert as the webhook gets it."""

    kind: str
    tenant: str
    instance: str
    at: str
    detail: str
    facts: dict[str, Any]


class Alerts:
    """Raises alerts. The same kind about the same thing is raised once until it is ``cleared``.

    ``raised`` counts them by kind; ``named`` has the log say whose they are, of many tenants.
    Raises SettingsInvalid for a webhook whose secret cannot be read.
    """

    def __init__(self, settings: Settings, environment: Mapping[str, str] | None = None) -> None:
        self._settings = settings
        self._webhook = settings.alert.webhook
        self._secret = _secret_of(settings, os.environ if environment is None else environment)
        self._standing: set[tuple[str, str]] = set()
        self._sending: set[asyncio.Task[bool]] = set()
        self.raised: Counter[str] = Counter({str(kind): 0 for kind in Kind})
        self.named = False

    def raise_once(self, kind: Kind, about: str, detail: str, **facts: Any) -> None:
        """Raise an alert unless the same one stands already."""
        if (kind, about) not in self._standing:
            self._standing.add((kind, about))
            self.raise_now(kind, detail, about=about, **facts)

    def cleared(self, kind: Kind, about: str) -> None:
        """What an alert was about is over."""
        if (kind, about) in self._standing:
            self._standing.discard((kind, about))
            LOGGER.warning("alert cleared: %s: %s", kind, about)

    def raise_now(self, kind: Kind, detail: str, **facts: Any) -> asyncio.Task[bool] | None:
        """Raise an alert; the task that sends it, where there is a webhook."""
        self.raised[kind] += 1
        whose = f"tenant {self._settings.tenant}: " if self.named else ""
        LOGGER.error("alert: %s: %s%s", kind, whose, detail)
        if self._webhook is None:
            return None
        if len(self._sending) >= MOST_WAITING:
            LOGGER.error("too many alerts wait for the webhook: this one is in the log alone")
            return None
        at = datetime.now(UTC)
        sent = AlertSent(
            str(kind), self._settings.tenant, self._settings.instance, time_of(at), detail, facts
        )
        task = asyncio.get_running_loop().create_task(self._send(msgspec.json.encode(sent)))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    @property
    def stands(self) -> bool:
        """Whether an alert stands that was raised once."""
        return bool(self._standing)

    async def test(self) -> list[str]:
        """Raise a test alert; the places that it reached. Raises nothing."""
        task = self.raise_now(Kind.TEST, "this is a test: the alert came through")
        reached = ["log", "metric"]
        if task is not None and await task:
            reached.append("webhook")
        return reached

    async def _send(self, content: bytes) -> bool:
        identity = f"alert_{secrets.token_hex(16)}"
        for attempt in range(1, ATTEMPTS + 1):
            try:
                status = await self._post(identity, content)
                if 200 <= status < 300:  # noqa: PLR2004 - success
                    return True
                LOGGER.error("the alert webhook answered %d", status)
            except Exception as error:  # noqa: BLE001 - whatever it does, work goes on
                # Without its text: the URL may be a secret.
                LOGGER.error("the alert webhook failed: %s", type(error).__name__)  # noqa: TRY400
            if attempt < ATTEMPTS:
                await asyncio.sleep(FIRST_PAUSE * attempt)
        return False

    async def _post(self, identity: str, content: bytes) -> int:
        """Post once; the status of the answer, whose body nobody reads."""
        headers = {"content-type": "application/json"}
        if self._secret is not None:
            headers |= sign(self._secret, identity, datetime.now(UTC), content)
        seconds = self._settings.alert.timeout
        url = str(self._webhook)
        async with (
            asyncio.timeout(seconds),
            httpx.AsyncClient(timeout=seconds, trust_env=False) as client,
            client.stream("POST", url, content=content, headers=headers) as answer,
        ):
            return answer.status_code

    async def close(self) -> None:
        """Give alerts that are on their way a moment, and give the rest up."""
        waiting = [*self._sending]
        if waiting:
            await asyncio.wait(waiting, timeout=self._settings.alert.timeout)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _secret_of(settings: Settings, environment: Mapping[str, str]) -> str | None:
    name = settings.alert.secret_env
    if name is None:
        return None
    value = environment.get(name)
    if value is None:
        raise SettingsInvalid(f"[alert]: secret_env names {name}, which is not set")
    check_secret(name, value)
    return value
