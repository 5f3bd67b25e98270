"""One tenant's stream: asking where it stands, reading from it, appending to it.

What counts is what the stream's leader says while it hears from a majority. Anything less is
Unreachable: no verdict, ask again later.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
from msgspec import Struct

from journal.errors import Damaged, EngineError, Unreachable
from journal.log import Moved
from journal.nats.wire import Wire

PAGE = 256
"""Messages of one read."""
PAGE_BYTES = 8 * 1024 * 1024
_HEARD_WITHIN = 5_000_000_000
"""Nanoseconds. The copies hear from their leader each second."""
_NO_STREAM = 10059
_NO_MESSAGE = 10037
_WRONG_LAST = frozenset({10071, 10164})
_PAUSE = 0.05
_CATCH_UP_SECONDS = 5.0


class Config(Struct, frozen=True):
    """A stream's settings, as far as they matter to a journal."""

    subjects: list[str] = []
    retention: str = ""
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    max_msg_size: int = -1
    discard: str = ""
    storage: str = ""
    num_replicas: int = 1
    no_ack: bool = False
    sealed: bool = False
    deny_delete: bool = False
    deny_purge: bool = False
    allow_rollup_hdrs: bool = False
    allow_direct: bool = False
    allow_msg_ttl: bool = False
    allow_msg_counter: bool = False
    allow_msg_schedules: bool = False
    persist_mode: str = ""
    mirror: dict[str, Any] | None = None
    sources: list[dict[str, Any]] | None = None
    subject_transform: dict[str, Any] | None = None


class State(Struct, frozen=True):
    """What the stream holds. ``last_ts`` is when its last message was taken."""

    messages: int
    first_seq: int
    last_seq: int
    last_ts: str = ""


class Peer(Struct, frozen=True):
    """A copy beside the leader's. ``active`` is how long ago the leader heard of it, in ns."""

    name: str
    current: bool = False
    offline: bool = False
    active: int = 0

    def heard(self) -> bool:
        """Whether it takes part now."""
        return (
            not self.offline and (self.current or self.active > 0) and (self.active < _HEARD_WITHIN)
        )


class Group(Struct, frozen=True):
    """The servers that hold the stream."""

    leader: str = ""
    replicas: list[Peer] = []


class Info(Struct, frozen=True):
    """Where a stream stands, from its leader."""

    config: Config
    created: str
    state: State
    cluster: Group | None = None

    @property
    def last(self) -> int:
        """The sequence of the last message."""
        return self.state.last_seq

    def servers(self) -> list[str]:
        """The names of the servers that hold it."""
        group = self.cluster or Group()
        return [*filter(None, [group.leader]), *(peer.name for peer in group.replicas)]


