"""The main scenario: rewind, notice, stop, plan, apply, reopen; nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal import feed, reading, tracing
from journal.detection import Verdict
from journal.errors import HistoryChanged, Recovering, Refused
from journal.record import Record
from journal.worker import drive
from reconstruct import recovery, snapshots, verification
from tests.reconstruct.scenes import GAP, Scene, query, tree
from tests.support.tenants import operation


@pytest.fixture
def rewound(scene: Scene, tmp_path: Path) -> Scene:
    """Half decided, a snapshot, the rest decided, the snapshot put back."""
    scene.fill(6)
    scene.submit(operation("document/1", "submit", {"title": "a"}, version="v1", actor="ada"))
    scene.fill(3, kind="account")
    scene.keep(tmp_path / "snapshot")
    scene.fill(6, entities=4)
    scene.submit(operation("document/1", "approve", {"title": None}, version="v1"))
    scene.submit(operation("document/2", "submit"))
    scene.fill(4, kind="account", entities=4)
    scene.settle()
    scene.before = scene.digest()  # type: ignore[attr-defined]
    scene.restore(tmp_path / "snapshot")
    return scene


def test_p2_p6_r2_a_rewound_store_is_rebuilt_and_every_answer_repeats(
    rewound: Scene,
) -> None:
    before = rewound.control()
    assert rewound.detect() is Verdict.REWOUND
    with pytest.raises(Recovering):
        rewound.put("case/0", "too early")
    applied = rewound.recover()
    assert applied.replayed == 12
    assert (applied.rebuilt, applied.undone, applied.incomplete) == (0, 0, [])
    assert rewound.digest() == rewound.before  # type: ignore[attr-defined]
    rewound.repeats()
    force = rewound.control().authority
    assert force.history == applied.history != before.authority.history
    assert applied.parent == before.authority.history
    assert force.generation == applied.generation == before.authority.generation + 1
    highest = max(answer.sequence or 0 for _, answer in rewound.told.values())
    after = rewound.put("case/0", "first of the new history")
    assert after.history == applied.history
    assert after.sequence == highest + GAP == applied.first_sequence
    assert after.predecessor is not None
    assert after.predecessor.history == before.authority.history
    rewound.whole()


def test_p8_a_closed_tenant_answers_from_the_journal_alone(rewound: Scene) -> None:
    rewound.detect()
    assert rewound.control().authority.stage.value == "closed"
    for question in (
        lambda: rewound.do(reading.read_entity, "case/0", None),
        lambda: rewound.do(reading.read_entity, "case/0", "1"),
        lambda: rewound.do(reading.read_entities, None, None, None),
        lambda: rewound.put("case/0", 1),
    ):
        with pytest.raises(Recovering):
            question()
    history = rewound.do(tracing.read_history, "document/1", 1, None)
    assert [step.action for step in history.revisions] == ["submit", "approve"]
    assert history.complete
    assert rewound.do(reading.read_gaps, None, None).items == []
    wanted, first = list(rewound.told.values())[-1]
    assert rewound.do(reading.read_operation, wanted.operation).digest == first.digest
    page = rewound.do(feed.read_feed, None, 1000)
    assert len(page.entries) == len(rewound.told) + 2  # founding, closing
    assert rewound.do(reading.read_gate, "document/1", None).gate == "held"
    assert len(rewound.do(reading.read_operations, None, 1000).items) == len(rewound.told)


def test_a_plan_changes_nothing(rewound: Scene) -> None:
    settings = rewound.settings
    recovery.stop(settings, "a test")
    rewound.do(recovery.begin, "a test")
    before = tree(settings.home)
    rows = query(settings.store_file, "SELECT * FROM unrewind_entities")
    first = rewound.plan()
    assert rewound.plan() == first
    assert tree(settings.home) == before
    assert query(settings.store_file, "SELECT * FROM unrewind_entities") == rows
    assert (first.missing, first.rebuild, first.local_only, first.incomplete) == (12, [], [], [])
    assert first.actions == {"approve": 1, "set": 10, "submit": 1}
    assert (first.begun, first.exceptions, first.fresh_store) == (True, 0, False)
    applied = rewound.do(recovery.apply, first.plan)
    assert applied.plan == first.plan


def test_a_plan_made_by_a_reader_changes_no_file(rewound: Scene) -> None:
    settings = rewound.settings
    rewound.close()
    before = tree(settings.home)
    record = Record(settings, read_only=True)
    drive(record.open())
    found = drive(recovery.plan(record))
    drive(record.close())
    assert found.missing == 12
    after = tree(settings.home)
    assert after == before
    rewound.open()


def test_apply_refuses_what_was_not_planned_or_not_begun(rewound: Scene) -> None:
    planned = rewound.plan()
    with pytest.raises(Refused, match="begin"):
        rewound.do(recovery.apply)
    rewound.do(recovery.begin, "a test")
    folders = (rewound.settings.store_file.parent, rewound.settings.journal_file.parent)
    before = tree(*folders)
    with pytest.raises(Refused, match="plan is now"):
        rewound.do(recovery.apply, planned.plan)
    assert tree(*folders) == before
    with pytest.raises(Refused, match="not applied"):
        rewound.do(recovery.reopen)
    rewound.do(recovery.apply, rewound.plan().plan)


def test_p11_applied_twice_it_ends_in_the_same_state(rewound: Scene) -> None:
    rewound.do(recovery.begin, "a test")
    first = rewound.do(recovery.apply)
    digest = rewound.digest()
    rows = query(rewound.settings.store_file, "SELECT * FROM ledger ORDER BY entity")
    again = rewound.do(recovery.apply)
    assert (again.history, again.first_sequence) == (first.history, first.first_sequence)
    assert again.replayed == 0
    assert rewound.digest() == digest == rewound.before  # type: ignore[attr-defined]
    assert query(rewound.settings.store_file, "SELECT * FROM ledger ORDER BY entity") == rows
    rewound.do(recovery.reopen)
    rewound.do(recovery.reopen)
    assert len(rewound.control().histories) == 2
    rewound.whole()


def test_r1_a_cursor_from_before_a_recovery_names_the_new_history(rewound: Scene) -> None:
    cursor = rewound.do(feed.read_feed, None, 5).next
    end = rewound.do(feed.read_feed, None, 1000).next
    applied = rewound.recover()
    position = len(rewound.do(feed.read_feed, None, 1000).entries)
    rewound.fill(position)  # the new history grows past every old position
    seen = [entry.digest for entry in rewound.do(feed.read_feed, None, 1000).entries]
    for old, read in ((cursor, 5), (end, None)):
        with pytest.raises(HistoryChanged) as refused:
            rewound.do(feed.read_feed, old, 100)
        assert refused.value.members["history"] == applied.history
        rest = rewound.do(feed.read_feed, refused.value.members["resume"], 1000)
        if read is not None:
            assert [entry.digest for entry in rest.entries] == seen[read:]


def test_r24_evidence_is_taken_before_anything_opens_the_file(scene: Scene, tmp_path: Path) -> None:
    scene.fill()
    scene.keep(tmp_path / "snapshot")
    scene.fill()
    history = scene.control().authority.history
    scene.close()
    snapshots.restore(scene.settings, tmp_path / "snapshot", "main", history)
    found = scene.settings.store_file.read_bytes()
    stopped = recovery.stop(scene.settings, "a test")
    kept = scene.settings.home / stopped.evidence.directory / "store/main.db"
    scene.open()
    scene.recover()
    assert kept.read_bytes() == found
    names = [piece.name for piece in stopped.evidence.pieces]
    assert [name for name in names if name.startswith("store/")] == ["store/main.db"]
    assert verification.verify(scene.settings).verdict == "clean"


def test_begin_again_resumes_under_the_same_generation(rewound: Scene) -> None:
    first = rewound.do(recovery.begin, "a test")
    again = rewound.do(recovery.begin, "a test")
    assert (first.resumed, again.resumed) == (False, True)
    assert first.generation == again.generation == 2
    assert (first.verdict, first.safe_to_restore) == ("rewound", True)
    rewound.do(recovery.apply)
    assert rewound.do(recovery.begin, "after applying").resumed
    rewound.do(recovery.apply)
    rewound.do(recovery.reopen)
    assert rewound.control().authority.generation == 2
    rewound.whole()
