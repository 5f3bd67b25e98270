"""Clients that keep their connection without getting on lose it, and the others go on."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from tests.load.flood import connected, head, is_ended, many
from tests.load.watching import sample
from tests.soak.clients import Client, Cut
from tests.soak.effects import Running, free_port
from tests.soak.processes import SECONDS, Server, site_at, until

_PATIENCE = """
import resource
import api.connections as connections, api.requests as requests, api.server as server
connections.HEAD_SECONDS = connections.ANSWER_SECONDS = 0.5
connections.LOOK_EVERY = 0.1
requests.BODY_SECONDS = 0.5
server.STOP_SECONDS = 3
"""
"""The times that a server gives its clients, made short."""
_FEW_FILES = "resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
DECIDE = "/v1/main/decisions"
BIG = 700_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with _serving(tmp_path) as running:
        yield running


@pytest.fixture
def others(server: Server) -> Iterator[Others]:
    with Others(server) as made:
        yield made


@contextmanager
def _serving(folder: Path, patch: str = "", **environment: str) -> Iterator[Server]:
    with site_at(folder, **environment) as here:
        running = Running(here, "serve", "--port", str(free_port()), patch=_PATIENCE + patch)
        running.wait_until_ready()
        yield running
        if running.alive:
            assert running.stop() == 0, running.errors
        assert "Traceback" not in running.errors, running.errors
        report = here.do("verify")
        assert (report["verdict"], report["findings"]) == ("clean", [])


class Others:
    """A caller that goes on meanwhile, and has to be answered each time."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client = Client(server.port, server.site.token)
        self.decided = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.connection.close()

    def go_on(self) -> None:
        self.decided += 1
        item = {"operation": f"op-{self.decided}", "entity": "case/1", "action": "set"}
        while True:
            try:
                status, answer = self.client.ask("POST", DECIDE, item)
            except Cut:  # an idle connection may be closed for another one; it is made anew
                continue
            if status == 429:
                continue
            assert status in {200, 201}, answer
            return

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        """Go on until something holds."""

        def both() -> Any:
            self.go_on()
            return holds()

        until(what, both)


def test_a_head_that_never_ends_loses_its_connection(server: Server, others: Others) -> None:
    whole = head(server, "GET", "/v1/main/status")
    before = sample(server.pid).handles
    with many(server, 40, whole[:30]) as slow, many(server, 20) as silent:
        ended: set[int] = set()

        def all_ended() -> bool:
            for one in [*slow, *silent]:
                if one.fileno() in ended:
                    continue
                if is_ended(one):
                    ended.add(one.fileno())
                elif one in slow:
                    _trickle(one, b"x")
            return len(ended) == 60

        others.until("slow heads are ended", all_ended)
    until("their handles are free", lambda: sample(server.pid).handles <= before + 1)


def test_the_head_of_a_later_request_has_no_longer(server: Server, others: Others) -> None:
    whole = head(server, "GET", "/v1/main/status")
    with many(server, 5, whole) as slow:
        for one in slow:
            assert one.recv(1 << 16).startswith(b"HTTP/1.1 200")
            one.sendall(whole[:40])
        others.until("slow heads are ended", lambda: all(is_ended(one) for one in slow))


def test_a_body_that_never_ends_is_answered_and_made_no_decision(
    server: Server, others: Others
) -> None:
    body = json.dumps({"operation": "late", "entity": "case/2", "action": "set"}).encode()
    with many(server, 30, head(server, "POST", DECIDE, len(body)), body[:-1]) as slow:
        for one in slow:
            answer = one.recv(1 << 16)
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert b"/problems/request-timeout" in answer
            others.go_on()
        others.until("they are ended", lambda: all(is_ended(one) for one in slow))
    assert server.get("operations/late")[0] == 404


def test_a_client_that_hangs_up_mid_body_made_no_decision(server: Server, others: Others) -> None:
    body = json.dumps({"operation": "gone", "entity": "case/2", "action": "set"}).encode()
    with many(server, 30, head(server, "POST", DECIDE, len(body)), body[:-1]):
        pass
    others.go_on()
    assert server.get("operations/gone")[0] == 404


