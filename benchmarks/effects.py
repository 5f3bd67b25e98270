"""R1 to R3: what it costs to carry effects out, to claim beside a long past, and to sweep."""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx

from benchmarks.isolated import isolated
from benchmarks.measure import Context, Figure, MeasureError, Pairs, Result
from journal import Journal, Operation, Settings, load_settings
from journal.permits import Asked, claim
from journal.record import Record
from journal.store import work as works
from journal.sweeping import sweep
from journal.work import Work
from journal.worker import drive
from journal.writepath import turn

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 30.0
DONE_SECONDS = 300.0
CONCURRENCY = 64
_LOOK = 0.1
"""Seconds between looks at what is done: each costs the process some reads of its own."""


# R1: end to end.


@contextmanager
def receiver(folder: Path) -> Iterator[str]:
    """The example receiver in a process of its own; its address."""
    folder.mkdir(parents=True, exist_ok=True)
    program = ROOT / "examples" / "receiver" / "receiver.py"
    command = [sys.executable, str(program), "--port", "0", "--record", str(folder / "calls.jsonl")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "http://" not in line:
                raise MeasureError(f"the receiver did not start: {line!r}")
            yield line.split()[-1]
        finally:
            process.terminate()


def _settings(folder: Path, text: str) -> Settings:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unrewind.toml").write_text(text)
    return load_settings(folder / "unrewind.toml", {"data": str(folder / "data")}, {})


def released(folder: Path, url: str, count: int) -> float:
    """Seconds from the first decision to release to the last confirmation."""
    settings = _settings(
        folder,
        f'[lane.delivery]\nreceiver = "courier"\nconcurrency = {CONCURRENCY}\n'
        f'[receiver.courier]\nurl = "{url}/releases"\ncontract = "idempotent"\nwindow = 86400\n',
    )
    return asyncio.run(_released(settings, count))


async def _released(settings: Settings, count: int) -> float:
    from api.alerts import Alerts
    from api.working import working

    journal = Journal(settings)
    await journal.start()
    try:
        async with working(journal, Alerts(settings, {})) as dispatcher:
            await _decide(journal, "submit", None, count)
            await _decide(journal, "approve", "v1", count)
            began = time.perf_counter()
            await _decide(journal, "release", "v1", count)
            dispatcher.wake()
            until = began + DONE_SECONDS
            while await _done(journal) < count:
                if time.perf_counter() > until:
                    raise MeasureError(f"not {count} released in {DONE_SECONDS:g} s")
                await asyncio.sleep(_LOOK)
            return time.perf_counter() - began
    finally:
        await journal.stop()


async def _decide(journal: Journal, action: str, version: str | None, count: int) -> None:
    for start in range(0, count, 500):
        operations = [
            Operation(f"{action}-{number}", f"document/{number}", action, version=version)
            for number in range(start, min(start + 500, count))
        ]
        for answer in await journal.accept_many(operations):
            if isinstance(answer, Exception):
                raise answer


async def _done(journal: Journal) -> int:
    return next(
        (
            lane.counts.get("done", 0)
            for lane in await journal.lanes.lanes()
            if lane.lane == "delivery"
        ),
        0,
    )


def called(url: str, count: int, first: int) -> float:
    """Seconds for a bare loop of the same calls, one after another on one kept connection."""
    return asyncio.run(_called(url, count, first, keep=True))


def called_apart(url: str, count: int, first: int) -> float:
    """The same with a connection for each call, which is how unrewind calls."""
    return asyncio.run(_called(url, count, first, keep=False))


async def _called(url: str, count: int, first: int, *, keep: bool) -> float:
    limits = httpx.Limits(max_keepalive_connections=1 if keep else 0)
    async with httpx.AsyncClient(limits=limits, trust_env=False) as client:
        began = time.perf_counter()
        for number in range(first, first + count):
            identity = f"rel_{number:040x}"
            content: dict[str, object] = {
                "release": identity, "tenant": "main", "entity": f"document/{number}",
                "action": "release", "operation": f"release-{number}", "version": "v1",
                "lane": "delivery", "recipient": None, "digest": None, "corrects": None,
                "revision": 3, "data": {},
            }  # fmt: skip
            answer = await client.post(
                f"{url}/releases",
                content=json.dumps(content),
                headers={"idempotency-key": identity, "content-type": "application/json"},
            )
            if not answer.is_success:
                raise MeasureError(f"the receiver answered {answer.status_code}")
        return time.perf_counter() - began


def end_to_end(context: Context) -> Result:
    """R1: releases a second, decision to receipt, against a bare loop of the same calls."""
    count = context.size(2000, 300)
    numbers = iter(range(10**9, 10**12, count))
    with context.folder() as folder, receiver(folder / "receiver") as url:

        def mine() -> float:
            with context.folder() as data:
                return count / isolated(released, data, url, count)

        pairs = context.pairs(lambda: count / isolated(called, url, count, next(numbers)), mine)
        apart = [
            count / isolated(called_apart, url, count, next(numbers)) for _ in range(context.rounds)
        ]
    also = [Figure("bare loop with a connection for each call", "calls/s", apart)]
    return Result("releases/s", pairs, also)


# R2: claiming beside a long past.


def claims(context: Context) -> Result:
    """R2: seconds a claim, with many finished rows in the lane and with few."""
    few, many = 10_000, context.size(1_000_000, 100_000)
    rounds = context.size(200, 50)
    with context.folder() as small, context.folder() as large:
        for folder, count in ((small, few), (large, many)):
            isolated(_fill, folder, count, rounds * (context.rounds + 1))
        taken = {small: 0, large: 0}

        def cost(folder: Path) -> float:
            taken[folder] += 1
            return 1e6 * isolated(_claim, folder, rounds, taken[folder]) / rounds

        pairs = context.pairs(lambda: cost(small), lambda: cost(large))
    return Result("µs a claim", pairs, [])


def _fill(folder: Path, finished: int, ready: int) -> None:
    record = Record(_settings(folder, "[lane.delivery]\nconcurrency = 1000000\n"))
    drive(record.open())
    for start in range(0, ready, 500):
        for action, version in (("submit", None), ("approve", "v1"), ("release", "v1")):
            drive(
                turn(
                    record,
                    [
                        Operation(f"{action}-{n}", f"document/{n}", action, version=version)
                        for n in range(start, min(start + 500, ready))
                    ],
                )
            )
    path = record.settings.store_file
    drive(record.close())
    with closing(sqlite3.connect(path)) as opened:
        opened.executemany(*_insert(_finished(number) for number in range(finished)))
        opened.commit()
        opened.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _insert(rows: Iterator[Work]) -> tuple[str, Iterator[tuple[object, ...]]]:
    statement = works.write_work([])
    marks = "(" + ",".join("?" * len(works.COLUMNS)) + ")"
    return statement.sql.replace("{rows}", marks), (
        tuple(getattr(row, name) for name in works.COLUMNS) for row in rows
    )


def _finished(number: int) -> Work:
    at = "2026-01-01T00:00:00.000000Z"
    return Work(
        id=f"rel_{number:040x}",
        lane="delivery",
        effect="external",
        name="release",
        status="done",
        entity=f"document/old-{number}",
        revision=3,
        sequence=0,
        place=0,
        operation=f"old-{number}",
        version="v1",
        receiver=None,
        recipient=None,
        digest=None,
        corrects=None,
        data="{}",
        weight=1.0,
        due=None,
        created=at,
        committed=at,
        claimed=at,
        finished=at,
        attempts=1,
        step="done",
    )


def _claim(folder: Path, rounds: int, run: int) -> float:
    record = Record(_settings(folder, "[lane.delivery]\nconcurrency = 1000000\n"))
    drive(record.open())
    try:
        began = time.perf_counter()
        for number in range(rounds):
            got = drive(claim(record, Asked("delivery", "w", f"claim-{run}-{number}"))).permits
            if len(got) != 1:
                raise MeasureError(f"claim {number} gave {len(got)} permits")
        return time.perf_counter() - began
    finally:
        drive(record.close())


# R3: sweeping.


def sweeping(context: Context) -> Result:
    """R3: rows a second that a sweep moves, of expired leases, against bare updates of them."""
    count = context.size(10_000, 1000)
    with context.folder() as source:
        isolated(_expire, source, count)

        def mine() -> float:
            with context.folder() as folder:
                _copy(source, folder)
                return count / isolated(_sweep, folder, count)

        def theirs() -> float:
            with context.folder() as folder:
                _copy(source, folder)
                return count / isolated(_update, folder, count)

        pairs: Pairs = context.pairs(theirs, mine)
    return Result("rows/s", pairs, [])


_SWEPT = (
    '[lane.delivery]\ncontract = "idempotent"\nwindow = 86400\nconcurrency = 1000000\n'
    "timeout = 0.01\nlease = 0.02\nsweep_after = 0.03\n"
)


def _expire(folder: Path, count: int) -> None:
    record = Record(_settings(folder, _SWEPT))
    drive(record.open())
    for start in range(0, count, 500):
        last = min(start + 500, count)
        for action, version in (("submit", None), ("approve", "v1"), ("release", "v1")):
            drive(
                turn(
                    record,
                    [
                        Operation(f"{action}-{n}", f"document/{n}", action, version=version)
                        for n in range(start, last)
                    ],
                )
            )
    taken = 0
    while taken < count:
        taken += len(drive(claim(record, Asked("delivery", "w", f"c-{taken}", 256))).permits)
    drive(record.close())


def _copy(source: Path, folder: Path) -> None:
    subprocess.run(["cp", "-r", f"{source}/.", str(folder)], check=True)
    os.sync()


def _sweep(folder: Path, count: int) -> float:
    record = Record(_settings(folder, _SWEPT))
    drive(record.open())
    try:
        began = time.perf_counter()
        moved = drive(sweep(record)).count
        took = time.perf_counter() - began
    finally:
        drive(record.close())
    if moved != count:
        raise MeasureError(f"the sweep moved {moved} rows, not {count}")
    return took


def _update(folder: Path, count: int) -> float:
    """One update and one commit for each row, as the sweep makes them, and nothing else."""
    path = _settings(folder, _SWEPT).store_file
    with closing(sqlite3.connect(path, isolation_level=None)) as opened:
        opened.execute("PRAGMA synchronous=FULL")
        ids = [row[0] for row in opened.execute("SELECT id FROM unrewind_work")]
        began = time.perf_counter()
        for identity in ids:
            opened.execute("UPDATE unrewind_work SET status = 'retry' WHERE id = ?", (identity,))
        took = time.perf_counter() - began
    if len(ids) != count:
        raise MeasureError(f"there are {len(ids)} rows, not {count}")
    return took
