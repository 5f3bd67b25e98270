"""P12: every accepted operation ends, or has somebody who owes an answer until a stated time."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st

from journal import accounts, handling
from journal.accounts import Account
from journal.errors import NotFound, UnrewindError
from journal.feed import Page
from journal.history import Flaw
from journal.lanes import Lane
from journal.ledger import Decided, Duty, Fate, Verdict, fate_of
from journal.log import Append, FlawRow
from journal.outcomes import Outcome
from journal.work import FINISHED, Status
from journal.worker import drive
from reconstruct import reporting
from tests.reconstruct.cuts import REASON, apply, cut, damage, removed, reopen
from tests.reconstruct.towns import Town
from tests.support.releases import FUTURE, PAST, Yard, lane_settings, row_of_work
from tests.support.tenants import operation

DAY = 86_400.0
DUTY = Duty("operations", DAY, {"pay": Lane(owner="ines", resolve_within=3600.0)})
DECIDED = Decided("op-1", 2, PAST, ("rel_1",))


# The rule.


def judged(*changes: dict[str, Any], decided: Decided = DECIDED, now: str = PAST) -> Verdict:
    rows = [row_of_work(**change) for change in changes]
    return fate_of(decided, rows, DUTY, now)


@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (Status.DONE, Fate.COMPLETED),
        (Status.CANCELLED, Fate.CANCELLED),
        (Status.DRAINED, Fate.CANCELLED),
        (Status.DISCARDED, Fate.CANCELLED),
        (Status.REFUSED, Fate.REJECTED),
        *((status, Fate.UNRESOLVED) for status in Status if status not in FINISHED),
        ("a status of a later version", Fate.UNRESOLVED),
    ],
)
def test_p12_each_status_of_work_is_one_fate(status: str, fate: Fate) -> None:
    found = judged({"status": str(status)})
    assert found.fate is fate
    unresolved = fate is Fate.UNRESOLVED
    assert (found.owner is not None, found.deadline is not None) == (unresolved, unresolved)
    assert found.open == (("rel_1",) if unresolved else ())


def test_p12_the_weightiest_end_is_the_fate_and_an_open_one_before_all() -> None:
    done, cancelled, refused, waits = (
        {"id": f"rel_{number}", "status": status}
        for number, status in enumerate(("done", "cancelled", "refused", "retry"), 1)
    )
    assert judged(done, cancelled).fate is Fate.CANCELLED
    assert judged(done, cancelled, refused).fate is Fate.REJECTED
    assert judged(done, cancelled, refused, waits).fate is Fate.UNRESOLVED


def test_p12_owner_and_deadline_are_the_lanes_or_the_tenants() -> None:
    found = judged({"status": "unknown", "owner": "max"})
    assert (found.owner, found.deadline) == ("max", "2001-02-03T05:05:06.000000Z")
    assert judged({"status": "unknown", "owner": None}).owner == "ines"
    gone = judged({"status": "unknown", "lane": "gone", "owner": None})
    assert (gone.owner, gone.deadline) == ("operations", "2001-02-04T04:05:06.000000Z")
    assert not gone.overdue
    assert judged({"status": "unknown"}, now=FUTURE).overdue


def test_p12_a_release_that_the_store_lacks_is_unresolved() -> None:
    found = judged()
    assert (found.fate, found.open) == (Fate.UNRESOLVED, ("rel_1",))
    nothing = Decided("op-1", 2, PAST)
    assert judged(decided=nothing).fate is Fate.COMPLETED


def test_p12_one_operation_answers_for_a_release_that_several_permit() -> None:
    anew = judged({"operation": "op-2", "revision": 5, "status": "retry"})
    assert (anew.fate, "op-2" in anew.why) == (Fate.CANCELLED, True)
    before = judged({"operation": "op-0", "revision": 1, "status": "retry"})
    assert (before.fate, "op-0" in before.why) == (Fate.COMPLETED, True)


def test_p12_what_is_drained_says_that_it_may_have_happened() -> None:
    assert "may have happened" in judged({"status": "drained", "maybe": 1}).why
    assert "may have happened" not in judged({"status": "drained", "maybe": 0}).why


def test_p12_an_abandoned_decision_is_cancelled_and_a_held_one_unresolved() -> None:
    abandoned = Decided("op-1", 2, PAST, ("rel_1",), abandoned="nobody has it")
    assert judged({"status": "retry"}, decided=abandoned).fate is Fate.CANCELLED
    held = Decided("op-1", 2, PAST, ("rel_1",), held_since=PAST, held="a gap")
    found = judged({"status": "done"}, decided=held)
    assert (found.fate, found.owner, found.why) == (Fate.UNRESOLVED, "operations", "a gap")


# The files.


def all_pages(yard: Yard, read: Any, limit: int = 3, entity: str | None = None) -> list[Account]:
    found: list[Account] = []
    after: str | None = None
    while True:
        page: Page = yard.do(read, entity=entity, after=after, limit=limit)
        found += page.items
        after = page.next
        if after is None:
            return found


def fates(yard: Yard) -> dict[str, Verdict]:
    """Every accepted operation's fate, each told exactly once and the same however it is asked."""
    listed = all_pages(yard, accounts.read_ledger)
    assert not [name for name, count in Counter(a.operation for a in listed).items() if count > 1]
    told = {account.operation: account.fate for account in listed}
    sql = "SELECT operation FROM entries WHERE stream = 'decisions' OR stream LIKE 'caller/%'"
    assert told.keys() == {name for (name,) in yard.journal_sql(sql)}
    unresolved = all_pages(yard, accounts.read_unresolved)
    named = [account.operation for account in unresolved]
    assert len(named) == len({*named})
    assert {*named} == {name for name, fate in told.items() if fate.fate is Fate.UNRESOLVED}
    assert [a.recorded for a in unresolved] == sorted(a.recorded for a in unresolved)
    for fate in told.values():
        assert fate.why
        owed = fate.fate is Fate.UNRESOLVED
        assert (bool(fate.owner), bool(fate.deadline)) == (owed, owed)
    return told


