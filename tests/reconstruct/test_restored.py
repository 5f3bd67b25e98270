"""A snapshot that is put back was compared; that nobody called meanwhile it cannot know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.detection import Verdict
from journal.outcomes import CALLING
from journal.record import Record
from journal.worker import drive
from tests.reconstruct.towns import Town
from tests.support.releases import lane_settings


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(lane_settings(tmp_path))
    try:
        yield made
    finally:
        made.close()


def called(town: Town, folder: Path) -> str:
    """A release whose call was made after the snapshot that is back in place."""
    release = town.release("transfer/1")
    town.settle()
    permit = town.permit("bank")
    town.settle()
    town.keep(folder)
    town.beat(permit, CALLING)
    town.restore(folder)
    assert town.row(release).step == "picked up by w1"
    assert town.detect() is Verdict.CLEAN
    return release


def unknown(town: Town, release: str) -> None:
    """The attempt counts as perhaps made, and nothing goes out again unasked."""
    town.let_expire(release)
    town.sweep()
    assert (town.status(release), town.row(release).maybe) == ("unknown", 1)
    town.let_come(release)
    assert town.claim("bank").permits == []
    town.finish_off()


def test_p6_a_restored_store_doubts_attempts_whose_call_it_may_not_know_of(
    town: Town, tmp_path: Path
) -> None:
    unknown(town, called(town, tmp_path / "kept"))


def test_p6_the_doubt_outlives_whoever_compares_and_ends_before_a_turn(
    town: Town, tmp_path: Path
) -> None:
    release = called(town, tmp_path / "kept")
    for _ in range(2):
        # Looks at every head, notes the file as compared, and takes no turn.
        town.close()
        town.settings.journal_file.with_suffix(".seen").unlink()
        town.open()
        assert town.detect(deep=True) is Verdict.CLEAN
        town.close()
        town.open()
        assert town.record.stopped_clean()
        assert town.record.doubtful
    unknown(town, release)


def test_p6_a_file_put_in_place_under_a_running_process_is_doubted_after_a_deep_look(
    town: Town, tmp_path: Path
) -> None:
    release = town.release("transfer/1")
    permit = town.permit("bank")
    town.settle()
    town.close()
    content = town.settings.store_file.read_bytes()
    town.open()
    town.beat(permit, CALLING)
    town.settle()
    town.close()
    town.open()
    # The same inode, so that nothing but its stamp tells.
    town.settings.store_file.write_bytes(content)
    assert town.detect(deep=True) is Verdict.CLEAN
    assert town.record.doubtful
    unknown(town, release)


def test_once_doubted_a_file_is_watched_and_live_attempts_are_left_alone(
    town: Town, tmp_path: Path
) -> None:
    town.put("case/1", "kept")
    town.settle()
    town.keep(tmp_path / "kept")
    town.restore(tmp_path / "kept")
    assert town.record.doubtful
    release = town.release("transfer/1")
    town.permit("bank")
    other: Record = town.companion()
    assert not other.doubtful
    town.sweep(other)
    assert town.row(release).step == "picked up by w1"
    drive(other.close())
    town.records.remove(other)
    town.finish_off()
