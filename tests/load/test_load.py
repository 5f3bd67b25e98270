"""P1, P4 under load: what a service holds does not grow, and nothing is lost or done twice.

One server process, mixed traffic in closed loops, as fast as it answers. Then the same with a
journal that cannot be written for two seconds in every twenty.
"""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.processes import baseline
from tests.load.place import served, site
from tests.load.proving import check, check_files, until_delivered
from tests.load.traffic import Traffic
from tests.load.watching import Times, Watch
from tests.soak.clients import Stream
from tests.support.proof import record

SEED = int(os.environ.get("UNREWIND_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
MINUTES = float(os.environ.get("MINUTES", "10"))
SHORT = 8.0
"""Seconds of a run in continuous integration, where a leak shows that is a kilobyte a request."""
_SHORT_SLACK, _SLACK = 12.0, 8.0
"""MiB that memory may rise by whatever it was. The long one is 5 % of what a service holds whose
caches are half full; over ten minutes it is a dozen bytes a request."""
CLIENTS = 32
STALL, STALL_EVERY = 2.0, 20.0
_NOOP_SECONDS = 60.0
_SMALL = (
    "import journal.sqlite as its;"
    "its._PRAGMAS = tuple(each for each in its._PRAGMAS if 'cache_size' not in each)"
)
"""Page caches of 64 MiB for each connection fill as the data grow. A run whose caches are small
shows whether anything else does; one with the caches of a real service, how much it comes to."""
_MOST = 400.0
"""MiB: four connections with full caches, and what else a process holds."""
_COMMAND = "make load MINUTES={minutes:g}"


async def _stall(journal: Path, seconds: float, every: float, stalls: list[float]) -> None:
    """Keep everybody from writing the journal for so long, each time that so much has passed."""
    while True:
        await asyncio.sleep(every - seconds)
        await asyncio.to_thread(_hold, journal, seconds)
        stalls.append(seconds)


def _hold(journal: Path, seconds: float) -> None:
    database = sqlite3.connect(journal, isolation_level=None, timeout=10, check_same_thread=False)
    with closing(database):
        database.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        database.execute("ROLLBACK")


async def _load(
    folder: Path, seconds: float, stalls: tuple[float, float] | None = None, patch: str = ""
) -> dict[str, Any]:
    """One run; its figures. Fails where something grew, was lost, or happened twice."""
    async with site(folder) as (here, world):
        server = served(here, patch)
        traffic = Traffic(server, random.Random(SEED), max(1.0, seconds / 20))
        watch = Watch(server.pid, min(1.0, seconds / 60))
        stalled: list[float] = []
        beside = [asyncio.ensure_future(watch.run())]
        if stalls:
            beside.append(asyncio.ensure_future(_stall(here.journal, *stalls, stalled)))
        try:
            await traffic.run(CLIENTS, seconds)
        finally:
            for each in beside:
                each.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        await asyncio.to_thread(until_delivered, here)
        assert server.stop() == 0, server.errors
        assert "Traceback" not in server.errors, server.errors
        told = check(here, traffic, world)
        check_files(here)
        if stalls:
            assert stalled, "the journal never stalled"
        if patch:
            watch.check(_SHORT_SLACK if seconds < 60 else _SLACK)
        held = watch.figures()
        assert held["memory_late"] < _MOST, held
        return {**_figures(traffic, told, seconds, len(stalled)), **held}


def _figures(traffic: Traffic, told: dict[str, int], seconds: float, stalls: int) -> dict[str, Any]:
    times = traffic.times
    kinds = ("decide", "batch", "repeat", "read", "feed", "release", "claim", "report", "status")
    assert all(times.counts[kind] for kind in kinds), times.counts
    return {
        "seconds": seconds,
        "seed": SEED,
        "clients": CLIENTS,
        "requests": sum(times.counts.values()),
        "requests_per_second": round(sum(times.counts.values()) / seconds),
        **told,
        "stalls": stalls,
        "told_to_come_again": sum(traffic.told.later.values()),
        "decide_p50_ms": times.p50("decide"),
        "decide_p99_ms": times.p99("decide"),
        "decide_drift": times.drift("decide"),
        "kinds": [
            f"{kind}: {count}, p50 {times.p50(kind)} ms, p99 {times.p99(kind)} ms"
            for kind, count in sorted(times.counts.items())
        ],
    }


async def _noop(folder: Path, seconds: float) -> dict[str, float]:
    """The same clients against a route that does nothing, on the same stack."""
    folder.mkdir()
    with baseline(folder) as target:
        times = Times(1.0)
        until = time.monotonic() + seconds
        item = {"operation": "op", "entity": "case/1", "action": "set", "body": {"n": 1}}

        async def client() -> None:
            stream = Stream(target.port, target.token)
            while time.monotonic() < until:
                began = time.monotonic()
                status, _ = await stream.ask("POST", "/noop", item)
                assert status == 201
                times.add("noop", began)
            await stream.close()

        await asyncio.gather(*(client() for _ in range(CLIENTS)))
        times.close()
    return {"noop_p50_ms": times.p50("noop"), "noop_p99_ms": times.p99("noop")}


def _run(
    folder: Path, seconds: float, stalls: tuple[float, float] | None = None, patch: str = ""
) -> dict[str, Any]:
    told = asyncio.run(_load(folder / "load", seconds, stalls, patch))
    sys.stdout.write(f"{told}\n")
    return told


def test_p1_under_load_nothing_grows_and_nothing_is_lost(tmp_path: Path) -> None:
    _run(tmp_path, SHORT, patch=_SMALL)


def test_p1_under_load_with_a_stalling_journal_nothing_is_lost(tmp_path: Path) -> None:
    _run(tmp_path, SHORT, (1.0, 3.0), _SMALL)


@pytest.mark.soak
def test_p1_under_load_for_minutes_nothing_grows_and_nothing_is_lost(tmp_path: Path) -> None:
    told = _run(tmp_path, 60 * MINUTES, patch=_SMALL)
    told |= asyncio.run(_noop(tmp_path / "noop", _NOOP_SECONDS))
    record("load", _COMMAND.format(minutes=MINUTES), scope=round(60 * MINUTES), **told)


@pytest.mark.soak
def test_p1_under_load_for_minutes_with_a_stalling_journal_nothing_is_lost(tmp_path: Path) -> None:
    told = _run(tmp_path, 60 * MINUTES, (STALL, STALL_EVERY))
    record("load-stalling", _COMMAND.format(minutes=MINUTES), scope=round(60 * MINUTES), **told)
