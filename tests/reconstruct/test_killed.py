"""R11, P11, P4: real commands, killed at a call of a port, and run again until they are done.

However a recovery was interrupted, it ends in the same state, and receivers see the same calls.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from journal import Settings, load_settings
from journal.work import FINISHED
from reconstruct.verification import verify
from tests.reconstruct.scenes import query
from tests.support.dispatching import scene as dispatching
from tests.support.killing import Ended, Killer
from tests.support.proof import record
from tests.support.receivers import Receiver

CONFIG = """
data = "{data}"
dispatch_every = 0.02
[lifecycle.case]
kind = "free"
[lifecycle.order.actions]
parcels = {{ from = ["draft", "going"], to = "going", releases = ["parcels"] }}
cancel = {{ from = ["draft", "going"], to = "cancelled" }}
[lane.parcels]
receiver = "courier"
attempts = 5
backoff = 0.01
backoff_cap = 0.02
lease = 100.0
sweep_after = 200.0
cap = 300.0
[receiver.courier]
url = "{url}"
status_url = "{status_url}"
contract = "idempotent"
window = 86400
timeout = 20.0
works = 0.2
poll = 0.05
"""
STEPS = [
    ["recover", "begin", "--reason", "a test", "--wait", "0"],
    ["recover", "plan"],
    ["recover", "apply"],
    ["recover", "reconcile"],
    ["recover", "reopen"],
]
SHARE = 51
"""One point in so many is tried in a plain run, all of them in the long one. Odd: both sides."""
AGAIN = 40


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    made = Killer()
    yield made
    made.close()


class Place:
    """A tenant's directory, its configuration and its receiver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "unrewind.toml"
        self.receiver = Receiver(folder / "receiver")

    def start(self) -> Settings:
        self.receiver.start()
        text = CONFIG.format(
            data=self.folder / "data",
            url=self.receiver.url,
            status_url=self.receiver.status_url,
        )
        self.config.write_text(text)
        return load_settings(self.config, {}, {})

    def copy(self, folder: Path) -> Place:
        shutil.copytree(self.folder, folder)
        return Place(folder)

    def calls(self) -> Counter[str]:
        return Counter(line["release"] for line in self.receiver.calls())


@pytest.fixture(scope="module")
def rewound(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A tenant whose store was put back to before its releases went out, some of them unseen."""
    place = Place(tmp_path_factory.mktemp("killed") / "template")
    try:
        settings = place.start()
        asyncio.run(_live(settings, place.receiver))
    finally:
        place.receiver.stop()
    store = settings.store_file
    for suffix in ("-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(place.folder / "old.db", store)
    return place


async def _live(settings: Settings, receiver: Receiver) -> None:
    async with dispatching(settings, runs=False) as tenant:
        early = [await tenant.permit(entity=f"order/{number}") for number in (1, 2, 3)]
        await tenant.decide("set", {"value": 1}, entity="case/1")
        await tenant.journal.write(_copy, settings.home.parent / "old.db")
        await tenant.decide("cancel", entity="order/2")
        early.append(await tenant.permit(entity="order/4"))
        await tenant.decide("set", {"value": 2}, entity="case/1")
        await tenant.start()
        for identity in (early[0], early[2], early[3]):
            await tenant.comes_to(identity, "done")
        receiver.tell("lose-reply")
        unseen = await tenant.permit(entity="order/5")
        await tenant.seen(lambda: receiver.calls(unseen))
        await tenant.stop()
        receiver.clear()
        await tenant.permit(entity="order/6")


async def _copy(record: Any, target: Path) -> None:
    record.store.database.copy_to(target)


def carried_out(place: Place, settings: Settings) -> dict[str, Any]:
    """Let everything go that may, and tell how it all stands then."""
    digest = verify(settings).state_digest
    asyncio.run(_to_the_end(settings))
    rows = query(settings.store_file, "SELECT id, entity, status FROM unrewind_work ORDER BY id")
    return {"digest": digest, "rows": rows, "calls": place.calls()}


async def _to_the_end(settings: Settings) -> None:
    async with dispatching(settings) as tenant:
        rows = query(settings.store_file, "SELECT id FROM unrewind_work")
        for (identity,) in rows:
            await tenant.comes_to(identity, *FINISHED)


def expect(place: Place, killer: Killer) -> tuple[dict[str, Any], int]:
    try:
        settings = place.start()
        ended = killer.run(place.config, STEPS)
        assert ended.completed, (ended.codes, ended.said)
        return carried_out(place, settings), ended.calls
    finally:
        place.receiver.stop()


def until_done(place: Place, killer: Killer, at: int, *, after: bool) -> list[Ended]:
    """Kill once at a point, then go on from the step that was killed, as an operator does."""
    ended = [killer.run(place.config, STEPS, at=at, after=after)]
    while ended[-1].killed:
        assert len(ended) < AGAIN
        ended.append(killer.run(place.config, STEPS, first=ended[-1].step))
    assert ended[-1].completed, (at, after, ended[-1].codes, ended[-1].said)
    return ended


def every_point(calls: int) -> list[tuple[int, bool]]:
    return [(at, after) for at in range(1, calls + 1) for after in (False, True)]


def kill_at(
    rewound: Place, killer: Killer, folder: Path, chosen: Callable[[int], list[tuple[int, bool]]]
) -> None:
    expected, calls = expect(rewound.copy(folder / "undisturbed"), killer)
    # Of six releases one was cancelled, four had gone out, and one goes out now, once.
    assert [*(expected["calls"] - rewound.calls()).values()] == [1]
    assert (len(expected["rows"]), len(expected["calls"])) == (6, 5)
    assert calls > SHARE
    for at, after in chosen(calls):
        place = rewound.copy(folder / f"{at}-{after}")
        try:
            settings = place.start()
            ended = until_done(place, killer, at, after=after)
            assert ended[0].killed, at
            assert carried_out(place, settings) == expected, (at, after)
        finally:
            place.receiver.stop()
        shutil.rmtree(place.folder)
    points = len(chosen(calls))
    command = "make soak ARGS=tests/reconstruct/test_killed.py"
    record("kill-points", command, scope=points, calls=calls, killed=points, ended_otherwise=0)


def test_r11_p11_p4_a_recovery_killed_at_a_call_ends_the_same_and_sends_the_same(
    rewound: Place, killer: Killer, tmp_path: Path
) -> None:
    kill_at(rewound, killer, tmp_path, lambda calls: every_point(calls)[::SHARE])


@pytest.mark.soak
def test_r11_p11_p4_killed_at_every_call(rewound: Place, killer: Killer, tmp_path: Path) -> None:
    kill_at(rewound, killer, tmp_path, every_point)


def test_p11_killed_over_and_over_a_recovery_gets_further_each_time(
    rewound: Place, killer: Killer, tmp_path: Path
) -> None:
    expected, _ = expect(rewound.copy(tmp_path / "undisturbed"), killer)
    place = rewound.copy(tmp_path / "again")
    try:
        settings = place.start()
        number, step, kills = 3, 0, 0
        while (ended := killer.run(place.config, STEPS, first=step, at=number)).killed:
            number, step, kills = number + 9, ended.step, kills + 1
            assert kills < AGAIN
        assert ended.completed, (ended.codes, ended.said)
        assert kills > len(STEPS)
        assert carried_out(place, settings) == expected
    finally:
        place.receiver.stop()
