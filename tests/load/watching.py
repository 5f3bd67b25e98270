"""What a process holds while it works, sampled from /proc; and how long its answers take."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

_MIB = 1024
MORE = 0.05
"""The share by which memory may always grow from when a process is warm to the end."""
_STEADY = 1.02
_EACH_ONCE = 75.0
"""Seconds after which each job of the schedule has run, where a run is twice as long."""


class Sample(Struct, frozen=True):
    """Memory in MiB without what is mapped from files, handles, threads, CPU seconds."""

    at: float
    memory: float
    handles: int
    threads: int
    cpu: float


def sample(pid: int) -> Sample:
    """How a process stands now. Raises OSError once it has ended."""
    process = Path(f"/proc/{pid}")
    fields = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    ticks = (process / "stat").read_text().rpartition(")")[2].split()
    return Sample(
        at=time.monotonic(),
        memory=int(fields["RssAnon"].split()[0]) / _MIB,
        handles=sum(1 for _ in (process / "fd").iterdir()),
        threads=int(fields["Threads"]),
        cpu=(int(ticks[11]) + int(ticks[12])) / 100,
    )


class Watch:
    """Samples of a process, from the first to the last call of ``run``."""

    def __init__(self, pid: int, every: float) -> None:
        self._pid, self._every = pid, every
        self.samples: list[Sample] = []

    async def run(self) -> None:
        with suppress(OSError):
            while True:
                self.samples.append(sample(self._pid))
                await asyncio.sleep(self._every)

    def _from(self) -> int:
        """The sample from which the process was warm: memory rose no more for an eighth.

        Page caches fill as the data grow. Half of the time is the most that is given to it.
        """
        memory = [each.memory for each in self.samples]
        part, half = max(1, len(memory) // 8), len(memory) // 2
        since = [each.at - self.samples[0].at for each in self.samples]
        at = min(half, max(part, sum(each < _EACH_ONCE for each in since)))
        while at < half and memory[at + part] > memory[at] * _STEADY:
            at += 1
        return at

    def _parts(self) -> tuple[list[Sample], list[Sample]]:
        """An eighth of the samples since the process was warm, and the last eighth."""
        part, warm = max(1, len(self.samples) // 8), self._from()
        return self.samples[warm : warm + part], self.samples[-part:]

    def figures(self) -> dict[str, float]:
        """Medians of the time after warming up, and of the end."""
        early, late = self._parts()
        warm = early[0].at - self.samples[0].at
        told: dict[str, float] = {"warm_after_seconds": round(warm, 1)}
        for name in ("memory", "handles", "threads"):
            for when, part in (("early", early), ("late", late)):
                values = [getattr(each, name) for each in part]
                told[f"{name}_{when}"] = round(statistics.median(values), 1)
        told["memory_growth"] = round(told["memory_late"] / told["memory_early"] - 1, 4)
        return told

    def check(self, slack: float) -> None:
        """Fails where anything has grown: memory by more than ``slack``, in MiB."""
        told = self.figures()
        most = max(told["memory_early"] * (1 + MORE), told["memory_early"] + slack)
        assert told["memory_late"] <= most, f"memory grows: {told}"
        early, late = self._parts()
        for name, more in (("handles", 16), ("threads", 2)):
            peak = max(getattr(each, name) for each in early)
            assert max(getattr(each, name) for each in late) <= peak + more, f"{name}: {told}"


class Times:
    """How long answers took, in slices of ``seconds``: p50 and p99 in milliseconds, by kind."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._open: dict[str, list[float]] = defaultdict(list)
        self._slice = 0
        self.slices: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.counts: Counter[str] = Counter()

    def add(self, kind: str, began: float) -> None:
        now = time.monotonic()
        if (at := int((now - self._began) / self._seconds)) != self._slice:
            self.close()
            self._slice = at
        self._open[kind].append((now - began) * 1e3)
        self.counts[kind] += 1

    def close(self) -> None:
        """End the slice that is open."""
        for kind, took in self._open.items():
            took.sort()
            self.slices[kind].append(
                (statistics.median(took), took[min(len(took) - 1, int(len(took) * 0.99))])
            )
        self._open.clear()

    def p50(self, kind: str) -> float:
        """The median slice's."""
        return round(statistics.median([each[0] for each in self.slices[kind]]), 2)

    def p99(self, kind: str) -> float:
        return round(statistics.median([each[1] for each in self.slices[kind]]), 2)

    def drift(self, kind: str) -> float:
        """The p50 of the last quarter of the slices over that of the second one."""
        values = [each[0] for each in self.slices[kind]]
        size = len(values) // 4
        if not size:
            return 1.0
        late, early = values[3 * size :], values[size : 2 * size]
        return round(statistics.median(late) / statistics.median(early), 3)
