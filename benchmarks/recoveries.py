"""S7, S9 and S10: what it costs to recover, and to start, beside a journal of a million entries."""

import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from benchmarks import material, memory, ours
from benchmarks.isolated import isolated
from benchmarks.measure import Context, Figure, MeasureError, Pairs, Result
from benchmarks.workload import Slice
from journal import Settings
from journal.record import Record
from journal.standing import detect
from journal.worker import drive
from reconstruct import recovery, snapshots, verification

LOST = 1000
STARTS = 20
"""Starts in one process: each is a matter of milliseconds, and their median counts."""
MIB = 1 << 20


@dataclass(frozen=True)
class Rewound:
    """A tenant's directory, and a snapshot of its store from before the last LOST decisions."""

    data: Path
    snapshot: Path


# S7: the cost follows what was lost.


def plan_and_apply(context: Context) -> Result:
    """S7: plan and apply of 1,000 lost decisions; seconds beside a long journal and a short one.

    Each run puts the same snapshot back and begins, as an operator does; only `plan` and `apply`
    are timed. Decisions are spread over as many entities as there are tens of decisions.
    """
    with context.folder() as folder:
        short = _rewound(folder / "short", context.size(10_000, 10_000))
        long = _rewound(folder / "long", context.size(1_000_000, 100_000))
        pairs = context.pairs(lambda: isolated(recover, short), lambda: isolated(recover, long))
    return Result("s", pairs)


def _rewound(folder: Path, count: int) -> Rewound:
    entities = count // 10
    place = Rewound(folder / "data", folder / "snapshot")
    isolated(material.import_slice, place.data, Slice(0, count - LOST, entities))
    isolated(take, place)
    isolated(material.import_slice, place.data, Slice(count - LOST, LOST, entities))
    return place


def take(place: Rewound) -> None:
    record = Record(ours.settings_of(place.data), read_only=True)
    try:
        drive(record.open())
        drive(snapshots.snapshot(record, place.snapshot))
    finally:
        drive(record.close())


def recover(place: Rewound) -> float:
    """Seconds for plan and apply, after the snapshot was put back. Leaves the tenant reopened."""
    settings = ours.settings_of(place.data)
    history = snapshots.current_history(settings)
    if history is None:
        raise MeasureError("the journal cannot be read")
    restored = snapshots.restore(settings, place.snapshot, settings.tenant, history)
    recovery.stop(settings, "a measure")
    _step(settings, recovery.begin, "a measure")
    started = perf_counter()
    planned = _step(settings, recovery.plan)
    applied = _step(settings, recovery.apply, planned.plan)
    seconds = perf_counter() - started
    if (planned.missing, applied.replayed, planned.exceptions) != (LOST, LOST, 0):
        raise MeasureError(f"{applied.replayed} decisions were replayed, {LOST} were lost")
    _step(settings, recovery.reopen)
    for left in (restored.replaced, settings.evidence_home):
        shutil.rmtree(left or settings.evidence_home, ignore_errors=True)
    return seconds


def _step(settings: Settings, step, *given):
    """One step with files of its own, opened and closed with it."""
    record = Record(settings, read_only=step is recovery.plan)
    try:
        drive(record.open())
        return drive(step(record, *given))
    finally:
        drive(record.close())


# S9: memory does not follow the journal.


def peak_memory(context: Context) -> Result:
    """S9: the most memory that verify holds at once and that a recovery of everything does, added.

    The recovery builds the store from the journal alone. Counted is what a process holds for
    itself; pages of files that it maps are the system's to take back, and printed beside it.
    """
    # Below 100,000 entries the caches of SQLite are not full, and grow.
    sizes = (context.size(100_000, 100_000), context.size(1_000_000, 300_000))
    with context.folder() as folder:
        places = [folder / str(size) for size in sizes]
        for place, size in zip(places, sizes, strict=True):
            isolated(material.import_slice, place / "data", Slice(0, size, size // 10))
        found: dict[str, list[memory.Peak]] = {}

        def most(which: int) -> float:
            data = places[which] / "data"
            peaks = {
                "verify": memory.peak_of(verify, data),
                "recover": memory.peak_of(rebuild, data, places[which] / "aside"),
            }
            for name, peak in peaks.items():
                found.setdefault(f"{name}, {sizes[which]:,} entries", []).append(peak)
            return sum(peak.own for peak in peaks.values()) / MIB

        pairs = context.pairs(lambda: most(0), lambda: most(1))
    return Result("MiB", pairs, _figures(found))


def _figures(found: dict[str, list[memory.Peak]]) -> list[Figure]:
    figures = []
    for name, peaks in found.items():
        figures.append(Figure(name, "MiB", [peak.own / MIB for peak in peaks]))
        mapped = [peak.resident / MIB for peak in peaks]
        figures.append(Figure(f"{name}, with mapped files", "MiB", mapped))
    return figures


def verify(data: Path) -> None:
    report = verification.verify(ours.settings_of(data))
    if report.verdict != "clean":
        raise MeasureError(f"verify found {report.findings[0].detail}")


def rebuild(data: Path, aside: Path) -> None:
    """Recover a tenant whose store is gone, in a copy of its directory."""
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(data, aside)
    settings = ours.settings_of(aside)
    settings.store_file.unlink()
    recovery.stop(settings, "a measure")
    _step(settings, recovery.begin, "a measure")
    applied = _step(settings, recovery.apply)
    if applied.replayed == 0 or applied.incomplete:
        raise MeasureError(f"{applied.replayed} decisions were replayed")


# S10: a start after a clean stop looks at no more than it has to.


def starting(context: Context) -> Result:
    """S10: opening a tenant and comparing store and journal, after a clean stop; milliseconds."""
    sizes = (context.size(10_000, 10_000), context.size(1_000_000, 100_000))
    with context.folder() as folder:
        places = [folder / str(size) for size in sizes]
        for place, size in zip(places, sizes, strict=True):
            isolated(material.import_slice, place, Slice(0, size, size // 10))
        pairs: Pairs = context.pairs(
            lambda: isolated(start, places[0]), lambda: isolated(start, places[1])
        )
    return Result("ms", pairs)


def start(data: Path) -> float:
    """Milliseconds from opening the files to a verdict, as `unrewind serve` starts."""
    settings = ours.settings_of(data)
    took = []
    for _ in range(STARTS):
        record = Record(settings)
        try:
            started = perf_counter()
            drive(record.open())
            trusted = record.stopped_clean()
            finding = drive(detect(record, deep=not trusted))
            took.append(perf_counter() - started)
            if not trusted or finding.verdict != "clean":
                raise MeasureError(f"not after a clean stop: {finding.verdict}")
        finally:
            drive(record.close())
    return statistics.median(took) * 1000
