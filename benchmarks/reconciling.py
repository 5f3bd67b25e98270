"""R4: the most memory that a reconciliation of many releases holds, against one of few.

Both tenants hold as many other decisions as fill SQLite's caches, which would grow otherwise.
"""

import asyncio
import json
import shutil
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx

from benchmarks import memory
from benchmarks.effects import receiver
from benchmarks.isolated import isolated
from benchmarks.measure import Context, Figure, MeasureError, Result
from journal import Operation, Settings, load_settings
from journal.permits import MAX_CLAIM, Asked, Permit, claim
from journal.record import Record
from journal.worker import drive
from journal.writepath import turn
from reconstruct import recovery

MIB = 1024 * 1024
_TOGETHER = 500
_CALLS = 32


def settings_of(folder: Path, url: str) -> Settings:
    """A lane with room for everything, behind a receiver that can be asked."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "unrewind.toml").write_text(
        '[lane.delivery]\nreceiver = "courier"\nconcurrency = 1000000\n'
        f'[receiver.courier]\nurl = "{url}/releases"\nstatus_url = "{url}/status/{{release}}"\n'
        'contract = "queryable"\nwindow = 86400\n'
    )
    return load_settings(folder / "unrewind.toml", {"data": str(folder / "data")}, {})


def fill(folder: Path, url: str, count: int, others: int) -> None:
    """So many releases that went out and that nobody heard of again; begun and applied."""
    settings = settings_of(folder, url)
    record = Record(settings)
    drive(record.open())
    try:
        for start in range(0, others, _TOGETHER):
            numbers = range(start, start + _TOGETHER)
            drive(turn(record, [Operation(f"o-{n}", f"document/o-{n}", "submit") for n in numbers]))
        for start in range(0, count, _TOGETHER):
            numbers = range(start, min(start + _TOGETHER, count))
            for action, version in (("submit", None), ("approve", "v1"), ("release", "v1")):
                operations = [
                    Operation(f"{action}-{n}", f"document/{n}", action, version=version)
                    for n in numbers
                ]
                drive(turn(record, operations))
        taken = 0
        while taken < count:
            permits = drive(claim(record, Asked("delivery", "w", f"c-{taken}", MAX_CLAIM))).permits
            asyncio.run(_send(url, permits))
            taken += len(permits)
        recovery.stop(settings, "a measure")
        drive(recovery.begin(record, "a measure"))
        drive(recovery.apply(record))
    finally:
        drive(record.close())


async def _send(url: str, permits: list[Permit]) -> None:
    places = asyncio.Semaphore(_CALLS)

    async with httpx.AsyncClient(trust_env=False) as client:

        async def send(permit: Permit) -> None:
            async with places:
                answer = await client.post(
                    f"{url}/releases",
                    json={"release": permit.id, "digest": None, "data": {}},
                    headers={"idempotency-key": permit.id},
                )
                if not answer.is_success:
                    raise MeasureError(f"the receiver answered {answer.status_code}")

        await asyncio.gather(*(send(permit) for permit in permits))


def reconcile(folder: Path, url: str, count: int) -> None:
    """Ask about all of them in this process; every one has to end as confirmed."""
    from api.reconciling import reconcile as run

    settings = settings_of(folder, url)
    record = Record(settings)
    drive(record.open())

    async def work(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return drive(function(record, *args))

    try:
        held: list[int] = []
        began = time.perf_counter()
        show = lambda *_: held.append(memory.own())  # noqa: E731 - once a page
        done = asyncio.run(run(work, settings, show=show))
        took = time.perf_counter() - began
    finally:
        drive(record.close())
    if not done.complete or done.counts != {"confirmed": count}:
        raise MeasureError(f"of {count} releases {done.counts} were found, {done.left} are left")
    (folder / "said").write_text(json.dumps([took, max(held) - held[0]]))


def peak_memory(context: Context) -> Result:
    """R4: peak memory of asking a receiver process about 10,000 releases, against 1,000."""
    few, many = context.size(1000, 500), context.size(10_000, 2000)
    others = context.size(100_000, 60_000)
    seconds: dict[int, list[float]] = {few: [], many: []}
    resident: list[float] = []
    grown: list[float] = []
    with context.folder() as folder, receiver(folder / "receiver") as url:
        for count in (few, many):
            isolated(fill, folder / str(count), url, count, others)

        def most(count: int) -> float:
            aside = folder / "aside"
            shutil.rmtree(aside, ignore_errors=True)
            shutil.copytree(folder / str(count), aside)
            peak = memory.peak_of(reconcile, aside, url, count)
            took, more = json.loads((aside / "said").read_text())
            seconds[count].append(took)
            if count == many:
                resident.append(peak.resident / MIB)
                grown.append(more / MIB)
            return peak.own / MIB

        pairs = context.pairs(lambda: most(few), lambda: most(many))
    also = [
        Figure(f"{many:,} releases, with mapped files", "MiB", resident),
        Figure("growth from the first page to the last", "MiB", grown),
    ]
    for count, taken in seconds.items():
        also.append(Figure(f"{count:,} releases", "releases/s", [count / one for one in taken]))
    return Result("MiB", pairs, also)
