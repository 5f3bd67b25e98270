"""The copy takes an append while the servers do: it keeps what they have taken, and no more."""

from __future__ import annotations

from concurrent.futures import TimeoutError as Late
from pathlib import Path
from typing import Any

import pytest

from journal.errors import Unreachable
from journal.locks import TurnLock
from journal.log import DECISIONS, Append, Moved
from journal.nats import log as module
from journal.nats.log import NatsLog
from journal.nats.stream import Stream
from journal.sql import Statement
from tests.contract.test_log import decisions
from tests.support.jetstream import NatsServer
from tests.support.streams import Journal, add

pytestmark = pytest.mark.engines


@pytest.fixture
def journal(nats_server: NatsServer, tmp_path: Path) -> Journal:
    return Journal(nats_server, tmp_path)


def in_copy(log: NatsLog) -> list[Any]:
    return log.database.read([Statement("SELECT operation FROM entries ORDER BY position")])[0]


def append_of(number: int) -> Append:
    return Append(entries=[(DECISIONS, entry) for entry in decisions(1, start=number)])


async def test_r8_an_append_that_the_stream_refuses_is_not_in_the_copy(
    journal: Journal, tmp_path: Path
) -> None:
    log = await journal.founded()
    look = await log.look()
    elsewhere = Journal(journal.server, tmp_path / "elsewhere")
    elsewhere.tenant = journal.tenant
    theirs = elsewhere.open()
    await theirs.append(append_of(1), look)
    before = in_copy(log)
    with pytest.raises(Moved):
        await log.append(append_of(2), look)
    assert in_copy(log) == before
    assert (await log.look()).position == look.position + 1
    await theirs.close()
    await log.close()


async def test_p2_an_append_of_unknown_outcome_is_not_in_the_copy_before_it_is_in_the_stream(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await journal.founded()
    look = await log.look()
    before = in_copy(log)
    real = Stream.taken

    def lost(stream: Stream, *args: Any) -> None:
        real(stream, *args)
        raise Unreachable("the answer is lost")

    monkeypatch.setattr(Stream, "taken", lost)
    with pytest.raises(Unreachable):
        await log.append(append_of(1), look)
    monkeypatch.undo()
    assert in_copy(log) == before
    found = await log.look()
    assert found.position == look.position + 1
    with pytest.raises(Moved):
        await log.append(append_of(1), look)
    await log.close()


async def test_servers_that_take_their_time_do_not_keep_the_copys_lock(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await journal.founded()
    look = await log.look()
    waited: list[float | None] = []
    real = Stream.taken

    def late(stream: Stream, sent: Any, expects: int, seconds: float | None = None) -> None:
        waited.append(seconds)
        if seconds is not None:
            raise Late
        lock = TurnLock(journal.copy.with_name(f"{journal.copy.name}.lock"), 0.0)
        with lock.held():
            real(stream, sent, expects)
        lock.close()

    monkeypatch.setattr(Stream, "taken", late)
    await log.append(append_of(1), look)
    assert waited == [module._MOMENT, None]
    assert (await log.look()).position == look.position + 1
    assert len(in_copy(log)) == 2
    await log.close()


async def test_where_the_stream_stands_is_asked_ahead_once(journal: Journal) -> None:
    log = await journal.founded()
    look = await log.look()
    assert log.ask_ahead(["op-1"])
    assert await log.look() == look
    log.ask_ahead(["op-1"])
    log.forget()
    after = await add(log, decisions(1))
    assert after.position == look.position + 1
    await log.close()
