"""The asker: asks a lane's receiver what became of releases whose outcome is not known."""

from __future__ import annotations

import asyncio
import logging

from api.carrier import Carrier
from api.loops import Loop
from api.parcels import answer_of
from api.receivers import Caller
from journal import Journal
from journal.asking import Question
from journal.errors import UnrewindError

LOGGER = logging.getLogger("unrewind")
_AT_ONCE = 64


class Asker:
    """Asks about releases of one lane when they are due, as many at once as its ``concurrency``.

    An answer that is lost is no harm: the question comes again at its time.
    """

    def __init__(self, journal: Journal, caller: Caller, carrier: Carrier) -> None:
        self._journal = journal
        self._caller = caller
        self._carrier = carrier
        self._name = name = carrier.name
        self._places = asyncio.Semaphore(journal.settings.lanes[name].concurrency)
        self.loop = Loop(f"asking in lane {name}", self._look, journal.settings.dispatch_every)

    async def _look(self) -> bool:
        """Ask what is due; whether more may be."""
        questions = await self._journal.lanes.to_ask(self._name, _AT_ONCE)
        await asyncio.gather(*(self._ask(question) for question in questions))
        return len(questions) == _AT_ONCE

    async def _ask(self, question: Question) -> None:
        async with self._places:
            if self.loop.stopping:
                return
            reply = await self._caller.ask(
                question.receiver, question.id, question.digest, question.attempt
            )
        # Who lives on is never proven dead: about its own attempts this process has to tell.
        idle = None if self._carrier.carries(question.id) else self._carrier.worker
        try:
            told, said = answer_of(question.id, reply)
            await self._journal.lanes.take_answer(told, said, idle, question)
        except UnrewindError as error:
            LOGGER.warning("%s: the receiver's answer is not taken: %s", question.id, error.detail)
        except Exception:
            LOGGER.exception("%s: the receiver's answer is not taken", question.id)
