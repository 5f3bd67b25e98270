"""Shortening: as few events of a seed as still break the same promise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.simulation.playing import Played
from tests.simulation.running import run_one
from tests.simulation.workload import Event, workload_of

_MOST = 150
"""Plays that a shortening may take."""


def shorten(failed: Played, folder: Path, mutant: str | None = None) -> tuple[list[Event], Played]:
    """The events that are left, and how they go."""
    budget = _MOST
    best = failed

    def breaks(events: Sequence[Event]) -> bool:
        nonlocal budget, best
        budget -= 1
        played = run_one(failed.seed, folder, events, mutant)
        if played.promise != failed.promise:
            return False
        best = played
        return True

    events = without(workload_of(failed.seed), breaks, lambda: budget > 0)
    return events, best


def without(
    events: list[Event], breaks: Callable[[Sequence[Event]], bool], may: Callable[[], bool]
) -> list[Event]:
    """Leave out parts, halves first, for as long as what is left still breaks."""
    size = max(len(events) // 2, 1)
    while may():
        start, left_out = 0, False
        while start < len(events) and may():
            fewer = events[:start] + events[start + size :]
            if breaks(fewer):
                events, left_out = fewer, True
            else:
                start += size
        if size == 1 and not left_out:
            break
        size = max(size // 2, 1)
    return events
