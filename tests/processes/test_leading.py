"""One process leads: by a lock where the store is a file, by a lease where it is on a server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import journal
from journal import Journal
from journal.asking import worker_name
from journal.errors import SettingsInvalid
from journal.lanes import Effect, Lane
from journal.leading import Found, find, is_live
from journal.permits import Asked
from journal.settings import Settings
from journal.store.processes import Process

ME = Process("serve:here/b/1:1#a", "serve", "same", "{}", "", 100.0, 130.0, 0)


def other(name: str, **fields: Any) -> Process:
    return msgspec.structs.replace(ME, name=f"serve:{name}/b/1:1#b", **fields)


@pytest.mark.parametrize(
    ("rows", "schedules", "leader", "differs"),
    [
        ([], True, ME.name, False),
        ([], False, None, False),
        ([other("east")], True, ME.name, False),
        ([other("east", leads=1)], True, "serve:east/b/1:1#b", False),
        ([other("east", leads=1)], False, "serve:east/b/1:1#b", False),
        # Its lease is over; it has just ended; it is of a time that is yet to come.
        ([other("east", leads=1, until=99.0)], True, ME.name, False),
        ([other("east", leads=1, until=100.0)], True, ME.name, False),
        ([other("east", leads=1, seen=200.0, until=230.0)], True, ME.name, False),
        ([msgspec.structs.replace(ME, leads=1, seen=90.0)], True, ME.name, False),
        ([other("east", declared="another")], True, None, True),
        ([other("east", declared="another", until=99.0)], True, ME.name, False),
    ],
)
def test_who_leads(rows: list[Process], schedules: bool, leader: str | None, differs: bool) -> None:
    found = find(rows, ME, schedules=schedules)
    assert (found.leader, found.other is not None) == (leader, differs)


def test_a_process_that_is_proven_dead_is_not_waited_for() -> None:
    here, _, pid = worker_name("serve").rpartition(":")
    row = msgspec.structs.replace(ME, name=f"{here}:{pid}#x")
    assert is_live(row, 100.0)
    assert int(pid) == os.getpid()
    assert not is_live(msgspec.structs.replace(row, name=f"{here}:{1 << 30}#x"), 100.0)


async def soon(what: str, holds: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    deadline = time.monotonic() + 60
    while not await holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


# A store that is a file.


async def test_one_leads_over_a_file_and_the_next_one_when_it_ends(settings: Settings) -> None:
    async with journal.open(settings) as first, AsyncExitStack() as stack:
        leads = await first.join("serve", schedules=True)
        second = await stack.enter_async_context(journal.open(settings))
        follows = await second.join("serve", schedules=True)
        await first.lanes.sweep()
        assert await leads.is_ours()
        assert not await follows.is_ours()
        (shown,) = (await second.status()).processes
        assert (shown.name, shown.leads) == (worker_name("serve"), True)
        await leads.leave()
        assert await follows.is_ours()
        assert not await leads.is_ours()


async def test_over_a_file_a_leader_that_sweeps_no_more_is_not_waited_for(tmp_path: Path) -> None:
    settings = Settings(data=str(tmp_path), sweep_every=0.1)
    async with journal.open(settings) as first, journal.open(settings) as second:
        await first.join("serve", schedules=True)
        follows = await second.join("serve", schedules=True)
        await first.lanes.sweep()
        await soon("its last sweep is too old", follows.is_ours)


# A store on a server.


@pytest.fixture
def at(tmp_path: Path, store_url: str, journal_url: str) -> Callable[..., Settings]:
    """Settings of a machine of its own."""

    def made(name: str, **changes: Any) -> Settings:
        given = {"alive_for": 1.5, **changes}
        return Settings(data=str(tmp_path / name), store=store_url, journal=journal_url, **given)

    return made


@pytest.fixture
async def pair(at: Callable[..., Settings]) -> AsyncIterator[tuple[Journal, Journal]]:
    async with journal.open(at("east")) as east, journal.open(at("west")) as west:
        yield east, west


@pytest.mark.engines
async def test_one_leads_by_lease_and_the_next_one_when_it_ends(
    pair: tuple[Journal, Journal],
) -> None:
    east, west = pair
    leads = await east.join("serve", schedules=True)
    follows = await west.join("serve", schedules=True)
    assert await leads.is_ours()
    assert not await follows.is_ours()
    shown = (await west.status()).processes
    assert [process.leads for process in shown] == [True, False]
    await leads.leave()
    # Nobody waits for a lease that was given back.
    await soon("the other one leads", follows.is_ours)
    assert [process.leads for process in (await west.status()).processes] == [True]


@pytest.mark.engines
async def test_a_lease_that_lapses_is_taken_over_and_its_holder_finds_out(
    pair: tuple[Journal, Journal],
) -> None:
    east, west = pair
    leads: Any = await east.join("serve", schedules=True)
    follows = await west.join("serve", schedules=True)
    leads._task.cancel()  # it gives no sign of life any more
    await soon("the lease is taken over", follows.is_ours)
    found: Found = await leads._renewed()
    assert found.leader not in {None, leads._me.name}
    assert not await leads.is_ours()


@pytest.mark.engines
async def test_processes_that_share_no_file_declare_the_same_lanes(
    pair: tuple[Journal, Journal], at: Callable[..., Settings]
) -> None:
    east, _ = pair
    await east.join("serve", schedules=True)
    lanes = {"chores": Lane(effect=Effect.INTERNAL)}
    async with journal.open(at("south", lane=lanes)) as south:
        with pytest.raises(SettingsInvalid, match="differ in: lane chores") as told:
            await south.join("dispatch", schedules=False)
        assert told.value.members["process"] == worker_name("serve")
        assert await south.lanes.claim(Asked("chores", "w", "c")) is not None
    assert len((await east.status()).processes) == 1


@pytest.mark.engines
async def test_a_process_that_was_away_gives_out_no_work_that_others_declare_otherwise(
    pair: tuple[Journal, Journal], at: Callable[..., Settings]
) -> None:
    east, _ = pair
    away: Any = await east.join("serve", schedules=True)
    away._task.cancel()
    lanes = {"delivery": Lane(rate=1.0)}
    async with journal.open(at("south", lane=lanes)) as south:
        while True:
            try:
                await south.join("serve", schedules=True)
            except SettingsInvalid:
                await asyncio.sleep(0.1)
            else:
                break
        claimed = await east.lanes.claim(Asked("delivery", "w", "c"))
        assert "differ in: lane delivery" in (claimed.held or "")
        assert not await away.is_ours()
    # The others have ended: its own declaration is in force again.
    await soon("it is alone", away.is_ours)
    assert (await east.lanes.claim(Asked("delivery", "w", "c2"))).held is None
