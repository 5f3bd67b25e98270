"""Playing seeds: a template of the tenant made once, then one world after the other."""

from __future__ import annotations

import logging
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from msgspec import Struct

from api.opening import writing
from tests.simulation import connections, machine
from tests.simulation.hub import Hub
from tests.simulation.loop import FiberWorker
from tests.simulation.machine import Machine
from tests.simulation.promises import Broken
from tests.simulation.receivers import Wire
from tests.simulation.service import Interval
from tests.simulation.tenant import settings_in
from tests.simulation.workload import Event, profile_of, workload_of
from tests.simulation.world import World


class Played(Struct):
    """How a seed went. ``promise`` is None where every one held."""

    seed: int
    digest: str
    counts: dict[str, int]
    promise: str | None = None
    detail: str = ""
    at: float = 0.0
    step: int = 0
    trace: list[str] = []


@cache
def prepare() -> None:
    """Put the machine in the modules' way; once in a process."""
    logging.disable(logging.CRITICAL)
    machine.install(FiberWorker, connections.stamp_of, Interval, Wire)


@contextmanager
def shared() -> Iterator[Path]:
    """A folder in memory for worlds, with the founded tenant that each of them begins with."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    folder = Path(mkdtemp(prefix="unrewind-simulation-", dir=memory if memory.is_dir() else None))
    try:
        prepare()
        _found(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _found(folder: Path) -> None:
    """Found the tenant in a world of its own, so that every seed begins with the same bytes."""
    hub = Hub("founding")
    made = Machine(hub, "founding")
    made.connect = connections.connect
    machine.present(made)
    settings = settings_in(folder / "template")

    def found() -> None:
        with writing(settings, create=True):
            pass

    process = hub.process("founding")
    fiber = hub.spawn(process, "founding", found)
    hub.run()
    process.exit()
    machine.present(None)
    if fiber.error is not None:
        raise fiber.error


def play(seed: int, shared_folder: Path, events: Sequence[Event] | None = None) -> Played:
    """Play a seed, or some of its events."""
    folder = shared_folder / f"world-{os.getpid()}-{seed}"
    folder.mkdir()
    profile = profile_of(seed)
    chosen = workload_of(seed) if events is None else events
    world = World(seed, folder, shared_folder / "template" / "data", chosen, profile)
    broken: Broken | None = None
    try:
        world.run()
    except Broken as error:
        broken = error
    finally:
        machine.present(None)
        connections.guard(None)
        shutil.rmtree(folder, ignore_errors=True)
    played = Played(seed, world.digest, dict(Counter(world.counts)))
    if broken is not None:
        played.promise, played.detail = broken.promise, broken.detail
        played.at, played.step, played.trace = world.hub.now, world.hub.steps, world.trace
    return played