class _Fault(Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(Struct, frozen=True):
    error: _Fault | None = None


class _Stored(Struct, frozen=True):
    seq: int
    data: str = ""


class _Got(Struct, frozen=True):
    error: _Fault | None = None
    message: _Stored | None = None


class _Acked(Struct, frozen=True):
    error: _Fault | None = None
    stream: str = ""
    seq: int = 0


_decode_fault = msgspec.json.Decoder(_Answer).decode
_decode_info = msgspec.json.Decoder(Info).decode
_decode_got = msgspec.json.Decoder(_Got).decode
_decode_acked = msgspec.json.Decoder(_Acked).decode


class Stream:
    """A stream by its name, over a wire."""

    def __init__(self, wire: Wire, tenant: str) -> None:
        self.wire = wire
        self.name = f"unrewind-{tenant}"
        self.subject = f"unrewind.{tenant}"
        self.label = f"{wire.address.label} stream {self.name}"

    def ask(self) -> Future[bytes]:
        """Ask where it stands, and go on; ``info`` waits for the answer."""
        return self.wire.ask(f"$JS.API.STREAM.INFO.{self.name}")

    def info(self, asked: Future[bytes] | None = None) -> Info | None:
        """Where it stands, or stood since it was ``asked``; None: there is no such stream.

        Raises Unreachable also while the leader does not hear from a majority of the copies: it
        may have been replaced without knowing.
        """
        told = self.wire.answered(asked or self.ask())
        fault = _decode_fault(told).error
        if fault is not None:
            if fault.err_code == _NO_STREAM:
                return None
            raise Unreachable(f"{self.label}: {fault.description}")
        info = _decode_info(told)
        group = info.cluster
        copies = info.config.num_replicas
        if copies > 1 and group is not None:
            heard = 1 + sum(peer.heard() for peer in group.replicas)
            if not group.leader or heard <= copies // 2:
                raise Unreachable(
                    f"{self.label}: {heard} of its {copies} copies take part, which is no majority"
                )
        return info

    def create(self, config: dict[str, Any]) -> str | None:
        """Make the stream; why not, when the servers refuse it."""
        body = msgspec.json.encode({"name": self.name, "subjects": [self.subject], **config})
        told = self.wire.request(f"$JS.API.STREAM.CREATE.{self.name}", body)
        fault = _decode_fault(told).error
        return None if fault is None else fault.description

    def message(self, sequence: int) -> bytes | None:
        """The message at a sequence as the leader holds it; None: there is none."""
        told = self.wire.request(
            f"$JS.API.STREAM.MSG.GET.{self.name}", msgspec.json.encode({"seq": sequence})
        )
        got = _decode_got(told)
        if got.message is not None:
            return base64.b64decode(got.message.data)
        if got.error is not None and got.error.err_code == _NO_MESSAGE:
            return None
        why = "an answer without a message" if got.error is None else got.error.description
        raise Unreachable(f"{self.label}: {why}")

    def pages(self, after: int, last: int) -> Generator[list[tuple[int, bytes]], None, None]:
        """The messages above a sequence through ``last``, which the stream is known to hold.

        The next page is on its way while one is dealt with. Any of the copies may answer, and one
        that is behind is asked again. Raises Damaged when messages are missing between others.
        """
        coming: Future[list[tuple[int, bytes]]] | None = None
        try:
            while after < last:
                found = self._page(after, last, coming)
                after, coming = found[-1][0], None
                if after < last:
                    coming = self._ask(after, last)
                yield found
        finally:
            if coming is not None:
                coming.cancel()

    def _ask(self, after: int, last: int) -> Future[list[tuple[int, bytes]]]:
        request = {"seq": after + 1, "batch": min(PAGE, last - after), "max_bytes": PAGE_BYTES}
        return self.wire.fetch(f"$JS.API.DIRECT.GET.{self.name}", msgspec.json.encode(request))

    def _page(
        self, after: int, last: int, coming: Future[list[tuple[int, bytes]]] | None
    ) -> list[tuple[int, bytes]]:
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        while True:
            found = self.wire.answered(coming or self._ask(after, last))
            if found:
                self._check_order(after, found)
                return found
            if time.monotonic() > deadline:
                if self.message(after + 1) is None:
                    raise Damaged(f"{self.label}: message {after + 1} of {last} is missing")
                raise Unreachable(f"{self.label}: message {after + 1} cannot be read from a copy")
            coming = None
            time.sleep(_PAUSE)

    def _check_order(self, after: int, found: Sequence[tuple[int, bytes]]) -> None:
        for number, (sequence, _) in enumerate(found, after + 1):
            if sequence != number:
                raise Damaged(f"{self.label}: message {number} is missing, {sequence} is there")

    def send(self, payloads: Sequence[bytes], expects: int) -> Future[list[bytes]]:
        """Send messages that have to stand right behind sequence ``expects``; see ``taken``.

        Each names the sequence that it follows, so none can stand anywhere else.
        """
        return self.wire.publish(
            self.subject,
            [
                ({"Nats-Expected-Last-Sequence": str(number)}, payload)
                for number, payload in enumerate(payloads, expects)
            ],
        )

    def taken(self, sent: Future[list[bytes]], expects: int, seconds: float | None = None) -> None:
        """Wait until a majority of the copies has what was sent.

        Raises Moved when the stream goes on otherwise, Unreachable when it is unknown what of it
        was taken, Late where it is still on its way after these ``seconds``.
        """
        answers = sent.result(seconds) if seconds is not None else self.wire.answered(sent)
        for number, told in enumerate(answers, expects + 1):
            acked = _decode_acked(told)
            if acked.error is not None:
                raise self._refused(acked.error)
            if (acked.stream, acked.seq) != (self.name, number):
                raise EngineError(f"{self.label}: it acknowledged {acked.stream} {acked.seq}")

    def _refused(self, fault: _Fault) -> EngineError:
        if fault.err_code in _WRONG_LAST:
            return Moved(f"{self.label}: it goes on otherwise: {fault.description}")
        return Unreachable(f"{self.label}: {fault.description}")
