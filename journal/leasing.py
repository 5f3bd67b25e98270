"""Leading by lease: each process has a row with a lease in the store of a server.

See ``journal.leading``, whose way of leading this is where processes share no file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from journal.errors import UnrewindError
from journal.leading import SIGNS, Found, Leading, Runs, contradicted, give_sign, leave, myself
from journal.settings import Settings

LOGGER = logging.getLogger("unrewind")


class LeadingByLease(Leading):
    """Each process has a row with a lease in the store; the leader's says that it leads."""

    def __init__(self, settings: Settings, write: Runs, kind: str, *, schedules: bool) -> None:
        self._settings = settings
        self._write = write
        self._seconds = settings.alive_for
        self._schedules = schedules
        self._me = myself(settings, kind)
        self._found: Found | None = None
        self._at = 0.0
        self._signing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def join(self) -> None:
        """See ``Leading.join``. In a tenant that is closed it is compared once that is over."""
        await self._give_sign()
        if self._found is not None and self._found.other is not None:
            raise contradicted(self._settings, self._found.other)
        self._task = asyncio.create_task(self._keep_on(), name="leading")

    async def _keep_on(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / SIGNS)
            await self._give_sign()

    async def _give_sign(self) -> None:
        async with self._signing:
            # From before, so that what a sign takes is no part of what it is good for.
            at = _now()
            try:
                found = await self._write(give_sign, self._me, self._seconds, self._schedules)
            except UnrewindError as error:
                LOGGER.debug("no sign of life: %s", error)
                return
            except Exception:
                LOGGER.exception("no sign of life could be given")
                return
            self._tell(found)
            self._found, self._at = found, at

    def _tell(self, found: Found) -> None:
        before = self._found
        mine = self._me.name
        if (found.leader == mine) != (before is not None and before.leader == mine):
            said = "does" if found.leader == mine else "does no longer"
            LOGGER.info("this process %s the jobs of the schedule", said)
        if found.other is not None and (before is None or before.other is None):
            LOGGER.error("%s", contradicted(self._settings, found.other).detail)

    async def _renewed(self) -> Found | None:
        """What the last sign of life found, given again where the process has stood still since."""
        if self._found is None or _now() - self._at > self._seconds / 2:
            await self._give_sign()
        if _now() - self._at > self._seconds:
            return None  # whoever led then may lead no more
        return self._found

    async def is_ours(self) -> bool:
        """See ``Leading.is_ours``."""
        found = await self._renewed()
        if found is None:
            return True
        return found.other is None and found.leader in {None, self._me.name}

    async def differs(self) -> str | None:
        """See ``Leading.differs``."""
        found = await self._renewed()
        if found is None or found.other is None:
            return None
        return contradicted(self._settings, found.other).detail

    async def leave(self) -> None:
        """See ``Leading.leave``."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
        with suppress(UnrewindError):
            await self._write(leave, self._me.name)


def _now() -> float:
    """Seconds that pass while the process, or its machine, stands still too."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
