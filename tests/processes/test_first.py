"""P6: two callers at two processes make the first decision of one entity at one moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.engines.scene import config
from tests.soak.effects import Running, free_port
from tests.soak.processes import CONFIG, Server, Site

ENTITIES = 40


def _served(site: Site) -> Server:
    server = Running(site, "serve", "--port", str(free_port()))
    server.wait_until_ready()
    return server


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.engines)])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Server]]:
    """Two servers of one tenant: of one data directory, or of one store on a server."""
    with ExitStack() as stack:
        if request.param == "file":
            sites = [Site(tmp_path, CONFIG)] * 2
        else:
            urls = [request.getfixturevalue(name) for name in ("store_url", "journal_url")]
            sites = [Site(tmp_path / name, config(urls[0], urls[1])) for name in ("a", "b")]
        for site in sites:
            stack.callback(site.close)
        first = _served(sites[0])
        sites[1].token = sites[0].token
        yield [first, _served(sites[1])]


def _at_once(pair: list[Server], entity: str, **fields: Any) -> list[tuple[int, Any]]:
    barrier = threading.Barrier(len(pair))
    told: list[tuple[int, Any]] = [(0, None)] * len(pair)

    def decide(number: int) -> None:
        barrier.wait()
        told[number] = pair[number].decide(f"{entity}/{number}", entity, "note", **fields)

    threads = [threading.Thread(target=decide, args=(number,)) for number in range(len(pair))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_p6_one_of_two_first_decisions_is_the_first(pair: list[Server]) -> None:
    for number in range(ENTITIES):
        entity = f"case/first-{number}"
        told = _at_once(pair, entity, expected_revision=0)
        assert sorted(status for status, _ in told) == [201, 409], told
        winner = [status for status, _ in told].index(201)
        won, lost = told[winner][1], told[1 - winner][1]
        assert won["revision"] == 1
        assert (lost["type"], lost["actual"]) == ("/problems/revision-mismatch", 1)
        # Asked again, under the same ID and anywhere, both are told the same.
        again = pair[1 - winner].decide(f"{entity}/{winner}", entity, "note", expected_revision=0)
        assert (again[0], again[1]["digest"]) == (200, won["digest"])
        assert pair[winner].get(f"entities/{entity}")[1]["revision"] == 1
    for server in pair:
        assert server.stop() == 0, server.errors
        assert server.errors == "" or "Traceback" not in server.errors


def test_p6_without_an_expectation_one_follows_the_other(pair: list[Server]) -> None:
    told = _at_once(pair, "case/both")
    assert sorted((status, made["revision"]) for status, made in told) == [(201, 1), (201, 2)]
