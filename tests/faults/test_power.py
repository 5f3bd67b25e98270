"""P2, P3: power fails between the answer and the dispatch. The files alone bring the work back."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.soak.books import Books
from tests.soak.effects import PULLED, PUSHED, Town, town_at
from tests.soak.processes import until
from tests.support.whole import verify_files


def _resting(town: Town) -> None:
    """The lanes are paused: the answer says that it is accepted, and nobody has begun."""
    town.serve()
    for lane in (*PUSHED, PULLED):
        paused = {"reason": "it is night"}
        assert town.service.ask("POST", f"/v1/main/lanes/{lane}/pause", paused)[0] == 200


def _alone(town: Town) -> None:
    """The service dispatches nothing itself, and there is no dispatcher."""
    town.environment["UNREWIND_DISPATCH"] = "false"
    town.serve()


def _resume(town: Town) -> None:
    town.serve()
    for lane in (*PUSHED, PULLED):
        assert town.do("lanes", "resume", lane)["running"] == "on"


def _serve(town: Town) -> None:
    town.environment.pop("UNREWIND_DISPATCH", None)
    town.serve()


def _dispatch(town: Town) -> None:
    """The service stays as it was; what it does not do a dispatcher does."""
    town.serve()
    town.dispatch()


_CASES = [(_resting, _resume), (_alone, _serve), (_alone, _dispatch)]


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    with town_at(tmp_path) as made:
        yield made
        for server in made.servers:
            if server.alive:
                assert server.stop() == 0, server.errors
            assert "Traceback" not in server.errors, server.errors
        assert verify_files(made.settings) == []


@pytest.mark.parametrize("files", ["all", "store-and-journal"])
@pytest.mark.parametrize(
    ("before", "after"),
    _CASES,
    ids=[f"{before.__name__}-{after.__name__}".strip("_") for before, after in _CASES],
)
def test_p3_accepted_work_is_found_and_done_once_after_a_power_cut(
    town: Town, before: Callable[[Town], None], after: Callable[[Town], None], files: str
) -> None:
    before(town)
    releases = {town.release(f"{lane}-{n}", lane): lane for lane in PUSHED for n in range(2)}
    releases[town.release("last", PULLED)] = PULLED
    town.service.signal(signal.SIGKILL)
    assert town.service.wait() == -signal.SIGKILL
    assert {row["status"] for row in town.rows().values()} == {"ready"}
    assert not any(receiver.lines() for receiver in town.receivers.values())
    if files == "store-and-journal":
        _keep_only_the_databases(town)

    after(town)
    town.puller.start()
    books = Books(town)
    until("all of it is done", lambda: not books.unquiet())
    assert {row["status"] for row in town.rows().values()} == {"done"}
    books.check_accounts()
    for release, lane in releases.items():
        assert books.executed(lane)[release] == 1
        assert [act.release for act in books.acts(lane)].count(release) == 1
    town.puller.kill()
    # Each of them still knows its operation.
    for n in range(2):
        told = town.service.get(f"operations/opaque-{n}-release-opaque/where")[1]
        assert all(step["passed"] for step in told["boundaries"]), told


def _keep_only_the_databases(town: Town) -> None:
    """Everything beside the two databases and their logs is lost: locks, stamps, agreement."""
    data = town.folder / "data"
    kept = town.folder / "kept"
    for file in (town.store, town.journal):
        for each in file.parent.glob(f"{file.name}*"):
            if each.name in {file.name, f"{file.name}-wal"}:
                place = kept / file.parent.name / each.name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(each, place)
    shutil.rmtree(data)
    kept.rename(data)
