"""R10: a stream that was rolled back, emptied or made anew is noticed; what was seen is kept."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.errors import Damaged, FileChanged, Unreachable
from journal.log import DECISIONS, Append, Look
from journal.nats.log import NatsLog
from tests.contract.test_log import decisions
from tests.support.jetstream import NatsServer
from tests.support.servers import require_nats
from tests.support.streams import Journal, add, call

pytestmark = pytest.mark.engines


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server that this test stops and puts back."""
    require_nats()
    with NatsServer() as made:
        yield made


def put_back(server: NatsServer, older: Path) -> None:
    """An older state of the server's directory in its place, as a restore of the machine does."""
    server.stop()
    shutil.rmtree(server.store)
    shutil.copytree(older, server.store)
    server.start()


def keep(server: NatsServer, where: Path) -> Path:
    server.stop()
    shutil.copytree(server.store, where)
    server.start()
    return where


def sequences_in(copy: Path) -> list[int]:
    with sqlite3.connect(copy) as connection:
        rows = connection.execute(
            "SELECT sequence FROM entries WHERE stream = 'decisions' ORDER BY sequence"
        ).fetchall()
    connection.close()
    return [sequence for (sequence,) in rows]


async def reopened(journal: Journal) -> tuple[NatsLog, Look]:
    log = journal.open()
    return log, await log.look()


async def test_r10_a_stream_that_was_rolled_back_is_noticed_and_what_was_seen_is_kept(
    server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(server, tmp_path)
    log = await journal.founded()
    before = await add(log, decisions(1))
    older = keep(server, tmp_path / "older")
    await add(log, decisions(2, start=2))
    put_back(server, older)
    for _ in range(2):
        with pytest.raises(FileChanged, match="ends at message 2, and this machine has seen 3"):
            await log.look()
    other = journal.open(read_only=True)
    # Whoever opens it anew sees what the stream holds now: store and witness know of more.
    assert await other.look() == before
    (aside,) = journal.asides()
    assert aside.startswith("main-rewound-")
    assert sequences_in(journal.copy.with_name(aside)) == [1, 2, 3]
    assert sequences_in(journal.copy) == [1]
    # The other one sees that the file is another, and opens it anew as well.
    with pytest.raises(FileChanged):
        await log.look()
    await log.close()
    log, look = await reopened(journal)
    assert look == before
    assert journal.asides() == [aside]
    await other.close()
    await log.close()


async def test_r10_a_stream_that_was_rolled_back_and_went_on_is_noticed(
    server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(server, tmp_path)
    log = await journal.founded()
    await add(log, decisions(1))
    older = keep(server, tmp_path / "older")
    await add(log, decisions(1, start=2))
    await log.look()
    put_back(server, older)
    # Another machine, whose copy is of then, has gone on: to the same length, and beyond.
    elsewhere = Journal(server, tmp_path / "elsewhere")
    elsewhere.tenant = journal.tenant
    theirs = elsewhere.open()
    await add(theirs, decisions(1, start=3))
    with pytest.raises(FileChanged, match="went on"):
        await log.look()
    # So it is where our connection is to a server that was not put back: its time is another.
    log._epoch = log._wire.epoch
    with pytest.raises(FileChanged, match="went on"):
        await log.look()
    ahead = await add(theirs, decisions(1, start=4))
    with pytest.raises(FileChanged, match="went on"):
        await log.look()
    await log.close()
    log, look = await reopened(journal)
    assert look == ahead
    (aside,) = journal.asides()
    assert sequences_in(journal.copy.with_name(aside)) == [1, 2]
    await theirs.close()
    await log.close()


async def test_r10_an_append_between_a_rollback_and_the_next_look_is_not_acknowledged(
    server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(server, tmp_path)
    log = await journal.founded()
    await add(log, decisions(1))
    older = keep(server, tmp_path / "older")
    look = await add(log, decisions(1, start=2))
    put_back(server, older)
    elsewhere = Journal(server, tmp_path / "elsewhere")
    elsewhere.tenant = journal.tenant
    theirs = elsewhere.open()
    await add(theirs, decisions(1, start=3))
    with pytest.raises((FileChanged, Unreachable)):
        await log.append(Append(entries=[(DECISIONS, decisions(1, start=4)[0])]), look)
    # What the stream took of it means nothing to anybody.
    assert [row.sequence for row in await theirs.decisions(0, 9)] == [1, 3]
    await theirs.look()
    assert [row.sequence for row in await theirs.decisions(0, 9)] == [1, 3]
    await add(theirs, decisions(1, start=5))
    assert [row.sequence for row in await theirs.decisions(0, 9)] == [1, 3, 5]
    await theirs.close()
    await log.close()


async def test_r10_a_stream_that_was_deleted_is_gone_and_one_made_anew_is_another(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(nats_server, tmp_path)
    log = await journal.founded()
    await add(log, decisions(2))
    assert journal.exists()
    journal.call("STREAM.DELETE")
    with pytest.raises(FileChanged, match="gone"):
        await log.look()
    assert not journal.exists()
    with pytest.raises(Unreachable, match="no such stream"):
        journal.open()
    await log.close()
    anew = await journal.founded()
    assert (await anew.look()).position == 1
    (aside,) = journal.asides()
    assert sequences_in(journal.copy.with_name(aside)) == [1, 2]
    await anew.close()


async def test_r10_a_stream_that_is_made_anew_under_a_running_log_is_noticed(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(nats_server, tmp_path)
    log = await journal.founded()
    await add(log, decisions(2))
    journal.call("STREAM.DELETE")
    elsewhere = Journal(nats_server, tmp_path / "elsewhere")
    elsewhere.tenant = journal.tenant
    theirs = await elsewhere.founded()
    for number in (7, 8, 9):
        await add(theirs, decisions(1, start=number))
    with pytest.raises(FileChanged, match="was made at"):
        await log.look()
    await log.close()
    await theirs.close()


async def test_r10_a_stream_that_was_emptied_is_damaged_and_the_copy_stays(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(nats_server, tmp_path)
    log = await journal.founded()
    await add(log, decisions(2))
    assert "error" in journal.call("STREAM.PURGE")
    assert "error" in journal.call("STREAM.MSG.DELETE", seq=2)
    found = journal.call("STREAM.INFO")
    journal.call("STREAM.DELETE")
    # As a stream that was purged looks: it goes on counting.
    config = {**found["config"], "first_seq": found["state"]["last_seq"] + 1}
    call(nats_server.url, f"STREAM.CREATE.{journal.stream}", config)
    with pytest.raises((Damaged, FileChanged)):
        await log.look()
    with pytest.raises(Damaged, match="purged"):
        journal.open()
    assert sequences_in(journal.copy) == [1, 2]
    await log.close()
