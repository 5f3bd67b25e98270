"""The wire to the servers: one connection for each address, on one event loop in its own thread.

Calls block and are bounded: every one ends within its timeout, as an answer or as Unreachable.
While no server can be reached calls fail at once, and the client goes on trying to come back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from typing import Any, ClassVar, TypeVar

from nats import errors as faults
from nats.aio.client import Client
from nats.aio.msg import Msg

from journal.errors import EngineError, SettingsInvalid, Unreachable
from journal.nats.address import Address

T = TypeVar("T")
LOGGER = logging.getLogger("unrewind")

CONNECT_SECONDS = 4.0
"""How long opening waits for a first connection."""
ANSWER_SECONDS = 5.0
"""How long a call waits for its answer; afterwards nobody knows whether it was done."""
GRACE_SECONDS = 1.5
"""How long calls wait for a connection that was just lost; a cluster has another server."""
_PAUSE = 0.01
_MAX_BROKEN = 12
_FAILURE_SECONDS = 0.2
"""For how long a connection that could not be made is not tried again."""
_MARGIN = 5.0


class Loop:
    """The event loop's thread. It is there while somebody uses it."""

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _running: ClassVar[Loop | None] = None

    def __init__(self) -> None:
        self.process = os.getpid()
        self.users = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="unrewind-nats", daemon=True)
        self._thread.start()

    @classmethod
    def join(cls) -> Loop:
        """The loop of this process; give it back by ``leave``."""
        with cls._lock:
            if cls._running is None or cls._running.process != os.getpid():
                cls._running = cls()
            cls._running.users += 1
            return cls._running

    def leave(self) -> None:
        """The last user ends the thread."""
        with Loop._lock:
            self.users -= 1
            if self.users or Loop._running is not self:
                return
            Loop._running = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_MARGIN)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Run a coroutine there and wait for it."""
        return self.wait(self.start(work), seconds)

    def wait(self, future: Future[T], seconds: float) -> T:
        """Wait for what was started. Raises Unreachable when it does not end."""
        try:
            return future.result(seconds + _MARGIN)
        except Late:
            future.cancel()
            raise Unreachable("the connection to NATS does not move") from None


class _Door:
    """One address in one process: its connection, or why there was none a moment ago."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wire: Wire | None = None
        self.users = 0
        self.failed = -_FAILURE_SECONDS
        self.why = ""


