"""A store of before the journal's new beginning proves nothing about the journal any more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.control import Role
from journal.detection import Verdict
from journal.errors import JournalUnavailable, Refused
from journal.observing import last_observed
from journal.status import status
from journal.tokens import create_token
from reconstruct import healing, recovery
from reconstruct.completion import WAIVABLE
from reconstruct.healing import survey_healing
from tests.reconstruct.scenes import Fuse, Killed, Scene, fused, query, raw
from tests.reconstruct.towns import Town
from tests.support.releases import lane_settings


def keep(scene: Scene, file: Path, folder: Path) -> Path:
    """A copy of one of the tenant's databases, which is closed for it."""
    scene.settle()
    scene.close()
    folder.mkdir(parents=True, exist_ok=True)
    kept = Path(shutil.copy2(file, folder / file.name))
    scene.open()
    return kept


def put_back(scene: Scene, *files: tuple[Path, Path]) -> None:
    """Other files in the place of the tenant's databases."""
    scene.close()
    for file, kept in files:
        for suffix in ("-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        shutil.copy2(kept, file)
    scene.open()


def stopped(scene: Scene) -> None:
    recovery.stop(scene.settings, "a test")


def accepted(scene: Scene) -> None:
    """Accept by name whatever is lost, and apply."""
    stopped(scene)
    loss = scene.do(survey_healing).loss
    assert loss is not None
    scene.do(recovery.apply, accept_loss=loss.name)


def reopened(scene: Scene) -> None:
    waived = frozenset(WAIVABLE)
    assert scene.do(recovery.reopen, despite=waived, reason="a test").stage == "open"


def begun_and_applied(scene: Scene) -> recovery.Applied:
    stopped(scene)
    assert scene.do(recovery.begin, "a test").safe_to_restore
    return scene.do(recovery.apply)


@pytest.fixture
def lost(scene: Scene, tmp_path: Path) -> Scene:
    """Both files are of after four decisions; the store of after eight lies beside."""
    store, journal = scene.settings.store_file, scene.settings.journal_file
    scene.fill(4)
    older = [keep(scene, file, tmp_path / f"older-{file.parent.name}") for file in (journal, store)]
    for name in map(str, range(20)):
        scene.do(create_token, Role.READER, name)
    scene.fill(4)
    scene.newer = keep(scene, store, tmp_path / "newer")  # type: ignore[attr-defined]
    put_back(scene, (journal, older[0]), (store, older[1]))
    return scene


@pytest.mark.parametrize("decided", [0, 2])
def test_r10_a_newer_store_found_after_an_accepted_loss_is_recovered_from_not_healed_again(
    lost: Scene, decided: int
) -> None:
    accepted(lost)
    reopened(lost)
    lost.told.clear()
    lost.fill(decided)
    lost.settle()
    before = lost.digest()
    put_back(lost, (lost.settings.store_file, lost.newer))  # type: ignore[attr-defined]
    assert lost.detect() is Verdict.REWOUND
    assert "the journal has gone on without that" in lost.do(status).detail
    stopped(lost)
    lost.do(recovery.begin, "a test")
    plan = lost.plan()
    assert (plan.direction, plan.missing, plan.undo) == ("store", decided, 4)
    assert [item.sequence for item in plan.local_only] == [5, 6, 7, 8]
    applied = lost.do(recovery.apply)
    assert (applied.healed, applied.replayed, applied.undone) == (None, decided, 4)
    lost.do(recovery.reopen)
    lost.repeats()
    assert lost.digest() == before
    lost.whole()


def test_r10_a_newer_store_found_between_apply_steps_locks_nobody_out(lost: Scene) -> None:
    """The journal is healed and no new history has begun: generations alone tell."""
    stopped(lost)
    loss = lost.do(survey_healing).loss
    assert loss is not None
    lost.do(healing.heal, accept_loss=loss.name)
    put_back(lost, (lost.settings.store_file, lost.newer))  # type: ignore[attr-defined]
    # Neither `begin` nor a killed `apply` makes the store look as if it only waited.
    lost.do(recovery.begin, "a test")
    lost.do(recovery.begin, "a test")
    fuse: Fuse
    for at in (1, 2, 3):
        try:
            with fused(at, after=True) as fuse:
                lost.do(recovery.apply)
        except Killed:
            assert fuse.blown
        lost.close()
        lost.open()
        assert lost.plan().direction == "store"
    lost.do(recovery.apply)
    reopened(lost)
    lost.told.clear()
    lost.fill(3)
    lost.repeats()
    lost.whole()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE unrewind_decisions SET body = x'00' WHERE sequence = 8",
        "UPDATE unrewind_control SET body = x'00' WHERE sequence = 2",
    ],
    ids=["last decision", "control"],
)
def test_r10_a_damaged_copy_and_an_older_journal_are_healed_once(
    scene: Scene, tmp_path: Path, damage: str
) -> None:
    store, journal = scene.settings.store_file, scene.settings.journal_file
    scene.fill(4)
    older = keep(scene, journal, tmp_path)
    for name in ("ines", "omar", "mei", "jo", "ada"):
        scene.do(create_token, Role.READER, name)
    scene.fill(4)
    scene.settle()
    scene.close()
    raw(store, damage)
    put_back(scene, (journal, older))
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    accepted(scene)
    kept = query(store, "SELECT max(sequence) FROM unrewind_control")
    assert kept == query(journal, "SELECT max(sequence) FROM entries WHERE stream = 'control'")
    reopened(scene)
    assert scene.detect() is Verdict.CLEAN
    scene.told.clear()
    scene.fill(3)
    begun_and_applied(scene)
    reopened(scene)
    scene.repeats()
    scene.whole()


