"""Real processes that are killed at a chosen call of a port: commands of the command line, forked.

Run as a program it imports everything once, then forks one child for each line of JSON on stdin,
and answers each with how the child ended.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
COMPLETED = 99
"""A child's exit code when every step has ended; a step's own code is told in ``codes``."""


class Killer:
    """The program, seen from the test."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.killing"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, config: Path, steps: list[list[str]], **fuse: Any) -> Ended:
        """Run commands one after the other, from the ``first`` on.

        With ``at`` it is killed at that call, before it has done its work or ``after``.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        given = {"config": str(config), "steps": steps, **fuse}
        self.process.stdin.write(json.dumps(given) + "\n")
        self.process.stdin.flush()
        watchdog = threading.Timer(SECONDS, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        return Ended(**json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


class Ended:
    """How a child ended: ``calls`` were made; ``step`` is the first that has not ended."""

    def __init__(self, *, killed: bool, step: int, calls: int, codes: list[int], said: str) -> None:
        self.killed, self.step, self.calls, self.codes, self.said = killed, step, calls, codes, said

    @property
    def completed(self) -> bool:
        return not self.killed and set(self.codes) <= {0, 1}


def main() -> None:
    from api.cli import main as command

    names = _ports()
    for line in sys.stdin:
        given = json.loads(line)
        log = Path(given["config"]).with_suffix(".log")
        log.write_text("")
        child = os.fork()
        if child == 0:
            _child(command, names, given, log)
        _, status = os.waitpid(child, 0)
        told = [json.loads(text) for text in log.read_text().splitlines()]
        codes = [entry["code"] for entry in told if "code" in entry]
        calls = max((entry["calls"] for entry in told), default=0)
        ended = {
            "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL,
            "step": given.get("first", 0) + len(codes),
            "calls": calls,
            "codes": codes,
            "said": log.with_suffix(".out").read_text(),
        }
        sys.stdout.write(json.dumps(ended) + "\n")
        sys.stdout.flush()


def _child(command: Any, names: list[tuple[Any, str]], given: dict[str, Any], log: Path) -> None:
    """Run the steps, and leave with no cleaning up."""
    out = os.open(log.with_suffix(".out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    fuse = _Fuse(given.get("at", 0), after=given.get("after", False))
    for owner, name in names:
        setattr(owner, name, fuse.around(getattr(owner, name)))
    for step in given["steps"][given.get("first", 0) :]:
        try:
            command([*step, "--config", given["config"]])
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
        else:
            code = 0
        with log.open("a") as file:
            file.write(json.dumps({"code": code, "calls": fuse.made}) + "\n")
        if code not in {0, 1}:
            break
    sys.stdout.flush()
    os._exit(COMPLETED)


class _Fuse:
    """Kills this process at the n-th call, before or after it has done its work; 0 never."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at, self.after, self.made = at, after, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if _is_coroutine(function):

            @wraps(function)
            async def waiting(*given: Any, **named: Any) -> Any:
                number = self._before()
                result: Awaitable[Any] = await function(*given, **named)
                self._ended(number)
                return result

            return waiting

        @wraps(function)
        def direct(*given: Any, **named: Any) -> Any:
            number = self._before()
            result = function(*given, **named)
            self._ended(number)
            return result

        return direct

    def _before(self) -> int:
        self.made += 1
        if self.made == self.at and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.made

    def _ended(self, number: int) -> None:
        if number == self.at and self.after:
            os.kill(os.getpid(), signal.SIGKILL)


def _is_coroutine(function: Callable[..., Any]) -> bool:
    from inspect import iscoroutinefunction

    return iscoroutinefunction(function)


def _ports() -> list[tuple[Any, str]]:
    """Everything by which a step of a recovery touches the world."""
    from api.receivers import Caller
    from journal.locks import StopFile
    from journal.log.engine import SqlLog
    from journal.log.postgres import PostgresLog
    from journal.log.sqlite import SqliteLog
    from journal.nats.log import NatsLog
    from journal.store.engine import SqlStore
    from journal.store.postgres import PostgresStore
    from journal.store.sqlite import SqliteStore

    stores, logs = (SqlStore, SqliteStore, PostgresStore), (SqlLog, SqliteLog, PostgresLog, NatsLog)
    asynchronous = [
        (port, name)
        for port in (*stores, *logs)
        for name, member in vars(port).items()
        if _is_coroutine(member)
    ]
    return [
        *asynchronous,
        (Caller, "ask"),
        (StopFile, "put_up"),
        (StopFile, "take_down"),
        (Path, "rename"),
        (Path, "replace"),
        (Path, "unlink"),
    ]


if __name__ == "__main__":
    main()
