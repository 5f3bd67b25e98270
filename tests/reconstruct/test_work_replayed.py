"""What became of releases and commands, after the store was put back to before it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal import handling
from journal.errors import EngineError, JournalUnavailable, Recovering, StaleGeneration
from journal.lanes import Contract, Lane
from journal.outcomes import CALLING
from journal.reports import GENERATION_BITS
from journal.settings import Settings
from journal.work import Work
from reconstruct import planning, recovery
from tests.reconstruct.scenes import Killed, fresh_log, fused
from tests.reconstruct.towns import Town
from tests.support.derived import OUTCOME, PERMISSION, stored
from tests.support.faults import fail_log
from tests.support.releases import DAY, FUTURE, lane_settings
from tests.support.tenants import operation

LANE_OF = {"payment": "pay", "letter": "post", "transfer": "bank"}
MOST = 60


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(lane_settings(tmp_path))
    try:
        yield made
    finally:
        made.close()


def rewind(town: Town, snapshot: Path) -> None:
    town.settle()
    town.restore(snapshot)


class LongAgo:
    """A clock that stands still in the past, for decisions that are old by now."""

    def __init__(self, then: str) -> None:
        self.then = then
        self.number = 0

    def now(self) -> str:
        return self.then

    def fresh(self) -> str:
        self.number += 1
        return f"{self.number:032x}"


# Rows come back.


@pytest.mark.parametrize("from_nothing", [False, True])
def test_p2_every_release_comes_back_as_its_decisions_say(
    town: Town, tmp_path: Path, *, from_nothing: bool
) -> None:
    before = town.release("payment/before")
    town.keep(tmp_path / "kept")
    waiting = town.release("payment/waiting")
    later = town.release("payment/later", due=FUTURE)
    cancelled = town.release("payment/cancelled")
    town.do(handling.cancel, cancelled, "a mistake")
    superseded = town.release("payment/superseded", "1")
    town.accept(operation("payment/superseded", "approve", version="2"))
    ends = {}
    for outcome in ("confirmed", "refused", "unknown"):
        ends[outcome] = town.release(f"letter/{outcome}", recipient="ada")
        town.report(town.permit("post"), outcome, receipt=f"r-{outcome}")
    under_way = town.release("letter/under-way")
    permit = town.permit("post")
    town.do(handling.cancel, under_way, "too late")
    town.do(handling.record_incident, ends["confirmed"], "to the wrong person")
    if from_nothing:
        town.settle()
        town.close()
        shutil.rmtree(town.settings.store_file.parent)
        town.open()
    else:
        rewind(town, tmp_path / "kept")
    town.recover()
    wanted = {
        before: "ready",
        waiting: "ready",
        later: "ready",
        cancelled: "cancelled",
        superseded: "cancelled",
        ends["confirmed"]: "done",
        ends["refused"]: "refused",
        ends["unknown"]: "unknown",
        under_way: "running",
    }
    assert {identity: town.status(identity) for identity in wanted} == wanted
    assert town.row(ends["confirmed"]).receipt == "r-confirmed"
    assert town.row(ends["confirmed"]).incident == "to the wrong person"
    assert town.row(later).due == FUTURE
    row = town.row(under_way)
    assert (row.lease, row.cancel_requested, row.maybe) == (permit.lease, 1, 1)
    # `whole` folds the journal from its first entry and compares every derived column.
    town.finish_off()


@pytest.mark.parametrize("kind", LANE_OF)
def test_r5_a_release_whose_receipt_the_journal_holds_is_closed_without_a_call(
    town: Town, tmp_path: Path, kind: str
) -> None:
    first = town.release(f"{kind}/1")
    town.keep(tmp_path / "kept")
    permit = town.permit(LANE_OF[kind])
    town.beat(permit, CALLING)
    town.report(permit, "confirmed", receipt="r-1")
    rewind(town, tmp_path / "kept")
    assert town.status(first) == "ready"
    with pytest.raises(Recovering):
        town.claim(LANE_OF[kind])
    town.recover()
    row = town.row(first)
    assert (row.status, row.receipt, row.attempts) == ("done", "r-1", 1)
    assert town.claim(LANE_OF[kind], limit=5).permits == []
    assert town.sweep().count == 0
    town.finish_off()


@pytest.mark.parametrize(
    ("kind", "status"), [("payment", "retry"), ("letter", "unknown"), ("transfer", "unknown")]
)
def test_p4_a_commitment_without_an_outcome_is_over_and_moved_by_its_contract(
    town: Town, tmp_path: Path, kind: str, status: str
) -> None:
    first = town.release(f"{kind}/1")
    town.keep(tmp_path / "kept")
    permit = town.permit(LANE_OF[kind])
    rewind(town, tmp_path / "kept")
    town.recover()
    row = town.row(first)
    assert (row.status, row.maybe, row.lease) == ("running", 1, permit.lease)
    assert row.committed == town.first_commitment(f"{kind}/1")
    assert town.claim(LANE_OF[kind]).permits == []
    (moved,) = town.sweep().moved
    assert (moved.id, moved.status) == (first, status)
    assert (town.row(first).due is not None) == (kind != "letter")
    if kind == "payment":
        again = town.permit("pay")
        assert again.lease > permit.lease
    town.finish_off()


def test_p4_the_window_of_an_old_commitment_is_over_after_a_recovery_too(
    town: Town, tmp_path: Path
) -> None:
    town.record.clock = LongAgo("2001-02-03T04:05:06.000000Z")
    first = town.release("payment/1")
    town.keep(tmp_path / "kept")
    town.permit("pay")
    rewind(town, tmp_path / "kept")
    town.recover()
    (moved,) = town.sweep().moved
    assert moved.status == "unknown"
    assert town.claim("pay").permits == []
    assert town.row(first).maybe == 1
    town.finish_off()


@pytest.mark.parametrize("kind", ["letter", "transfer"])
def test_p4_a_later_attempt_than_the_store_knows_of_is_not_made_again(
    town: Town, tmp_path: Path, kind: str
) -> None:
    # The store is put back to the moment between two attempts, when surely none had happened.
    lane = LANE_OF[kind]
    first = town.release(f"{kind}/1")
    town.report(town.permit(lane), "failed", evidence="nobody answered the door")
    assert town.row(first).maybe == 0
    town.let_come(first)
    town.keep(tmp_path / "kept")
    town.beat(town.permit(lane), CALLING)
    rewind(town, tmp_path / "kept")
    town.recover()
    assert town.claim(lane).permits == []
    town.sweep()
    row = town.row(first)
    assert (row.status, row.attempts, row.maybe) == ("unknown", 2, 1)
    assert town.claim(lane).permits == []
    town.finish_off()


def test_p7_an_attempt_that_the_store_does_not_know_began_no_earlier_than_the_recovery_stopped_it(
    town: Town, tmp_path: Path
) -> None:
    first = town.release("transfer/1")
    town.keep(tmp_path / "kept")
    town.beat(town.permit("bank"), CALLING)
    rewind(town, tmp_path / "kept")
    begun = town.record.clock.now()
    town.recover()
    started = town.row(first).started
    assert started is not None
    assert started >= begun
    town.finish_off()


def test_r4_nothing_is_given_out_before_an_operator_reopens(town: Town, tmp_path: Path) -> None:
    town.keep(tmp_path / "kept")
    first = town.release("payment/1")
    town.accept(operation("task/1", "start"))
    rewind(town, tmp_path / "kept")
    steps = [
        lambda: recovery.stop(town.settings, "a test"),
        lambda: town.do(recovery.begin, "a test"),
        lambda: town.do(recovery.apply),
    ]
    for step in steps:
        step()
        for lane in ("pay", "mail"):
            with pytest.raises(Recovering):
                town.claim(lane)
        with pytest.raises(Recovering):
            town.sweep()
    assert town.status(first) == "ready"
    town.do(recovery.reopen, despite={"reconciled"})
    assert town.permit("pay").id == first
    assert town.permit("mail").name == "first"
    town.finish_off()


def test_r16_a_revocation_that_was_lost_is_back_before_anything_is_given_out(
    town: Town, tmp_path: Path
) -> None:
    first = town.release("payment/1")
    town.keep(tmp_path / "kept")
    town.accept(operation("payment/1", "revoke"))
    rewind(town, tmp_path / "kept")
    assert town.status(first) == "ready"
    town.recover()
    assert town.status(first) == "cancelled"
    assert town.claim("pay").permits == []
    town.finish_off()


def test_p7_lease_numbers_after_a_recovery_exceed_all_before(town: Town, tmp_path: Path) -> None:
    first = town.release("payment/1")
    town.keep(tmp_path / "kept")
    leases = []
    for _ in range(5):
        permit = town.permit("pay")
        leases.append(permit.lease)
        town.let_expire(first)
        town.sweep()
    rewind(town, tmp_path / "kept")
    town.recover()
    town.sweep()
    again = town.permit("pay")
    assert again.lease > max(leases)
    assert again.lease >> GENERATION_BITS == town.control().authority.generation
    with pytest.raises(StaleGeneration):
        town.report(permit, "confirmed")
    assert town.report(again, "confirmed").status == "done"
    town.finish_off()


def test_p7_a_claim_that_was_lost_with_the_store_cannot_be_repeated(
    town: Town, tmp_path: Path
) -> None:
    town.release("payment/1")
    town.keep(tmp_path / "kept")
    town.permit("pay", id="c-1")
    rewind(town, tmp_path / "kept")
    town.recover()
    with pytest.raises(Exception, match="claim c-1 has ended"):
        town.claim("pay", id="c-1")
    town.finish_off()


def test_p3_a_commitment_that_only_the_store_has_is_undone_and_nobody_was_given_a_permit(
    town: Town, tmp_path: Path
) -> None:
    first = town.release("letter/1")
    town.settle()
    fail_log(town.record, before=[EngineError("the journal is away")])
    with pytest.raises(JournalUnavailable):
        town.claim("post", id="c-1")
    assert town.status(first) == "running"
    fresh_log(town.record)
    town.keep(tmp_path / "local")
    # The journal goes on from a store that never had it.
    town.close()
    shutil.rmtree(town.settings.store_file.parent)
    town.open()
    town.recover()
    town.put("case/1", 1)
    town.settle()
    town.restore(tmp_path / "local")
    assert town.status(first) == "running"
    assert town.recover().undone == 1
    assert town.status(first) == "ready"
    permit = town.permit("post")
    assert permit.attempt == 1
    assert town.actions("letter/1").count("release.committed") == 1
    town.finish_off()


# Commands and items.


def test_commands_of_lost_decisions_are_run_again_and_done_ones_stay_done(
    town: Town, tmp_path: Path
) -> None:
    town.accept(operation("task/old", "start"))
    old = town.permit("mail")
    town.report(old, "confirmed")
    town.keep(tmp_path / "kept")
    answer = town.accept(operation("task/new", "start"))
    for lane in ("tidy", "mail"):
        while permits := town.claim(lane, limit=5).permits:
            for permit in permits:
                town.report(permit, "confirmed")
    rewind(town, tmp_path / "kept")
    town.recover()
    assert town.status(old.id) == "done"
    assert [town.status(identity) for identity in answer.commands] == ["ready"] * 3
    given = [permit.id for permit in town.claim("mail", limit=5).permits]
    assert given == [answer.commands[0]]
    town.finish_off()


def test_commands_of_a_store_that_is_rebuilt_from_nothing_become_dead_letters(town: Town) -> None:
    first = town.release("payment/1")
    answer = town.accept(operation("task/1", "start"))
    town.settle()
    town.close()
    shutil.rmtree(town.settings.store_file.parent)
    town.open()
    town.recover()
    for identity in answer.commands:
        row = town.row(identity)
        assert (row.status, row.maybe, row.due) == ("dead", 1, None)
        assert "it may have run before" in row.step
    assert town.claim("mail").permits == []
    # A release needs no person: whether it was committed to stands in the journal.
    assert town.permit("pay").id == first
    assert town.do(handling.replay, answer.commands, "they never ran").done == [*answer.commands]
    assert town.permit("mail").id == answer.commands[0]
    # What is decided from now on is run as ever.
    town.accept(operation("task/2", "start"))
    town.finish_off()


def test_items_are_the_stores_own_and_are_lost_or_kept_with_it(town: Town, tmp_path: Path) -> None:
    town.do(handling.enqueue, "preview", "thumbnail", [("kept", b"{}")])
    town.keep(tmp_path / "kept")
    town.do(handling.enqueue, "preview", "thumbnail", [("lost", b"{}")])
    town.put("case/1", 1)
    rewind(town, tmp_path / "kept")
    town.recover()
    assert [permit.id for permit in town.claim("preview", limit=5).permits] == ["item_preview_kept"]
    assert len(town.do(handling.enqueue, "preview", "thumbnail", [("lost", b"{}")])) == 1
    town.finish_off()


# P11: interrupted anywhere.


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Town:
    """A tenant whose store was put back to one with claims that only it has; pages are small."""
    monkeypatch.setattr(planning, "PAGE", 5)
    monkeypatch.setattr("reconstruct.applying.PAGE", 3)
    town = Town(settings_under(tmp_path / "template"))
    for kind in LANE_OF:
        for number in range(2):
            town.release(f"{kind}/{number}")
    town.accept(operation("task/0", "start"))
    town.report(town.permit("mail"), "confirmed")
    town.settle()
    # Claims and a permission that never reach the journal.
    for work in (
        lambda: town.claim("pay", limit=2),
        lambda: town.accept(operation("letter/0", "revoke")),
    ):
        fail_log(town.record, before=[EngineError("the journal is away")] * 9)
        with pytest.raises(JournalUnavailable):
            work()
    town.do(recovery_snapshot, tmp_path / "local")
    town.close()
    shutil.rmtree(town.settings.store_file.parent)
    town.open()
    town.recover()
    go_on(town)
    town.restore(tmp_path / "local")
    town.close()
    return town


async def recovery_snapshot(record: Any, folder: Path) -> None:
    from reconstruct import snapshots

    await snapshots.snapshot(record, folder)


def go_on(town: Town) -> None:
    """What is lost: every kind of decision about releases, and commands."""
    for permit in town.claim("pay", limit=2).permits:
        town.report(permit, "unknown")
        town.let_come(permit.id)
    for permit in town.claim("pay", limit=2).permits:
        town.report(permit, "confirmed" if permit.entity == "payment/0" else "failed")
    for permit in town.claim("post", limit=2).permits:
        if permit.entity == "letter/0":
            town.report(permit, "unknown")
    town.release("transfer/0", "2")
    town.claim("bank", limit=1)
    town.accept(operation("transfer/1", "revoke"))
    town.accept(operation("task/1", "start"))
    town.do(handling.record_incident, town.stored_id("payment/0"), "twice?")
    town.settle()


def settings_under(folder: Path) -> Settings:
    return lane_settings(
        folder, lane={"pay": Lane(contract=Contract.IDEMPOTENT, window=DAY, attempts=9)}
    )


def facts(settings: Settings) -> dict[str, dict[str, Any]]:
    """Every column that decisions give, and the status, of every row."""

    def of(row: Work) -> dict[str, Any]:
        names = (*PERMISSION, *OUTCOME, "status", "maybe", "worker", "execution")
        return {name: getattr(row, name) for name in names}

    return {identity: of(row) for identity, row in stored(settings).items()}


@pytest.mark.parametrize("after", [False, True])
def test_p11_r11_an_apply_that_is_interrupted_anywhere_leads_to_the_same_rows(
    template: Town, tmp_path: Path, *, after: bool
) -> None:
    wanted: dict[str, dict[str, Any]] | None = None
    for number in range(MOST):
        town = copy_of(template, tmp_path / f"{number}")
        recovery.stop(town.settings, "a test")
        town.do(recovery.begin, "a test")
        with fused(number, after=after) as fuse:
            try:
                applied = town.do(recovery.apply)
            except Killed:
                assert fuse.blown
        if fuse.blown:
            town.crash()
            town.open()
            town.do(recovery.apply)
        town.do(recovery.reopen, despite={"reconciled"})
        found = facts(town.settings)
        if wanted is None:
            assert applied.undone > 0
            assert applied.rebuilt > 0
            assert applied.replayed > 10
            wanted = found
        assert found == wanted
        town.finish_off()
        shutil.rmtree(tmp_path / f"{number}")
        if number and not fuse.blown:
            assert number > 8
            return
    pytest.fail("the recovery never ended")


def copy_of(template: Town, folder: Path) -> Town:
    """The template's files under another folder."""
    settings = settings_under(folder)
    shutil.copytree(template.settings.home, settings.home)
    return Town(settings)
