"""T1: what many tenants cost a server that holds few of them open at once.

Both sides are real servers, `unrewind serve`, over tenants that were really created. Before memory
is looked at, every tenant has had a request, and a whole round of visits has ended.
"""

import http.client
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from api import registering
from benchmarks.measure import Context, Figure, MeasureError, Pairs, Result
from benchmarks.memory import held
from journal import Settings

MANY, FEW = 1000, 10
OPEN = 8
EVERY = 5
SECONDS = 600
MIB = 1 << 20
MILLI = 1000


@dataclass
class Service:
    """A data directory with its tenants' tokens by name."""

    data: Path
    tokens: dict[str, str]
    created: float


@dataclass
class Seen:
    """What one run of a server showed: seconds, and counts."""

    memory: float
    ready: float
    cold: float
    warm: float
    round: float
    handles: float
    threads: float


def memory_of_many(context: Context) -> Result:
    """T1: memory that a server holds for itself, with 1,000 tenants and with 10; 8 open at most."""
    with context.folder() as folder:
        many = _create(folder / "many", context.size(MANY, MANY // 10), context)
        few = _create(folder / "few", FEW, context)
        seen: list[Seen] = []

        def ours() -> float:
            seen.append(_serve(many))
            return seen[-1].memory

        pairs: Pairs = context.pairs(lambda: _serve(few).memory, ours)
    also = [
        Figure("to create a tenant", "ms", [many.created * MILLI]),
        Figure("start until it answers", "s", [one.ready for one in seen]),
        Figure("first request of a tenant", "ms", [one.cold * MILLI for one in seen]),
        Figure("next request of it", "ms", [one.warm * MILLI for one in seen]),
        Figure("a round over all of them", "s", [one.round for one in seen]),
        Figure("files and sockets", "", [one.handles for one in seen]),
        Figure("threads", "", [one.threads for one in seen]),
    ]
    return Result("MiB", pairs, also)


def _create(data: Path, count: int, context: Context) -> Service:
    base = Settings(data=str(data))
    tokens: dict[str, str] = {}
    begun = time.perf_counter()
    for number in range(count):
        name = f"t{number}"
        tokens[name] = registering.create(base, name).token
        if number % 50 == 0:
            context.say(f"{number} of {count} tenants created")
    return Service(data, tokens, (time.perf_counter() - begun) / count)


def _serve(service: Service) -> Seen:
    """Start a server, ask every tenant once, wait for a round, and look at the process."""
    begun = time.perf_counter()
    with _running(service.data) as (process, port, own):
        _wait_until_ready(port)
        ready = time.perf_counter() - begun
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            cold = [_ask(connection, name, token) for name, token in service.tokens.items()]
            last = [*service.tokens.items()][-1]
            warm = [_ask(connection, *last) for _ in range(20)]
            rounds = _metric(connection, own, "unrewind_tenants_rounds_total")
            until = time.monotonic() + SECONDS
            while _metric(connection, own, "unrewind_tenants_rounds_total") < rounds + 2:
                if time.monotonic() > until:
                    raise MeasureError("no round of visits came to its end")
                time.sleep(0.5)
            if _metric(connection, own, "unrewind_tenants_open") > OPEN:
                raise MeasureError("more tenants are open than the setting allows")
            return Seen(
                held(process.pid) / MIB,
                ready,
                sum(cold) / len(cold),
                sum(warm) / len(warm),
                _metric(connection, own, "unrewind_tenants_round_seconds"),
                _metric(connection, own, "unrewind_process_handles"),
                _metric(connection, own, "unrewind_process_threads"),
            )


@contextmanager
def _running(data: Path) -> Iterator[tuple["subprocess.Popen[str]", int, str]]:
    unrewind = [sys.executable, "-m", "api.cli"]
    place = ["--data", str(data)]
    made = subprocess.run(
        [*unrewind, "token", "create", "--role", "reader", *place],
        capture_output=True,
        text=True,
        check=True,
    )
    environment = {
        **os.environ,
        "UNREWIND_TENANTS_OPEN": str(OPEN),
        "UNREWIND_TENANTS_EVERY": str(EVERY),
    }
    process = subprocess.Popen(
        [*unrewind, "serve", *place, "--port", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process, _port_of(process), made.stdout.strip()
    finally:
        process.terminate()
        process.wait(SECONDS)


def _port_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("unrewind serves"):
            return int(line.rpartition(":")[2])
    raise MeasureError("the server did not start")


def _wait_until_ready(port: int) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
                connection.request("GET", "/health/live")
                if connection.getresponse().status == 200:
                    return
        except OSError:
            time.sleep(0.01)
    raise MeasureError("the server does not answer")


def _ask(connection: http.client.HTTPConnection, name: str, token: str) -> float:
    """Seconds that a tenant's status takes."""
    begun = time.perf_counter()
    connection.request("GET", f"/v1/{name}/status", headers={"Authorization": f"Bearer {token}"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise MeasureError(f"tenant {name} answered {answer.status}: {content[:200]!r}")
    return time.perf_counter() - begun


def _metric(connection: http.client.HTTPConnection, token: str, name: str) -> float:
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[-1])
    raise MeasureError(f"there is no metric {name}")