class Wire:
    """A connection, shared by whoever names the same address. ``close`` gives it back.

    ``epoch`` counts the connections that were made: who sees another one than before may be
    talking to servers that were put back to an earlier moment.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _doors: ClassVar[dict[tuple[int, Address], _Door]] = {}

    def __init__(self, address: Address, door: _Door) -> None:
        self.address = address
        self.epoch = 0
        self._process = os.getpid()
        self._door = door
        self._thread = Loop.join()
        self._client = Client()
        self._flying: set[asyncio.Future[Any]] = set()
        self._lost = 0.0
        self._again = asyncio.Lock()
        self._failed = -_FAILURE_SECONDS
        self._error: str | None = None
        self._refused = self._broken = 0

    @classmethod
    def to(cls, address: Address) -> Wire:
        """The connection to an address, made when it is first wanted.

        Raises Unreachable or SettingsInvalid. A forked process makes one of its own.
        """
        with cls._lock:
            door = cls._doors.setdefault((os.getpid(), address), _Door())
        with door.lock:
            if door.wire is None:
                if time.monotonic() < door.failed + _FAILURE_SECONDS:
                    raise Unreachable(door.why)  # whoever waited for the door has waited enough
                wire = cls(address, door)
                try:
                    wire._connect()
                except BaseException as error:
                    wire._thread.leave()
                    if isinstance(error, Unreachable):
                        door.failed, door.why = time.monotonic(), error.detail
                    raise
                door.wire = wire
            door.users += 1
            return door.wire

    def close(self) -> None:
        """Give the connection back; the last user closes it."""
        if self._process != os.getpid():
            return
        with self._door.lock:
            self._door.users -= 1
            if self._door.users:
                return
            self._door.wire = None
            try:
                self._thread.call(self._client.close(), ANSWER_SECONDS)
            except (Unreachable, OSError, faults.Error) as error:
                LOGGER.debug("%s: not closed in order: %s", self.address.label, error)
            self._thread.leave()

    # Connecting.

    def _connect(self) -> None:
        options = self.address.options()
        self._thread.call(self._connected(options), CONNECT_SECONDS)

    async def _connected(self, options: Mapping[str, Any]) -> None:
        task = asyncio.ensure_future(
            self._client.connect(
                servers=list(self.address.servers),
                name=f"unrewind {os.getpid()}",
                error_cb=self._on_error,
                disconnected_cb=self._on_lost,
                reconnected_cb=self._on_back,
                connect_timeout=2,
                reconnect_time_wait=0.2,  # type: ignore[arg-type] # seconds, in fact any number
                max_reconnect_attempts=-1,
                ping_interval=10,
                **options,
            )
        )
        deadline = time.monotonic() + CONNECT_SECONDS
        while not task.done():
            everywhere = self._refused >= len(self.address.servers)
            if everywhere or time.monotonic() > deadline:
                task.cancel()
                await asyncio.wait([task])
                await self._client.close()
                why = self._error or f"nobody answers within {CONNECT_SECONDS:g} s"
                raise Unreachable(f"{self.address.label}: {why}")
            await asyncio.wait([task], timeout=_PAUSE)
        try:
            task.result()
        except (OSError, faults.Error) as error:
            raise Unreachable(f"{self.address.label}: {_told(error)}") from None
        except ImportError as error:
            told = f"{_told(error)}; a credentials file needs it: pip install 'nats-py[nkeys]'"
            raise SettingsInvalid(f"{self.address.label}: {told}") from None
        except ValueError as error:
            raise SettingsInvalid(f"{self.address.label}: {_told(error)}") from None
        self.epoch += 1

    async def _on_error(self, error: Exception) -> None:
        self._error = _told(error)
        if isinstance(error, ConnectionError) and not isinstance(error, ConnectionRefusedError):
            self._broken += 1  # it may have said why, but not in time: once more
            if self._broken <= _MAX_BROKEN:
                return
        self._refused += 1
        LOGGER.debug("%s: %s", self.address.label, self._error)

    async def _on_lost(self) -> None:
        """The connection is gone: whoever waits for an answer will not get one."""
        self._lost = time.monotonic()
        for task in self._flying:
            task.cancel()

    async def _on_back(self) -> None:
        self.epoch += 1
        LOGGER.info("%s: connected again", self.address.label)

    async def _anew(self) -> None:
        """Connect again after the client gave up, as it does when a server refuses it once.

        Credentials are read anew. Raises Unreachable, at once where that failed a moment ago.
        """
        async with self._again:
            if not self._client.is_closed:
                return  # somebody else has connected meanwhile
            if time.monotonic() < self._failed + _FAILURE_SECONDS:
                raise Unreachable(f"{self.address.label}: {self._error or 'not connected'}")
            self._client = Client()
            self._refused = self._broken = 0
            try:
                await self._connected(self.address.options())
            except BaseException:
                self._failed = time.monotonic()
                raise

    async def _ready(self) -> None:
        if self._client.is_closed:
            await self._anew()
        while not self._client.is_connected:
            if time.monotonic() > self._lost + GRACE_SECONDS:
                why = f": {self._error}" if self._error else ""
                raise Unreachable(f"{self.address.label}: not connected{why}")
            await asyncio.sleep(_PAUSE)

    # Calling.

    @property
    def max_payload(self) -> int:
        """The largest message that the servers take, in bytes."""
        return self._client.max_payload

    @property
    def version(self) -> tuple[int, int]:
        """Of the server that we are connected to."""
        found = self._client.connected_server_version
        return found.major, found.minor

    @property
    def clustered(self) -> bool:
        """Whether that server is one of a cluster."""
        return bool(self._client._server_info.get("cluster"))  # noqa: SLF001 - it has no name

    def request(
        self, subject: str, payload: bytes = b"", *, seconds: float = ANSWER_SECONDS
    ) -> bytes:
        """One request, one answer."""
        return self.answered(self.ask(subject, payload, seconds=seconds))

    def ask(
        self, subject: str, payload: bytes = b"", *, seconds: float = ANSWER_SECONDS
    ) -> Future[bytes]:
        """Send a request; ``answered`` waits for the answer."""
        return self._start(self._request(subject, payload, None, seconds))

    def publish(
        self, subject: str, messages: Sequence[tuple[Mapping[str, str], bytes]]
    ) -> Future[list[bytes]]:
        """Send messages in order, each with its headers; ``answered`` waits for all answers."""
        return self._start(self._publish(subject, messages))

    def fetch(self, subject: str, request: bytes) -> Future[list[tuple[int, bytes]]]:
        """Ask for sequences and payloads by one direct get of many messages.

        They are empty where the server that answers has none of them yet.
        """
        return self._start(self._fetch(subject, request))

    def answered(self, asked: Future[T]) -> T:
        """Wait for what was asked. Raises Unreachable or EngineError."""
        return self._thread.wait(asked, GRACE_SECONDS + 2 * ANSWER_SECONDS)

    def _start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return self._thread.start(self._bounded(work))

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        """Errors of the client as ours; given up when the connection is lost."""
        label = self.address.label
        try:
            await self._ready()
        except BaseException:
            work.close()
            raise
        task = asyncio.ensure_future(work)
        self._flying.add(task)
        try:
            return await task
        except faults.NoRespondersError:
            raise Unreachable(f"{label}: nobody leads the stream now") from None
        except (asyncio.TimeoutError, faults.TimeoutError):  # noqa: UP041 - not one in 3.10's client
            raise Unreachable(f"{label}: no answer within {ANSWER_SECONDS:g} s") from None
        except asyncio.CancelledError:
            raise Unreachable(f"{label}: the connection was lost") from None
        except faults.MaxPayloadError:
            raise EngineError(f"{label}: a message is larger than the servers take") from None
        except (OSError, faults.Error) as error:
            raise Unreachable(f"{label}: {_told(error)}") from None
        finally:
            self._flying.discard(task)

    async def _request(
        self, subject: str, payload: bytes, headers: dict[str, str] | None, seconds: float
    ) -> bytes:
        answer = await self._client.request(subject, payload, timeout=seconds, headers=headers)
        return bytes(answer.data)

    async def _publish(
        self, subject: str, messages: Sequence[tuple[Mapping[str, str], bytes]]
    ) -> list[bytes]:
        if len(messages) == 1:
            headers, payload = messages[0]
            return [await self._request(subject, payload, dict(headers), ANSWER_SECONDS)]
        return await asyncio.gather(
            *(
                self._request(subject, payload, dict(headers), ANSWER_SECONDS)
                for headers, payload in messages
            )
        )

    async def _fetch(self, subject: str, request: bytes) -> list[tuple[int, bytes]]:
        inbox = self._client.new_inbox()
        listening = await self._client.subscribe(inbox)
        found: list[tuple[int, bytes]] = []
        try:
            await self._client.publish(subject, request, reply=inbox)
            while True:
                message = await listening.next_msg(timeout=ANSWER_SECONDS)
                headers = message.headers or {}
                if "Nats-Sequence" not in headers:
                    _check_end(message)
                    return found
                found.append((int(headers["Nats-Sequence"]), bytes(message.data)))
        finally:
            if self._client.is_connected:
                await listening.unsubscribe()


def _check_end(message: Msg) -> None:
    """A status ends the answer: 204 at its end, 404 when there is nothing (yet)."""
    status = (message.headers or {}).get("Status", "")
    if status not in {"204", "404"}:
        if status == "503":
            raise faults.NoRespondersError
        raise faults.Error(f"messages cannot be read: {status or 'an answer without a status'}")


def _told(error: BaseException) -> str:
    """An error in words; the client's own name no secrets."""
    text = str(error).removeprefix("nats: ").strip()
    return text or type(error).__name__
