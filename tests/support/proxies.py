"""A proxy that loses things: requests pass it one by one, and each meets the fault that is next.

It speaks as much HTTP as it takes to know where a request and an answer end. Each request gets a
connection of its own to the server, so what was passed on is known exactly.
"""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import Struct

SECONDS = 60


class Fault(Struct, frozen=True):
    """What happens to a request whose path ends with ``on``.

    *reset*: the connection is, before anything is passed on. *lose*: the request is carried out,
    its answer is dropped and the connection reset. *swallow*: the same, and the connection stays
    open without a word. *late*: it is passed on after ``seconds``, whoever waits. *answer*: the
    proxy answers ``content`` itself. *hold*: it is passed on when the test says ``release``.
    """

    kind: str
    on: str = ""
    seconds: float = 0.0
    content: bytes = b""


class Seen(Struct, frozen=True):
    """A request as it came in, and when."""

    method: str
    path: str
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


def answer(
    status: int, content: bytes = b"", kind: str = "application/json", **headers: str
) -> bytes:
    """An answer's bytes. `_` in a header's name stands for `-`."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Type: {kind}", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def problem(status: int, name: str, detail: str = "", **headers: str) -> bytes:
    """A problem document's bytes."""
    content = {"type": f"/problems/{name}", "title": name, "status": status, "detail": detail}
    return answer(status, msgspec.json.encode(content), "application/problem+json", **headers)


class Proxy:
    """Listens on ``port`` for a server on ``target``, in a thread with a loop of its own."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.seen: list[Seen] = []
        self.answers: list[bytes] = []
        self._faults: list[Fault] = []
        self._always: list[Fault] = []
        self._released = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def meets(self, *faults: Fault, always: bool = False) -> None:
        """The next requests that fit meet these, one each; or all of them meet them ``always``."""
        (self._always if always else self._faults).extend(faults)

    def clear(self) -> None:
        """Pass everything on from now."""
        self._faults.clear()
        self._always.clear()

    def release(self) -> None:
        """Let what is held go on."""
        self._released.set()

    def requests(self, end: str) -> list[Seen]:
        """The requests to paths that end so."""
        return [seen for seen in self.seen if seen.path.endswith(end)]

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Ask until it holds; fails after SECONDS."""
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until, self.seen
            time.sleep(0.01)

    # Its loop.

    def start(self) -> "Proxy":
        self._thread.start()
        self.wait_for(lambda: self.port)
        return self

    def stop(self) -> None:
        self.release()
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        server = await asyncio.start_server(self._client, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        await self._stopping.wait()
        server.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            try:
                while await self._one(reader, writer):
                    pass
            finally:
                writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request; whether the connection is good for another."""
        head, body = await _message(reader)
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        self.seen.append(Seen(method, path, body, time.monotonic()))
        fault = self._next(path)
        match fault.kind:
            case "reset":
                return _reset(writer)
            case "answer":
                writer.write(fault.content)
                await writer.drain()
                return True
            case "late":
                await asyncio.sleep(fault.seconds)
            case "hold":
                await asyncio.to_thread(self._released.wait)
        told = await self._pass(head, body)
        if fault.kind == "lose":
            return _reset(writer)
        if fault.kind == "swallow":
            await reader.read()
            return False
        writer.write(told)
        await writer.drain()
        return True

    async def _pass(self, head: bytes, body: bytes) -> bytes:
        server, out = await asyncio.open_connection("127.0.0.1", self.target)
        try:
            out.write(head + body)
            told = b"".join(await _message(server))
        finally:
            out.close()
        self.answers.append(told)
        return told

    def _next(self, path: str) -> Fault:
        for faults in (self._faults, self._always):
            for fault in faults:
                if path.endswith(fault.on):
                    if faults is self._faults:
                        faults.remove(fault)
                    return fault
        return Fault("pass")


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = 0
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            length = int(value)
    return head, await reader.readexactly(length)


def _reset(writer: asyncio.StreamWriter) -> bool:
    """Close with a reset, not with an orderly end."""
    writer.get_extra_info("socket").setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
    )
    writer.transport.abort()
    return False


@contextlib.contextmanager
def losing(target: int) -> Iterator[Proxy]:
    """A proxy before a server, stopped at the end."""
    proxy = Proxy(target).start()
    try:
        yield proxy
    finally:
        proxy.stop()