def of_release(yard: Yard, identity: str) -> Verdict:
    """The fate of the operation that permitted a release."""
    name = yard.row(identity).operation
    assert name is not None
    return yard.do(accounts.fate_of_operation, name).fate


def test_p12_releases_and_commands_end_their_operations(yard: Yard) -> None:
    ends = {"confirmed": Fate.COMPLETED, "refused": Fate.REJECTED, "unknown": Fate.UNRESOLVED}
    wanted = {}
    for number, (outcome, fate) in enumerate(ends.items()):
        release = yard.release(f"letter/{number}")
        permit = yard.permit("post")
        assert permit.id == release
        yard.report(permit, Outcome(outcome))
        wanted[release] = fate
    cancelled = yard.release("letter/9")
    yard.accept(operation("letter/9", "revoke"))
    wanted[cancelled] = Fate.CANCELLED
    wanted[yard.release("payment/1")] = Fate.UNRESOLVED
    yard.accept(operation("task/1", "start", id="start"))
    told = fates(yard)
    for release, fate in wanted.items():
        assert told[yard.row(release).operation or ""].fate is fate, release
    assert len(told["start"].open) == 3
    for lane in ("mail", "tidy", "mail"):
        yard.report(yard.permit(lane), Outcome.CONFIRMED)
    assert fates(yard)["start"].fate is Fate.COMPLETED


def test_p12_a_release_permitted_again_is_answered_for_once(yard: Yard) -> None:
    release = yard.release("payment/1")
    first = yard.row(release).operation or ""
    again = yard.accept(operation("payment/1", "release", version="1")).operation
    assert of_release(yard, release).fate is Fate.UNRESOLVED
    assert fates(yard)[again].fate is Fate.COMPLETED
    yard.accept(operation("payment/1", "revoke"))
    assert fates(yard)[first].fate is Fate.CANCELLED


def test_p12_a_release_that_was_revived_is_the_later_operations(yard: Yard) -> None:
    first = yard.row(yard.release("payment/1")).operation or ""
    yard.accept(operation("payment/1", "approve", version="2"))
    yard.accept(operation("payment/1", "approve", version="1"))
    again = yard.accept(operation("payment/1", "release", version="1"))
    told = fates(yard)
    assert told[first].fate is Fate.CANCELLED
    assert again.operation in told[first].why
    assert told[again.operation].fate is Fate.UNRESOLVED


