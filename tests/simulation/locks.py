"""A turn lock that can be taken away, as a server's can: whoever waits too long ends its holder's.

Then a process that stood still within a turn goes on beside another one's turn, and only the fence
and the journal's comparison keep it from deciding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.simulation import machine
from tests.simulation.hub import Process

_PAUSE = 0.02


class LooseLock:
    """One process's hold on the tenant's turn; see ``journal.locks.Lock``."""

    def __init__(self, holders: dict[str, LooseLock], timeout: float) -> None:
        self._holders, self._timeout = holders, timeout
        self._process: Process = machine.process()
        self._depth = 0
        self.waited = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """See ``Lock.held``: it is had in any case, in the end."""
        if self._depth == 0:
            self._take()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0 and self._holders.get("turn") is self:
                del self._holders["turn"]

    def _take(self) -> None:
        hub = machine.hub()
        began = hub.now
        while (holder := self._holders.get("turn")) is not None and holder._process.alive:
            if hub.now - began > self._timeout:
                machine.machine().world.count("turn taken away")
                break
            hub.sleep(_PAUSE)
        self.waited = hub.now > began
        self._holders["turn"] = self

    def close(self) -> None:
        """See ``Lock.close``."""
        if self._holders.get("turn") is self:
            del self._holders["turn"]
