"""Processes that stand still at a chosen moment of their turn, as under SIGSTOP, and go on later.

Run as a program it imports everything once, then forks a child for each line of JSON on stdin. A
child opens the tenant as a service does, does one thing, and writes what came of it to a file.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

import journal
from journal import Journal
from journal.acceptance import Operation
from journal.errors import UnrewindError
from journal.outcomes import Outcome, Reported
from journal.permits import Asked
from journal.record import Record
from journal.service import open_journal
from journal.settings import Settings
from tests.soak.processes import until

ROOT = Path(journal.__file__).resolve().parents[1]

LOOKED, COMMITTED, APPENDED = "looked", "committed", "appended"
"""Before the store's commit; after it, before the journal's append; after that."""

# The program.


def pause_at(record: Record, point: str) -> None:
    """Stand still once, at that point of the next turn."""
    assert record.store is not None
    assert record.log is not None
    batch, append = record.store.batch, record.log.append
    left = [point]

    def stand_still(here: str) -> None:
        if left == [here]:
            left.clear()
            # To this very thread: another one might let it go on for a moment.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    async def batch_(statements: Any) -> None:
        stand_still(LOOKED)
        await batch(statements)
        stand_still(COMMITTED)

    async def append_(entries: Any, expects: Any) -> None:
        await append(entries, expects)
        stand_still(APPENDED)

    record.store.batch = batch_  # type: ignore[method-assign]
    record.log.append = append_  # type: ignore[method-assign, assignment]


async def act(service: Journal, what: str, given: dict[str, Any]) -> Any:
    if what == "decide":
        return await service.accept(msgspec.convert(given, Operation))
    if what == "claim":
        return await service.lanes.claim(msgspec.convert(given, Asked))
    return await service.lanes.report(
        Reported(given["id"], Outcome(given["outcome"]), given["lease"], worker=given["worker"])
    )


async def run(given: dict[str, Any]) -> Any:
    async with open_journal(msgspec.convert(given["settings"], Settings)) as service:
        pause_at(service._writing, given["point"])
        try:
            return msgspec.to_builtins(await act(service, given["what"], given["given"]))
        except UnrewindError as error:
            return {"error": type(error).__name__, "detail": error.detail}


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        given = json.loads(line)
        pid = os.fork()
        if pid:
            sys.stdout.write(f"{pid}\n")
            sys.stdout.flush()
            continue
        try:
            result = Path(given["result"])
            aside = result.with_suffix(".new")
            aside.write_text(json.dumps(asyncio.run(run(given))))
            aside.replace(result)
        finally:
            os._exit(0)


# Seen from a test.


class Paused:
    """A child that has come to its point."""

    def __init__(self, pid: int, result: Path) -> None:
        self.pid = pid
        self._result = result
        until("it stands still", lambda: self._state() in {"T", "gone"} or result.exists())
        assert self._state() == "T", result.read_text() if result.exists() else "it ended"

    def _state(self) -> str:
        try:
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"

    def go_on(self) -> Any:
        """Let it go on; what came of it."""
        os.kill(self.pid, signal.SIGCONT)
        until("it has ended", lambda: self._result.exists() or self._state() == "gone")
        return json.loads(self._result.read_text())


Pauses = Callable[..., Paused]


@contextmanager
def pausing(folder: Path) -> Iterator[Pauses]:
    """A function that starts children, which are gone when the block ends."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.processes.pausing"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    made: list[Paused] = []

    def start(settings: Settings, point: str, what: str, **given: Any) -> Paused:
        assert process.stdin is not None
        assert process.stdout is not None
        result = folder / f"result-{len(made)}.json"
        wanted = {
            "settings": msgspec.to_builtins(settings),
            "point": point,
            "what": what,
            "given": given,
            "result": str(result),
        }
        process.stdin.write(json.dumps(wanted) + "\n")
        process.stdin.flush()
        made.append(Paused(int(process.stdout.readline()), result))
        return made[-1]

    try:
        yield start
    finally:
        for child in made:
            if child._state() != "gone":
                os.kill(child.pid, signal.SIGKILL)
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


if __name__ == "__main__":
    main()
