"""The copy is derived: behind, thrown away, damaged or left half-way, it comes back by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from journal.errors import FileChanged, Unreachable
from journal.log import DECISIONS, Append, Moved
from journal.nats.copy import Copy
from journal.nats.log import NatsLog
from journal.sql import Statement
from tests.contract.test_log import decisions, whole_append
from tests.support.jetstream import NatsServer
from tests.support.streams import Journal, add

pytestmark = pytest.mark.engines
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def journal(nats_server: NatsServer, tmp_path: Path) -> Journal:
    return Journal(nats_server, tmp_path)


TABLES = ("entries", "rivals", "authority", "chains", "flaws", "dropped", "fed", "parts", "voids")


def content(log: NatsLog) -> dict[str, list[tuple[object, ...]]]:
    database = log.database
    return {name: database.read([Statement(f"SELECT * FROM {name}")])[0] for name in TABLES}


def throw_away(copy: Path) -> None:
    for suffix in ("", "-wal", "-shm", ".lock"):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)


async def test_a_copy_that_was_thrown_away_is_built_again_as_it_was(journal: Journal) -> None:
    log = await journal.founded()
    for number in range(1, 600):
        await add(log, decisions(1, start=number))
    await log.append(whole_append(), await log.look())
    look, before = await log.look(), content(log)
    assert len(before["entries"]) == 601
    await log.close()
    throw_away(journal.copy)
    told: list[tuple[int, int]] = []
    again = journal.open(progress=lambda done, total: told.append((done, total)))
    assert await again.look() == look
    assert content(again) == before
    assert [done for done, _ in told] == [256, 512, 601]
    assert {total for _, total in told} == {601}
    await again.close()


async def test_a_copy_that_is_behind_is_fed_by_the_next_look(
    journal: Journal, nats_server: NatsServer, tmp_path: Path
) -> None:
    log = await journal.founded()
    elsewhere = Journal(nats_server, tmp_path / "elsewhere")
    elsewhere.tenant = journal.tenant
    theirs = elsewhere.open()
    for number in range(1, 5):
        look = await add(log, decisions(1, start=number))
        assert await theirs.look() == look
    assert content(theirs) == content(log)
    # They are two machines: who did not look since cannot append.
    stale = await theirs.look()
    await add(log, decisions(1, start=5))
    with pytest.raises(Moved):
        await theirs.append(Append(entries=[(DECISIONS, decisions(1, start=6)[0])]), stale)
    assert await theirs.look() == await log.look()
    await theirs.close()
    await log.close()


async def test_who_looks_first_feeds_the_copy_that_processes_share(journal: Journal) -> None:
    log = await journal.founded()
    reader = journal.open(read_only=True)
    other = journal.open()
    for number in range(1, 9, 2):
        await add(log, decisions(1, start=number))
        await add(other, decisions(1, start=number + 1))
        assert await reader.look() == await log.look() == await other.look()
    for port in (log, reader, other):
        assert [row.sequence for row in await port.decisions(0, 99)] == list(range(1, 9))
        await port.close()


async def test_a_message_that_another_process_has_put_in_is_passed_over(journal: Journal) -> None:
    log = await journal.founded()
    await add(log, decisions(3))
    before = content(log)
    copy = Copy(journal.copy, "another", read_only=False)
    created = journal.call("STREAM.INFO")["created"]
    for page in log._stream.pages(0, 2):
        copy.feed(created, page)
    assert content(log) == before
    await log.close()
    copy.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from journal.log import DECISIONS, Append
from journal.nats.copy import Copy
from journal.nats.log import NatsLog
from journal.nats.stream import Stream
from journal.worker import drive
from tests.contract.test_log import decisions

url, tenant, copy, where, body = sys.argv[1:]
log = NatsLog(url, tenant, Path(copy), accept=["nats-single-server"])
entry = decisions(1, start=2)[0]
append = Append(entries=[(DECISIONS, entry)])
look = drive(log.look())

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

send, taken = Stream.send, Stream.taken

def slow(self, sent, expects, seconds=None):
    # The copy takes it once more when they have.
    if seconds is not None:
        raise TimeoutError
    taken(self, sent, expects)
    setattr(Copy, "feed" if where == "before it is applied" else "_apply", die)

if where == "before it is kept":
    Stream.taken = lambda *args: (taken(*args), die())
elif where.endswith("it is applied"):
    Stream.taken = slow
else:
    import journal.nats.log as module
    module.cut = lambda data, link, size, cut=module.cut: cut(data, link, 1300)
    Stream.taken = die
    Stream.send = lambda self, payloads, expects: taken(
        self, send(self, payloads[: len(payloads) - int(body)], expects), expects
    )
    append = Append(entries=[(DECISIONS, e) for e in decisions(8, start=2)])
drive(log.append(append, look))
"""


