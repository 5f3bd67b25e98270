"""The heart: signs of life for every claim of this process, from a thread of its own.

A blocked event loop or a busy writer must not look like a dead worker, so the thread has its own
files. It stops at the lane's cap: what a call may take is bounded, and a handler that hangs must
not be kept alive for ever.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from api.loops import Complaint
from journal import Settings
from journal.driving import drive
from journal.errors import FenceFailed, UnrewindError
from journal.record import Record
from journal.reports import Beating, beat

LOGGER = logging.getLogger("unrewind")
BEATS = 3
"""Signs of life in a lease: one may be late, and there still are two."""

_SOONER = 4
"""A sign that could not be given is tried again after so small a part of the pause."""


class Heart:
    """Beats for claims from ``hold`` to ``let_go``. Both may be called from any thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._until: dict[tuple[str, str, int], float] = {}
        self._next: dict[str, float] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._complaint = Complaint("no sign of life could be written")

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def hold(self, lane: str, claims: Iterable[tuple[str, int]]) -> None:
        """Keep these claims alive, for the lane's cap at the longest."""
        now = time.monotonic()
        until = now + self._settings.lanes[lane].cap
        held = {(lane, identity, lease): until for identity, lease in claims}
        with self._changed:
            self._until.update(held)
            if held and lane not in self._next:
                self._next[lane] = now + self._pause(lane)
                self._changed.notify()

    def let_go(self, lane: str, claims: Iterable[tuple[str, int]]) -> None:
        """These claims have ended."""
        with self._changed:
            for identity, lease in claims:
                self._until.pop((lane, identity, lease), None)

    def _pause(self, lane: str) -> float:
        return self._settings.lanes[lane].lease / BEATS

    # In the thread.

    def _run(self) -> None:
        record: Record | None = None
        while (due := self._wait()) is not None:
            lane, claims = due
            try:
                record = record or self._open()
                self._beat(record, Beating(lane, claims))
            except UnrewindError as error:
                self._complaint.about(error)
                self._again(lane)
            except Exception:
                LOGGER.exception("the heart failed")
                self._again(lane)
            else:
                self._complaint.over()
        if record is not None:
            drive(record.close())

    def _beat(self, record: Record, beating: Beating) -> None:
        try:
            drive(beat(record, beating))
        except FenceFailed:  # another process wrote between its look and its commit
            drive(beat(record, beating))

    def _open(self) -> Record:
        record = Record(self._settings)
        try:
            drive(record.open(create=False))
        except BaseException:
            drive(record.close())
            raise
        return record

    def _wait(self) -> tuple[str, list[tuple[str, int]]] | None:
        """The next lane that a sign is due in, with its claims, when it is due; None: stopped."""
        with self._changed:
            while not self._stopped:
                lane = min(self._next, key=self._next.__getitem__, default=None)
                now = time.monotonic()
                if lane is None:
                    self._changed.wait()
                elif self._next[lane] > now:
                    self._changed.wait(self._next[lane] - now)
                elif claims := self._alive(lane, now):
                    # From when it was due, so that what a sign takes does not add up.
                    self._next[lane] = max(now, self._next[lane] + self._pause(lane))
                    return lane, claims
                else:
                    del self._next[lane]
        return None

    def _alive(self, lane: str, now: float) -> list[tuple[str, int]]:
        for key in [key for key, until in self._until.items() if until < now]:
            LOGGER.error("work %s has reached its lane's cap: no more signs of life", key[1])
            del self._until[key]
        return [(identity, lease) for name, identity, lease in self._until if name == lane]

    def _again(self, lane: str) -> None:
        with self._changed:
            self._next[lane] = time.monotonic() + self._pause(lane) / _SOONER
