"""Running many seeds: each in a process that is forked for it, as many at once as there are cores.

A world leaves its killed processes as they were; the kernel clears them away with the fork.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from tests.simulation import mutating
from tests.simulation.mutants import MUTANTS
from tests.simulation.playing import Played, play
from tests.simulation.workload import Event

SECONDS = 180.0
"""Seconds of real time after which a seed hangs, on a machine however busy."""

_PART = 1 << 16


class Child(Struct):
    """A fork that plays one seed, and what it has written so far."""

    seed: int
    pid: int
    pipe: int
    since: float
    content: bytes = b""


def run_all(
    seeds: Iterable[int],
    folder: Path,
    jobs: int,
    mutant: str | None = None,
    told: Callable[[Played], None] = lambda _: None,
) -> Generator[Played]:
    """How each seed went, as soon as it is known."""
    waiting = iter(seeds)
    running: dict[int, Child] = {}
    try:
        while True:
            while len(running) < jobs and (seed := next(waiting, None)) is not None:
                child = _fork(seed, folder, None, mutant)
                running[child.pipe] = child
            if not running:
                return
            for pipe in select.select([*running], [], [], 1.0)[0]:
                part = os.read(pipe, _PART)
                running[pipe].content += part
                if not part:
                    played = _reap(running.pop(pipe))
                    told(played)
                    yield played
            for child in running.values():
                if time.monotonic() - child.since > SECONDS:
                    os.kill(child.pid, signal.SIGKILL)
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            _reap(child)


def first_to_find(name: str, seeds: int, folder: Path, jobs: int) -> Played | None:
    """The first seed that finds a mutant, of so many and the one that it is known for."""
    known = MUTANTS[name].seed
    tried = run_all([known, *range(1, seeds + 1)], folder, jobs, name)
    with closing(tried):
        return next((played for played in tried if played.promise is not None), None)


def run_one(
    seed: int, folder: Path, events: Sequence[Event] | None = None, mutant: str | None = None
) -> Played:
    """How one seed goes, or some of its events."""
    child = _fork(seed, folder, events, mutant)
    with suppress(OSError):
        while part := os.read(child.pipe, _PART):
            child.content += part
    return _reap(child)


def _fork(seed: int, folder: Path, events: Sequence[Event] | None, mutant: str | None) -> Child:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        code = 1
        try:
            os.write(writing, b"")
            played = _play(seed, folder, events, mutant)
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(msgspec.json.encode(played))
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    return Child(seed, pid, reading, time.monotonic())


def _play(seed: int, folder: Path, events: Sequence[Event] | None, mutant: str | None) -> Played:
    try:
        if mutant is not None:
            mutating.apply(MUTANTS[mutant])
        return play(seed, folder, events)
    except Exception:  # noqa: BLE001 - a fault of the simulation's own, or of the code
        return Played(seed, "", {}, "error", traceback.format_exc())


def _reap(child: Child) -> Played:
    os.close(child.pipe)
    os.waitpid(child.pid, 0)
    try:
        return msgspec.json.decode(child.content, type=Played)
    except msgspec.MsgspecError:
        return Played(child.seed, "", {}, "error", "its process ended without a word, or hung")


def total(every: Iterable[Played]) -> Counter[str]:
    """What all of them did together."""
    counts: Counter[str] = Counter()
    for played in every:
        counts.update(played.counts)
    return counts
