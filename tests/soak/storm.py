"""Load: many clients at once, and something that happens to the server in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.soak.clients import Cut, Stream
from tests.soak.ledger import Ledger
from tests.soak.processes import Server, item

ENTITIES = 300
_STEPS = ("submit", "approve", "revoke", "approve", "cancel")

Call = list[dict[str, Any]]


class Work:
    """Calls made from a seed: fresh operations, repeats of earlier ones, and batches of both."""

    def __init__(self, rng: random.Random, ledger: Ledger) -> None:
        self._rng = rng
        self._ledger = ledger
        self._number = 0

    def call(self) -> Call:
        """The items of the next call; more than one are a batch."""
        size = self._rng.randint(2, 12) if self._rng.random() < 0.12 else 1
        return [self._repeat() if self._rng.random() < 0.15 else self._fresh() for _ in range(size)]

    def _repeat(self) -> dict[str, Any]:
        sent = self._ledger.sent
        if not sent:
            return self._fresh()
        # Mostly recent ones: those may still be under way.
        first = max(0, len(sent) - 200) if self._rng.random() < 0.7 else 0
        return sent[f"op-{self._rng.randint(first + 1, len(sent))}"]

    def _fresh(self) -> dict[str, Any]:
        self._number += 1
        operation = f"op-{self._number}"
        body = {"n": self._number, "text": "é" * self._rng.randrange(200)}
        if self._rng.random() < 0.3:
            entity = f"document/{self._rng.randrange(ENTITIES)}"
            made = item(operation, entity, self._rng.choice(_STEPS), body=body)
        else:
            made = item(operation, f"case/{self._rng.randrange(ENTITIES)}", body=body)
        return self._ledger.send(made)


async def storm(
    servers: Sequence[Server],
    work: Work,
    ledger: Ledger,
    *,
    clients: int = 32,
    calls: int = 12,
    at: dict[int, Callable[[], Awaitable[None]]],
) -> None:
    """Let clients call until their calls are done or their server is gone.

    ``at`` maps a number of answers to what happens when that many have come; what the load did not
    reach happens at its end.
    """
    answered = 0
    happening: list[asyncio.Task[None]] = []

    def arrived() -> None:
        nonlocal answered
        answered += 1
        event = at.pop(answered, None)
        if event is not None:
            happening.append(asyncio.ensure_future(event()))

    async def client(stream: Stream) -> None:
        for _ in range(calls):
            sent = work.call()
            try:
                if len(sent) == 1:
                    told = await stream.ask("POST", "/v1/main/decisions", sent[0])
                    ledger.hear(sent[0]["operation"], *told)
                else:
                    told = await stream.ask("POST", "/v1/main/decisions/batch", {"items": sent})
                    ledger.hear_items(sent, *told)
            except Cut:
                return
            arrived()

    streams = [
        Stream(servers[number % len(servers)].port, servers[0].site.token)
        for number in range(clients)
    ]
    try:
        await asyncio.gather(*(client(stream) for stream in streams))
        happening += [asyncio.ensure_future(event()) for event in at.values()]
        await asyncio.gather(*happening)
    finally:
        for task in happening:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*happening, return_exceptions=True)
        for stream in streams:
            await stream.close()
