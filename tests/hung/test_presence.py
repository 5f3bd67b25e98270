"""Presence: what a live server keeps others from, and two servers of one tenant."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hung.scene import decide_some, whole
from tests.soak.ledger import Ledger
from tests.soak.processes import Site, site_at
from tests.soak.storm import Work, storm
from tests.support.whole import verify_files


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


def test_restore_is_refused_while_a_server_lives(site: Site) -> None:
    server, ledger = site.start(), Ledger()
    decide_some(server, ledger, "first")
    history = site.status()["history"]
    site.do("snapshot", "kept")
    decide_some(server, ledger, "second")
    restore = ("restore", "kept", "--confirm-tenant", "main", "--confirm-history", history)
    before = site.store.stat()

    for wake in (lambda: None, server.freeze):
        wake()
        refused = site.run(*restore)
        assert refused.code == 3, refused
        assert "in use" in refused.err
        assert len(refused.err.splitlines()) == 1
        assert site.store.stat().st_ino == before.st_ino
    server.thaw()
    whole(site, server, ledger)
    server.kill()
    restored = site.do(*restore)
    assert restored["replaced"]
    after = site.start()
    assert after.decide("third", "case/1")[0] == 503
    site.recover()
    whole(site, after, ledger)


def test_p6_two_servers_decide_at_once_and_one_outlives_the_other(site: Site) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    rng, ledger = random.Random(seed), Ledger()
    work = Work(rng, ledger)
    one, other = site.start(), site.start()

    async def kill() -> None:
        await asyncio.sleep(rng.random() * 0.005)
        other.signal(signal.SIGKILL)

    accepted = []
    for server in (one, other):
        before = ledger.accepted.total()
        asyncio.run(storm([server], work, ledger, clients=4, calls=4, at={}))
        accepted.append(ledger.accepted.total() - before)
    assert all(accepted), "both decide, in turn"
    asyncio.run(storm([one, other], work, ledger, clients=16, calls=10, at={}))
    places = {server.get("status")[1]["sequence"] for server in (one, other)}
    assert len(places) == 1
    # Nobody was turned away: waiting for the other one's turn is no reason.
    assert not ledger.reasons.keys() - {"/problems/transition-refused"}, (seed, ledger.reasons)
    asyncio.run(
        storm([one, other], work, ledger, clients=32, calls=12, at={rng.randint(50, 150): kill})
    )
    assert other.wait() == -signal.SIGKILL
    ledger.check(one, rng, 1000)
    ledger.check_journal(site.journal)
    report = site.do("verify")
    assert (report["verdict"], report["findings"]) == ("clean", []), seed
    for server in (one, other):
        assert "Traceback" not in server.errors, (seed, server.errors)
    assert one.stop() == 0
    assert verify_files(site.settings) == []
