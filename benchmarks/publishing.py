"""What JetStream takes bare: awaited publishes, as many at once as our side has in flight."""

import asyncio
import json
import os
import time

import nats
from nats.aio.client import Client

from benchmarks.measure import MeasureError


def publish(url: str, count: int, warm_up: int, size: int, in_flight: int, replicas: int) -> float:
    """Seconds for the publishes of so many bytes; each is acknowledged by a majority."""
    return asyncio.run(_publish(url, count, warm_up, size, in_flight, replicas))


async def _publish(
    url: str, count: int, warm_up: int, size: int, in_flight: int, replicas: int
) -> float:
    client = await nats.connect(url.removeprefix("nats://").split(","))
    name = f"bare-{time.monotonic_ns()}"
    config = {
        "name": name, "subjects": [name], "storage": "file", "num_replicas": replicas,
        "deny_delete": True, "deny_purge": True,
    }  # fmt: skip
    try:
        await _asked(client, f"$JS.API.STREAM.CREATE.{name}", json.dumps(config).encode())
        payload = os.urandom(size)

        async def run(number: int) -> float:
            left = iter(range(number))

            async def work() -> None:
                for _ in left:
                    await _asked(client, name, payload)

            started = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(in_flight)))
            return time.perf_counter() - started

        await run(warm_up)
        took = await run(count)
        await _asked(client, f"$JS.API.STREAM.DELETE.{name}", b"")
        return took
    finally:
        await client.close()


async def _asked(client: Client, subject: str, payload: bytes) -> None:
    answer = await client.request(subject, payload, timeout=30)
    if b'"error"' in answer.data:
        raise MeasureError(f"{subject}: {answer.data.decode()}")
