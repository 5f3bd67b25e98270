"""The file calls of a thing that is done: which there are, and how it ends when one fails."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.faults.forking import Ended, Forker
from tests.soak.processes import SECONDS

CALLS = (
    "openat", "read", "pread64", "write", "pwrite64", "fsync", "fdatasync", "ftruncate",
    "fallocate", "rename", "unlink", "mkdir", "rmdir", "flock", "fcntl", "fstat", "newfstatat",
    "stat", "lstat", "access", "faccessat2", "getdents64", "mmap", "lseek", "statfs", "fchmod",
    "chmod",
)  # fmt: skip
WRITING = frozenset(
    {
        "openat",
        "write",
        "pwrite64",
        "fsync",
        "fdatasync",
        "ftruncate",
        "fallocate",
        "rename",
        "mkdir",
    }
)
"""Calls that change something: a full disk refuses these."""
_PLACE = re.compile(r'"(/[^"]*)"|<(/[^>]*)>')
_NAME = re.compile(r"\d+ +(\w+)\(")
EIO, ENOSPC, KILL = "error=EIO", "error=ENOSPC", "signal=SIGKILL"


class Fault(NamedTuple):
    """The n-th call of a kind on the tenant's files, and what becomes of it."""

    call: str
    number: int
    what: str


class Injected(NamedTuple):
    """How it ended, and the call that failed as strace saw it; None: it never came to that call."""

    ended: Ended
    at: str | None


class Bench:
    """One folder in which things are done under strace, each time from the same files."""

    def __init__(self, forker: Forker, folder: Path) -> None:
        self.forker, self.folder = forker, folder
        self.trace = folder.parent / "trace"
        self.paths: set[str] = set()

    def calls(self, act: str) -> Counter[str]:
        """How many calls of each kind it makes on the tenant's files; notes their paths."""
        pid = self.forker.begin(act, self.folder)
        trace = ["-y", "-e", f"trace={self._known()}", "-o", str(self.trace)]
        self._checked(self._watched(pid, trace))
        data = f"{self.folder}/data"
        counted: Counter[str] = Counter()
        for line in self.trace.read_text().splitlines():
            name = _NAME.match(line)
            places = {place or named for place, named in _PLACE.findall(line)}
            ours = {place for place in places if place == data or place.startswith(f"{data}/")}
            if name is not None and ours:
                counted[name[1]] += 1
                self.paths |= {_renamed(place, str(pid), "{pid}") for place in ours}
        return counted

    @staticmethod
    def _known() -> str:
        return ",".join(f"?{call}" for call in CALLS)

    def inject(self, act: str, fault: Fault) -> Injected:
        """Do it, with one call failing."""
        pid = self.forker.begin(act, self.folder)
        paths = [_renamed(path, "{pid}", str(pid)) for path in sorted(self.paths)]
        options = [each for path in paths for each in ("-P", path)]
        how = f"inject={fault.call}:{fault.what}:when={fault.number}"
        options += ["-y", "-e", f"trace={fault.call}", "-e", how, "-o", str(self.trace)]
        ended = self._watched(pid, options)
        lines = self.trace.read_text().splitlines()
        if fault.what == KILL:
            return Injected(ended, lines[-2] if ended.code is None and len(lines) > 1 else None)
        return Injected(ended, next((line for line in lines if "(INJECTED)" in line), None))

    def run(self, act: str) -> Ended:
        """Do it undisturbed."""
        self.forker.begin(act, self.folder)
        return self._checked(self.forker.go(self.folder))

    @staticmethod
    def _checked(ended: Ended) -> Ended:
        assert ended.code == 0, ended
        return ended

    def _watched(self, pid: int, options: Sequence[str]) -> Ended:
        """Let the child go once strace watches it."""
        with subprocess.Popen(
            ["strace", "-f", *options, "-p", str(pid)], stderr=subprocess.PIPE, text=True
        ) as strace:
            assert strace.stderr is not None
            try:
                line = ""
                for line in strace.stderr:
                    if f"Process {pid} attached" in line:
                        break
                else:
                    raise AssertionError(f"strace did not attach: {line}")
                return self.forker.go(self.folder)
            finally:
                with suppress(subprocess.TimeoutExpired):
                    strace.communicate(timeout=SECONDS)
                strace.kill()


def _renamed(path: str, old: str, new: str) -> str:
    """The path with a process's ID in a file's name as another one's."""
    parent, _, name = path.rpartition("/")
    parts = re.split(r"([.-])", name)
    return f"{parent}/{''.join(new if part == old else part for part in parts)}"


def faults_of(counted: Counter[str]) -> list[Fault]:
    """Every call with everything that may become of it."""
    return [
        Fault(call, number, what)
        for call in CALLS
        for number in range(1, counted[call] + 1)
        for what in (EIO, ENOSPC, KILL)
        if what != ENOSPC or call in WRITING
    ]