def killed(journal: Journal, where: str, *, left: int = 0) -> None:
    """Append in a process of its own that dies ``where`` it is told."""
    process = subprocess.run(
        [
            sys.executable,
            "-c",
            KILLED,
            journal.url,
            journal.tenant,
            journal.copy,
            where,
            str(left),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "where", ["before it is applied", "while it is applied", "before it is kept"]
)
async def test_p1_killed_after_the_stream_took_an_append_the_next_look_finds_it(
    journal: Journal, where: str
) -> None:
    log = await journal.founded()
    await add(log, decisions(1))
    killed(journal, where)
    look = await log.look()
    assert look.position == 3
    assert [row.entry() for row in await log.decisions(0, 9)] == decisions(2)
    await add(log, decisions(1, start=3))
    before = content(log)
    await log.close()
    throw_away(journal.copy)
    again = journal.open()
    assert content(again) == before
    await again.close()


@pytest.mark.parametrize("left", [0, 1, 2])
async def test_p1_killed_between_the_parts_of_an_append_it_counts_whole_or_not_at_all(
    journal: Journal, left: int
) -> None:
    log = await journal.founded()
    before = await add(log, decisions(1))
    parts = journal.call("STREAM.INFO")["state"]["last_seq"]
    killed(journal, "between its parts", left=left)
    parts = journal.call("STREAM.INFO")["state"]["last_seq"] - parts
    assert parts > 2
    look = await log.look()
    if left == 0:
        assert look.position == before.position + 8
        assert [row.entry() for row in await log.decisions(1, 99)] == decisions(8, start=2)
    else:
        assert look == before
        assert [row.sequence for row in await log.decisions(0, 99)] == [1]
        assert len(content(log)["parts"]) == parts
    # The next append is taken right behind what was left, and nothing of that comes back.
    await add(log, decisions(1, start=20))
    assert content(log)["parts"] == []
    whole = content(log)
    await log.close()
    throw_away(journal.copy)
    again = journal.open()
    assert content(again) == whole
    await again.close()


async def test_a_copy_that_is_damaged_is_put_aside_and_built_again(journal: Journal) -> None:
    log = await journal.founded()
    look = await add(log, decisions(3))
    before = content(log)
    await log.close()
    journal.copy.write_bytes(b"\x00" * 100 + journal.copy.read_bytes()[100:])
    again = journal.open()
    assert await again.look() == look
    assert content(again) == before
    assert [name.split("-")[1] for name in journal.asides()] == ["damaged"]
    await again.close()


async def test_a_copy_of_another_format_is_put_aside_and_built_again(journal: Journal) -> None:
    log = await journal.founded()
    look = await add(log, decisions(3))
    log.database.run(Statement("UPDATE fed SET format = 99"))
    await log.close()
    again = journal.open()
    assert await again.look() == look
    assert [name.split("-")[1] for name in journal.asides()] == ["outdated"]
    await again.close()


async def test_whoever_holds_the_copy_is_named(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal.nats.copy.LOCK_SECONDS", 0.1)
    log = await journal.founded()
    reader = journal.open(read_only=True)
    held = Copy(journal.copy, "held", read_only=False)
    with held.alone():
        # What needs nobody's write goes on.
        look = await reader.look()
        with pytest.raises(Unreachable, match=f"process {os.getpid()} has held"):
            await add(log, decisions(1))
    # The stream has taken it: nobody said that it had not.
    assert (await log.look()).position == look.position + 1
    for port in (log, reader):
        await port.close()
    held.close()


async def test_a_copy_that_another_has_put_aside_is_not_written_to(journal: Journal) -> None:
    log = await journal.founded()
    await add(log, decisions(1))
    look = await log.look()
    journal.copy.rename(journal.copy.with_name("elsewhere.db"))
    with pytest.raises(FileChanged):
        await log.append(Append(entries=[(DECISIONS, decisions(1, start=2)[0])]), look)
    await log.close()
