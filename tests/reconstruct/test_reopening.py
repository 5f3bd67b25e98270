"""Reopening in stages: each stage has tests, and nothing more is allowed than they vouch for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal import accounts, decrees, handling, reading
from journal.control import Control, Opening, Running, Stage
from journal.entry import Entry
from journal.errors import DiskFailed, EngineError, Invalid, Recovering, Refused, WriterStopped
from journal.history import Flaw
from journal.lanes import Contract, Lane
from journal.log import Append, FlawRow
from journal.outcomes import Outcome
from journal.settings import Objective
from journal.standing import append_control
from journal.worker import drive
from reconstruct import recovery, reporting
from reconstruct.completion import WAIVABLE
from reconstruct.recovery import Reopened
from tests.reconstruct.scenes import fresh_log, query, raw
from tests.reconstruct.towns import Town
from tests.support.faults import fail_log, fail_store
from tests.support.releases import DAY, lane_settings
from tests.support.tenants import operation

RECONCILED = {"reconciled"}


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(lane_settings(tmp_path))
    try:
        yield made
    finally:
        made.close()


def apply(town: Town, folder: Path | None = None) -> None:
    """Every step of a recovery up to the reopening; rewinds to a snapshot if one is named."""
    if folder is not None:
        town.settle()
        town.restore(folder)
    recovery.stop(town.settings, "a test")
    town.do(recovery.begin, "a test")
    town.do(recovery.apply)


def reopen(town: Town, **wanted: Any) -> Reopened:
    return town.do(recovery.reopen, "os-user:ines", **wanted)


def keys(lines: list[str]) -> list[str]:
    return [line.partition(":")[0] for line in lines]


def last_facts(town: Town) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.json.decode(drive(town.log.control())[-1].body)
    return facts


def refused(town: Town, **wanted: Any) -> list[str]:
    """The tests for which a stage is refused; nothing has changed."""
    before = town.control().sequence
    stopped = town.record.stop.stands()
    with pytest.raises(Refused, match="nothing has changed") as error:
        reopen(town, **wanted)
    assert town.control().sequence == before
    assert town.record.stop.stands() == stopped
    missing: list[str] = error.value.members["missing"]
    return keys(missing)


# The whole way.


def test_every_stage_is_passed_when_its_tests_hold(town: Town, tmp_path: Path) -> None:
    town.put("case/1", "kept")
    town.keep(tmp_path / "kept")
    town.put("case/1", "lost")
    apply(town, tmp_path / "kept")
    done = reopen(town)
    assert done.stage == "open"
    assert done.passed == ["reading", "internal", "external", "open"]
    assert (done.missing, done.despite) == ([], [])
    assert not town.record.stop.stands()
    town.repeats()
    town.whole()


def test_an_unreconciled_release_leaves_the_tenant_at_internal(town: Town) -> None:
    town.release("payment/1")
    apply(town)
    done = reopen(town)
    assert (done.stage, done.passed) == ("internal", ["reading", "internal"])
    assert keys(done.missing) == ["reconciled"]
    assert "recover reconcile" in done.missing[0]
    assert not town.record.stop.stands()
    # Decisions are taken, and nothing leaves the house.
    town.accept(operation("case/1", "note"))
    assert town.claim("pay").permits == []
    assert refused(town, to=Stage.OPEN) == ["reconciled"]
    assert refused(town, to=Stage.EXTERNAL, opening=Opening(("pay",))) == ["reconciled"]
    assert town.control().authority.stage is Stage.INTERNAL
    # Again, it stands where it is, without another entry.
    before = town.control().sequence
    assert reopen(town).stage == "internal"
    assert town.control().sequence == before
    town.finish_off()


def test_a_test_is_waived_by_its_name_and_the_reason_is_journalled(town: Town) -> None:
    town.release("payment/1")
    apply(town)
    done = reopen(town, despite=RECONCILED, reason="the bank was asked by telephone")
    assert done.stage == "open"
    assert keys(done.despite) == ["reconciled"]
    facts = last_facts(town)
    assert facts["reason"] == "the bank was asked by telephone"
    assert keys(facts["despite"]) == ["reconciled"]
    assert town.control().reason == "the bank was asked by telephone"
    town.finish_off()


@pytest.mark.parametrize("name", ["heads", "permissions", "write", "everything"])
def test_facts_about_the_files_cannot_be_waived(town: Town, name: str) -> None:
    apply(town)
    with pytest.raises(Invalid, match="reconciled") as error:
        reopen(town, despite={name})
    assert error.value.members["field"] == "despite"
    assert name not in WAIVABLE


def test_a_reconciled_generation_needs_no_more(town: Town) -> None:
    town.release("payment/1")
    apply(town)
    town.put_in_force("reconciled")
    assert reopen(town).stage == "open"
    town.finish_off()


def test_a_generation_that_was_open_has_answered_for_its_releases(town: Town) -> None:
    apply(town)
    assert reopen(town).stage == "open"
    town.release("payment/1")
    # Stopped by hand and found sound: what is open now was permitted since.
    town.record.stop.put_up("looking", town.record.clock.now())
    assert reopen(town).stage == "open"
    town.finish_off()


# One stage at a time.


def test_reading_shows_entities_and_decides_nothing(town: Town) -> None:
    town.put("case/1", "kept")
    apply(town)
    with pytest.raises(Recovering):
        town.do(reading.read_entity, "case/1", None)
    assert reopen(town, to=Stage.READING).passed == ["reading"]
    assert town.do(reading.read_entity, "case/1", None).revision == 1
    with pytest.raises(Recovering, match="reading"):
        town.accept(operation("case/1", "note"))
    assert reopen(town, to=Stage.INTERNAL).passed == ["internal"]
    town.accept(operation("case/1", "note"))
    assert reopen(town).passed == ["external", "open"]
    town.finish_off()


def test_a_stage_that_allows_less_is_not_reopened_to(town: Town) -> None:
    apply(town)
    reopen(town)
    with pytest.raises(Refused, match="which allows more than reading"):
        reopen(town, to=Stage.READING)
    with pytest.raises(Invalid, match="recover begin"):
        reopen(town, to=Stage.CLOSED)
    assert town.control().authority.stage is Stage.OPEN
    town.finish_off()


def test_a_stop_file_that_a_kill_left_is_stricter_and_goes(town: Town) -> None:
    apply(town)
    reopen(town)
    # Killed after the journal was open and before the stop file was gone.
    town.record.stop.put_up("a test", town.record.clock.now())
    town.crash()
    town.open()
    with pytest.raises(Recovering):
        town.accept(operation("case/1", "note"))
    before = town.control().sequence
    assert reopen(town).stage == "open"
    assert town.control().sequence == before
    town.accept(operation("case/1", "note"))
    town.finish_off()


def test_a_stop_file_over_an_open_journal_ends_in_the_stage_that_is_reached(town: Town) -> None:
    town.release("payment/1")
    apply(town)
    reopen(town, despite=RECONCILED)
    town.record.stop.put_up("looking", town.record.clock.now())
    assert reopen(town, to=Stage.READING).stage == "reading"
    assert town.control().authority.stage is Stage.READING
    assert not town.record.stop.stands()
    reopen(town)
    town.finish_off()


def test_r16_r21_reading_waits_for_every_revocation_that_the_journal_can_prove(
    town: Town, tmp_path: Path
) -> None:
    for action in ("approve", "release", "revoke", "approve"):
        town.accept(operation("payment/1", action, version="1"))
    apply(town)
    # The newest entry is damaged, and the row is of before the revocation: no head is compared.
    columns = "revision, history, digest, sequence, state, version, data"
    town.keep(tmp_path / "whole")
    flaw = FlawRow("payment/1", Flaw.GAP, 4, 4, (), 3, 1, town.record.clock.now(), "a test")
    drive(town.log.append(Append(flaws=[flaw]), drive(town.log.look())))
    second = drive(town.log.history("payment/1", 2, 2, 1))[0].entry()
    saved = town.sql(f"SELECT {columns} FROM unrewind_entities WHERE entity = 'payment/1'")[0]

    def put(revision: int, digest: str, data: str) -> None:
        town.sql(
            "UPDATE unrewind_entities SET revision = ?, digest = ?, data = ?, state = 'approved'"
            " WHERE entity = 'payment/1'",
            revision,
            bytes.fromhex(digest),
            data,
        )

    put(2, second.digest, "{}")
    done = reopen(town)
    assert (done.stage, keys(done.missing)) == ("closed", ["permissions"])
    assert "payment/1" in done.missing[0]
    assert town.record.stop.stands()
    assert refused(town, to=Stage.READING) == ["permissions"]
    # At its durable boundary it may be read: the revocation is in it.
    third = drive(town.log.history("payment/1", 3, 3, 1))[0].entry()
    put(3, third.digest, saved[6])
    assert reopen(town, despite=RECONCILED).stage == "open"


# Internal: a write.


def test_r13_readiness_includes_a_write_to_the_store(town: Town) -> None:
    apply(town)
    fail_store(town.record, before=[EngineError("attempt to write a readonly database")])
    done = reopen(town)
    assert (done.stage, keys(done.missing)) == ("reading", ["write"])
    assert "readonly" in done.missing[0]
    assert reopen(town).stage == "open"
    town.finish_off()


def test_r13_readiness_includes_a_write_to_the_journal(town: Town) -> None:
    apply(town)
    fail_log(town.record, before=[EngineError("no space left")])
    with pytest.raises(Exception, match="no space left"):
        reopen(town)
    assert town.record.stop.stands()
    fresh_log(town.record)
    assert reopen(town).stage == "open"
    town.finish_off()


def test_r15_a_commit_that_failed_ends_the_reopening(town: Town) -> None:
    apply(town)
    fail_store(town.record, before=[DiskFailed("input/output error")])
    with pytest.raises(WriterStopped):
        reopen(town)
    assert town.record.stop.stands()


def test_p12_work_that_cannot_be_read_has_no_owner(town: Town) -> None:
    release = town.release("payment/1")
    apply(town)
    town.meddle(release, weight="heavy")
    done = reopen(town)
    assert (done.stage, keys(done.missing)) == ("reading", ["owners"])
    assert release in done.missing[0]
    assert reopen(town, despite={"owners", "reconciled"}).stage == "open"


# External: what is let out first.


def test_external_says_what_it_lets_out(town: Town) -> None:
    apply(town)
    for wanted in (
        {"to": Stage.EXTERNAL},
        {"to": Stage.EXTERNAL, "opening": Opening()},
        {"to": Stage.OPEN, "opening": Opening(("pay",))},
        {"to": Stage.EXTERNAL, "opening": Opening(("mail",))},
        {"to": Stage.EXTERNAL, "opening": Opening(("nowhere",))},
        {"to": Stage.EXTERNAL, "opening": Opening(("pay",), rate=-1.0)},
        {"to": Stage.EXTERNAL, "opening": Opening(("pay",), rate=float("nan"))},
    ):
        with pytest.raises(Invalid):
            reopen(town, **wanted)
    opening = Opening(("pay",), ("rel_1",), 0.5)
    assert reopen(town, opening=opening).stage == "external"
    assert town.control().opening == opening
    wider = Opening(("pay", "post"))
    assert reopen(town, opening=wider).stage == "external"
    assert town.control().opening == wider


def test_what_was_let_out_first_has_to_end_well(town: Town) -> None:
    releases = [town.release(f"payment/{number}") for number in (1, 2)]
    town.release("letter/1")
    apply(town)
    town.put_in_force("reconciled")
    assert reopen(town, opening=Opening(("pay",))).stage == "external"
    waits = reopen(town)
    assert (waits.stage, keys(waits.missing), waits.soon) == ("external", ["trial"], True)
    assert refused(town, to=Stage.OPEN) == ["trial"]
    assert town.claim("post").permits == []
    permit = town.permit("pay")
    waits = reopen(town)
    assert (keys(waits.missing), waits.soon) == (["trial"], True)
    assert permit.id in waits.missing[0]
    town.report(permit, Outcome.CONFIRMED, receipt="r-1")
    assert reopen(town).stage == "open"
    assert town.status(releases[1]) == "ready"
    town.finish_off()


def test_a_new_unknown_keeps_the_tenant_from_opening(town: Town) -> None:
    town.release("letter/1")
    apply(town)
    town.put_in_force("reconciled")
    reopen(town, opening=Opening(("post",)))
    permit = town.permit("post")
    town.report(permit, Outcome.UNKNOWN)
    done = reopen(town)
    assert (done.stage, keys(done.missing), done.soon) == ("external", ["trial"], False)
    assert permit.id in done.missing[0]
    # Named anew, the same stage goes on from where it began.
    reopen(town, opening=Opening(("pay",)))
    assert keys(reopen(town).missing) == ["trial"]
    town.do(handling.settle, permit.id, happened=True, receipt="r-1", evidence="their ledger")
    assert reopen(town).stage == "open"
    town.finish_off()


def test_a_release_that_was_named_has_to_end(town: Town) -> None:
    first, second = (town.release(f"payment/{number}") for number in (1, 2))
    apply(town)
    town.put_in_force("reconciled")
    reopen(town, opening=Opening(releases=(second,)))
    assert keys(reopen(town).missing) == ["trial"]
    permit = town.permit("pay")
    assert permit.id == second
    town.report(permit, Outcome.CONFIRMED)
    assert reopen(town).stage == "open"
    assert town.status(first) == "ready"
    town.finish_off()


def test_a_trial_of_a_release_that_does_not_exist_is_no_trial(town: Town) -> None:
    town.release("payment/1")
    apply(town)
    town.put_in_force("reconciled")
    reopen(town, opening=Opening(releases=("rel_of_nobody",)))
    done = reopen(town)
    assert (done.stage, keys(done.missing), done.soon) == ("external", ["trial"], False)
    assert "no release rel_of_nobody" in done.missing[0]
    assert reopen(town, despite={"trial"}, reason="a typing error").stage == "open"
    town.finish_off()


def test_a_trial_of_what_had_ended_before_is_no_trial(town: Town) -> None:
    ended = town.release("payment/1")
    town.report(town.permit("pay"), Outcome.CONFIRMED)
    town.release("payment/2")
    apply(town)
    town.put_in_force("reconciled")
    reopen(town, opening=Opening(releases=(ended,)))
    done = reopen(town)
    assert (keys(done.missing), done.soon) == (["trial"], False)
    assert "nothing was tried" in done.missing[0]
    reopen(town, opening=Opening(("pay",)))
    town.report(town.permit("pay"), Outcome.CONFIRMED)
    assert reopen(town).stage == "open"
    town.finish_off()


def test_a_damaged_entry_in_a_trial_is_named_and_can_be_waived(town: Town) -> None:
    town.release("payment/1")
    apply(town)
    town.put_in_force("reconciled")
    reopen(town, opening=Opening(("pay",)))
    town.report(town.permit("pay"), Outcome.CONFIRMED)
    town.fill(2)
    town.settle()
    town.close()
    body = "UPDATE entries SET body = CAST(body || x'00' AS BLOB)"
    (position,) = query(
        town.settings.journal_file, "SELECT max(position) FROM entries WHERE entity = 'case/0'"
    )[0]
    raw(town.settings.journal_file, f"{body} WHERE position = {position}")
    town.open()
    done = reopen(town)
    assert (done.stage, keys(done.missing), done.soon) == ("external", ["trial"], False)
    assert f"position {position}" in done.missing[0]
    assert reopen(town, despite={"trial"}, reason="verify names it").stage == "open"


def test_a_lane_that_stands_still_without_a_reason_is_named(town: Town) -> None:
    apply(town)

    def pause(control: Control) -> tuple[Entry, Any]:
        now, fresh = town.record.clock.now(), town.record.clock.fresh()
        entry = decrees.lane_entry(control, "pay", Running.PAUSED, "", fresh, now)
        return entry, control.authority

    town.do(append_control, pause)
    done = reopen(town)
    assert (done.stage, keys(done.missing)) == ("internal", ["holds"])
    town.do(handling.set_lane, "pay", Running.ON, "the bank is open")
    assert reopen(town).stage == "open"
    town.finish_off()


def test_a_backlog_that_takes_too_long_is_no_reopening(tmp_path: Path) -> None:
    slow = Lane(contract=Contract.IDEMPOTENT, window=DAY, concurrency=1, expected=30.0, lease=60.0)
    town = Town(lane_settings(tmp_path, lane={"pay": slow}))
    for number in range(5):
        town.release(f"payment/{number}")
    town.close()
    lane = msgspec.structs.replace(slow, tolerance=100.0)
    town.settings = lane_settings(tmp_path, lane={"pay": lane})
    town.open()
    apply(town)
    town.put_in_force("reconciled")
    done = reopen(town)
    assert (done.stage, keys(done.missing)) == ("internal", ["backlog"])
    assert "--to external" in done.missing[0]
    assert reopen(town, opening=Opening(("pay",), rate=1.0)).stage == "external"
    assert reopen(town, despite={"backlog", "trial"}, reason="agreed").stage == "open"
    town.finish_off()


# The report.


def test_p12_the_report_tells_every_step_and_what_is_left(tmp_path: Path) -> None:
    objective = Objective(safe_within=3600.0, backlog_within=7200.0)
    town = Town(lane_settings(tmp_path, objective=objective))
    town.keep(tmp_path / "kept")
    first = town.release("payment/1")
    permit = town.permit("pay")
    history = town.control().authority.history
    apply(town, tmp_path / "kept")
    before = town.do(reporting.report)
    assert (before.stage, before.safe.seconds, before.safe.met) == ("closed", None, None)
    assert not before.fine
    reopen(town, to=Stage.INTERNAL)
    found = town.do(reporting.report)
    assert (found.generation, found.parent, found.stage) == (2, history, "internal")
    actions = [step.action for step in found.steps]
    assert (actions[-1], actions.count("begin"), actions.count("history")) == ("reopen", 1, 1)
    assert found.steps[-1].principal == "os-user:ines"
    assert found.replayed == 3
    assert found.evidence
    assert found.plan is not None
    assert found.safe.seconds is not None
    assert found.safe.met is True
    assert (found.drained.seconds, found.drained.met) == (None, None)
    assert found.backlog is not None
    assert (found.backlog.waited, found.backlog.left) == (1, 1)
    assert {account.operation for account in found.oldest} == {town.row(first).operation}
    assert found.oldest[0].fate.owner == "operator"
    reopen(town, despite=RECONCILED)
    town.sweep()
    again = town.permit("pay")
    assert again.id == permit.id
    town.report(again, Outcome.CONFIRMED)
    done = town.do(reporting.report)
    assert (done.unresolved, done.lost, done.stage) == (0, 0, "open")
    assert done.drained.seconds is not None
    assert done.drained.met is True
    assert done.fine
    assert town.do(reporting.report, 2).history == done.history
    with pytest.raises(Exception, match="no recovery gave generation 7"):
        town.do(reporting.report, 7)
    town.finish_off()


def test_a_missed_objective_is_said(tmp_path: Path) -> None:
    town = Town(lane_settings(tmp_path, objective=Objective(safe_within=1e-9)))
    apply(town)
    assert town.do(reporting.report).safe.met is False
    reopen(town)
    found = town.do(reporting.report)
    assert (found.safe.met, found.drained.met, found.fine) == (False, None, False)
    town.finish_off()


def test_what_waits_for_people_is_no_backlog(town: Town) -> None:
    release = town.release("letter/1")
    town.report(town.permit("post"), Outcome.UNKNOWN)
    apply(town)
    reopen(town, despite=RECONCILED)
    found = town.do(reporting.report)
    assert found.backlog is not None
    assert (found.backlog.left, found.backlog.with_people) == (0, 1)
    assert found.drained.seconds is not None
    assert [account.fate.open for account in found.oldest] == [(release,)]
    town.finish_off()


def test_an_unresolved_release_is_overdue_after_its_lanes_time(tmp_path: Path) -> None:
    post = Lane(resolve_within=0.001, owner="ines")
    town = Town(lane_settings(tmp_path, lane={"post": post}))
    town.release("letter/1")
    apply(town)
    reopen(town, despite=RECONCILED)
    page = town.do(accounts.read_unresolved, entity=None, after=None, limit=None)
    assert [(item.fate.owner, item.fate.overdue) for item in page.items] == [("ines", True)]
    found = town.do(reporting.report)
    assert (found.unresolved, found.overdue, found.fine) == (1, 1, False)
    town.finish_off()
