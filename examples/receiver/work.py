"""Work that ends later: after a time, or when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from examples.receiver.record import Line
from examples.receiver.wire import Answer


class Work:
    """One piece of work. ``act`` ends it and gives the answer for whoever waits; it runs once.

    ``line`` is the call that it belongs to, where the receiver admits to know of it.
    """

    def __init__(self, release: str, act: Callable[[], Answer], line: Line | None = None) -> None:
        self.release = release
        self.act = act
        self.line = line
        self.ended: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def end(self) -> None:
        try:
            self.ended.set_result(self.act())
        except OSError as error:
            self.ended.set_exception(error)


class Bench:
    """The work that has begun and has not ended."""

    def __init__(self) -> None:
        self._works: dict[str, list[Work]] = {}

    def begin(self, work: Work, seconds: float | None) -> asyncio.Future[Answer]:
        """Take up work that ends after so long; None waits for ``end_all``."""
        self._works.setdefault(work.release, []).append(work)
        if seconds is not None:
            asyncio.get_running_loop().call_later(max(seconds, 0.0), self._end, work)
        return work.ended

    def end_all(self, release: str) -> int:
        """End the work on a release now. Returns how many pieces there were."""
        works = list(self._works.get(release, ()))
        for work in works:
            self._end(work)
        return len(works)

    def known(self, release: str) -> list[Line]:
        """The calls at work that the receiver admits to know of."""
        return [work.line for work in self._works.get(release, ()) if work.line is not None]

    def busy(self, release: str) -> bool:
        return release in self._works

    def _end(self, work: Work) -> None:
        works = self._works.get(work.release, [])
        if work not in works:
            return
        works.remove(work)
        if not works:
            del self._works[work.release]
        work.end()