def _fill(server: Server) -> None:
    """An entity whose history is an answer of megabytes."""
    for number in range(4):
        told = server.decide(f"big-{number}", "case/big", body={"text": "x" * BIG})
        assert told[0] == 201, told


def test_a_client_that_never_reads_loses_its_connection(server: Server, others: Others) -> None:
    _fill(server)
    before = sample(server.pid)
    asked = head(server, "GET", "/v1/main/entries?limit=100")
    with many(server, 20, asked * 20) as deaf:
        most = 0.0

        def all_ended() -> bool:
            nonlocal most
            most = max(most, sample(server.pid).memory)
            return sample(server.pid).handles <= before.handles + 1

        others.until("unread answers are given up", all_ended)
        assert all(_reads_to_an_end(one) for one in deaf)
    # Each may have one answer before it, not the twenty that it asked for.
    assert most - before.memory < 20 * 5 * BIG * 1.5 / (1 << 20) + 100


def test_a_client_that_reads_slowly_gets_its_answer(server: Server) -> None:
    _fill(server)
    with many(server, 1, head(server, "GET", "/v1/main/entries?limit=100")) as (slow,):
        began, got = time.monotonic(), 0
        size = None
        while size is None or got < size:
            part = slow.recv(65536)
            assert part, "it was ended in the middle"
            if size is None:
                top, _, rest = part.partition(b"\r\n\r\n")
                length = top.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                size, part = int(length), rest
            got += len(part)
            # A rate of megabytes a second, for longer than a client may stand still.
            asyncio.run(asyncio.sleep(0.02))
        assert time.monotonic() - began > 0.6
        assert got == size


def test_thousands_of_idle_connections_leave_room_for_who_has_something_to_say(
    tmp_path: Path,
) -> None:
    with _serving(tmp_path, _FEW_FILES) as server:
        whole = head(server, "GET", "/health/live")
        with Others(server) as others, many(server, 600, whole) as idle:
            others.until(
                "handles are free", lambda: sample(server.pid).handles <= 128 + _own_handles()
            )
            for _ in range(20):
                others.go_on()
            assert not all(is_ended(one) for one in idle)


def _own_handles() -> int:
    """The handles of a server beside its connections, with room for what a request opens."""
    return 60


def test_where_no_connection_is_idle_one_more_is_told_to_come_again(tmp_path: Path) -> None:
    with _serving(tmp_path, "requests.BODY_SECONDS = 60\n", UNREWIND_MAX_CONNECTIONS="8") as server:
        busy = head(server, "POST", DECIDE, 100)
        with ExitStack() as made:
            answer = until("one is refused", lambda: _refused(made, server, busy))
            assert answer.startswith(b"HTTP/1.1 429 "), answer
            assert b"Retry-After: 1\r\n" in answer
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["type"] == "/problems/overloaded"
        with Others(server) as others:
            others.until("there is room again", lambda: True)


def test_p1_a_stop_does_not_wait_for_who_never_reads(server: Server, others: Others) -> None:
    _fill(server)
    asked = head(server, "GET", "/v1/main/entries?limit=100")
    with many(server, 10, asked * 5), many(server, 10, asked[:20]):
        others.go_on()
        server.signal(signal.SIGTERM)
        assert server.wait() == 0, server.errors
    assert "Traceback" not in server.errors, server.errors
    again = server.site.start()
    assert again.get("operations/op-1")[0] == 200


def _refused(made: ExitStack, server: Server, busy: bytes) -> bytes:
    """What one more connection is told at once, if it is; else it stays, and is busy."""
    one = made.enter_context(connected(server))
    one.settimeout(0.2)
    try:
        one.sendall(busy)
        return one.recv(1 << 16)
    except OSError:
        return b""


def _trickle(one: Any, part: bytes) -> None:
    try:
        one.setblocking(True)
        one.send(part)
    except OSError:
        return


def _reads_to_an_end(one: Any) -> bool:
    """Whether the server has ended a connection, behind what it sent before."""
    one.setblocking(True)
    one.settimeout(SECONDS)
    try:
        while one.recv(1 << 20):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True