def test_p12_decisions_beyond_a_gap_are_unresolved(yard: Yard) -> None:
    told = [answer.operation for answer in yard.decide("case/1", *["note"] * 3)]
    yard.decide("case/2", "note")
    flaw = FlawRow("case/1", Flaw.DIVERGENT, 2, 2, (), 1, 1, PAST, "a test")
    drive(yard.log.append(Append(flaws=[flaw]), drive(yard.log.look())))
    found = fates(yard)
    assert [found[name].fate for name in told] == [
        Fate.COMPLETED,
        Fate.UNRESOLVED,
        Fate.UNRESOLVED,
    ]
    assert found[told[1]].deadline == "2001-02-04T04:05:06.000000Z"
    assert found[told[1]].overdue
    drive(yard.log.append(Append(settled=["case/1"]), drive(yard.log.look())))


def test_p12_a_callers_decisions_count_too(yard: Yard) -> None:
    caller = yard.caller()
    first, second, third = caller.chain("contract/1", 3)
    yard.append(first, third)
    found = fates(yard)
    assert found[first.envelope.operation].fate is Fate.COMPLETED
    assert found[third.envelope.operation].fate is Fate.UNRESOLVED
    yard.append(second)
    assert {fate.fate for fate in fates(yard).values()} == {Fate.COMPLETED}


def test_p12_what_the_store_has_lost_is_unresolved_until_it_is_back(tmp_path: Path) -> None:
    town = Town(lane_settings(tmp_path))
    town.keep(tmp_path / "kept")
    town.put("case/1", "lost")
    release = town.release("payment/1")
    town.report(town.permit("pay"), Outcome.CONFIRMED)
    before = {name: fate.fate for name, fate in fates(town).items()}
    assert {*before.values()} == {Fate.COMPLETED}
    town.restore(tmp_path / "kept")
    assert {fate.fate for fate in fates(town).values()} == {Fate.UNRESOLVED}
    town.recover()
    assert {name: fate.fate for name, fate in fates(town).items()} == before
    assert of_release(town, release).fate is Fate.COMPLETED
    # Without any store nothing is known to have ended.
    town.crash()
    for suffix in ("", "-wal", "-shm"):
        file = town.settings.store_file
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    town.open()
    assert {fate.fate for fate in fates(town).values()} == {Fate.UNRESOLVED}
    town.close()


def test_p12_what_was_abandoned_is_cancelled_and_counted_as_lost(tmp_path: Path) -> None:
    town = Town(lane_settings(tmp_path))
    town.keep(tmp_path / "old")
    told = [town.put("case/1", number).operation for number in range(4)]
    town.settle()
    damage(town, tmp_path, removed("case/1", 2))
    apply(town)
    assert [fates(town)[name].fate for name in (told[0], *told[2:])] == [
        Fate.COMPLETED,
        Fate.UNRESOLVED,
        Fate.UNRESOLVED,
    ]
    cut(town, "case/1")
    after = fates(town)
    assert [after[name].fate for name in (told[0], *told[2:])] == [
        Fate.COMPLETED,
        Fate.CANCELLED,
        Fate.CANCELLED,
    ]
    assert REASON in after[told[2]].why
    reopen(town)
    found = town.do(reporting.report)
    assert [(one.entity, one.through, one.dropped) for one in found.abandoned] == [
        ("case/1", 1, (told[2], told[3]))
    ]
    assert (found.lost, found.fine) == (3, False)
    town.close()


def test_p12_spoiled_and_missing_rows_are_never_taken_for_ended(yard: Yard) -> None:
    spoiled, missing = yard.release("payment/1"), yard.release("payment/2")
    name, gone = (yard.row(each).operation or "" for each in (spoiled, missing))
    yard.meddle(spoiled, weight="heavy", created=b"\x00")
    yard.sql("DELETE FROM unrewind_work WHERE id = ?", missing)
    listed = {a.operation: a.fate for a in all_pages(yard, accounts.read_ledger)}
    assert {listed[name].fate, listed[gone].fate} == {Fate.UNRESOLVED}
    unresolved = {a.operation for a in all_pages(yard, accounts.read_unresolved)}
    assert name in unresolved
    yard.diverged()


