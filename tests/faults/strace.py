"""System calls that fail, or stop their process, at a chosen moment: strace over a live server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.soak.processes import SECONDS, Server, until

AGAIN = "make soak ARGS=tests/faults"
"""The command that makes every call fail and cuts the power at every write."""
SHARES = [25, pytest.param(1, marks=pytest.mark.soak)]
"""A plain run takes one of so many, a long one all."""

SYNC = "fdatasync,fsync"
WRITE = "pwrite64,write"


def require_strace() -> None:
    """Skip visibly where strace is missing; fail in continuous integration."""
    if shutil.which("strace") is None:
        reason = "strace is not installed: no system call can be made to fail"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def injecting(file: Path, calls: str, what: str, trace: Path) -> list[str]:
    """strace's command line, before the one of a process that it is to start."""
    return [
        "strace", "-f", "-P", str(file), "-e", f"trace={calls}", "-e", f"inject={calls}:{what}",
        "-o", str(trace),
    ]  # fmt: skip


@contextmanager
def injected(server: Server, file: Path, calls: str, what: str) -> Iterator[Path]:
    """Inject ``what`` (`error=EIO:when=1`) into a server's calls on a file; the trace's path.

    Calls are counted from the moment at which the block begins. strace lets go when it ends.
    """
    trace = server.site.folder / "strace"
    errors = server.site.folder / "strace-errors"
    with errors.open("w") as stream:
        process = subprocess.Popen(
            [*injecting(file, calls, what, trace), "-p", str(server.pid)], stderr=stream
        )
    try:
        until(
            "strace is attached",
            lambda: process.poll() is not None or "attached" in errors.read_text(),
        )
        assert process.poll() is None, errors.read_text()
        until("every thread is traced", lambda: _traced(server.pid))
        yield trace
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS)


def _traced(pid: int) -> bool:
    states = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return all("TracerPid:\t0\n" not in state for state in states)
