"""P8: a live server whose store is replaced, overwritten or gone, and its recovery beside it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hung.scene import decide_some, whole
from tests.soak.ledger import Ledger
from tests.soak.processes import Server, Site, site_at
from tests.support.whole import verify_files

_RECOVERING = "/problems/recovering"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path) as made:
        yield made


def _renamed_over(store: Path, copy: Path) -> None:
    """A restore by a tool that knows what it does: nothing of the old database is left."""
    aside = store.with_name("incoming.db")
    shutil.copyfile(copy, aside)
    for suffix in ("-wal", "-shm"):
        store.with_name(store.name + suffix).unlink(missing_ok=True)
    aside.replace(store)


def _renamed_over_beside_its_log(store: Path, copy: Path) -> None:
    """The newer write-ahead log is left beside the older file."""
    aside = store.with_name("incoming.db")
    shutil.copyfile(copy, aside)
    aside.replace(store)


def _overwritten_in_place(store: Path, copy: Path) -> None:
    """`cp backup store`: the same inode with other bytes, under open connections."""
    shutil.copyfile(copy, store)


def _taken_away(store: Path, copy: Path) -> None:
    store.rename(store.with_name("gone.db"))


def _emptied(store: Path, copy: Path) -> None:
    os.truncate(store, 0)


def _made_nonsense(store: Path, copy: Path) -> None:
    store.write_bytes(b"nonsense" * 4096)


_WAYS = [
    _renamed_over,
    _renamed_over_beside_its_log,
    _overwritten_in_place,
    _taken_away,
    _emptied,
    _made_nonsense,
]


_ENTITIES = 8
_PAGEFUL = 1500


def _served_again(site: Site, size: int) -> tuple[Server, Path, Ledger]:
    """A server whose store's file holds what the copy lacks, with more in its log.

    The log holds the marker and the first entity. With a ``size`` of almost a page the other
    entities' rows are in the file alone; with a small one they share the first entity's page.
    """
    ledger = Ledger()
    server = site.start()
    decide_some(server, ledger, "copied", _ENTITIES, _ENTITIES, size)
    assert server.stop() == 0
    copy = site.folder / "copy.db"
    shutil.copyfile(site.store, copy)
    server = site.start()
    decide_some(server, ledger, "in-the-file", 3 * _ENTITIES, _ENTITIES, size)
    assert server.stop() == 0
    server = site.start()
    decide_some(server, ledger, "in-the-log", 1, 1, size)
    return server, copy, ledger


_CASES = [
    *((way, 1) for way in _WAYS if way is not _overwritten_in_place),
    (_renamed_over_beside_its_log, _PAGEFUL),
    (_overwritten_in_place, _PAGEFUL),
]


@pytest.mark.parametrize(
    ("way", "size"),
    _CASES,
    ids=[f"{way.__name__.strip('_')}-{size}" for way, size in _CASES],
)
def test_p8_is_noticed_closed_and_recovered_beside_the_live_server(
    site: Site, way: Callable[[Path, Path], None], size: int
) -> None:
    server, copy, ledger = _served_again(site, size)
    names = [f"case/{number}" for number in range(_ENTITIES)]
    present = {entity: server.get(f"entities/{entity}")[1] for entity in names}
    way(site.store, copy)

    # Before anybody noticed: what is shown is the present, or nothing.
    for entity in names:
        status, answer = server.get(f"entities/{entity}")
        assert status == 503 or (status, answer) == (200, present[entity]), answer
    status, listed = server.get("entities")
    assert status == 503 or listed["items"] == list(present.values()), listed
    status, problem = server.decide("next", "case/1")
    assert (status, problem["type"]) == (503, _RECOVERING), problem
    for path in ("entities/case/1", "entities"):
        assert server.get(path)[0] == 503, path
    for path in ("entities/case/1/history", "gaps", "status", "operations/copied-0"):
        assert server.get(path)[0] == 200, path
    assert server.get("status")[1]["stage"] == "closed"
    assert site.status()["stage"] == "closed"

    site.recover()
    status, answer = server.decide("next", "case/1")
    assert (status, answer["generation"]) == (201, 2), answer
    ledger.imported.add("next")
    whole(site, server, ledger)
    assert server.get("entities/case/1")[0] == 200
    assert server.ask("GET", "/health/ready")[0] == 200
    assert site.status()["stage"] == "open"
    assert "Traceback" not in server.errors, server.errors
    assert server.stop() == 0
    assert verify_files(site.settings) == []
    # And nothing is held against it at the next start.
    after = site.start()
    assert after.get("status")[1]["stage"] == "open"
