"""Reconciling with receivers: the questions of a reconciliation, put to them and taken in.

What is asked, and what follows, is decided in ``reconstruct``; here is who talks to the world, how
many at once and how often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from api.parcels import answer_of
from api.progress import Show
from api.receivers import Caller
from api.replies import Result
from journal.asking import Question
from journal.errors import Invalid
from journal.lanes import Contract
from journal.settings import Settings
from reconstruct import auditing, reconciling
from reconstruct.auditing import Reconciled
from reconstruct.fencing import alone
from reconstruct.reconciling import START, Cursor, Heard, Run

Runner = Callable[..., Awaitable[Any]]
"""Runs ``function(record, *args)`` over the tenant's writing record."""

AT_ONCE = 64
"""Questions at the same time, over all receivers."""


def _silent(_done: int, _total: int, _what: str) -> None:
    """No progress shown."""


async def reconcile(
    run: Runner,
    settings: Settings,
    *,
    limit: int | None = None,
    rate: float = 0.0,
    incidents: bool = False,
    principal: str | None = None,
    show: Show = _silent,
    environment: Mapping[str, str] | None = None,
) -> Reconciled:
    """Find out what became of every release, as far as anybody can tell.

    At most ``limit`` releases are looked at this time, at most ``rate`` questions a second are put
    (0: as many as each receiver's own rate allows). With ``incidents`` releases that were made
    without authority are recorded as such. Interrupted anywhere and run again it goes on where it
    was. Raises SettingsInvalid for a secret that is not set, Invalid for a limit that is none,
    Refused while another step of a recovery is at work or none was applied, Recovering,
    JournalUnavailable or LockHeld.
    """
    if limit is not None and limit < 1:
        raise Invalid("limit must be at least 1", field="limit")
    if not 0 <= rate < float("inf"):
        raise Invalid("rate must be 0, which is no limit, or above", field="rate")
    asked = {
        name: receiver
        for name, receiver in settings.receiver.items()
        if receiver.status_url is not None and receiver.contract is not Contract.OPAQUE
    }
    with alone(settings):
        async with Caller(asked, environment) as caller:
            found: Run = await run(reconciling.look)
            asking = _Asking(settings, caller, rate)
            work = _Pages(run, found, asking, principal, limit, show)
            whole = await work.through(again=False) and await work.through(again=True)
        await _audit(run, found)
        recorded = await _record(run, found, principal) if incidents else 0
        done: Reconciled = await run(auditing.close, found, whole, recorded, principal)
        return done


class _Pages:
    """Page after page, until there is none or the limit is reached."""

    def __init__(
        self,
        run: Runner,
        found: Run,
        asking: _Asking,
        principal: str | None,
        limit: int | None,
        show: Show,
    ) -> None:
        self._run = run
        self._found = found
        self._asking = asking
        self._principal = principal
        self._limit = limit
        self._show = show
        self._done = 0

    async def through(self, *, again: bool) -> bool:
        """All that has no finding; ``again``, all that is to be asked about anew.

        False where the limit was reached before the end.
        """
        after: Cursor = START
        while self._limit is None or self._done < self._limit:
            most = reconciling.PAGE
            if self._limit is not None:
                most = min(most, self._limit - self._done)
            page = await self._run(reconciling.next_page, self._found, after, most, again)
            if page.empty:
                return True
            heard = await self._asking.all_of(page.questions)
            found = await self._run(reconciling.take, self._found, page, heard, self._principal)
            after = page.after
            self._done += len(found)
            self._show(self._done, max(self._done, self._found.total), "reconciled")
        return False


class _Asking:
    """Puts questions: so many at once for each receiver, no faster than its rate."""

    def __init__(self, settings: Settings, caller: Caller, rate: float) -> None:
        self._caller = caller
        self._places = asyncio.Semaphore(AT_ONCE)
        self._pace = _Pace(rate)
        self._of: dict[str, tuple[asyncio.Semaphore, _Pace]] = {}
        for name, receiver in settings.receiver.items():
            lanes = [lane for lane in settings.lanes.values() if lane.receiver == name]
            places = max((lane.concurrency for lane in lanes), default=1)
            self._of[name] = (asyncio.Semaphore(places), _Pace(receiver.rate))

    async def all_of(self, questions: list[Question]) -> dict[str, Heard]:
        """Every answer, by release."""
        answers = await asyncio.gather(*(self._ask(question) for question in questions))
        return {heard.said.id: heard for heard in answers}

    async def _ask(self, question: Question) -> Heard:
        places, pace = self._of[question.receiver]
        async with places, self._places:
            await pace.wait()
            await self._pace.wait()
            reply = await self._caller.ask(
                question.receiver, question.id, question.digest, question.attempt
            )
        told, said = answer_of(question.id, reply)
        return Heard(told, said, question.asked, usable=reply.result is not Result.FAILED)


class _Pace:
    """At most so many a second; 0: any number."""

    def __init__(self, rate: float) -> None:
        self._between = 1 / rate if rate > 0 else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        """Return when it is one's turn."""
        if not self._between:
            return
        now = time.monotonic()
        turn = max(now, self._next)
        self._next = turn + self._between
        await asyncio.sleep(turn - now)


async def _audit(run: Runner, found: Run) -> None:
    """What is looked at beside the outcomes: deliveries without authority, stray observations."""
    for name in await run(auditing.stops):
        after: Cursor | None = START
        while after is not None:
            after = await run(auditing.delivered, found, name, after)
    position: int | None = 0
    while position is not None:
        position = await run(auditing.strays, found, position)


async def _record(run: Runner, found: Run, principal: str | None) -> int:
    recorded = 0
    after: str | None = ""
    while after is not None:
        number, after = await run(auditing.record_wrongs, found, after, principal)
        recorded += number
    return recorded
