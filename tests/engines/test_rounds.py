"""P1, P2, P6, P11: the rounds of load, kills and rewinds, wherever store and journal are."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.test_rounds import LONG, note, play
from tests.support.jetstream import NatsServer
from tests.support.servers import require_nats

pytestmark = pytest.mark.engines

COMBINATIONS = [
    ("postgres", "postgres"),
    ("sqlite", "jetstream"),
    ("postgres", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "jetstream"),
]
SHORT = 4
"""One of each kind: a rewind, a kill, an end as asked for, an import that is killed."""


@pytest.fixture
def own_nats_server(server_area: None) -> Iterator[NatsServer]:
    """A server whose stream no other test has."""
    require_nats()
    server = NatsServer()
    yield server
    server.close()


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    """What names the servers of one combination."""
    store, journal = request.param
    named: dict[str, str] = {}
    if store == "postgres":
        named["UNREWIND_STORE"] = request.getfixturevalue("store_url")
    if journal == "postgres":
        named["UNREWIND_JOURNAL"] = request.getfixturevalue("journal_url")
    if journal == "jetstream":
        server: NatsServer = request.getfixturevalue("own_nats_server")
        named["UNREWIND_JOURNAL"] = f"{server.url}?monitor={server.monitor}"
        named["UNREWIND_ACCEPT"] = "nats-single-server"
    return named


@pytest.mark.parametrize("environment", COMBINATIONS[:2], ids="-".join, indirect=True)
def test_p2_nothing_acknowledged_is_lost_on_servers(
    request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path
) -> None:
    told = play(tmp_path, SHORT, **environment)
    assert told["rewound"] == 1
    assert told["acknowledged"] > SHORT * 50
    note(f"rounds-{request.node.callspec.id}", "tests/engines/test_rounds.py", told)


@pytest.mark.soak
@pytest.mark.parametrize("environment", COMBINATIONS, ids="-".join, indirect=True)
def test_p2_nothing_acknowledged_is_lost_over_many_rounds_on_servers(
    request: pytest.FixtureRequest, environment: dict[str, str], tmp_path: Path
) -> None:
    rounds = LONG // 5
    told = play(tmp_path, rounds, **environment)
    assert told["rewound"] == rounds // 4
    note(f"rounds-{request.node.callspec.id}", "tests/engines/test_rounds.py", told)
    sys.stdout.write(f"{environment}: {told}\n")
