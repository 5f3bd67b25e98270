"""A folder for the servers of one test process. Nothing that runs or is mounted in it outlives it.

Run as a program it is the watcher: it waits for the end of its standard input, that is of the
process that started it, however that ended, then ends what runs in the folder and removes it.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_SECONDS = 20.0
_FIRST_PORT, _END_PORTS = 20_000, 30_000


class Area:
    """The folder, its watcher, and the ports that were given to servers in it.

    A server belongs to it by its working directory.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="unrewind-servers-")).resolve()
        # A server may run as another user, to whom the folders of a test are closed.
        self.folder.chmod(0o755)
        self._ports: set[int] = set()
        self._made = 0
        self._started: list[subprocess.Popen[bytes]] = []
        self._watcher = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def new_folder(self, name: str) -> Path:
        """A folder of its own for a server."""
        self._made += 1
        folder = self.folder / f"{name}-{self._made}"
        folder.mkdir()
        return folder

    def free_port(self) -> int:
        """A port of this process, below those that the system gives to connections.

        So nobody takes it while its server is down.
        """
        while True:
            port = random.SystemRandom().randrange(_FIRST_PORT, _END_PORTS)
            if port in self._ports:
                continue
            with socket.socket() as probe, suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                self._ports.add(port)
                return port

    def started(self, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
        """Note a process that works in this folder: its end is waited for at the close."""
        self._started = [each for each in self._started if each.poll() is None]
        self._started.append(process)
        return process

    def close(self) -> None:
        """End and remove everything, and wait for it."""
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        for process in [*self._started, self._watcher]:
            process.wait(2 * _SECONDS)


_areas: list[Area] = []


def area() -> Area:
    """The area of this process, made when it is first wanted."""
    if not _areas:
        _areas.append(Area())
    return _areas[0]


def close_area() -> None:
    """Leave no trace of this process's servers."""
    while _areas:
        _areas.pop().close()


def inhabitants(folder: Path) -> list[int]:
    """The processes whose working directory is in the folder; zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if (entry / "cwd").readlink().is_relative_to(folder):
                    found.append(int(entry.name))
    return found


def end_all(folder: Path) -> None:
    """SIGKILL for everything that works in the folder, until nothing does."""
    deadline = time.monotonic() + _SECONDS
    while left := inhabitants(folder):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"these do not end: {left}")
        time.sleep(0.01)


def _mounts(folder: Path) -> Iterator[str]:
    with suppress(FileNotFoundError):
        for line in Path("/proc/mounts").read_text().splitlines():
            place = line.split()[1]
            if Path(place).is_relative_to(folder):
                yield place


def _watch(folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end_all(folder)
    for place in list(_mounts(folder)):
        subprocess.run(["umount", "--lazy", place], check=False)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
