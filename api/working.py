"""What runs beside the calls: the dispatcher, the schedule, and the watch over the lanes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.alerts import Alerts
from api.dispatcher import Dispatcher
from api.schedule import Schedule
from api.watching import Watch
from journal import Journal


@asynccontextmanager
async def working(
    journal: Journal, alerts: Alerts, made: Dispatcher | None = None
) -> AsyncIterator[Dispatcher]:
    """Run everything beside the calls; ends when what is under way has ended.

    With `dispatch = false` the dispatcher runs only the commands that a request asks for. A
    dispatcher that was ``made`` before has shown that handlers and secrets are there.
    """
    dispatcher = made or Dispatcher(journal, alerts)
    leading = await journal.join("serve", schedules=True)
    schedule = Schedule(journal, Watch(journal, alerts), leading)
    await dispatcher.start(loops=journal.settings.dispatch)
    try:
        schedule.start()
        try:
            yield dispatcher
        finally:
            await schedule.stop()
    finally:
        await dispatcher.stop()
        await alerts.close()
