"""What a measure is, and how two sides are compared: always between two baselines of one run."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from benchmarks.machine import Noise


class MeasureError(Exception):
    """A side did something other than what is measured, so it has no figure."""


class Absent(Exception):
    """What a measure needs is not installed here: it is said, and nothing has failed."""


@dataclass(frozen=True)
class Figure:
    """An absolute figure that is printed beside the ratio, with every run of it."""

    label: str
    unit: str
    values: list[float]


@dataclass
class Pairs:
    """Runs of both sides in the order taken: a baseline, then ours and a baseline, repeatedly.

    `reason` says why there is no figure of ours, and is None where there is one.
    """

    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    reason: str | None = None

    @property
    def ratios(self) -> list[float]:
        """Each run of ours over the mean of the baselines just before and just after it."""
        if self.reason is not None:
            return []
        return [
            mine / ((self.theirs[i] + self.theirs[i + 1]) / 2) for i, mine in enumerate(self.ours)
        ]


@dataclass
class Result:
    """What one measure found. Both sides of `pairs` are in `unit`."""

    unit: str
    pairs: Pairs
    also: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Context:
    """What a measure is given: where its data may lie, how long it may take, whom it tells."""

    work: Path
    rounds: int
    quick: bool
    noise: Noise
    say: Callable[[str], None]

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A new empty directory on the disk that is measured, removed afterwards."""
        with TemporaryDirectory(dir=self.work) as path:
            yield Path(path)

    def pairs(self, theirs: Callable[[], float], ours: Callable[[], float]) -> Pairs:
        """Run both sides in turn. A side of ours that fails costs only its own figures."""
        pairs = Pairs()
        self.noise.sample()
        pairs.theirs.append(theirs())
        for number in range(self.rounds):
            if pairs.reason is None:
                try:
                    pairs.ours.append(ours())
                except Exception as error:  # noqa: BLE001 - reported in the row, with its reason
                    pairs.reason = why(error)
            pairs.theirs.append(theirs())
            self.noise.sample()
            self.say(f"round {number + 1} of {self.rounds}")
        return pairs


@dataclass(frozen=True)
class Measure:
    """One row: the ratio of `title` to `against`, met at `goal` or better; None: no goal is set."""

    name: str
    title: str
    against: str
    goal: float | None
    run: Callable[[Context], Result]
    better: Literal["higher", "lower"] = "higher"

    def met(self, ratio: float) -> bool:
        if self.goal is None:
            return True
        return ratio >= self.goal if self.better == "higher" else ratio <= self.goal


def why(error: Exception) -> str:
    """The reason of a row that has no figure."""
    if isinstance(error, MeasureError | Absent):
        return str(error)
    return f"failed with {type(error).__name__}: {error}"


def median(values: list[float]) -> float:
    return statistics.median(values)
