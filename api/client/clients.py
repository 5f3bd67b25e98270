"""`Client` and `AsyncClient`: one surface over the rules of ``core``, blocking and awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self, TypeVar

from api.client import calls
from api.client.attempts import Call, Steps
from api.client.beating import Hearts
from api.client.calls import Item
from api.client.core import Core, Settings
from api.client.permits import AsyncClaiming, Claiming, wanted
from api.client.results import Reception, Refused, Result
from api.client.wire import Address, adrive, blocking, concurrent, drive

T = TypeVar("T")

_Receipt = Mapping[str, Any]
_DEFAULT = Settings()


class _Surface:
    """What both clients are made of.

    ``timeout`` is how many seconds one attempt may wait for the server, ``attempts`` and
    ``deadline`` bound all attempts of one call, ``report_deadline`` those of a report on a permit.
    ``on_abandoned`` is called for everything that could not be established, ``on_unstored`` for
    every report that is not known to be kept; both in whatever thread found out, so they should
    return at once.
    """

    def __init__(
        self,
        url: str,
        token: str,
        tenant: str = "main",
        *,
        timeout: float = _DEFAULT.timeout,
        attempts: int = _DEFAULT.attempts,
        deadline: float = _DEFAULT.deadline,
        report_deadline: float = _DEFAULT.report_deadline,
        on_abandoned: Callable[[Result], None] | None = None,
        on_unstored: Callable[[Reception], None] | None = None,
    ) -> None:
        """Raises ValueError for a URL, token or number that makes no sense."""
        self._address = Address(url, token, tenant)
        self._core = Core(
            Settings(timeout, attempts, deadline, report_deadline, on_abandoned, on_unstored)
        )
        self._hearts = Hearts(self._core, self._address)
        self._connect()

    def _connect(self) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._address.shown}>"

    @property
    def abandoned(self) -> int:
        """How many operations could not be established."""
        return self._core.abandoned

    @property
    def unstored(self) -> int:
        """How many reports are not known to be kept."""
        return self._core.unstored


class Client(_Surface):
    """A tenant of an unrewind server, for threads. Every call blocks; any thread may make one.

    Each call is repeated under one operation ID until an answer is definite. A refusal raises
    Refused; a question that nobody answered raises Abandoned.
    """

    def _connect(self) -> None:
        self._transport = blocking(self._address)

    def decide(
        self,
        entity: str,
        action: str,
        *,
        operation: str | None = None,
        body: Any = None,
        version: str | None = None,
        expected_revision: int | None = None,
        actor: str | None = None,
        at: str | datetime | None = None,
    ) -> Result:
        """Make an operation a decision. Without an ``operation`` it gets an ID that is told."""
        item = Item(
            entity=entity,
            action=action,
            operation=operation,
            body=body,
            version=version,
            expected_revision=expected_revision,
            actor=actor,
            at=at,
        )
        return self._drive(self._core.decide(item))

    def decide_many(self, items: Sequence[Item]) -> list[Result | Refused]:
        """Judge up to 1,000 operations in order: for each its result, or its refusal."""
        return self._drive(self._core.decide_many(items))

    def operation(self, operation: str) -> _Receipt:
        """What became of an operation. Refused `not-found`: it made no decision so far."""
        return self._ask(calls.operation(operation))

    def entity(self, entity: str, at: int | str | datetime | None = None) -> _Receipt:
        """An entity at its durable boundary, or at an earlier revision or time."""
        return self._ask(calls.entity(entity, at))

    def gate(self, entity: str, revision: int | None = None) -> _Receipt:
        """Whether a revision may have effects now: `gate` is `go`, or `held` with `reasons`."""
        return self._ask(calls.gate(entity, revision))

    def where(self, operation: str) -> _Receipt:
        """Which boundaries an operation and what follows from it have passed."""
        return self._ask(calls.where(operation))

    def permit(
        self,
        lane: str,
        *,
        worker: str | None = None,
        operation: str | None = None,
        execution: str | None = None,
        wait: float = 0.0,
    ) -> Claiming:
        """One permit of a lane, for a `with` block; None in it when nothing is due.

        ``wait`` is for how many seconds to ask again when nothing is.
        """
        claim = wanted(lane, worker, operation, execution, wait)
        return Claiming(self._core, self._hearts, claim, (self._drive, self._drive))

    def close(self) -> None:
        """Let go of the connections; waits for reports under way."""
        self._hearts.close()
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drive(self, steps: Steps[T]) -> T:
        return drive(steps, self._address, self._transport)

    def _ask(self, call: Call) -> _Receipt:
        answer: _Receipt = self._drive(self._core.ask(call))
        return answer


class AsyncClient(_Surface):
    """The same for an event loop of asyncio. See ``Client``."""

    def _connect(self) -> None:
        self._transport = concurrent(self._address)

    async def decide(
        self,
        entity: str,
        action: str,
        *,
        operation: str | None = None,
        body: Any = None,
        version: str | None = None,
        expected_revision: int | None = None,
        actor: str | None = None,
        at: str | datetime | None = None,
    ) -> Result:
        """See ``Client.decide``."""
        item = Item(
            entity=entity,
            action=action,
            operation=operation,
            body=body,
            version=version,
            expected_revision=expected_revision,
            actor=actor,
            at=at,
        )
        return await self._drive(self._core.decide(item))

    async def decide_many(self, items: Sequence[Item]) -> list[Result | Refused]:
        """See ``Client.decide_many``."""
        return await self._drive(self._core.decide_many(items))

    async def operation(self, operation: str) -> _Receipt:
        """See ``Client.operation``."""
        return await self._ask(calls.operation(operation))

    async def entity(self, entity: str, at: int | str | datetime | None = None) -> _Receipt:
        """See ``Client.entity``."""
        return await self._ask(calls.entity(entity, at))

    async def gate(self, entity: str, revision: int | None = None) -> _Receipt:
        """See ``Client.gate``."""
        return await self._ask(calls.gate(entity, revision))

    async def where(self, operation: str) -> _Receipt:
        """See ``Client.where``."""
        return await self._ask(calls.where(operation))

    def permit(
        self,
        lane: str,
        *,
        worker: str | None = None,
        operation: str | None = None,
        execution: str | None = None,
        wait: float = 0.0,
    ) -> AsyncClaiming:
        """One permit of a lane, for an `async with` block. See ``Client.permit``."""
        claim = wanted(lane, worker, operation, execution, wait)
        return AsyncClaiming(self._core, self._hearts, claim, (self._drive, self._drive))

    async def aclose(self) -> None:
        """Let go of the connections; waits for reports under way."""
        await asyncio.to_thread(self._hearts.close)
        await self._transport.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _drive(self, steps: Steps[T]) -> Awaitable[T]:
        return adrive(steps, self._address, self._transport)

    async def _ask(self, call: Call) -> _Receipt:
        answer: _Receipt = await self._drive(self._core.ask(call))
        return answer
