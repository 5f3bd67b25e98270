"""CPU that a side has used, beside the seconds that it took."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """Seconds by the clock, of this process's CPU, and of the servers'."""

    seconds: float
    client: float
    servers: float


class Meter:
    """Runs from when it is made; `servers` are their first processes."""

    def __init__(self, servers: Sequence[int] = ()) -> None:
        self._servers = servers
        self._from = self._now()

    def read(self) -> Spent:
        return Spent(*(now - then for now, then in zip(self._now(), self._from, strict=True)))

    def _now(self) -> tuple[float, float, float]:
        return time.perf_counter(), time.process_time(), sum(map(_cpu_of, self._servers))


def _cpu_of(pid: int) -> float:
    """Of a process, of those of its children that have ended, and of those that have not."""
    ticks = sum(int(field) for field in _stat(pid)[11:15])
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            with suppress(OSError):
                ticks += sum(int(field) for field in _stat(int(child))[11:13])
    return ticks / _TICKS


def _stat(pid: int) -> list[str]:
    """The fields behind the program's name: the state is the first."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
