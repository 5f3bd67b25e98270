"""Entries that are gone from among the journal's own, and that the store still holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.detection import Verdict
from journal.errors import HistoryIncomplete
from journal.history import Flaw
from reconstruct import recovery
from reconstruct.abandoning import abandon
from tests.reconstruct.scenes import Scene, query, raw


def losing(scene: Scene, sequence: int) -> None:
    """The journal without one decision, behind the project's back."""
    scene.settle()
    scene.close()
    raw(
        scene.settings.journal_file,
        ("DELETE FROM entries WHERE stream = 'decisions' AND sequence = ?", (sequence,)),
    )
    scene.open()


def begin(scene: Scene) -> None:
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    scene.record.distrust()


@pytest.mark.parametrize(
    ("sequence", "entity", "revision"), [(6, "case/2", 2), (2, "case/1", 1), (5, "case/1", 2)]
)
def test_p4_a_decision_that_the_journal_lost_from_its_middle_is_never_dropped_silently(
    scene: Scene, sequence: int, entity: str, revision: int
) -> None:
    """Whether it was its entity's last one or not."""
    scene.fill(9 if sequence == 5 else 6)
    scene.put("case/0", "last")
    losing(scene, sequence)
    for _ in range(2):
        begin(scene)
        plan = scene.plan()
        (named,) = plan.incomplete
        assert (named.entity, named.flaw, named.revision) == (entity, Flaw.GAP, revision)
        assert named.durable_through == revision - 1
        assert f"(sequence {sequence}) is missing in the journal" in named.detail
        assert "the store still holds it" in named.detail
        assert plan.exceptions >= 1
        applied = scene.do(recovery.apply)
        assert applied.incomplete == [entity]
        scene.do(recovery.reopen)
        with pytest.raises(HistoryIncomplete):
            scene.put(entity, "not before it is whole")
        scene.put("case/0", "others go on")
        held = "SELECT count(*) FROM unrewind_decisions WHERE sequence = ?"
        assert query(scene.settings.store_file, held, sequence) == [(1,)]
    assert scene.detect() is Verdict.CLEAN


def test_p4_once_it_is_back_in_the_journal_nothing_is_missed(scene: Scene, tmp_path: Path) -> None:
    scene.fill(7)
    scene.settle()
    columns = (
        "position, stream, sequence, history, entity, revision, operation, digest, envelope, body"
    )
    row = query(scene.settings.journal_file, f"SELECT {columns} FROM entries WHERE sequence = 6")[0]
    losing(scene, 6)
    begin(scene)
    assert scene.do(recovery.apply).incomplete == ["case/2"]
    scene.do(recovery.reopen)
    scene.settle()
    scene.close()
    marks = ",".join("?" * len(row))
    raw(scene.settings.journal_file, (f"INSERT INTO entries ({columns}) VALUES ({marks})", row))
    scene.open()
    begin(scene)
    assert scene.plan().incomplete == []
    assert scene.do(recovery.apply).incomplete == []
    scene.do(recovery.reopen)
    scene.repeats()
    scene.whole()


def test_p4_what_was_abandoned_is_missed_no_more(scene: Scene) -> None:
    scene.fill(7)
    losing(scene, 6)
    begin(scene)
    scene.do(recovery.apply)
    scene.do(abandon, "case/2", "nobody has it", "a test", ())
    scene.do(recovery.reopen)
    assert scene.put("case/2", "anew").revision == 2
    scene.settle()
    begin(scene)
    assert scene.plan().incomplete == []
    assert scene.do(recovery.apply).incomplete == []
