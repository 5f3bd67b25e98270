"""Refused once, full once: a connection and a copy are made anew, and nothing stops for good."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journal.errors import DiskFailed, EngineError, FileChanged, Unreachable
from journal.nats.address import address_of
from journal.nats.wire import Wire
from tests.contract.test_log import decisions
from tests.support.jetstream import NatsServer
from tests.support.servers import require_nats
from tests.support.streams import Journal, add

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("server_area")]
SECONDS = 30.0


def within(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def give(server: NatsServer, password: str) -> None:
    """Let this password in and no other one; a running server reads it anew."""
    server.configure([])
    file = server.folder / "nats.conf"
    users = f'authorization {{ users: [ {{user: u, password: "{password}"}} ] }}\n'
    file.write_text(file.read_text() + users)
    if server.process is not None:
        server.process.send_signal(signal.SIGHUP)


def test_a_login_that_was_taken_away_and_given_back_is_used_again() -> None:
    require_nats()
    server = NatsServer(start=False)
    give(server, "right")
    server.start()
    wire = Wire.to(address_of(f"nats://u:right@127.0.0.1:{server.port}"))

    def answers() -> bool:
        try:
            return b"jetstream" in wire.request("$JS.API.INFO", seconds=2)
        except Unreachable:
            return False

    try:
        assert answers()
        epoch = wire.epoch
        give(server, "wrong")
        within(lambda: not answers())
        give(server, "right")
        within(answers)
        assert wire.epoch > epoch
    finally:
        wire.close()
        server.close()


async def test_a_disk_that_fails_under_the_copy_stops_no_writer(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(nats_server, tmp_path)
    log = await journal.founded()
    writer = log._copy.writer  # type: ignore[union-attr]

    @contextmanager
    def full() -> Iterator[None]:
        raise DiskFailed("no space left on device")
        yield

    writer.transaction = full  # type: ignore[method-assign]
    with pytest.raises(FileChanged, match="no space left") as refused:
        await add(log, decisions(1))
    assert isinstance(refused.value, EngineError)
    assert not isinstance(refused.value, DiskFailed)
    await log.close()
