"""Keeping: having the journal take what became of work, for as long as that is worth trying."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from api.alerts import Alerts, Kind
from journal import Journal
from journal.errors import Invalid, NotFound, Refusal, UnrewindError, WriterStopped
from journal.outcomes import Outcome, Reported
from journal.together import report_together

LOGGER = logging.getLogger("unrewind")
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_AT_A_STOP = 5.0
"""Seconds for which a process that is to end still tries."""


class Keeper:
    """Reports for the workers of this process.

    Meanwhile nothing else is begun in the worker's slot, and its claim is kept alive. What is given
    up in the end is for the sweeper: the receiver is asked, or a person.
    """

    def __init__(self, journal: Journal, alerts: Alerts, worker: str) -> None:
        self._journal = journal
        self._alerts = alerts
        self.worker = worker
        self._hurrying = asyncio.Event()

    def hurry(self) -> None:
        """The process is to end: try on for a moment only."""
        self._hurrying.set()

    async def keep_all(self, said: Sequence[Reported], seconds: float) -> None:
        """Have the reports of one act kept, in one commit where they are many. Raises nothing."""
        left = said
        if len(said) > 1:
            try:
                left = await self._journal.write(report_together, said)
            except UnrewindError as error:
                LOGGER.info("%d reports are kept one by one: %s", len(said), error.detail)
            except Exception:
                LOGGER.exception("%d reports are kept one by one", len(said))
        await asyncio.gather(*(self.keep(one, seconds) for one in left))

    async def keep(self, said: Reported, seconds: float) -> None:
        """Have a report kept, trying for so many seconds. Raises nothing."""
        loop = asyncio.get_running_loop()
        began, pause = loop.time(), _FIRST_PAUSE
        while True:
            error = await self._try(said)
            if error is None:
                self._alerts.cleared(Kind.RESULT_NOT_STORED, said.id)
                return
            if said.outcome is Outcome.CONFIRMED:
                self._alerts.raise_once(
                    Kind.RESULT_NOT_STORED,
                    said.id,
                    f"{said.id} happened, and its result cannot be stored: {error}",
                    release=said.id,
                    receipt=said.receipt,
                )
            limit = min(seconds, _AT_A_STOP) if self._hurrying.is_set() else seconds
            if isinstance(error, WriterStopped) or loop.time() - began + pause > limit:
                LOGGER.error(
                    "%s: its report is given up: %s, receipt %s: %s",
                    said.id, said.outcome, said.receipt, error,
                )  # fmt: skip
                return
            await self._pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _try(self, said: Reported) -> Exception | None:
        """Report once; the fault for which to try again, None when there is nothing left to do."""
        try:
            await self._journal.lanes.report(said, self.worker)
        except (Refusal, NotFound, Invalid) as error:
            LOGGER.warning("%s: its report was refused: %s", said.id, error.detail)
        except UnrewindError as error:
            return error
        except Exception as error:
            LOGGER.exception("%s: its report failed", said.id)
            return error
        return None

    async def _pause(self, seconds: float) -> None:
        if self._hurrying.is_set():
            await asyncio.sleep(min(seconds, 1.0))
            return
        try:
            async with asyncio.timeout(seconds):
                await self._hurrying.wait()
        except TimeoutError:
            return
