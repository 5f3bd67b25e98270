"""Real processes over one data directory: servers to be killed, commands that run beside them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import journal
from tests.soak.clients import Client
from tests.support.commanding import unrewind

ROOT = Path(journal.__file__).resolve().parents[1]
SECONDS = 60.0
LONG = bool(os.environ.get("UNREWIND_SOAK"))
"""In the long rounds every command is a process."""
_SERVING = ("serve", "dispatch", "drill")
CONFIG = '[lifecycle.case]\nkind = "free"\n'

# Lets strace attach where the system allows that to ancestors alone (Yama, ptrace_scope 1).
_TRACEABLE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0);"
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_COMMAND = ("-m", "api.cli")


def until(what: str, holds: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """What ``holds`` returns as soon as that is true; fails when it stays false too long."""
    deadline, pause = time.monotonic() + seconds, 0.005
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
        pause = min(1.5 * pause, 0.05)  # what is asked costs time, too
    return found


class Ran:
    """A command that has ended."""

    def __init__(self, arguments: Sequence[str], code: int, out: str, err: str) -> None:
        self.arguments, self.code, self.out, self.err = list(arguments), code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def __repr__(self) -> str:
        return f"unrewind {' '.join(self.arguments)} -> {self.code}\n{self.out}{self.err}"


class Site:
    """One data directory, with its configuration and the commands that work on it."""

    def __init__(self, folder: Path, config: str = CONFIG, **environment: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "unrewind.toml").write_text(config)
        self.environment = {
            **{name: value for name, value in os.environ.items() if "UNREWIND" not in name},
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self.token = ""
        self.servers: list[Server] = []
        self.open = ExitStack()

    @property
    def settings(self) -> journal.Settings:
        """What the processes run with, with paths that hold here."""
        return journal.load_settings(
            self.folder / "unrewind.toml", {"data": str(self.folder / "data")}, self.environment
        )

    @property
    def store(self) -> Path:
        return self.settings.store_file

    @property
    def journal(self) -> Path:
        return self.settings.journal_file

    def popen(
        self, *arguments: str, under: Sequence[str] = (), **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command, perhaps ``under`` another one that watches it."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        traceable = ("-c", _TRACEABLE) if arguments[0] == "serve" else ()
        return subprocess.Popen(
            [*under, sys.executable, *traceable, *_COMMAND, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            text=True,
            **options,
        )

    def run(self, *arguments: str, under: Sequence[str] = ()) -> Ran:
        """Run a command to its end; in this process, where nothing else is the point."""
        alone = threading.current_thread() is threading.main_thread()
        if alone and not under and not LONG and arguments[0] not in _SERVING:
            done = unrewind(arguments, self.folder, self.environment)
            return Ran(arguments, done.code, done.out, done.err)
        with self.popen(*arguments, under=under) as process:
            try:
                out, err = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Ran(arguments, process.returncode, out, err)

    def do(self, *arguments: str) -> Any:
        """Run a command that has to succeed; what it says as JSON."""
        ran = self.run(*arguments, "--json")
        assert ran.code == 0, ran
        return ran.json

    def status(self) -> Any:
        """`unrewind status`, which ends with 1 when the tenant takes no decisions."""
        ran = self.run("status", "--json")
        assert ran.code == (0 if ran.json["stage"] == "open" else 1), ran
        return ran.json

    def recover(self, reason: str = "a test") -> dict[str, Any]:
        """Every step of a recovery on the command line; what ``apply`` did."""
        assert self.do("recover", "begin", "--reason", reason)["safe_to_restore"]
        plan = self.run("recover", "plan", "--json")
        assert plan.code == (1 if plan.json["exceptions"] else 0), plan
        applied: dict[str, Any] = self.do("recover", "apply", "--plan", plan.json["plan"])
        waived = ("--despite", "reconciled", "--reason", reason)
        assert self.do("recover", "reopen", *waived)["stage"] == "open"
        return applied

    def start(self) -> Server:
        """Another server of this tenant, ready for requests."""
        server = Server(self)
        self.servers.append(server)
        server.wait_until_ready()
        return server

    def close(self) -> None:
        for server in self.servers:
            server.kill()
        self.open.close()


class Server:
    """`unrewind serve` on a free port. What it says on stderr stays in a file."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.log = site.folder / f"stderr-{len(site.servers)}"
        with self.log.open("w") as errors:
            self.process = site.popen("serve", "--port", "0", stderr=errors)
        self.pid = self.process.pid
        self.port = 0

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("operator token (shown once): "):
                self.site.token = line.split()[-1]
            if line.startswith("unrewind serves "):
                self.port = int(line.rpartition(":")[2])
                return
        raise AssertionError(f"the server ended with {self.process.wait()}: {self.errors}")

    @property
    def errors(self) -> str:
        return self.log.read_text()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(SECONDS)
        finally:
            self._let_go()

    def stop(self) -> int:
        """End it as an operator does."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """End it without a word; also when it is stopped, and when it has ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS)
        self._let_go()

    def _let_go(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def freeze(self) -> None:
        """SIGSTOP, and wait until the process stands still."""
        self.signal(signal.SIGSTOP)
        until("the server is stopped", self.is_frozen)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def is_frozen(self) -> bool:
        """Whether every thread stands still."""
        states = [
            path.read_text().rpartition(")")[2].split()[0]
            for path in Path(f"/proc/{self.pid}/task").glob("*/stat")
        ]
        return all(state in {"T", "t"} for state in states)

    # Talking to it, one call at a time.

    def ask(self, method: str, path: str, content: Any = None) -> tuple[int, Any]:
        """A call on a connection of its own."""
        with Client(self.port, self.site.token) as client:
            return client.ask(method, path, content)

    def get(self, path: str) -> tuple[int, Any]:
        return self.ask("GET", f"/v1/main/{path}")

    def decide(
        self, operation: str, entity: str, action: str = "set", **fields: Any
    ) -> tuple[int, Any]:
        return self.ask("POST", "/v1/main/decisions", item(operation, entity, action, **fields))


def item(operation: str, entity: str, action: str = "set", **fields: Any) -> dict[str, Any]:
    """What `POST decisions` takes."""
    return {"operation": operation, "entity": entity, "action": action, **fields}


def holders(path: Path) -> set[int]:
    """The processes that hold a flock on a file."""
    with suppress(FileNotFoundError):
        inode = str(path.stat().st_ino)
        lines = Path("/proc/locks").read_text().splitlines()
        fields = [line.split() for line in lines if " FLOCK " in line and "->" not in line]
        return {int(field[4]) for field in fields if field[5].rpartition(":")[2] == inode}
    return set()


@contextmanager
def site_at(folder: Path, **environment: str) -> Iterator[Site]:
    """A data directory whose servers are gone when the block ends."""
    made = Site(folder, **environment)
    try:
        yield made
    finally:
        made.close()
