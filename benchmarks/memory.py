"""The most memory that a function holds at once, its own processes included."""

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.measure import MeasureError

_EVERY = 0.005
_KIB = 1024


@dataclass(frozen=True)
class Peak:
    """Bytes: what the processes hold for themselves, and with the pages of files that they map."""

    own: int
    resident: int


def peak_of(function: Callable[..., None], *args: Any) -> Peak:
    """Call a module's function in a new process and watch it and its children from outside.

    What the process holds before the function is called (the interpreter, modules) is counted too,
    on both sides of a ratio.
    """
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=function, args=args)
    process.start()
    own = resident = 0
    while process.is_alive():
        held = [_held(pid) for pid in _family(process.pid or 0)]
        own = max(own, sum(anonymous for anonymous, _ in held))
        resident = max(resident, sum(all_of_it for _, all_of_it in held))
        time.sleep(_EVERY)
    process.join()
    if process.exitcode != 0:
        raise MeasureError(f"{function.__name__} ended with {process.exitcode}")
    if own == 0:
        raise MeasureError("this system does not tell what a process holds")
    return Peak(own, resident)


def own() -> int:
    """Bytes that this process holds for itself now."""
    return _held(os.getpid())[0]


def held(pid: int) -> int:
    """Bytes that a process holds for itself now."""
    return _held(pid)[0]


def _family(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:
            continue
        for child in children:
            found += _family(int(child))
    return found


def _held(pid: int) -> tuple[int, int]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    fields = dict(line.split(":", 1) for line in lines if line.startswith("Rss"))
    anonymous = fields.get("RssAnon", "0 kB").split()[0]
    every = sum(int(value.split()[0]) for value in fields.values())
    return int(anonymous) * _KIB, every * _KIB
