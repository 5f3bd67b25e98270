"""An append is whole whatever its size, and what is no append of ours means nothing to anybody."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import pytest

from journal.entry import Outcome
from journal.errors import ConstraintFailed, NewerFormat, Unreachable
from journal.log import DECISIONS, Append
from journal.nats.message import FORMAT, Message, cut, encode, link_of
from journal.nats.stream import PAGE
from journal.sql import Statement
from tests.contract.test_log import decisions
from tests.support.jetstream import NatsServer
from tests.support.sealing import sealed
from tests.support.streams import Journal, add

pytestmark = pytest.mark.engines
MIB = 1024 * 1024


@pytest.fixture
def journal(nats_server: NatsServer, tmp_path: Path) -> Journal:
    return Journal(nats_server, tmp_path)


def large(size: int, number: int = 1) -> Append:
    entry = sealed(
        bytes(size),
        entity=f"case/{number}",
        operation=f"large-{number}",
        sequence=number,
        outcome=Outcome("0" * 64, "opened"),
    )
    return Append(entries=[(DECISIONS, entry)])


@pytest.mark.parametrize("size", [0, MIB - 2048, MIB, MIB + 1, 16 * MIB])
async def test_an_append_may_be_larger_than_a_message(journal: Journal, size: int) -> None:
    log = await journal.founded()
    append = large(size)
    await log.append(append, await log.look())
    look = await log.look()
    assert look.position == 2
    state = journal.call("STREAM.INFO")["state"]
    assert (state["last_seq"] > 2) == (size >= MIB)
    elsewhere = Journal(journal.server, journal.copy.parent)
    elsewhere.tenant = journal.tenant
    theirs = elsewhere.open()
    assert await theirs.look() == look
    assert [row.entry() for row in await theirs.decisions(0, 9)] == [append.entries[0][1]]
    await theirs.close()
    await log.close()


async def test_a_rebuilt_copy_holds_a_page_at_a_time(journal: Journal, tmp_path: Path) -> None:
    log = await journal.founded()
    for number in range(1, PAGE + 40):
        await log.append(large(60_000, number), await log.look())
    look = await log.look()
    await log.close()
    elsewhere = Journal(journal.server, tmp_path / "elsewhere")
    elsewhere.tenant = journal.tenant
    tracemalloc.start()
    theirs = elsewhere.open()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert await theirs.look() == look
    await theirs.close()
    assert peak < 2.5 * 8 * MIB  # 18 MB in all, read in pages of 8 MiB or less


VOIDS: dict[str, bytes] = {
    "nothing": b"",
    "text": b"hello",
    "another list": msgspec.msgpack.encode([1, 2]),
    "an older format": msgspec.msgpack.encode([0, bytes(32), 0, True, b""]),
    "a later format that follows nothing": msgspec.msgpack.encode([FORMAT + 1, bytes(32), {}]),
    "an append that follows nothing": next(cut(encode(large(3), 1), bytes(32), MIB)),
}


@pytest.mark.parametrize("what", VOIDS)
async def test_a_message_that_is_no_append_means_nothing(journal: Journal, what: str) -> None:
    log = await journal.founded()
    before = await add(log, decisions(1))
    journal.publish(VOIDS[what])
    assert await log.look() == before
    ((sequence, reason),) = log.database.read([Statement("SELECT * FROM voids")])[0]
    assert sequence == 3
    assert reason
    look = await add(log, decisions(1, start=2))
    assert look.position == before.position + 1
    await log.close()


def following(journal: Journal) -> bytes:
    """What the next message has to name as the one before it."""
    import base64

    last = journal.call("STREAM.INFO")["state"]["last_seq"]
    return link_of(base64.b64decode(journal.call("STREAM.MSG.GET", seq=last)["message"]["data"]))


FORGED = {
    "no append": lambda: b"\x01",
    "a list that is no append": lambda: msgspec.msgpack.encode([1, 2, 3]),
    "an append elsewhere": lambda: encode(large(3, 9), 7),
    "an operation that exists": lambda: encode(
        Append(entries=[(DECISIONS, decisions(2)[1]), (DECISIONS, decisions(1)[0])]), 2
    ),
    "an operation that exists, after many": lambda: encode(
        Append(entries=[(DECISIONS, e) for e in [*decisions(80, start=2), decisions(1)[0]]]), 2
    ),
    "an envelope that is none": lambda: forged(b'"action"', b'"akzion"'),
    "a history that is none": lambda: forged(b'"history":"0', b'"history":"g'),
    "a number that is too large": lambda: forged(b'"sequence":9', b'"sequence":%d' % 2**63),
}


def forged(field: bytes, becomes: bytes) -> bytes:
    """An append of one entry, with something in its envelope that nobody seals."""
    ((stream, entry),) = large(3, 9).entries
    assert field in entry.text
    wrong = msgspec.structs.replace(entry, text=entry.text.replace(field, becomes))
    return encode(Append(entries=[(stream, wrong)]), 2)


@pytest.mark.parametrize("what", FORGED)
async def test_a_message_that_cannot_be_stored_means_nothing(journal: Journal, what: str) -> None:
    log = await journal.founded()
    before = await add(log, decisions(1))
    payload = msgspec.msgpack.encode(Message(FORMAT, following(journal), 0, True, FORGED[what]()))
    journal.publish(payload)
    assert await log.look() == before
    assert [row.sequence for row in await log.decisions(0, 9)] == [1]
    assert len(log.database.read([Statement("SELECT * FROM voids")])[0]) == 1
    look = await add(log, decisions(1, start=2))
    assert look.position == before.position + 1
    await log.close()


async def test_parts_without_their_first_mean_nothing(journal: Journal) -> None:
    log = await journal.founded()
    before = await log.look()
    link = following(journal)
    for part, last in ((1, False), (2, True), (0, False), (2, True)):
        payload = msgspec.msgpack.encode(Message(FORMAT, link, part, last, b"x"))
        journal.publish(payload)
        link = link_of(payload)
    assert await log.look() == before
    rows = log.database.read([Statement("SELECT sequence FROM voids ORDER BY 1")])[0]
    assert rows == [(2,), (3,), (5,)]
    assert log.database.read([Statement("SELECT count(*) FROM parts")])[0] == [(0,)]
    await add(log, decisions(1))
    await log.close()


@pytest.mark.parametrize("behind", [0, 1])
async def test_a_message_of_newer_code_stops_this_one(journal: Journal, behind: int) -> None:
    log = await journal.founded()
    for number in range(behind):
        link = following(journal)
        journal.publish(next(cut(encode(large(3, number + 1), 1), link, MIB)))
    later = msgspec.msgpack.encode([FORMAT + 1, following(journal), {"new": "shape"}])
    journal.publish(later)
    with pytest.raises(NewerFormat, match="install the newer version"):
        await log.look()
    with pytest.raises(NewerFormat):
        journal.open()
    assert log.database.read([Statement("SELECT count(*) FROM voids")])[0] == [(0,)]
    await log.close()


async def test_an_append_that_the_stream_refuses_leaves_nothing(journal: Journal) -> None:
    log = await journal.founded()
    before = await log.look()
    config = journal.call("STREAM.INFO")["config"]
    told = journal.call("STREAM.UPDATE", **{**config, "max_bytes": 1})
    assert "error" not in told
    with pytest.raises(Unreachable):
        await log.append(large(3), before)
    with pytest.raises(Unreachable, match="max_bytes"):
        await log.look()
    journal.call("STREAM.UPDATE", **config)
    assert await log.look() == before
    await log.append(large(3), before)
    await log.close()


async def test_p6_an_append_that_is_refused_does_not_fill_the_stream(journal: Journal) -> None:
    log = await journal.founded()
    before = await add(log, decisions(2))
    again = Append(entries=[(DECISIONS, decisions(2)[1])])
    for _ in range(3):
        with pytest.raises(ConstraintFailed):
            await log.append(again, before)
    assert journal.call("STREAM.INFO")["state"]["last_seq"] == 3
    assert await log.look() == before
    look = await add(log, decisions(1, start=3))
    assert look.position == before.position + 1
    await log.close()
