"""P1, P2: three JetStream servers of which one is killed, then the leader, then two at once.

Nobody helps the service: without a majority it says so and refuses, and goes on by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from api.drill.facts import rows_of
from journal.places import place_of_log
from tests.engines.scene import BUSY, CASES, Load
from tests.soak.ledger import ROWS, Ledger
from tests.soak.processes import site_at
from tests.support.jetstream import NatsCluster
from tests.support.servers import require_nats

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("server_area")]

STREAM = "unrewind-main"


def test_p2_servers_of_a_stream_killed_under_load_lose_nothing(tmp_path: Path) -> None:
    require_nats()
    with NatsCluster() as cluster:
        url = f"{cluster.url}?monitor={','.join(cluster.monitors)}"
        config = f'journal = "{url}"\nhandoff_every = 0.3\n{CASES}'
        with site_at(tmp_path, config=config) as site:
            server, ledger = site.start(), Ledger()
            load = Load(server, ledger, "storm")
            load.more()

            follower = cluster.followers(STREAM)[0]
            follower.kill9()
            load.more()
            cluster.start()

            cluster.leader(STREAM).kill9()
            load.more()
            cluster.start()

            cluster.leader(STREAM)
            for one in cluster.followers(STREAM):
                one.kill9()
            load.refusal("majority")
            cluster.start()
            load.more()
            load.end()

            assert {answer["type"] for answer in load.refused} <= BUSY
            assert all(answer["status"] in {429, 503} for answer in load.refused)
            ledger.repeat(server, ledger.told)
            ledger.repeat(server, ledger.unsettled)
            assert not ledger.unsettled
            ledger.check_rows(rows_of(place_of_log(site.settings), ROWS))
            report = site.do("verify")
            assert (report["verdict"], report["findings"]) == ("clean", [])
            assert site.status()["stage"] == "open"
            assert server.stop() == 0, server.errors
            assert "Traceback" not in server.errors, server.errors