def test_r10_a_store_that_was_given_up_heals_no_journal_that_is_rolled_back_later(
    lost: Scene, tmp_path: Path
) -> None:
    """Its decisions and its control belong to a line that ended; the loss has a name again."""
    accepted(lost)
    reopened(lost)
    journal = lost.settings.journal_file
    older = keep(lost, journal, tmp_path / "healed")
    lost.fill(2)
    lost.settle()
    newer = lost.newer  # type: ignore[attr-defined]
    put_back(lost, (journal, older), (lost.settings.store_file, newer))
    assert lost.detect() is Verdict.JOURNAL_REWOUND
    found = lost.do(survey_healing)
    assert (found.decisions, found.control) == (0, 0)
    assert found.loss is not None
    accepted(lost)
    reopened(lost)
    lost.told.clear()
    lost.fill(2)
    lost.repeats()
    lost.whole()


def test_r10_a_healing_that_would_fall_short_again_changes_nothing(
    lost: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a later rule makes of the store, no healing is followed by the next one."""
    put_back(lost, (lost.settings.store_file, lost.newer))  # type: ignore[attr-defined]
    lost.close()
    raw(lost.settings.store_file, "UPDATE unrewind_decisions SET body = x'00' WHERE sequence = 8")
    lost.open()
    entries = "SELECT position, hex(digest) FROM entries ORDER BY position"
    before = query(lost.settings.journal_file, entries)
    stopped(lost)
    loss = lost.do(survey_healing).loss
    assert loss is not None
    monkeypatch.setattr("journal.detection.is_outlived", lambda control, marker: False)
    with pytest.raises(Refused, match="the journal is left as it is"):
        lost.do(recovery.apply, accept_loss=loss.name)
    assert query(lost.settings.journal_file, entries) == before
    assert not list(lost.settings.journal_file.parent.glob("*.healed"))
    monkeypatch.undo()
    lost.do(recovery.apply, accept_loss=loss.name)
    reopened(lost)


# Observations.


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(lane_settings(tmp_path))
    try:
        yield made
    finally:
        made.close()


def test_p8_no_observation_is_appended_to_a_journal_that_was_rolled_back(
    town: Town, tmp_path: Path
) -> None:
    journal = town.settings.journal_file
    release = town.release("letter/1")
    permit = town.permit("post")
    older = keep(town, journal, tmp_path / "older")
    town.put("case/0", "later")
    real = keep(town, journal, tmp_path / "real")
    put_back(town, (journal, older))
    for outcome in ("confirmed", "refused"):
        with pytest.raises(JournalUnavailable, match="nothing is observed in this journal"):
            town.observe(permit, outcome)
    count = "SELECT count(*) FROM entries WHERE stream = 'observations'"
    assert query(journal, count) == [(0,)]
    # Said again to the real one it is kept.
    put_back(town, (journal, real))
    town.observe(permit, "confirmed", receipt="R1")
    seen = town.do(last_observed, release)
    assert seen is not None
    assert seen.receipt == "R1"
    town.finish_off()


def test_p8_a_store_swapped_under_a_running_process_keeps_no_observation_away(
    town: Town, tmp_path: Path
) -> None:
    release = town.release("letter/1")
    permit = town.permit("post")
    store = town.settings.store_file
    kept = keep(town, store, tmp_path)
    store.unlink()
    shutil.copy2(kept, store)
    town.observe(permit, "confirmed", receipt="R1")
    assert town.do(last_observed, release) is not None
    town.finish_off()
