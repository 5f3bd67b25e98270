"""A tenant whose journal is a stream: decisions, a copy thrown away, and R10 seen by the tenant."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import journal
from journal import Settings
from journal.detection import Verdict
from journal.errors import JournalUnavailable, Recovering, Refused
from tests.support.jetstream import NatsServer
from tests.support.servers import require_nats
from tests.support.streams import Journal
from tests.support.tenants import make_settings, operation

pytestmark = pytest.mark.engines
SECONDS = 60.0


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server that this test stops and puts back."""
    require_nats()
    with NatsServer() as made:
        yield made


def settings_of(server: NatsServer, folder: Path) -> tuple[Settings, Journal]:
    stream = Journal(server, folder)
    settings = make_settings(
        folder, tenant=stream.tenant, journal=stream.url, accept=list(stream.accept)
    )
    stream.copy = settings.home / "copies" / f"{stream.tenant}.db"
    return settings, stream


async def decide(opened: journal.Journal, *numbers: int) -> list[journal.Acceptance]:
    return [await opened.accept(operation(f"case/{n}", "open", {"n": n})) for n in numbers]


async def at_last(opened: journal.Journal, number: int) -> journal.Acceptance:
    """A caller that repeats its operation, as it is told to."""
    given = operation(f"case/{number}", "open")
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return await opened.accept(given)
        except JournalUnavailable:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.02)


async def test_p1_a_tenant_decides_while_its_server_answers_and_goes_on_by_itself(
    server: NatsServer, tmp_path: Path
) -> None:
    settings, stream = settings_of(server, tmp_path)
    async with journal.open(settings) as opened:
        await asyncio.gather(*(decide(opened, n) for n in range(1, 50)))
        before = await opened.status()
        assert (before.verdict, before.sequence) == ("clean", 49)
        server.kill9()
        with pytest.raises(JournalUnavailable):
            await decide(opened, 50)
        with pytest.raises(JournalUnavailable):
            await opened.entity("case/1")
        server.start()
        accepted = await at_last(opened, 51)
        assert accepted.durable_through == 1
        assert (await opened.detect(deep=True)).verdict.sound
        assert (await opened.entity("case/1")).revision == 1
    shutil.rmtree(stream.copy.parent)
    async with journal.open(settings) as opened:
        assert (await opened.detect(deep=True)).verdict is Verdict.CLEAN
        assert (await opened.entity("case/51")).revision == 1
        assert (await opened.status()).sequence == accepted.sequence
    # A start while no server answers is no verdict: it goes on when one does.
    server.stop()
    async with journal.open(settings) as opened:
        with pytest.raises(JournalUnavailable):
            await decide(opened, 60)
        server.start()
        assert (await at_last(opened, 60)).durable_through == 1
        assert (await opened.detect(deep=True)).verdict is Verdict.CLEAN


@pytest.mark.parametrize("store", ["kept", "rolled back too"])
@pytest.mark.parametrize("service", ["running", "opened anew"])
async def test_r10_a_stream_that_was_rolled_back_closes_the_tenant(
    server: NatsServer, tmp_path: Path, service: str, store: str
) -> None:
    settings, stream = settings_of(server, tmp_path)
    async with journal.open(settings) as opened:
        await decide(opened, 1, 2)
    server.stop()
    shutil.copytree(server.store, tmp_path / "older")
    shutil.copytree(settings.store_file.parent, tmp_path / "older-store")
    server.start()

    def roll_back() -> None:
        server.stop()
        shutil.rmtree(server.store)
        shutil.copytree(tmp_path / "older", server.store)
        server.start()

    async with journal.open(settings) as opened:
        await decide(opened, 3, 4)
        if service == "running" and store == "kept":
            roll_back()
            with pytest.raises((Recovering, JournalUnavailable)):
                await decide(opened, 5)
            assert (await opened.detect(deep=False)).verdict is Verdict.JOURNAL_REWOUND
    if service == "opened anew" or store != "kept":
        roll_back()
    if store != "kept":
        shutil.rmtree(settings.store_file.parent)
        shutil.copytree(tmp_path / "older-store", settings.store_file.parent)
    async with journal.open(settings) as opened:
        finding = await opened.detect(deep=False)
        assert finding.verdict is Verdict.JOURNAL_REWOUND, finding
        with pytest.raises(Recovering):
            await decide(opened, 6)
    assert [name.split("-")[-2] for name in stream.asides()] == ["rewound"]


async def test_r10_a_stream_that_was_deleted_is_a_journal_that_is_missing(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    settings, stream = settings_of(nats_server, tmp_path)
    async with journal.open(settings) as opened:
        await decide(opened, 1)
        stream.call("STREAM.DELETE")
        with pytest.raises((Recovering, JournalUnavailable)):
            await decide(opened, 2)
        finding = await opened.detect(deep=False)
        assert finding.verdict is Verdict.JOURNAL_REWOUND
    async with journal.open(settings) as opened:
        assert (await opened.detect(deep=False)).verdict is Verdict.JOURNAL_REWOUND
    # Both gone: founded once, and never again by itself.
    shutil.rmtree(settings.store_file.parent)
    with pytest.raises(Refused, match=r"founded here|remembers a journal"):
        async with journal.open(settings):
            pass
