"""`python -m benchmarks.engines_nats`: decisions with their journal in JetStream, side by side.

Against what the servers themselves take: bare awaited publishes of messages as large as one
decision's entry, at the same concurrency, on the same servers, with `sync_interval: always`.
"""

import argparse
import asyncio
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import nats

import journal
from journal.nats.log import NatsLog
from tests.support.jetstream import NatsCluster, NatsServer
from tests.support.tenants import make_settings, operation

IN_FLIGHT = 512
GOAL = 0.7
BODY = {"text": "x" * 600}
_SMALL = (
    "import sys, resource; from pathlib import Path; from journal.nats.log import NatsLog;"
    "NatsLog(sys.argv[1], sys.argv[2], Path(sys.argv[3]), accept=sys.argv[4].split(','))"
    ".database.close();"
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
)


async def bare(url: str, count: int, size: int, replicas: int) -> float:
    """Awaited publishes a second, IN_FLIGHT at a time."""
    client = await nats.connect(url.removeprefix("nats://").split(","))
    name = f"bare-{time.monotonic_ns()}"
    subject, payload = f"bare.{name}", os.urandom(size)
    config = {"name": name, "subjects": [subject], "storage": "file", "num_replicas": replicas}
    made = await client.request(
        f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode(), timeout=10
    )
    assert "error" not in json.loads(made.data), made.data
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            answer = await client.request(subject, payload, timeout=30)
            assert b'"seq"' in answer.data

    started = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    took = time.perf_counter() - started
    await client.request(f"$JS.API.STREAM.DELETE.{name}", b"", timeout=30)
    await client.close()
    return count / took


async def ours(url: str, folder: Path, count: int, tenant: str, accept: list[str]) -> float:
    """Decisions a second, IN_FLIGHT at a time, each on an entity of its own."""
    settings = make_settings(folder, tenant=tenant, journal=url, accept=accept)
    left = iter(range(count))
    async with journal.open(settings) as opened:

        async def work() -> None:
            for number in left:
                await opened.accept(operation(f"document/{number}", "submit", BODY))

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
        return count / (time.perf_counter() - started)


def rebuilt(url: str, tenant: str, copy: Path, accept: list[str]) -> tuple[float, int]:
    """Seconds and peak MiB of building a copy anew, in a process of its own."""
    started = time.perf_counter()
    told = subprocess.run(
        [sys.executable, "-c", _SMALL, url, tenant, copy, ",".join(accept)],
        check=True,
        capture_output=True,
        text=True,
    )
    return time.perf_counter() - started, int(told.stdout)


@contextlib.contextmanager
def servers(count: int) -> Iterator[tuple[str, list[str]]]:
    """A URL, and what has to be accepted."""
    with ExitStack() as stack:
        if count == 1:
            one = stack.enter_context(NatsServer())
            yield f"{one.url}?monitor={one.monitor}", ["nats-single-server"]
        else:
            several = stack.enter_context(NatsCluster(count))
            yield f"{several.url}?monitor={','.join(several.monitors)}", []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engines_nats", description=__doc__)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=8000)
    chosen = parser.parse_args()
    ratios = []
    with servers(chosen.servers) as (url, accept), TemporaryDirectory(dir=".") as work:
        plain = url.partition("?")[0]
        for number in range(chosen.rounds):
            folder = Path(work) / str(number)
            tenant = f"bench-{number}"
            theirs = asyncio.run(bare(plain, chosen.count, 1300, chosen.servers))
            mine = asyncio.run(ours(url, folder, chosen.count, tenant, accept))
            ratios.append(mine / theirs)
            print(f"bare {theirs:,.0f}/s, ours {mine:,.0f}/s: {mine / theirs:.2f}", flush=True)
            took, memory = rebuilt(url, tenant, folder / "again.db", accept)
            print(f"copy built again in {took:.1f} s, {memory} MiB at its peak", flush=True)
        assert NatsLog.exists(url, "bench-0")
    print(
        f"median {statistics.median(ratios):.2f}, goal {GOAL}; ours peaked at "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB"
    )


if __name__ == "__main__":
    main()
