"""Handoffs: the places between two ends at which a process can be struck, as seen from outside."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum

from tests.soak.effects import PULLED, Town

_WATCHED = 2.5
"""Seconds after which a mark that never came is given up, and the strike made all the same."""


class Handoff(StrEnum):
    """Where a release is when somebody is struck."""

    STORED = "a decision is in the store and not in the journal"
    JOURNALLED = "it is permitted, in store and journal"
    COMMITTED = "its commitment is journalled"
    CALLING = "its call is under way"
    ACCEPTED = "the other end has done it and has not answered"
    ANSWERED = "the other end has answered, and its receipt is not stored"


class Watch:
    """Looks at store, journal and records until a release is at a handoff."""

    def __init__(self, town: Town, handoff: Handoff, lane: str, release: str) -> None:
        self._town = town
        self._release = release
        self._lane = lane
        self._store = town.look(town.store)
        self._journal = town.look(town.journal)
        marks: dict[Handoff, Callable[[], bool]] = {
            Handoff.STORED: self._stored,
            Handoff.JOURNALLED: self._journalled,
            Handoff.COMMITTED: self._committed,
            Handoff.CALLING: self._calling,
            Handoff.ACCEPTED: self._accepted,
            Handoff.ANSWERED: self._accepted,
        }
        self._mark = marks[handoff]

    def close(self) -> None:
        self._store.close()
        self._journal.close()

    def until_there(self) -> bool:
        """Wait for the mark; whether it came."""
        deadline = time.monotonic() + _WATCHED
        while time.monotonic() < deadline:
            with suppress(sqlite3.OperationalError):
                if self._mark():
                    return True
            time.sleep(0.0003)
        return False

    def holder(self) -> int | None:
        """The process that holds the release's claim, where that is one of this machine."""
        parts = str(self._row()[2]).rsplit(":", 1)
        return int(parts[1]) if len(parts) == 2 and parts[1].isdigit() else None

    # Marks.

    def _stored(self) -> bool:
        return self.pending() > 0

    def pending(self) -> int:
        """How many decisions the store has that the journal lacks."""
        # The store is looked at first: what the journal lacks afterwards it lacked then.
        stored = self._store.execute("SELECT max(sequence) FROM unrewind_decisions").fetchone()[0]
        known = self._journal.execute(
            "SELECT max(sequence) FROM entries WHERE stream = 'decisions'"
        ).fetchone()[0]
        return (stored or 0) - (known or 0)

    def _row(self) -> tuple[str, str, str | None]:
        found = self._store.execute(
            "SELECT status, step, worker FROM unrewind_work WHERE id = ?", (self._release,)
        ).fetchone()
        return found or ("", "", None)

    def _journalled(self) -> bool:
        return self._row()[0] == "ready"

    def _committed(self) -> bool:
        return self._row()[0] == "running"

    def _calling(self) -> bool:
        if self._lane == PULLED:
            return self._noted("permit")
        return self._row()[1] == "calling" or bool(self._called())

    def _accepted(self) -> bool:
        if self._lane == PULLED:
            return self._noted("executed")
        return self._town.receivers[self._lane].executions(self._release) > 0

    def _called(self) -> int:
        return self._town.receivers[self._lane].attempts(self._release)

    def _noted(self, kind: str) -> bool:
        return any(line["release"] == self._release for line in self._town.puller.lines(kind))


# What receivers do.

Rule = dict[str, object]

_QUICK: tuple[Rule, ...] = ({"behave": "ok"}, {"behave": "ok", "status": 204})
_AWKWARD: tuple[Rule, ...] = (
    {"behave": "delay", "seconds": 0.2},
    {"behave": "delay", "seconds": 0.2, "before": "answering"},
    {"behave": "delay", "seconds": 0.6, "before": "answering"},
    {"behave": "lose-reply"},
    {"behave": "reset"},
    {"behave": "reset", "execute": True},
    {"behave": "error", "status": 500},
    {"behave": "error", "status": 502, "execute": True},
    {"behave": "rate-limit", "retry_after": 0},
    {"behave": "pending", "seconds": 0.2},
    {"behave": "garbage"},
)
_FITTING: dict[str, tuple[Rule, ...]] = {
    "idempotent": ({"behave": "delay", "seconds": 0.6},),
    "queryable": (
        {"behave": "delay", "seconds": 0.6},
        {"behave": "not-found-in-flight", "seconds": 0.1},
        {"behave": "refuse"},
        {"behave": "wrong-digest"},
    ),
    "opaque": ({"behave": "refuse"}, {"behave": "wrong-digest"}),
}
_WIDE: dict[Handoff, Rule] = {
    Handoff.CALLING: {"behave": "delay", "seconds": 0.25},
    Handoff.ACCEPTED: {"behave": "delay", "seconds": 0.25, "before": "answering"},
    Handoff.ANSWERED: {"behave": "lose-reply"},
}
"""What keeps a release at a handoff for a moment longer."""


def behaviour(lane: str, rng: random.Random) -> Rule:
    """What the receiver of a lane does with the first call of a release."""
    if rng.random() < 0.4:
        return dict(rng.choice(_QUICK))
    return dict(rng.choice((*_AWKWARD, *_FITTING[lane])))


def widening(handoff: Handoff, rng: random.Random) -> Rule:
    """What it does with the one that is watched."""
    wide = _WIDE.get(handoff)
    return {"behave": "ok"} if wide is None or rng.random() < 0.3 else dict(wide)