def test_operations_of_one_entity_page_by_page(yard: Yard) -> None:
    told = [answer.operation for answer in yard.decide("case/1", *["note"] * 7)]
    yard.decide("case/2", "note")
    assert [a.operation for a in all_pages(yard, accounts.read_ledger, 2, "case/1")] == told
    release = yard.release("payment/1")
    found = all_pages(yard, accounts.read_unresolved, 2, "payment/1")
    assert [account.fate.open for account in found] == [(release,)]
    assert all_pages(yard, accounts.read_unresolved, 2, "case/1") == []


def test_an_operation_that_was_never_accepted_has_no_fate(yard: Yard) -> None:
    with pytest.raises(NotFound):
        yard.do(accounts.fate_of_operation, "nothing")
    control = drive(yard.log.control())[0].operation
    with pytest.raises(NotFound):
        yard.do(accounts.fate_of_operation, control)


# Whatever happens.

STEPS = st.sampled_from(
    [
        "decide",
        "release",
        "again",
        "revoke",
        "claim",
        "confirm",
        "refuse",
        "unknown",
        "expire",
        "settle",
        "start",
        "work",
        "caller",
        "keep",
        "rewind",
        "recover",
    ]
)


class Mix:
    """A tenant in which anything may happen next; what cannot happen now is left out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.town = Town(lane_settings(folder))
        self.kept: Path | None = None
        self.permits: list[Any] = []
        self.accepted: set[str] = set()
        self.number = 0

    def do(self, step: str, place: int) -> None:
        try:
            getattr(self, f"_{step}")(place)
        except UnrewindError:
            return

    def _accept(self, entity: str, action: str, **fields: Any) -> None:
        self.accepted.add(self.town.accept(operation(entity, action, **fields)).operation)

    def _decide(self, place: int) -> None:
        self._accept(f"case/{place}", "note")

    def _release(self, place: int) -> None:
        self._accept(f"letter/{place}", "approve", version="1")
        self._accept(f"letter/{place}", "release", version="1")

    def _again(self, place: int) -> None:
        self._accept(f"letter/{place}", "release", version="1")

    def _revoke(self, place: int) -> None:
        self._accept(f"letter/{place}", "revoke")

    def _claim(self, _: int) -> None:
        self.permits += self.town.claim("post").permits

    def _report(self, outcome: Outcome) -> None:
        if self.permits:
            self.town.report(self.permits.pop(), outcome)

    def _confirm(self, _: int) -> None:
        self._report(Outcome.CONFIRMED)

    def _refuse(self, _: int) -> None:
        self._report(Outcome.REFUSED)

    def _unknown(self, _: int) -> None:
        self._report(Outcome.UNKNOWN)

    def _expire(self, _: int) -> None:
        if self.permits:
            self.town.let_expire(self.permits.pop().id)
        self.town.sweep()

    def _settle(self, _: int) -> None:
        rows = self.town.sql("SELECT id FROM unrewind_work WHERE status = 'unknown'")
        if rows:
            self.town.do(handling.settle, rows[0][0], True, "seen", None)

    def _start(self, place: int) -> None:
        self._accept(f"task/{place}", "start")

    def _work(self, place: int) -> None:
        lane = ("mail", "tidy")[place % 2]
        for permit in self.town.claim(lane).permits:
            self.town.report(permit, Outcome.CONFIRMED)

    def _caller(self, _: int) -> None:
        caller = self.town.caller()
        entry, late = caller.chain(f"contract/{self.number}", 2)
        self.number += 1
        self.town.append(*((late,) if self.number % 2 else (entry, late)))

    def _keep(self, _: int) -> None:
        self.number += 1
        self.kept = self.town.keep(self.folder / f"kept-{self.number}")

    def _rewind(self, _: int) -> None:
        if self.kept is not None:
            self.town.settle()
            self.town.restore(self.kept)

    def _recover(self, _: int) -> None:
        self.town.recover()


@hypothesis.settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@hypothesis.given(st.lists(st.tuples(STEPS, st.integers(0, 1)), min_size=8, max_size=30))
def test_p12_whatever_happens_every_accepted_operation_has_exactly_one_fate(
    steps: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        mix = Mix(Path(folder))
        try:
            for step, place in steps:
                mix.do(step, place)
            assert mix.accepted <= fates(mix.town).keys()
            mix.town.recover()
            told = fates(mix.town)
            assert mix.accepted <= told.keys()
        finally:
            mix.town.close()
