"""P1, P2, P8: servers that are killed, cut off, full, or live on beside their successor.

Nobody helps the service: it says why it refuses, and goes on by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.scene import BUSY, CLOSED, UNAVAILABLE, Load, config, everything_holds, goes_on
from tests.soak.ledger import Ledger
from tests.soak.processes import Server, Site, site_at, until
from tests.support.postgres import PostgresServer
from tests.support.servers import require_postgres, require_small_disk

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("server_area")]

_SIDES = ("store", "journal")


class Scene:
    """A service with a store on one server and a journal on another."""

    def __init__(self, site: Site, servers: dict[str, PostgresServer], journal: str) -> None:
        self.site, self.servers, self.journal = site, servers, journal
        self.server: Server = site.start()
        self.ledger = Ledger()

    def load(self, name: str, size: int = 1) -> Load:
        return Load(self.server, self.ledger, name, size=size)

    def holds(self) -> None:
        """Every acknowledged decision is there, and the service stands as nothing had been."""
        everything_holds(self.site, self.server, self.ledger, self.journal)
        assert self.site.status()["stage"] == "open"
        assert self.server.stop() == 0, self.server.errors
        assert "Traceback" not in self.server.errors, self.server.errors


@pytest.fixture(scope="module")
def servers(server_area: None) -> Iterator[dict[str, PostgresServer]]:
    """Two servers that this module may break."""
    require_postgres()
    with PostgresServer() as store, PostgresServer() as journal:
        yield {"store": store, "journal": journal}


@contextmanager
def scene_on(servers: dict[str, PostgresServer], folder: Path) -> Iterator[Scene]:
    """A service on new databases of these servers."""
    urls = {side: server.create_database() for side, server in servers.items()}
    with site_at(folder, config=config(urls["store"], urls["journal"])) as site:
        yield Scene(site, servers, urls["journal"])


@pytest.fixture
def scene(servers: dict[str, PostgresServer], tmp_path: Path) -> Iterator[Scene]:
    with scene_on(servers, tmp_path) as made:
        yield made


def test_p2_servers_killed_under_load_lose_nothing(scene: Scene) -> None:
    load = scene.load("storm")
    for side in (*_SIDES, *_SIDES):
        load.more()
        scene.servers[side].kill9()
        # The place is named, so that somebody knows where to look.
        load.refusal(f"127.0.0.1:{scene.servers[side].port}")
        scene.servers[side].start()
    load.more()
    load.end()
    assert {answer["type"] for answer in load.refused} <= BUSY
    scene.holds()


def test_p1_connections_cut_again_and_again_take_nothing(scene: Scene) -> None:
    load = scene.load("cut")
    for side in _SIDES * 8:
        load.more(5)
        scene.servers[side].cut_connections()
    load.more()
    load.end()
    assert {answer["type"] for answer in load.refused} <= BUSY
    scene.holds()


def test_a_full_disk_is_named_and_free_again_is_enough(server_area: None, tmp_path: Path) -> None:
    require_postgres()
    require_small_disk()
    disk = ("data", 80)
    with PostgresServer(small_disk=disk) as store, PostgresServer(small_disk=disk) as journal:
        servers = {"store": store, "journal": journal}
        with scene_on(servers, tmp_path) as scene:
            load = scene.load("full", size=4000)
            for side in _SIDES:
                load.more()
                servers[side].fill_disk()
                load.refusal("No space left on device")
                servers[side].free_disk()
            load.more()
            load.end()
            assert {answer["type"] for answer in load.refused} <= BUSY
            scene.holds()


def test_a_full_disk_for_the_wal_stops_the_server_and_loses_nothing(
    servers: dict[str, PostgresServer], tmp_path: Path
) -> None:
    require_small_disk()
    with (
        PostgresServer(small_disk=("wal", 48)) as small,
        scene_on({**servers, "store": small}, tmp_path) as scene,
    ):
        load = scene.load("full", size=15_000)
        load.more()
        small.fill_disk()
        load.refusal()
        until("it is over", lambda: "PANIC" in small.said())
        small.free_disk()
        small.kill9()
        small.start()
        load.more()
        load.end()
        assert {answer["type"] for answer in load.refused} <= BUSY
        scene.holds()


@pytest.mark.parametrize("side", _SIDES)
def test_p8_a_promoted_standby_that_lacks_decisions_is_noticed(
    servers: dict[str, PostgresServer], tmp_path: Path, side: str
) -> None:
    with PostgresServer() as primary, primary.standby() as standby:
        own = {**servers, side: primary}
        urls = {name: server.create_database() for name, server in own.items()}
        database = urls[side].rpartition("/")[2]
        with site_at(tmp_path, config=config(urls["store"], urls["journal"])) as site:
            server, ledger = site.start(), Ledger()
            goes_on(server, ledger, "arrived")
            until("it arrives", lambda: standby.query(_ARRIVED[side], database=database))
            standby.detach()
            for number in range(5):
                goes_on(server, ledger, f"lost-{number}")
            standby.promote()

            # The old primary lives, and so does the service on it.
            other = {**urls, side: standby.url(database)}
            (tmp_path / "unrewind.toml").write_text(config(other["store"], other["journal"]))
            second = site.start()
            status, problem = second.decide("there", "case/there")
            assert (status, problem["type"]) == (503, CLOSED), problem
            told = site.status()
            verdict = {"store": "rewound", "journal": "journal-rewound"}[side]
            assert (told["stage"], told["verdict"]) == ("closed", verdict), told
            # Closed is closed, for everybody who shares the data directory.
            status, problem = server.decide("here", "case/here")
            assert (status, problem["type"]) == (503, CLOSED), problem


_ARRIVED = {
    "store": "SELECT 1 FROM unrewind_main.unrewind_entities WHERE entity = 'case/arrived'",
    "journal": "SELECT 1 FROM unrewind_journal_main.entries WHERE operation = 'arrived'",
}


def test_a_standby_is_named_as_one(servers: dict[str, PostgresServer], tmp_path: Path) -> None:
    with PostgresServer() as primary, primary.standby() as standby:
        url = primary.create_database()
        journal = servers["journal"].create_database()
        database = url.rpartition("/")[2]
        with site_at(tmp_path, config=config(url, journal)) as site:
            server, ledger = site.start(), Ledger()
            goes_on(server, ledger, "arrived")
            assert server.stop() == 0
            until("it arrives", lambda: standby.query(_ARRIVED["store"], database=database))
            (tmp_path / "unrewind.toml").write_text(config(standby.url(database), journal))
            server = site.start()
            status, problem = server.decide("there", "case/there")
            assert (status, problem["type"]) == (503, UNAVAILABLE), problem
            assert f"127.0.0.1:{standby.port}" in problem["detail"]
            assert "standby" in problem["detail"], problem
            # As soon as it is the primary, the same process goes on.
            standby.promote()
            goes_on(server, ledger, "promoted")
            everything_holds(site, server, ledger, journal)
