"""The child processes of S1 and S2: servers, and the load generator that drives them."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPConnection
from pathlib import Path

from benchmarks import ours
from benchmarks.load import Order, Report
from benchmarks.measure import MeasureError

START_SECONDS = 30.0
STOP_SECONDS = 15.0


@dataclass(frozen=True)
class Target:
    """A running server."""

    port: int
    token: str


class Generator:
    """The load generator. Decisions are numbered on through all its runs, so none repeats."""

    def __init__(self, child: "subprocess.Popen[str]", entities: int) -> None:
        self._child = child
        self._entities = entities
        self._next = 0

    def run(
        self,
        target: Target,
        path: str,
        connections: int,
        seconds: float,
        warm_up: float = 0.5,
    ) -> Report:
        """One closed loop. Raises MeasureError unless every answer was a 201."""
        order = Order(
            port=target.port,
            path=path,
            token=target.token,
            connections=connections,
            seconds=seconds,
            first=self._next,
            entities=self._entities,
            warm_up=warm_up,
        )
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(asdict(order)) + "\n")
        self._child.stdin.flush()
        answer = _line(self._child, "the load generator")
        if "failed" in answer:
            raise MeasureError(f"load on {path}: {answer['failed']}")
        report = Report(**answer)
        self._next = report.next
        if report.refused:
            raise MeasureError(f"{path} answered {report.refused}, such as: {report.sample}")
        if not report.requests:
            raise MeasureError(f"{path} answered nothing in {seconds} s")
        return report


@contextmanager
def generator(entities: int) -> Iterator[Generator]:
    with _child([sys.executable, "-m", "benchmarks.load"], stdin=True) as child:
        yield Generator(child, entities)


@contextmanager
def responder() -> Iterator[Target]:
    with _child([sys.executable, "-m", "benchmarks.responder"]) as child:
        yield Target(**_line(child, "the responder"))


@contextmanager
def baseline(folder: Path) -> Iterator[Target]:
    """The server of `stack.py`, with its data in `folder`."""
    with _child([sys.executable, "-m", "benchmarks.stack", str(folder)]) as child:
        ready = _line(child, "the baseline server")
        yield Target(ready["port"], ready["token"])


@contextmanager
def unrewind(data: Path) -> Iterator[Target]:
    """`unrewind serve` over a new tenant in `data`. Raises MeasureError."""
    token = ours.new_tenant(data)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = data.with_suffix(".log")
    with log.open("w") as output, _child(ours.serve_command(data, port), output=output) as child:
        _healthy(child, port, log)
        yield Target(port, token)


def _healthy(child: "subprocess.Popen[str]", port: int, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if child.poll() is not None:
            said = log.read_text().strip().rpartition("\n")[2]
            raise MeasureError(f"`unrewind serve` ended with {child.returncode}: {said}")
        connection = HTTPConnection("127.0.0.1", port, timeout=1.0)
        try:
            connection.request("GET", ours.HEALTH)
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(0.05)
    raise MeasureError(f"`unrewind serve` was not healthy within {START_SECONDS:.0f} s")


@contextmanager
def _child(
    command: list[str], *, stdin: bool = False, output: object = None
) -> Iterator["subprocess.Popen[str]"]:
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
        stdout=output or subprocess.PIPE,  # type: ignore[call-overload]
        stderr=output,
        text=True,
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()


def _line(child: "subprocess.Popen[str]", who: str) -> dict:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise MeasureError(f"{who} ended with {child.wait()}")
    return json.loads(line)
