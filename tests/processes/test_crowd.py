"""P1, P4, P7, P8: four servers of one tenant, on machines that share no file."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial

import psycopg
import pytest

from tests.processes.crowd import PAUSED, Crowd, Load, crowded
from tests.soak.processes import Server, until
from tests.support.jetstream import NatsServer
from tests.support.postgres import PostgresServer
from tests.support.proof import record

pytestmark = pytest.mark.engines

_HELD, _RECOVERING = "/problems/held", "/problems/recovering"
_names = itertools.count(1)


@pytest.fixture(
    scope="module", params=["postgresql", pytest.param("jetstream", marks=pytest.mark.soak)]
)
def urls(request: pytest.FixtureRequest, postgres_stores: PostgresServer) -> tuple[str, str]:
    """Where the store is, and the journal."""
    if request.param == "jetstream":
        server: NatsServer = request.getfixturevalue("nats_server")
        return postgres_stores.create_database(), server.url
    journals: PostgresServer = request.getfixturevalue("postgres_journals")
    return postgres_stores.create_database(), journals.create_database()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory, urls: tuple[str, str]) -> Iterator[Crowd]:
    """One crowd for all tests here: each leaves it open, with every server alive."""
    with crowded(tmp_path_factory.mktemp("crowd"), *urls) as made:
        yield made


def settled(crowd: Crowd, load: Load) -> None:
    """Everything holds once the load is over."""
    load.end()
    crowd.check()
    crowd.check_effects()
    crowd.check_rate()
    for server in crowd.servers:
        assert "Traceback" not in server.errors, server.errors


def note(urls: tuple[str, str], killed: int, paused: int) -> None:
    """Keep what was gone through, for the report."""
    name = f"processes-{urls[1].partition(':')[0]}"
    command = "make soak ARGS=tests/processes"
    record(name, command, scope=killed + paused, killed=killed, paused=paused, done_twice=0)


def kill(crowd: Crowd, load: Load, server: Server) -> None:
    """End a server without a word in the midst of the load, and start it anew."""
    leads = crowd.leader() is server
    server.kill()
    if leads:
        crowd.new_leader(server)
    load.more()
    crowd.revive(crowd.servers.index(server))


def pause(crowd: Crowd, load: Load, server: Server) -> None:
    """Let a server stand still for longer than its lock, its claims and its lease, then go on."""
    leads = crowd.leader() is server
    server.freeze()
    over = time.monotonic() + PAUSED
    if leads:
        crowd.new_leader(server)
    load.more()
    until("it has stood still for long", lambda: time.monotonic() > over)
    server.thaw()
    load.more()


def test_p1_p4_one_is_killed_and_one_stands_still_and_the_others_go_on(
    crowd: Crowd, urls: tuple[str, str]
) -> None:
    load = Load(crowd, f"short-{next(_names)}")
    load.more()
    leader = until("one leads", crowd.leader)
    kill(crowd, load, leader)
    pause(crowd, load, until("one leads", crowd.leader))
    settled(crowd, load)
    note(urls, 1, 1)


@pytest.mark.soak
def test_p1_p4_each_is_killed_and_stands_still_in_its_turn(
    crowd: Crowd, urls: tuple[str, str]
) -> None:
    load = Load(crowd, f"long-{next(_names)}", clients=8, pullers=4)
    for _ in range(3):
        for number in range(len(crowd.servers)):
            kill(crowd, load, crowd.servers[number])
            pause(crowd, load, crowd.servers[number])
    settled(crowd, load)
    note(urls, 3 * len(crowd.servers), 3 * len(crowd.servers))


def test_a_stop_of_one_action_holds_in_every_process(crowd: Crowd) -> None:
    name = f"stopped-{next(_names)}"
    crowd.sites[1].do("stop", "document/submit", "--reason", "a test")
    for number, server in enumerate(crowd.servers):
        status, problem = server.decide(f"{name}-{number}", f"document/{name}", "submit")
        assert (status, problem["type"]) == (503, _HELD)
    crowd.sites[2].do("resume", "document/submit", "--reason", "over")
    told = [s.decide(f"{name}-{n}", f"document/{name}-{n}", "submit") for n, s in
            enumerate(crowd.servers)]  # fmt: skip
    assert [status for status, _ in told] == [201] * len(told)


def test_p7_a_stop_closes_every_process_and_a_recovery_elsewhere_opens_them(crowd: Crowd) -> None:
    name = f"closed-{next(_names)}"
    begun = crowd.sites[3].do("recover", "begin", "--reason", "a test", "--wait", "0")
    assert begun["safe_to_restore"]
    for number, server in enumerate(crowd.servers):
        status, problem = server.decide(f"{name}-{number}", f"document/{name}", "submit")
        assert (status, problem["type"]) == (503, _RECOVERING)
        assert "a test" in problem["detail"]
    site = crowd.sites[0]
    plan = site.run("recover", "plan", "--json").json
    site.do("recover", "apply", "--plan", plan["plan"])
    site.do("recover", "reopen", "--despite", "reconciled", "--reason", "a test")
    _all_decide(crowd, name)


def test_p8_a_rewind_is_noticed_by_every_process_and_one_recovery_is_enough(
    crowd: Crowd, urls: tuple[str, str]
) -> None:
    name = f"rewound-{next(_names)}"
    _all_decide(crowd, f"{name}-before")
    with psycopg.connect(urls[0], autocommit=True) as client:
        # An older place, as a restore brings it back; two decisions are lost with their rows.
        client.execute(
            "WITH last AS (SELECT sequence, encode(digest, 'hex') AS digest FROM"
            " unrewind_main.unrewind_decisions ORDER BY sequence DESC OFFSET 2 LIMIT 1)"
            " UPDATE unrewind_main.unrewind_marker m SET sequence = last.sequence,"
            " digest = last.digest, journalled = last.sequence FROM last"
        )
    for number, (site, server) in enumerate(zip(crowd.sites, crowd.servers, strict=True)):
        status, problem = server.decide(f"{name}-{number}", f"document/{name}", "submit")
        assert (status, problem["type"]) == (503, _RECOVERING)
        until("its own stop file stands", site.settings.beside("stop").exists)
    crowd.sites[0].recover()
    _all_decide(crowd, name)
    assert not any(site.settings.beside("stop").exists() for site in crowd.sites)


def _all_decide(crowd: Crowd, name: str) -> None:
    for number, server in enumerate(crowd.servers):
        made = (f"{name}-again-{number}", f"document/{name}-{number}", "submit")
        until("it decides", partial(_is_told, server, made))


def _is_told(server: Server, made: tuple[str, str, str]) -> bool:
    return server.decide(*made)[0] in {200, 201}
