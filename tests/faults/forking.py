"""A process that has imported everything, and forks a child for each thing to be done.

A child waits until strace watches it. What it was told goes to files outside its tenant, at once.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60
CONFIG = "unrewind.toml"
RELEASE = "release"
"""A file that names the release to be carried out."""
_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)
_LOOK = 0.02
_PUSH_SECONDS = 3.0
_ACCEPT = ("accept", "--entity", "case/1", "--action", "set", "--body", '{"n": 2}', "--json")


class Ended(NamedTuple):
    """How a child ended: its exit code (None: killed), and everything that it said."""

    code: int | None
    out: str
    err: str
    told: list[dict[str, Any]]

    def of(self, kind: str) -> list[Any]:
        """What it was told of one kind."""
        return [line[kind] for line in self.told if kind in line]


class Forker:
    """The program, seen from the test."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forking"],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if "UNREWIND" not in name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, act: str, folder: Path) -> int:
        """Fork a child that is about to do something in a folder; its process ID."""
        self._say({"act": act, "folder": str(folder)})
        return int(self._hear()["pid"])

    def go(self, folder: Path) -> Ended:
        """Let it, and wait for its end."""
        self._say({})
        status = self._hear()["status"]
        told = (folder / "told").read_text().splitlines()
        return Ended(
            None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status),
            (folder / "out").read_text(),
            (folder / "err").read_text(),
            [json.loads(line) for line in told],
        )

    def _say(self, words: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()

    def _hear(self) -> Any:
        assert self.process.stdout is not None
        watchdog = threading.Timer(SECONDS, self.process.kill)
        watchdog.start()
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert line, "the forking process hung or died"
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


# The program.


def main() -> None:
    _import_all()
    for line in sys.stdin:
        given = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            _child(given, reading)
        os.close(reading)
        _answer(pid=pid)
        sys.stdin.readline()
        os.close(writing)
        _, status = os.waitpid(pid, 0)
        _answer(status=status)


def _answer(**words: Any) -> None:
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def _import_all() -> None:
    import api.alerts
    import api.cli.deciding
    import api.cli.recovering
    import api.cli.reopening
    import api.dispatcher
    import api.opening
    import api.progress  # noqa: F401


def _child(given: dict[str, Any], reading: int) -> None:
    """Wait to be let go, do it, and leave with no cleaning up."""
    ctypes.CDLL(None).prctl(_PTRACER, _ANY, 0, 0, 0)
    # Dies with the program, so that nothing is left behind when a test run is ended.
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    folder = Path(given["folder"])
    os.chdir(folder)
    told = os.open("told", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.read(reading, 1)

    def tell(**words: Any) -> None:
        os.write(told, json.dumps(words).encode() + b"\n")

    code = 99
    try:
        ACTS[given["act"]](tell)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    except BaseException:  # noqa: BLE001 - whatever it is, the test is told
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


Tell = Callable[..., None]


def _command(*words: str) -> Callable[[Tell], None]:
    def run(_: Tell) -> None:
        from api.cli import main as command

        command([*words])

    return run


def _guarded(function: Callable[[Any, Tell], None]) -> Callable[[Tell], None]:
    """Run a worker as a command is run: an error is one line, and exit code 3."""

    def run(tell: Tell) -> None:
        from api.cli.failures import guarded
        from journal import load_settings

        sys.exit(guarded(lambda: function(load_settings(CONFIG, {}, {}), tell), as_json=False))

    return run


def _work(settings: Any, tell: Tell) -> None:
    """A worker that pulls: claim, step, act, report."""
    from api.opening import deciding
    from journal import permits, reports
    from journal.driving import drive
    from journal.outcomes import CALLING, Outcome, Reported

    with deciding(settings) as record:
        asked = permits.Asked("post", "worker", "claim-1", 1)
        for permit in drive(permits.claim(record, asked)).permits:
            tell(commitment=permit.commitment)
            beating = reports.Beating("post", [(permit.id, permit.lease)], CALLING)
            if drive(reports.beat(record, beating)):
                tell(sent=permit.id)
                said = Reported(permit.id, Outcome.CONFIRMED, permit.lease, receipt="r-1")
                drive(reports.report(record, said))
                tell(known=permit.id)


def _push(settings: Any, tell: Tell) -> None:
    """A dispatcher that calls its receiver and ends when that is done, or when it cannot go on."""
    asyncio.run(_dispatch(settings, tell))


async def _dispatch(settings: Any, tell: Tell) -> None:
    from api.alerts import Alerts
    from api.dispatcher import Dispatcher
    from journal import Journal
    from journal.errors import Recovering, UnrewindError
    from journal.work import FINISHED

    release = Path(RELEASE).read_text()
    tenant = Journal(settings)
    await tenant.start()
    try:
        dispatcher = Dispatcher(tenant, Alerts(settings))
        await dispatcher.start()
        ended = asyncio.create_task(dispatcher.ended())
        deadline = time.monotonic() + _PUSH_SECONDS
        try:
            while not ended.done() and time.monotonic() < deadline:
                await asyncio.sleep(_LOOK)
                try:
                    row = await tenant.lanes.one(release)
                except Recovering:
                    break
                except UnrewindError:
                    continue
                if row.status in FINISHED:
                    tell(known=release)
                    break
        finally:
            ended.cancel()
            await dispatcher.stop()
    finally:
        await tenant.stop()


ACTS: dict[str, Callable[[Tell], None]] = {
    "accept": _command(*_ACCEPT, "--operation", "new"),
    "handoff": _command(*_ACCEPT, "--operation", "new"),
    "apply": _command("recover", "apply", "--json"),
    "work": _guarded(_work),
    "push": _guarded(_push),
}


if __name__ == "__main__":
    main()
