"""Afterwards: whether the journal holds what was acknowledged, and the effects happened once."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from typing import Any

from tests.load.place import PULLED, PUSHED, World
from tests.load.traffic import Traffic
from tests.soak.processes import Site, until

_DECISIONS = "SELECT operation, digest FROM entries WHERE stream = 'decisions'"
_WORK = "SELECT lane, id, status FROM unrewind_work WHERE effect = 'external'"
_OPEN = "SELECT count(*) FROM unrewind_work WHERE lane = ? AND status IN ('ready', 'running')"


def check(site: Site, traffic: Traffic, world: World) -> dict[str, int]:
    """Nothing acknowledged is lost or doubled, nothing happened twice or unpermitted; counts."""
    told, rows = traffic.told.digests, 0
    held: dict[str, bytes] = {}
    with closing(_look(site.journal)) as database:
        for operation, digest in database.execute(_DECISIONS):
            rows += 1
            held[operation] = digest
    assert len(held) == rows, "an operation stands in the journal twice"
    lost = [operation for operation, digest in told.items() if held.get(operation) != digest]
    assert not lost, f"acknowledged and not in the journal: {lost[:5]}, {len(lost)} in all"
    done = _releases(site)
    for lane, effects in ((PUSHED, world.effects), (PULLED, traffic.pulled)):
        twice = {release for release, times in effects.items() if times > 1}
        assert not twice, f"lane {lane}: happened more than once: {sorted(twice)[:5]}"
        confirmed = {release for release, status in done[lane].items() if status == "done"}
        assert confirmed <= effects.keys(), f"lane {lane}: confirmed and never happened"
        assert effects.keys() <= done[lane].keys(), f"lane {lane}: nobody permitted it"
    return {
        "acknowledged": len(told),
        "decisions": rows,
        "lost": len(lost),
        "effects": len(world.effects) + len(traffic.pulled),
        "twice": 0,
    }


def until_delivered(site: Site, lane: str = PUSHED) -> None:
    """Wait until nothing waits in a lane that a live server works on."""

    def empty() -> bool:
        with closing(_look(site.store)) as database:
            return bool(database.execute(_OPEN, (lane,)).fetchone()[0] == 0)

    until(f"lane {lane} is empty", empty)


def check_files(site: Site) -> None:
    """`verify` finds nothing."""
    report = site.do("verify")
    assert (report["verdict"], report["findings"]) == ("clean", [])


def _releases(site: Site) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {PUSHED: {}, PULLED: {}}
    with closing(_look(site.store)) as database:
        for lane, release, status in database.execute(_WORK):
            found[lane][release] = status
    return found


def statuses(site: Site) -> Counter[tuple[Any, Any]]:
    """How many releases of each lane stand how."""
    with closing(_look(site.store)) as database:
        return Counter((lane, status) for lane, _, status in database.execute(_WORK))


def _look(file: Any) -> sqlite3.Connection:
    database = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=10)
    database.execute("PRAGMA query_only = 1")
    return database
