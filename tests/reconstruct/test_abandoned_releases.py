"""A release that may have gone out behind a cut is held as unknown, whatever happens after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import handling
from journal.errors import UnrewindError
from reconstruct.abandoning import abandon
from tests.reconstruct.cuts import (
    EVIDENCE,
    REASON,
    apply,
    cut,
    damage,
    flipped,
    gaps,
    named,
    removed,
    reopen,
    swapped,
)
from tests.reconstruct.scenes import Killed, fused, kill, raw
from tests.reconstruct.towns import Town
from tests.support.releases import lane_settings
from tests.support.tenants import operation

PAYMENT = "payment/1"


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(lane_settings(tmp_path))
    try:
        made.put("case/before", 1)
        made.settle()
        made.keep(tmp_path / "old")
        yield made
    finally:
        made.close()


def ends_unknown(town: Town, release: str, folder: Path) -> None:
    """It is held, sent by nobody, and stays so after every rewind, deep or total."""
    assert town.status(release) == "unknown"
    row = town.row(release)
    assert (row.maybe, row.claim, row.worker, row.finished) == (1, None, None, None)
    assert row.committed is not None
    assert row.attempts >= 2
    assert "abandoned" in row.step
    reopen(town)
    assert town.claim("pay").permits == []
    town.sweep()
    assert town.status(release) == "unknown"
    town.settle()
    digest = town.digest()
    town.restore(folder / "old")
    town.recover()
    assert (town.status(release), town.digest()) == ("unknown", digest)
    town.close()
    town.settings.store_file.unlink()
    town.open()
    town.recover()
    assert (town.status(release), town.digest()) == ("unknown", digest)
    assert town.claim("pay").permits == []
    # A person settles it, and that holds.
    town.do(handling.settle, release, True, "their ledger", "R-17")
    assert town.status(release) == "done"
    town.settle()
    town.restore(folder / "old")
    town.recover()
    assert town.status(release) == "done"
    town.finish_off()


def test_p12_a_release_is_settled_of_whose_entity_nothing_is_left(
    town: Town, tmp_path: Path
) -> None:
    """Cut off before its first revision: its owner can still say what became of it."""
    settled, reported = town.release(PAYMENT), town.release("payment/2")
    permits = {permit.id: permit for permit in town.claim("pay", limit=2).permits}
    town.fill(2)
    town.settle()
    town.close()
    raw(town.settings.journal_file, flipped(PAYMENT, 1), flipped("payment/2", 1))
    town.settings.store_file.unlink()
    town.open()
    apply(town)
    for entity in (PAYMENT, "payment/2"):
        assert cut(town, entity).through == 0
    assert [town.status(one) for one in (settled, reported)] == ["unknown", "unknown"]
    town.observe(permits[reported], "confirmed", receipt="R-18")
    reopen(town)
    town.do(handling.settle, settled, True, "their ledger", "R-17")
    assert (town.status(settled), town.row(settled).receipt) == ("done", "R-17")
    assert town.actions(PAYMENT) == ["release.confirmed"]
    town.sweep()
    assert (town.status(reported), town.row(reported).receipt) == ("done", "R-18")
    with pytest.raises(UnrewindError):
        town.do(handling.settle, reported, False, "a mistake", None)
    town.close()
    town.settings.store_file.unlink()
    town.open()
    town.recover()
    assert [town.status(one) for one in (settled, reported)] == ["done", "done"]
    town.accept(operation(PAYMENT, "approve", version="1"))
    assert town.accept(operation(PAYMENT, "release", version="1")).existing == (settled,)
    assert town.claim("pay").permits == []
    town.finish_off()


def test_p4_a_commitment_that_may_be_in_the_gap(town: Town, tmp_path: Path) -> None:
    release = town.release(PAYMENT)
    town.report(town.permit("pay"), "confirmed", receipt="R-1")
    damage(town, tmp_path, removed(PAYMENT, 3))
    assert apply(town).incomplete == [PAYMENT]
    assert town.status(release) == "ready"
    done = cut(town, PAYMENT)
    assert (done.through, done.doubtful, done.withdrawn) == (2, [release], [])
    # What is dropped is evidence: it says that there was a receipt.
    assert town.row(release).receipt == "R-1"
    ends_unknown(town, release, tmp_path)


def test_p4_a_commitment_that_can_be_read_behind_the_cut(town: Town, tmp_path: Path) -> None:
    release = town.release(PAYMENT)
    town.accept(operation(PAYMENT, "approve", version="1"))
    town.permit("pay")
    damage(town, tmp_path, swapped(town, PAYMENT, 3))
    apply(town)
    done = cut(town, PAYMENT)
    assert (done.through, done.doubtful) == (2, [release])
    ends_unknown(town, release, tmp_path)


@pytest.mark.parametrize("revision", [1, 2])
def test_p4_a_permission_behind_the_cut_that_was_committed(
    town: Town, tmp_path: Path, revision: int
) -> None:
    """Nothing at the cut knows of the release; before the first revision nothing stands at it."""
    town.accept(operation(PAYMENT, "approve", version="1"))
    release = town.release(PAYMENT)
    town.permit("pay")
    damage(town, tmp_path, flipped(PAYMENT, revision))
    apply(town)
    assert town.sql("SELECT id FROM unrewind_work") == []
    done = cut(town, PAYMENT)
    assert (done.through, done.unreadable, done.doubtful) == (revision - 1, 1, [release])
    reopen(town)
    town.accept(operation(PAYMENT, "approve", version="1"))
    # Permitted again it is the same release, and it is not sent again.
    (again,) = town.permit_again(PAYMENT)
    assert again == release
    apply(town)
    ends_unknown(town, release, tmp_path)


def test_a_release_that_was_surely_not_committed_stays_ready(town: Town, tmp_path: Path) -> None:
    release = town.release(PAYMENT)
    town.accept(operation(PAYMENT, "approve", version="1"))
    town.put("case/after", 1)
    damage(town, tmp_path, swapped(town, PAYMENT, 3))
    apply(town)
    done = cut(town, PAYMENT)
    assert (done.doubtful, done.withdrawn) == ([], [])
    assert town.status(release) == "ready"
    reopen(town)
    town.report(town.permit("pay"), "confirmed")
    assert town.status(release) == "done"
    town.finish_off()


@pytest.mark.parametrize("how", ["withdrawn", "superseded", "cancelled"])
def test_a_release_that_was_taken_back_behind_the_cut_stays_taken_back(
    town: Town, tmp_path: Path, how: str
) -> None:
    release = town.release(PAYMENT)
    town.accept(operation(PAYMENT, "approve", version="1"))
    if how == "withdrawn":
        town.accept(operation(PAYMENT, "revoke"))
    elif how == "superseded":
        town.accept(operation(PAYMENT, "approve", version="2"))
    else:
        town.do(handling.cancel, release, "a mistake")
    damage(town, tmp_path, swapped(town, PAYMENT, 3))
    apply(town)
    assert town.status(release) == "ready"
    done = cut(town, PAYMENT)
    assert (done.doubtful, done.withdrawn) == ([], [release])
    assert town.status(release) == "cancelled"
    reopen(town)
    town.settle()
    row, digest = town.status(release), town.digest()
    town.restore(tmp_path / "old")
    town.recover()
    assert (town.status(release), town.digest()) == (row, digest)
    town.finish_off()


def test_a_store_of_the_moment_before_the_abandonment_learns_of_it(
    town: Town, tmp_path: Path
) -> None:
    release = town.release(PAYMENT)
    town.permit("pay")
    town.accept(operation(PAYMENT, "approve", version="1"))
    damage(town, tmp_path, removed(PAYMENT, 3))
    apply(town)
    reopen(town)
    town.settle()
    town.keep(tmp_path / "between")
    apply(town)
    cut(town, PAYMENT)
    assert town.status(release) == "unknown"
    reopen(town)
    town.settle()
    digest = town.digest()
    town.restore(tmp_path / "between")
    town.recover()
    assert (town.status(release), town.digest()) == ("unknown", digest)
    town.finish_off()


@pytest.mark.parametrize("after", [False, True])
def test_p11_p4_killed_at_any_step_the_release_is_held(tmp_path: Path, *, after: bool) -> None:
    for at in range(1, 6):
        folder = tmp_path / str(at)
        folder.mkdir()
        town = Town(lane_settings(folder))
        try:
            town.put("case/before", 1)
            town.settle()
            town.keep(folder / "old")
            release = town.release(PAYMENT)
            town.permit("pay")
            town.put("case/after", 1)
            town.accept(operation(PAYMENT, "approve", version="1"))
            damage(town, folder, removed(PAYMENT, 3))
            apply(town)
            names = named(town, PAYMENT)
            with fused(at, after=after) as fuse:
                try:
                    town.do(abandon, PAYMENT, REASON, EVIDENCE, names)
                except Killed:
                    kill(town.record)
                    town.records.clear()
                    town.open()
            # Whoever goes on without finishing it sends nothing.
            reopen(town)
            try:
                assert town.claim("pay").permits == []
            except UnrewindError:
                assert gaps(town) != []
            town.do(abandon, PAYMENT, REASON, EVIDENCE, names)
            assert town.status(release) == "unknown"
            assert town.claim("pay").permits == []
            town.finish_off()
            if not fuse.blown:
                return
        finally:
            town.close()
    raise AssertionError("more steps than expected")


def test_a_late_report_on_a_doubtful_release_is_kept_and_tells(town: Town, tmp_path: Path) -> None:
    release = town.release(PAYMENT)
    permit = town.permit("pay")
    town.accept(operation(PAYMENT, "approve", version="1"))
    damage(town, tmp_path, removed(PAYMENT, 3))
    apply(town)
    cut(town, PAYMENT)
    reopen(town)
    town.observe(permit, "refused")
    assert town.status(release) == "unknown"
    town.do(handling.cancel, release, "surely not")
    assert (town.status(release), town.row(release).cancel_requested) == ("unknown", 1)
    town.finish_off()
