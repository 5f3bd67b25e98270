"""The schedule: jobs that only wake work which may be repeated at any time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from apscheduler.schedulers.asyncio import AsyncIOScheduler

from api.watching import Watch
from journal import Journal
from journal.errors import UnrewindError
from journal.leading import Leading

LOGGER = logging.getLogger("unrewind")


class Schedule:
    """Wakes handoff, detection, the sweeper and the watch over the lanes.

    A job that fails is logged and comes again at its time. Of several processes one does those that
    cost much or tell somebody; each hands off, compares markers and looks at control for itself.
    """

    def __init__(self, journal: Journal, watch: Watch, leading: Leading) -> None:
        settings = journal.settings
        self._journal = journal
        self._leading = leading
        self._running: set[asyncio.Event] = set()
        # A late job runs once, however often it was missed: nothing here depends on its time.
        self._scheduler = AsyncIOScheduler(
            timezone="UTC",
            job_defaults={"coalesce": True, "max_instances": 1, "misfire_grace_time": None},
        )
        self._add("settle", journal.settle, settings.handoff_every)
        self._add("detect", self._detect, settings.detect_every)
        self._add("sweep", self._led(journal.lanes.sweep), settings.sweep_every)
        watches = min(settings.sweep_every, settings.sweep_overdue)
        self._add("watch", self._led(watch.look), watches)

    async def _detect(self) -> None:
        await self._journal.detect(deep=await self._leading.is_ours())

    def _led(self, work: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[None]]:
        """The work, unless another process is known to do it."""

        async def job() -> None:
            if await self._leading.is_ours():
                await work()

        return job

    def _add(self, name: str, work: Callable[[], Awaitable[object]], seconds: float) -> None:
        async def job() -> None:
            ended = asyncio.Event()
            self._running.add(ended)
            try:
                await work()
            except UnrewindError as error:
                LOGGER.warning("%s: %s", name, error)
            except Exception:
                LOGGER.exception("%s failed", name)
            finally:
                ended.set()
                self._running.discard(ended)

        self._scheduler.add_job(job, "interval", seconds=seconds, id=name, name=name)

    def start(self) -> None:
        """Start waking."""
        self._scheduler.start()

    async def stop(self) -> None:
        """Wake nothing more, and let what runs come to its end."""
        self._scheduler.pause()
        for ended in [*self._running]:
            await ended.wait()
        # It would cancel what runs.
        self._scheduler.shutdown(wait=False)
