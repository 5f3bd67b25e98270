"""A cluster that loses its majority: nothing is acknowledged, and it goes on by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.errors import EngineError, Unreachable
from journal.log import Moved
from journal.nats.log import NatsLog
from tests.contract.test_log import decisions
from tests.support.jetstream import NatsCluster
from tests.support.servers import require_nats
from tests.support.streams import Journal, add

pytestmark = pytest.mark.engines
SECONDS = 60.0


@pytest.fixture
def cluster() -> Iterator[NatsCluster]:
    require_nats()
    with NatsCluster() as made:
        yield made


def journal_on(cluster: NatsCluster, folder: Path) -> Journal:
    journal = Journal(cluster.servers[0], folder, accept=())
    journal.url = f"{cluster.url}?monitor={','.join(cluster.monitors)}"
    return journal


async def added_at_last(log: NatsLog, number: int) -> None:
    """Add a decision, as a writer does that tries again until it knows that it is there."""
    deadline = time.monotonic() + SECONDS
    entry = decisions(1, start=number)[0]
    while True:
        try:
            look = await log.look()
            if look.last is not None and look.last.sequence >= number:
                assert look.last.digest == entry.digest
                return
            await add(log, [entry])
        except (Unreachable, Moved):
            assert time.monotonic() < deadline


async def test_p1_without_a_majority_nothing_is_acknowledged_and_it_goes_on_by_itself(
    cluster: NatsCluster, tmp_path: Path
) -> None:
    journal = journal_on(cluster, tmp_path)
    log = await journal.founded()
    assert log.weaker == {}
    assert log.facts()["replicas"] == 3
    await add(log, decisions(1))
    before = await log.look()
    leader = cluster.leader(journal.stream)
    # The leader alone is left: it does not know yet that nobody follows it.
    for server in cluster.followers(journal.stream):
        server.kill9()
    for _ in range(3):
        with pytest.raises(EngineError) as caught:
            await add(log, decisions(1, start=2))
        assert isinstance(caught.value, Unreachable)
    with pytest.raises(Unreachable):
        journal.open()
    leader.kill9()
    for call in (log.look(), add(log, decisions(1, start=2))):
        with pytest.raises(Unreachable):
            await call
    with pytest.raises(Unreachable):
        journal.exists()
    cluster.start()
    await added_at_last(log, 2)
    look = await log.look()
    assert look.position == before.position + 1
    assert journal.exists()
    other = journal.open(read_only=True)
    assert await other.look() == look
    assert [row.sequence for row in await other.decisions(0, 9)] == [1, 2]
    await other.close()
    # Without its leader the others go on, and whoever is connected to it finds another.
    cluster.leader(journal.stream).kill9()
    await added_at_last(log, 3)
    assert journal.asides() == []
    await log.close()
