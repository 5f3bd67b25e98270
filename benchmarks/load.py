"""The load generator, a process of its own: one JSON order a line in, one JSON report a line out.

A closed loop over keep-alive connections with no HTTP library: it writes finished requests to
non-blocking sockets and reads just enough of each answer to know where it ends.
"""

import json
import select
import socket
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field

from benchmarks.workload import request_body

SILENCE = 10.0
"""Seconds without any answer after which a run is given up."""


@dataclass(frozen=True)
class Order:
    """What to send: decisions from number `first` on, until `warm_up + seconds` have passed."""

    port: int
    path: str
    token: str
    connections: int
    seconds: float
    first: int
    entities: int
    warm_up: float = 0.5


@dataclass
class Report:
    """What came back in `seconds`, after the warm-up. Latencies are in milliseconds.

    `next` is the number of the first decision not sent; `cpu` is the generator's own CPU seconds
    in the measured time; `refused` counts answers other than 201 by status, with one as `sample`.
    """

    requests: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    next: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    sample: str = ""


class Run:
    """One closed loop."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._head = (
            f"POST {order.path} HTTP/1.1\r\nHost: 127.0.0.1:{order.port}\r\n"
            f"Authorization: Bearer {order.token}\r\nContent-Type: application/json\r\n"
            "Content-Length: "
        ).encode()
        self._number = order.first
        self._sent_at: dict[int, float] = {}
        self._partial: dict[int, bytes] = {}
        self._latencies: list[float] = []
        self._report = Report()

    def run(self) -> Report:
        order, report = self._order, self._report
        poller = select.epoll()
        sockets = [_connected(order.port) for _ in range(order.connections)]
        by_number = {one.fileno(): one for one in sockets}
        begin = time.perf_counter() + order.warm_up
        end = begin + order.seconds
        for one in sockets:
            poller.register(one, select.EPOLLIN)
            self._send(one)
        cpu = 0.0
        warming = True
        waiting = len(sockets)
        while waiting:
            ready = poller.poll(SILENCE)
            if not ready:
                raise TimeoutError(f"no answer from {order.path} for {SILENCE:.0f} s")
            for number, _ in ready:
                if not self._received(by_number[number]):
                    continue
                now = time.perf_counter()
                if warming and now >= begin:
                    warming, cpu = False, time.process_time()
                if now < end:
                    if not warming:
                        self._latencies.append(now - self._sent_at[number])
                    self._send(by_number[number])
                else:
                    waiting -= 1
        report.cpu = time.process_time() - cpu
        for one in sockets:
            one.close()
        poller.close()
        return self._summed()

    def _send(self, one: socket.socket) -> None:
        body = request_body(self._number, self._order.entities)
        self._number += 1
        request = b"%b%d\r\n\r\n%b" % (self._head, len(body), body)
        self._sent_at[one.fileno()] = time.perf_counter()
        if one.send(request) != len(request):
            raise BlockingIOError("a request did not fit into the socket's buffer")

    def _received(self, one: socket.socket) -> bool:
        """Take what has come; true once the answer is whole."""
        number = one.fileno()
        data = one.recv(65536)
        if not data:
            raise ConnectionResetError(f"{self._order.path} closed a connection")
        if number in self._partial:
            data = self._partial.pop(number) + data
        if not whole(data):
            self._partial[number] = data
            return False
        if data[9:12] != b"201":
            status = data[9:12].decode()
            self._report.refused[status] = self._report.refused.get(status, 0) + 1
            self._report.sample = data.rpartition(b"\r\n\r\n")[2][:500].decode(errors="replace")
        return True

    def _summed(self) -> Report:
        report, latencies = self._report, sorted(self._latencies)
        report.requests = len(latencies)
        report.seconds = self._order.seconds
        report.next = self._number
        if latencies:
            report.p50 = statistics.median(latencies) * 1e3
            report.p99 = latencies[int(len(latencies) * 0.99)] * 1e3
        return report


def whole(data: bytes) -> bool:
    """Whether these are the bytes of one whole answer with a Content-Length."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return False
    at = data.find(b"content-length: ", 0, end)
    if at < 0:
        raise ValueError(f"an answer without a content-length: {data[:end]!r}")
    length = int(data[at + 16 : data.index(b"\r\n", at)])
    return len(data) == end + 4 + length


def _connected(port: int) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", port), timeout=SILENCE)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    one.setblocking(False)
    return one


def main() -> None:
    for line in sys.stdin:
        try:
            answer = asdict(Run(Order(**json.loads(line))).run())
        except (OSError, ValueError) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
