"""The machine: what it is, and how steady it is while something is measured on it."""

import os
import platform
import sqlite3
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("aiosqlite", "eventsourcing", "h11", "httptools", "litestar", "msgspec", "uvicorn")
CPU_STEPS = 300_000
SYNCS = 40


class Noise:
    """Samples of two fixed loops, of the CPU and of fsync. Their spread is the machine's own."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "noise"
        self.cpu_ms: list[float] = []
        self.fsync_ms: list[float] = []

    def sample(self) -> None:
        self.cpu_ms.append(_cpu_loop() * 1e3)
        self.fsync_ms.append(_fsync_loop(self._file) * 1e3)


def facts(folder: Path) -> dict[str, object]:
    """What a figure depends on. Names no host and no path."""
    return {
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "architecture": platform.machine(),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "filesystem": filesystem(folder),
        "load_average": round(os.getloadavg()[0], 2),
        "packages": {name: found for name in PACKAGES if (found := _installed(name)) is not None},
    }


def filesystem(folder: Path) -> str:
    """The type of the file system that holds `folder`, "unknown" where there is no /proc."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    here = folder.resolve()
    best, kind = "", "unknown"
    for line in mounts.read_text().splitlines():
        _, point, name, *_ = line.split()
        if here.is_relative_to(point) and len(point) >= len(best):
            best, kind = point, name
    return kind


def _cpu_loop() -> float:
    started = time.perf_counter()
    total = 0
    for number in range(CPU_STEPS):
        total += number & 7
    return time.perf_counter() - started


def _fsync_loop(path: Path) -> float:
    """The median seconds of one 4 KiB write with its fdatasync."""
    sync = getattr(os, "fdatasync", os.fsync)
    page = b"\0" * 4096
    took: list[float] = []
    with path.open("wb", buffering=0) as file:
        for number in range(SYNCS):
            started = time.perf_counter()
            os.pwrite(file.fileno(), page, number % 8 * 4096)
            sync(file.fileno())
            took.append(time.perf_counter() - started)
    return statistics.median(took)


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
