"""Loops: what looks again and again for something to do, and ends only when it is told to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from journal.errors import Recovering, UnrewindError, WriterStopped

LOGGER = logging.getLogger("unrewind")


class Complaint:
    """Logs a trouble when it begins or changes, not each time that it is met again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = ""

    def about(self, error: UnrewindError) -> None:
        """This is the trouble now. A tenant that is closed is none of ours: others say so."""
        if error.detail != self._last:
            self._last = error.detail
            level = logging.INFO if isinstance(error, Recovering) else logging.WARNING
            LOGGER.log(level, "%s: %s", self._what, error.detail)

    def over(self) -> None:
        """It went well."""
        self._last = ""


class Loop:
    """Runs ``look`` every so many seconds, at once when rung or where it asks for it.

    ``look`` tells whether to look again at once. What it raises is logged, and the next look comes
    at its time; only a writer that has stopped for good ends the loop. ``begun`` counts the looks,
    ``looks`` those that have ended.
    """

    def __init__(self, what: str, look: Callable[[], Awaitable[bool]], every: float) -> None:
        self._what = what
        self._look = look
        self._every = every
        self._rung = asyncio.Event()
        self._complaint = Complaint(what)
        self.stopping = False
        self.looks = self.begun = 0

    def ring(self) -> None:
        """Look now. A ring during a look makes another one follow it."""
        self._rung.set()

    def stop(self) -> None:
        """End after the look that is under way."""
        self.stopping = True
        self._rung.set()

    async def run(self) -> None:
        """Look until stopped."""
        while not self.stopping:
            self._rung.clear()
            if not await self._look_once() and not self.stopping:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._every):
                        await self._rung.wait()

    async def _look_once(self) -> bool:
        self.begun += 1
        try:
            again = await self._look()
        except WriterStopped as error:
            LOGGER.error("%s: no more from this process: %s", self._what, error.detail)  # noqa: TRY400 - one line
            self.stopping = True
            return False
        except UnrewindError as error:
            self._complaint.about(error)
            return False
        except Exception:
            LOGGER.exception("%s: a look failed", self._what)
            return False
        finally:
            self.looks += 1
        self._complaint.over()
        return again
