"""Callers' sealed entries that arrive late, or twice, around a recovery of the managed store."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal import feed, reading
from journal.errors import Forked, StaleGeneration
from tests.reconstruct.scenes import Scene
from tests.support.sealing import Caller

ENTITY = "contract/7"


@pytest.fixture
def missing(scene: Scene, tmp_path: Path) -> tuple[Scene, Caller, list]:
    """Revisions 1 to 40 and 42 journalled, 41 late; the managed store rewound and recovered."""
    scene.fill(3)
    scene.keep(tmp_path / "old")
    scene.fill(3)
    caller = scene.caller()
    entries = caller.chain(ENTITY, 44)
    scene.append(*entries[:40])
    assert scene.append(entries[41])[0].durable_through == 40
    assert [(gap.flaw, gap.first, gap.last) for gap in gaps(scene)] == [("gap", 41, 41)]
    scene.settle()
    scene.restore(tmp_path / "old")
    scene.recover()
    return scene, caller, entries


def gaps(scene: Scene) -> list:
    return scene.do(reading.read_gaps, None, None).items


def test_a_late_entry_of_the_sealed_history_is_taken_when_its_successor_names_it(missing) -> None:
    scene, caller, entries = missing
    # What the recovery does to managed entities leaves a caller's gap as it stands.
    assert [(gap.flaw, gap.first, gap.last) for gap in gaps(scene)] == [("gap", 41, 41)]
    answer = scene.append(entries[40])[0]
    assert (answer.durable_through, answer.complete, answer.outcome) == (42, True, "accepted")
    assert gaps(scene) == []
    assert scene.append(entries[40])[0].outcome == "duplicate"
    force = scene.control().authority
    caller.history, caller.generation = force.history, force.generation
    caller.heads[ENTITY] = entries[41]
    after = caller.seal(ENTITY)
    assert scene.append(after)[0].durable_through == 43
    scene.repeats()
    scene.whole()


def test_another_entry_in_the_late_place_is_refused(missing) -> None:
    scene, caller, entries = missing
    caller.heads[ENTITY] = entries[39]
    with pytest.raises(Forked):
        scene.append(caller.draft(ENTITY, "forge"))
    force = scene.control().authority
    fresh = Caller(force.history, force.generation)
    fresh.heads[ENTITY] = entries[39]
    with pytest.raises(Forked):
        scene.append(fresh.draft(ENTITY, "forge"))
    assert [(gap.flaw, gap.first) for gap in gaps(scene)] == [("gap", 41)]
    assert scene.append(entries[40])[0].durable_through == 42
    scene.whole()


def test_p7_entries_of_the_sealed_history_that_nothing_names_are_stale(missing) -> None:
    scene, caller, entries = missing
    count = len(scene.do(feed.read_feed, None, 1000).entries)
    with pytest.raises(StaleGeneration) as refused:
        scene.append(entries[42])
    force = scene.control().authority
    assert refused.value.members == {"generation": force.generation, "history": force.history}
    with pytest.raises(StaleGeneration):
        scene.append(caller.draft("contract/new"))
    with pytest.raises(StaleGeneration):
        scene.append(Caller(force.history, force.generation - 1).draft("contract/new"))
    assert len(scene.do(feed.read_feed, None, 1000).entries) == count
    # Sealed anew, under the same operation, it is taken.
    scene.append(entries[40])
    caller.history, caller.generation = force.history, force.generation
    caller.heads[ENTITY] = entries[41]
    anew = caller.draft(ENTITY, operation=entries[42].envelope.operation)
    assert scene.append(anew)[0].durable_through == 43
    scene.repeats()
    scene.whole()


def test_a_rival_survives_a_recovery_and_keeps_its_entity_incomplete(
    scene: Scene, tmp_path: Path
) -> None:
    scene.fill(3)
    scene.keep(tmp_path / "old")
    scene.fill(3)
    caller = scene.caller()
    first = caller.seal(ENTITY)
    rival = caller.draft(ENTITY, "rival")
    second = caller.seal(ENTITY)
    scene.append(first, second)
    with pytest.raises(Forked):
        scene.append(rival)
    before = gaps(scene)
    assert [gap.flaw for gap in before] == ["fork"]
    scene.settle()
    scene.restore(tmp_path / "old")
    applied = scene.recover()
    assert (applied.incomplete, applied.rebuilt) == ([], 0)
    assert gaps(scene) == before
    scene.repeats()
