"""The command as a user has it: its exit code, and what it printed."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.commanding import Result, unrewind

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
FREE = '[lifecycle.case]\nkind = "free"\n'


class Command:
    """`unrewind` in a directory of its own, with `unrewind.toml` declaring a free type `case`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.environment = {
            **{name: value for name, value in os.environ.items() if "UNREWIND" not in name},
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "100",
        }
        (home / "unrewind.toml").write_text(FREE)

    def __call__(self, *words: object, given: bytes = b"", **environment: str) -> Result:
        """Run a command in this process; what serves is a process of its own."""
        if "serve" in words:
            return self.process(*words, given=given, **environment)
        named = [str(word) for word in words]
        return unrewind(named, self.home, {**self.environment, **environment}, given)

    def process(self, *words: object, given: bytes = b"", **environment: str) -> Result:
        """Run a command as a shell does."""
        done = subprocess.run(
            self.words(*words),
            cwd=self.home,
            env={**self.environment, **environment},
            input=given,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def words(self, *words: object) -> list[str]:
        return [sys.executable, "-m", "api.cli", *(str(word) for word in words)]

    def start(self, *words: object) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.words(*words),
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def accept(self, operation: str, entity: str = "case/1", action: str = "note", *more: object):
        done = self(
            "accept",
            "--operation",
            operation,
            "--entity",
            entity,
            "--action",
            action,
            *more,
            "--json",
        )
        assert done.code == 0, done
        return done.json

    def status(self) -> dict:
        return self("status", "--json").json

    def verified(self) -> dict:
        return self("verify", "--json").json

    def journalled(self) -> int:
        """Decisions in the journal, read beside whoever writes."""
        path = self.home / "data/journal/main.db"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
            try:
                query = "SELECT count(*) FROM entries WHERE stream = 'decisions'"
                return file.execute(query).fetchone()[0]
            except sqlite3.OperationalError:
                return 0


class Shell(Command):
    """The same, with a process for every command."""

    def __call__(self, *words: object, given: bytes = b"", **environment: str) -> Result:
        return self.process(*words, given=given, **environment)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    home = tmp_path / "home"
    home.mkdir()
    return Shell(home)


@pytest.fixture
def cli(tmp_path: Path) -> Command:
    home = tmp_path / "home"
    home.mkdir()
    return Command(home)


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until, "it did not happen"
            time.sleep(0.01)

    return wait


HOLD = """
import fcntl, os, sys, time
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.pwrite(lock, str(os.getpid()).ljust(20).encode(), 0)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def hung(cli: Command) -> Iterator[Callable[[], int]]:
    """Start a process that hangs inside a turn; its PID."""
    started: list[subprocess.Popen[str]] = []

    def start() -> int:
        lock = cli.home / "data/main.lock"
        lock.parent.mkdir(exist_ok=True)
        child = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        return child.pid

    yield start
    for child in started:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()
