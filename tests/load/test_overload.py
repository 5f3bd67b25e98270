"""P1: more than a service takes is told to come again, and what it took is not lost."""

from __future__ import annotations

import asyncio
import random
import signal
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.load.flood import Flood
from tests.load.place import served, site
from tests.load.proving import check, check_files
from tests.load.test_load import MINUTES, SEED
from tests.load.traffic import Traffic
from tests.load.watching import sample
from tests.soak.processes import Site
from tests.support.proof import record

SHORT = 2.0
"""Seconds of each load in continuous integration."""
CALLERS, BATCH = 4, 50
WAITING = CALLERS * BATCH
"""As much may wait as one load brings, so anything above it is too much."""
_LEAST = 0.5
"""The share of the sustainable rate that stays at ten times the load."""


async def _overload(folder: Path, seconds: float) -> dict[str, Any]:
    async with site(folder, UNREWIND_MAX_WAITING=str(WAITING)) as (here, _):
        server = served(here)
        flood = Flood(server, BATCH)
        await flood.run(CALLERS, seconds / 2)
        rates: dict[str, float] = {}
        for name, callers in (("once", 1), ("twice", 2), ("ten", 10)):
            flood.slices.clear()
            rates[name] = await flood.run(callers * CALLERS, seconds)
            assert all(flood.slices[second] for second in range(int(seconds))), flood.slices
        again = await flood.run(CALLERS, seconds)
        assert flood.answers[429], "it was never too much"
        assert sample(server.pid).memory < 500
        assert server.stop() == 0, server.errors
        assert not server.errors, server.errors
        _check_told(here, flood)
        check_files(here)
    return {
        "seconds": seconds,
        "loaded_seconds": round(4.5 * seconds),
        "accepted": len(flood.told),
        "lost": 0,
        "answers": [f"{status}: {count}" for status, count in sorted(flood.answers.items())],
        "decisions_per_second": round(rates["once"]),
        "at_twice_the_load": round(rates["twice"] / rates["once"], 2),
        "at_ten_times_the_load": round(rates["ten"] / rates["once"], 2),
        "afterwards": round(again / rates["once"], 2),
    }


def _check_told(here: Site, flood: Flood) -> None:
    """The journal holds what was acknowledged, and of the rest at most what was under way."""
    with closing(sqlite3.connect(f"{here.journal.as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT operation, digest FROM entries WHERE stream = 'decisions'"
        ).fetchall()
    held = dict(rows)
    assert len(held) == len(rows)
    assert held == flood.told, "refused operations are no decisions, acknowledged ones all are"


async def _stop_under_load(folder: Path, clients: int) -> float:
    """SIGTERM in the midst of it; the seconds until the process has ended."""
    async with site(folder) as (here, world):
        server = served(here)
        traffic = Traffic(server, random.Random(SEED), 1.0)
        load = asyncio.ensure_future(traffic.run(clients, 60.0))
        deadline = time.monotonic() + 60
        while len(traffic.told.digests) < 1000:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)
        began = time.monotonic()
        server.signal(signal.SIGTERM)
        code = await asyncio.to_thread(server.wait)
        took = time.monotonic() - began
        traffic.end()
        await load
        assert code == 0, server.errors
        assert "Traceback" not in server.errors, server.errors
        assert traffic.told.cut, "no client was there to the end"
        check(here, traffic, world)
        check_files(here)
        again = served(here)
        sent = dict(traffic.told.digests)
        for operation in random.Random(SEED).sample(sorted(sent), 50):
            status, answer = again.get(f"operations/{operation}")
            assert (status, bytes.fromhex(answer["digest"])) == (200, sent[operation])
        assert again.stop() == 0, again.errors
        return took


async def _stuck_receiver(folder: Path) -> None:
    """A receiver that never answers holds up its own lane, and a stop only for so long."""
    async with site(folder, patience=2.0) as (here, world):
        world.stuck.set()
        server = served(here, _HASTY)
        traffic = Traffic(server, random.Random(SEED), 1.0)
        load = asyncio.ensure_future(traffic.run(8, 60.0))
        deadline = time.monotonic() + 60
        while not (world.effects and sum(traffic.pulled.values()) > 5):
            assert time.monotonic() < deadline, "the other lane stands still too"
            await asyncio.sleep(0.02)
        told = len(traffic.told.digests)
        while len(traffic.told.digests) < told + 500:
            assert time.monotonic() < deadline, "decisions stand still"
            await asyncio.sleep(0.02)
        traffic.end()
        await load
        server.signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.wait) == 0, server.errors
        assert "Traceback" not in server.errors, server.errors
        check(here, traffic, world)
        check_files(here)


_HASTY = "import api.server as its; its.STOP_SECONDS = 3"


def test_more_than_it_takes_is_told_to_come_again_and_nothing_is_lost(tmp_path: Path) -> None:
    sys.stdout.write(f"{asyncio.run(_overload(tmp_path, SHORT))}\n")


def test_p1_a_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    asyncio.run(_stop_under_load(tmp_path, 32))


def test_a_receiver_that_never_answers_holds_up_its_own_lane_alone(tmp_path: Path) -> None:
    asyncio.run(_stuck_receiver(tmp_path))


@pytest.mark.soak
def test_at_ten_times_the_load_most_of_the_rate_stays(tmp_path: Path) -> None:
    told = asyncio.run(_overload(tmp_path / "load", 6 * MINUTES))
    sys.stdout.write(f"{told}\n")
    assert told["at_ten_times_the_load"] >= _LEAST
    stops = [asyncio.run(_stop_under_load(tmp_path / f"stop-{n}", 64)) for n in range(5)]
    told |= {"stops": len(stops), "longest_stop_seconds": round(max(stops), 2)}
    record("overload", f"make load MINUTES={MINUTES:g}", scope=told["loaded_seconds"], **told)
