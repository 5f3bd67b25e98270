"""A tenant with lanes whose dispatcher runs in the test's own loop, and what its rows say."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

import journal
from api.alerts import Alerts
from api.dispatcher import Dispatcher
from api.loops import Loop
from journal import Journal, Operation, Settings
from journal.acceptance import Acceptance
from journal.entry import JSON_TYPE
from journal.inquiry import WorkView
from journal.lanes import Contract, Effect, Lane, Receiver
from journal.lifecycle import Action, Command, Lifecycle, Mode
from journal.record import Record
from journal.release import REPORT_TYPE, Report, report_of
from tests.support.whole import verify_files

SECONDS = 60
NEVER = 3600.0
LEASE = {"lease": 100.0, "sweep_after": 200.0, "cap": 300.0}
"""Far beyond what any test takes."""

_numbers = count(1)


def lane(**changes: Any) -> Lane:
    """A lane whose retries come at once."""
    quick = {"receiver": "courier", "attempts": 5, "backoff": 0.01, "backoff_cap": 0.02}
    return Lane(**{**quick, "owner": "treasury", **LEASE, **changes})


def handled(handler: str, **changes: Any) -> Lane:
    """A lane that a function runs; internal unless something else is said."""
    return lane(**{"receiver": None, "handler": handler, "effect": Effect.INTERNAL, **changes})


def receiver(url: str, contract: str, status_url: str | None = None, **changes: Any) -> Receiver:
    """A receiver that is asked at once and again and again."""
    known = Contract(contract)
    quick = {"timeout": 20.0, "works": 0.2, "poll": 0.05}
    window = 0.0 if known is Contract.OPAQUE else 3600.0
    given = {"contract": known, "window": window, "status_url": status_url, **quick, **changes}
    return Receiver(url=url, **given)


def lifecycle(lanes: Mapping[str, Lane]) -> Lifecycle:
    """An action for each lane, of its name; ``sync-…`` runs a lane's command in the request."""
    actions = {}
    for name, declared in lanes.items():
        if declared.external:
            actions[name] = Action(("draft", "going"), "going", releases=(name,))
            continue
        for prefix, mode in (("", Mode.ASYNC), ("sync-", Mode.SYNC)):
            if mode is Mode.ASYNC or declared.handler is not None:
                command = Command("job", name, mode)
                actions[prefix + name] = Action(("draft", "going"), "going", commands=(command,))
    actions["cancel"] = Action(("draft", "going") if actions else ("draft",), "cancelled")
    return Lifecycle(actions=actions)


def settings_of(
    folder: Path,
    lanes: Mapping[str, Lane],
    receivers: Mapping[str, Receiver] | None = None,
    **changes: Any,
) -> Settings:
    """Settings of a tenant with these lanes and an entity type ``order`` that uses them."""
    made = Settings(
        **{
            "data": str(folder / "data"),
            "dispatch_every": 0.02,
            "lane": dict(lanes),
            "receiver": dict(receivers or {}),
            "lifecycle": {"order": lifecycle(lanes)},
            **changes,
        }
    )
    journal.settings._check(made)
    return made


def _all_looked(looks: Mapping[Loop, int]) -> bool:
    return all(loop.looks > before for loop, before in looks.items())


class Scene:
    """A journal, its dispatcher and its alerts. Made by ``scene``."""

    def __init__(self, tenant: Journal, alerts: Alerts) -> None:
        self.journal = tenant
        self.lanes = tenant.lanes
        self.alerts = alerts
        self.dispatcher = Dispatcher(tenant, alerts)
        self._runs = False

    async def start(self) -> None:
        await self.dispatcher.start()
        self._runs = True

    async def stop(self) -> None:
        if self._runs:
            self._runs = False
            await self.dispatcher.stop()

    # Deciding.

    async def decide(
        self, action: str, body: Any = None, *, entity: str | None = None, version: str = "v1"
    ) -> Acceptance:
        """Decide this of an order of its own."""
        number = next(_numbers)
        return await self.journal.accept(
            Operation(
                f"op-{number}",
                entity or f"order/{number}",
                action,
                body=b"" if body is None else msgspec.json.encode(body),
                body_type=JSON_TYPE if body is not None else "application/octet-stream",
                version=version,
            )
        )

    async def permit(self, action: str = "parcels", body: Any = None, **fields: Any) -> str:
        """Permit an effect; the release's ID."""
        (release,) = (await self.decide(action, body, **fields)).releases
        return release

    async def command(self, action: str, body: Any = None, **fields: Any) -> str:
        """Ask for a command; its ID."""
        (command,) = (await self.decide(action, body, **fields)).commands
        return command

    # Looking.

    async def row(self, identity: str) -> WorkView:
        return await self.lanes.one(identity)

    async def until(self, condition: Callable[[], Awaitable[object]], what: str = "") -> None:
        """Ask until it holds; fails after SECONDS."""
        end = time.monotonic() + SECONDS
        while not await condition():
            if time.monotonic() > end:
                rows = await self.lanes.work([*Effect], journal.inquiry.Filter())
                raise AssertionError(f"{what} never came: {rows}")
            await asyncio.sleep(0.01)

    async def comes_to(self, identity: str, *statuses: str) -> WorkView:
        """The row, once it has one of these statuses."""

        async def there() -> bool:
            return (await self.row(identity)).status in statuses

        await self.until(there, f"{identity} in {statuses}")
        return await self.row(identity)

    async def seen(self, condition: Callable[[], object]) -> None:
        """Wait for something outside to be so."""

        async def asked() -> object:
            return condition()

        await self.until(asked, "what was waited for")

    async def rests(self, *identities: str) -> None:
        """Give everything that moves by itself the occasion to move these, and see it look.

        The loops look again twice, a sweep passes, and only then is it said that nothing happened.
        """
        loops = self.dispatcher._loops
        for _ in range(2):
            looks = {loop: loop.looks for loop in loops}
            self.dispatcher.wake()
            await self.seen(partial(_all_looked, looks))
        await self.lanes.sweep()

    async def actions(self, identity: str) -> list[str]:
        """What was decided of a release, in order."""
        entity = (await self.row(identity)).entity
        assert entity is not None
        view = await self.journal.history(entity)
        return [one.action for one in view.revisions]

    async def evidence(self, identity: str) -> list[str | None]:
        """The evidence of what was decided of a release, in order."""
        entity = (await self.row(identity)).entity

        async def reports(record: Record) -> list[Report]:
            rows = await record.journal().history(entity or "", 1, 1 << 60, 1000)
            entries = [row.entry() for row in rows]
            return [report_of(one.body) for one in entries if one.envelope.body.type == REPORT_TYPE]

        return [report.evidence for report in await self.journal.read(reports)]


@contextlib.asynccontextmanager
async def scene(settings: Settings, *, runs: bool = True) -> AsyncIterator[Scene]:
    """A tenant with its dispatcher running, verified whole at the end."""
    async with journal.open(settings) as tenant:
        made = Scene(tenant, Alerts(settings))
        if runs:
            await made.start()
        try:
            yield made
        finally:
            await made.stop()
            await made.alerts.close()
    assert verify_files(settings) == []
