"""Mixed traffic in closed loops: each client calls again as soon as it was answered."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tests.load.place import DIGEST, PULLED, PUSHED
from tests.load.watching import Times
from tests.soak.clients import Cut, Stream
from tests.soak.processes import Server

CASES = 4000
_RECENT = 2000
_REST = 0.05

Call = Callable[[Stream], Awaitable[None]]


class Told:
    """What was acknowledged: the digest of each operation, which names all that it says."""

    def __init__(self) -> None:
        self.sent = 0
        self.digests: dict[str, bytes] = {}
        self.later: Counter[str] = Counter()
        """Answers that say to come again, by their problem's type."""
        self.cut = 0

    def name(self) -> str:
        self.sent += 1
        return f"op-{self.sent}"

    def hear(self, operation: str, status: int, answer: Any) -> bool:
        """Whether it was acknowledged, now or before, and always as the same decision."""
        if status in {429, 503}:
            self.later[answer["type"]] += 1
            return False
        assert status in {200, 201}, f"{operation}: {status} {answer}"
        digest = bytes.fromhex(answer["digest"])
        assert self.digests.setdefault(operation, digest) == digest, f"{operation} changed"
        return True


class Traffic:
    """Clients of one server. They go on until ``end``; calls that were cut are not repeated."""

    def __init__(self, server: Server, rng: random.Random, slices: float) -> None:
        self.server = server
        self.told = Told()
        self.times = Times(slices)
        self.pulled: Counter[str] = Counter()
        self.documents = 0
        self._rng = rng
        self._over = asyncio.Event()
        self._cursors: dict[int, str] = {}
        self._mix: list[tuple[Call, int]] = [
            (self._decide, 56),
            (self._repeat, 8),
            (self._batch, 6),
            (self._read, 14),
            (self._history, 3),
            (self._feed, 4),
            (self._operation, 4),
            (self._release, 3),
            (self._status, 1),
            (self._metrics, 1),
        ]

    async def run(self, clients: int, seconds: float, workers: int = 2) -> None:
        """Load for so long. Raises whatever a client finds wrong."""
        streams = [
            Stream(self.server.port, self.server.site.token) for _ in range(clients + workers)
        ]
        tasks = [asyncio.ensure_future(self._client(each)) for each in streams[:clients]]
        tasks += [
            asyncio.ensure_future(self._worker(each, f"worker-{number}"))
            for number, each in enumerate(streams[clients:])
        ]
        try:
            done, _ = await asyncio.wait(
                tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            self.end()
            for each in done:
                each.result()
            await asyncio.gather(*tasks)
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in streams:
                await stream.close()
        self.times.close()

    def end(self) -> None:
        self._over.set()

    async def _client(self, stream: Stream) -> None:
        calls = [call for call, _ in self._mix]
        weights = [weight for _, weight in self._mix]
        while not self._over.is_set():
            (call,) = self._rng.choices(calls, weights)
            try:
                await call(stream)
            except Cut:
                self.told.cut += 1
                await self._rest()

    async def _ask(
        self, stream: Stream, kind: str, method: str, path: str, content: Any = None
    ) -> tuple[int, Any]:
        began = time.monotonic()
        answered = await stream.ask(method, path, content)
        self.times.add(kind if answered[0] < 400 else str(answered[0]), began)
        if answered[0] in {429, 503}:
            await self._rest()
        return answered

    async def _rest(self) -> None:
        await asyncio.sleep(_REST * self._rng.random())

    # Deciding.

    def _item(self) -> dict[str, Any]:
        number = self._rng.randrange(CASES)
        body = {"n": number, "text": "é" * self._rng.randrange(100)}
        return {
            "operation": self.told.name(), "entity": f"case/{number}", "action": "set", "body": body
        }  # fmt: skip

    async def _post(self, stream: Stream, kind: str, item: dict[str, Any]) -> bool:
        status, answer = await self._ask(stream, kind, "POST", "/v1/main/decisions", item)
        return self.told.hear(item["operation"], status, answer)

    async def _decide(self, stream: Stream) -> None:
        await self._post(stream, "decide", self._item())

    async def _repeat(self, stream: Stream) -> None:
        """The same call twice, at once or after the answer."""
        item = self._item()
        await self._post(stream, "decide", item)
        await self._post(stream, "repeat", item)

    async def _batch(self, stream: Stream) -> None:
        items = [self._item() for _ in range(self._rng.randrange(2, 20))]
        path = "/v1/main/decisions/batch"
        status, answer = await self._ask(stream, "batch", "POST", path, {"items": items})
        if status != 200:
            assert status in {429, 503}, answer
            self.told.later[answer["type"]] += 1
            return
        for item, judged in zip(items, answer["items"], strict=True):
            said = judged.get("acceptance") or judged["problem"]
            self.told.hear(item["operation"], judged["status"], said)

    async def _release(self, stream: Stream) -> None:
        """A document that is approved and released, by one of the lanes."""
        self.documents += 1
        entity, lane = f"document/{self.documents}", self._rng.choice((PUSHED, PULLED))
        data = {"recipient": "ada@example.org", "digest": DIGEST}
        for action in ("approve", f"release-{lane}"):
            item = {
                "operation": self.told.name(), "entity": entity, "action": action,
                "version": "v1", "body": data,
            }  # fmt: skip
            while not await self._post(stream, "release", item):
                if self._over.is_set():
                    return

    # Asking.

    async def _get(self, stream: Stream, kind: str, path: str, *also: int) -> Any:
        status, answer = await self._ask(stream, kind, "GET", path)
        assert status in {200, 429, 503, *also}, (path, status, answer)
        return answer if status == 200 else None

    def _case(self) -> str:
        return f"/v1/main/entities/case/{self._rng.randrange(CASES)}"

    async def _read(self, stream: Stream) -> None:
        await self._get(stream, "read", self._case(), 404)

    async def _history(self, stream: Stream) -> None:
        await self._get(stream, "history", f"{self._case()}/history?limit=20", 404)

    async def _feed(self, stream: Stream) -> None:
        """The next page of the feed, from where this client was."""
        after = self._cursors.get(id(stream))
        path = "/v1/main/entries?limit=50" + (f"&after={after}" if after else "")
        answer = await self._get(stream, "feed", path)
        if answer is not None and answer["next"]:
            self._cursors[id(stream)] = answer["next"]

    async def _operation(self, stream: Stream) -> None:
        if not self.told.sent:
            return
        first = max(1, self.told.sent - _RECENT)
        operation = f"op-{self._rng.randint(first, self.told.sent)}"
        answer = await self._get(stream, "operation", f"/v1/main/operations/{operation}", 404)
        known = self.told.digests.get(operation)
        if answer is not None and known is not None:
            assert bytes.fromhex(answer["digest"]) == known

    async def _status(self, stream: Stream) -> None:
        await self._get(stream, "status", "/v1/main/status")

    async def _metrics(self, _: Stream) -> None:
        """On a connection of its own, as a scraper's."""
        began = time.monotonic()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        except OSError:
            return
        try:
            writer.write(
                f"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                f"Authorization: Bearer {self.server.site.token}\r\n\r\n".encode()
            )
            head = await asyncio.wait_for(reader.read(), 120)
            assert head[9:12] in {b"200", b"503"} or not head, head[:200]
        except OSError:
            return
        finally:
            writer.close()
        self.times.add("metrics", began)

    # Working.

    async def _worker(self, stream: Stream, name: str) -> None:
        """Claim, do, report; each permit is done once, and reported until that is kept."""
        number = 0
        while not self._over.is_set():
            number += 1
            ask = {"worker": name, "operation": f"{name}-{number}", "limit": 8}
            path = f"/v1/main/lanes/{PULLED}/claim"
            try:
                status, answer = await self._ask(stream, "claim", "POST", path, ask)
                permits = answer["permits"] if status == 200 else []
                for permit in permits:
                    self.pulled[permit["id"]] += 1
                    await self._report(stream, permit)
            except Cut:
                self.told.cut += 1
                await self._rest()
                continue
            if not permits:
                await self._rest()

    async def _report(self, stream: Stream, permit: dict[str, Any]) -> None:
        said = {"lease": permit["lease"], "outcome": "confirmed", "receipt": permit["id"][-12:]}
        while True:
            path = f"/v1/main/releases/{permit['id']}/outcome"
            status, answer = await self._ask(stream, "report", "POST", path, said)
            if status in {200, 202}:
                return
            assert status in {429, 503}, answer
