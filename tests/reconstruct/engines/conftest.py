"""Fixtures: a tenant on each pair of engines of which one, or both, are servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reconstruct.engines.world import ServerScene, World
from tests.support.jetstream import NatsServer
from tests.support.servers import require_nats

ALONE = ["nats-single-server"]


@pytest.fixture(scope="session")
def own_nats(server_area: None) -> Iterator[NatsServer]:
    """A server of these tests alone, which they put back; each has a stream of its own."""
    require_nats()
    with NatsServer() as made:
        yield made


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Where the tenant is, by the parameter: store and journal."""
    name: str = request.param
    store, journal = name.split("-")
    store_url = request.getfixturevalue("store_url") if store == "postgres" else None
    journal_url = request.getfixturevalue("journal_url") if journal == "postgres" else None
    nats: NatsServer | None = None
    if journal == "nats":
        nats = request.getfixturevalue("own_nats")
        journal_url = f"{nats.url}?monitor={nats.monitor}"
    made = World(name, tmp_path, store_url, journal_url, accept=ALONE if nats else [])
    made.nats = nats
    return made


@pytest.fixture
def scene(world: World) -> Iterator[ServerScene]:
    """A founded tenant that remembers every answer; the test itself says when it is whole."""
    made = ServerScene(world)
    try:
        yield made
    finally:
        made.close()
