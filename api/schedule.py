"""The schedule: jobs that only wake work which may be repeated at any time."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from journal import Journal
from journal.errors import UnrewindError

LOGGER = logging.getLogger("unrewind")


class Schedule:
    """Wakes handoff and detection. A job that fails is logged and comes again at its time."""

    def __init__(self, journal: Journal) -> None:
        settings = journal.settings
        # A late job runs once, however often it was missed: nothing here depends on its time.
        self._scheduler = AsyncIOScheduler(
            timezone="UTC",
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._add("settle", journal.settle, settings.handoff_every)
        self._add("detect", lambda: journal.detect(deep=True), settings.detect_every)

    def _add(self, name: str, work: Callable[[], Awaitable[object]], seconds: float) -> None:
        async def job() -> None:
            try:
                await work()
            except UnrewindError as error:
                LOGGER.warning("%s: %s", name, error)
            except Exception:
                LOGGER.exception("%s failed", name)

        self._scheduler.add_job(job, "interval", seconds=seconds, id=name, name=name)

    def start(self) -> None:
        """Start waking."""
        self._scheduler.start()

    def stop(self) -> None:
        """Wake nothing more; what runs is left to finish."""
        self._scheduler.shutdown(wait=False)
