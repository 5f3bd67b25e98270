"""Releases against a world of honest but unlucky workers: whatever happens, an effect happens once.

A model of what really happened outside stands beside the record: whoever has a permit may carry its
effect out at any later moment, however long its claim has ended, unless it has said that it will
not. Everything else is chance: errors of both disks, sweeps, restarts, operators, and rewinds.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from journal import handling
from journal.asking import take_answer
from journal.detection import Verdict
from journal.errors import (
    EngineError,
    JournalUnavailable,
    LeaseLost,
    OperationReused,
    Refusal,
    StaleGeneration,
)
from journal.outcomes import CALLING, Outcome, Reported, Told
from journal.permits import Permit
from journal.release import report_of
from journal.work import Status, after_seconds
from journal.worker import drive
from journal.writepath import settle
from tests.reconstruct.towns import Town
from tests.soak.processes import LONG
from tests.support.derived import derived, differences, miscounted, stored
from tests.support.faults import fail_log, fail_store
from tests.support.proof import record
from tests.support.releases import lane_settings
from tests.support.tenants import operation
from tests.support.whole import _Journal

if LONG:
    pytestmark = pytest.mark.soak

HOUR = 3600.0
FAULTS = st.sampled_from(
    [None, None, None, None, "journal before", "journal after", "store before", "store after"]
)


class Attempt:
    """What really becomes of one permit."""

    def __init__(self, permit: Permit, worker: str, *, begun: bool) -> None:
        self.permit = permit
        self.worker = worker
        self.begun = begun
        """It may be carried out at any moment now."""
        self.over = False
        """It will not be carried out any more."""
        self.ended = False
        """Nobody is at it on our side any more; the receiver may be."""
        self.done = False

    @property
    def open(self) -> bool:
        return not self.over and not self.done


class Releases(RuleBasedStateMachine):
    """One entity; one lane whose workers pull and whose receiver promises nothing."""

    kind, lane = "letter", "post"
    pushed = False
    suppressed = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.town = Town(lane_settings(self.folder))
        self.entity = f"{self.kind}/1"
        self.attempts: list[Attempt] = []
        self.effects: Counter[str] = Counter()
        self.receipts: set[str] = set()
        self.dead: set[str] = set()
        self.claims = 0
        self.snapshots = 0
        self.versions = 2

    def teardown(self) -> None:
        try:
            self.everything_follows_from_the_journal()
            self.town.finish_off()
        finally:
            self.town.close()
            shutil.rmtree(self.folder)

    # Deciding.

    @initialize()
    def permit(self) -> None:
        self.town.release(self.entity)

    @rule(
        action=st.sampled_from(["approve", "release", "release", "revoke"]),
        version=st.sampled_from(["1", "1", "2"]),
    )
    def decide(self, action: str, version: str) -> None:
        named = None if action == "revoke" else version
        try:
            self.town.accept(operation(self.entity, action, version=named))
        except Refusal:
            return

    @rule()
    def permit_another(self) -> None:
        """Another version; it supersedes what waits."""
        self.versions += 1
        self.town.release(self.entity, f"{self.versions}")

    # Working.

    @rule(
        fate=st.sampled_from(["confirmed", "lost", "silent", "failed", "refused", "dropped"]),
        expire=st.booleans(),
    )
    def round(self, fate: str, expire: bool) -> None:
        """What happens most: a claim, its attempt, and what is heard of it."""
        for one in self._claimed():
            if fate in {"confirmed", "lost", "silent"}:
                self._carry_out(one)
                self._carry_out(one)
            if fate in {"confirmed", "lost"}:
                self._report(one, "confirmed" if fate == "confirmed" and one.done else "unknown")
            if fate in {"failed", "refused"}:
                one.over = True
                self._report(one, fate)
        if expire:
            self.sweep(expire=True)

    def _claimed(self) -> list[Attempt]:
        """The attempts that a claim leads to, of what waits or else of a release made for it."""
        before = len(self.attempts)
        for _ in range(2):
            self.come_due()
            self.claim(again=False, fault=None)
            if len(self.attempts) > before:
                break
            self.permit_another()
        return self.attempts[before:]

    @rule()
    def late_round(self) -> None:
        """A call that was swept while it was alive is heard of after the one that followed it."""
        slow = self._claimed()
        for one in slow:
            self._carry_out(one)
            self._carry_out(one)
        self.sweep(expire=True)
        for one in self._claimed():
            one.over = True
            self._report(one, "failed")
        for one in slow:
            self._report(one, "confirmed" if one.done else "unknown")
        self._claimed()

    @rule(act=st.booleans())
    def rewound_round(self, act: bool) -> None:
        """The store is put back to between a claim and its act."""
        attempts = self._claimed()
        self.keep()
        for one in attempts if act else []:
            self._carry_out(one)
            self._carry_out(one)
        self._rewind(self.snapshots, anyway=True)
        self.sweep(expire=True)

    @rule(again=st.booleans(), fault=FAULTS)
    def claim(self, again: bool, fault: str | None) -> None:
        self.claims += not again or not self.claims
        identity, worker = f"claim-{self.claims}", f"w-{self.claims}"
        self._break(fault)
        try:
            given = self.town.claim(self.lane, id=identity, worker=worker, limit=2).permits
        except (JournalUnavailable, LeaseLost, StaleGeneration):
            given = []
        if fault is not None:
            self.town.reopen()
        for permit in given:
            self._check_permitted(permit)
            known = {(one.permit.id, one.permit.lease) for one in self.attempts}
            if (permit.id, permit.lease) not in known:
                # A repeated claim gives the permit that it gave; any other one is a new attempt.
                assert permit.id not in self.receipts
                mine = [one.permit.lease for one in self.attempts if one.permit.id == permit.id]
                assert not mine or permit.lease > max(mine)
                self.attempts.append(Attempt(permit, worker, begun=not self.pushed))

    def _break(self, fault: str | None) -> None:
        if fault is not None:
            where, when = fault.split()
            errors: list[EngineError] = [EngineError("a test")]
            fail = fail_log if where == "journal" else fail_store
            fail(self.town.record, **{when: errors})

    def _check_permitted(self, permit: Permit) -> None:
        """P3: the journal holds the commitment to this very attempt."""
        rows = drive(self.town.log.history(self.entity, 1, 1 << 60, 1000))
        found = [row for row in rows if row.digest == permit.commitment]
        assert len(found) == 1
        report = report_of(found[0].body)
        assert (report.release, report.lease) == (permit.id, permit.lease)

    @precondition(lambda self: any(one.open for one in self.attempts))
    @rule(data=st.data())
    def carry_out(self, data: Any) -> None:
        self._carry_out(data.draw(st.sampled_from([one for one in self.attempts if one.open])))

    def _carry_out(self, one: Attempt) -> None:
        """The step before the act is written first; the act itself may come at any time after."""
        if not one.open:
            return
        if not one.begun:
            held = self.town.beat(one.permit, CALLING)
            if not held:
                one.over = True
                return
            one.begun = True
            return
        one.done = True
        self.effects[one.permit.id] += 1

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), lost=st.booleans())
    def report(self, data: Any, lost: bool) -> None:
        one = data.draw(st.sampled_from(self.attempts))
        if one.done:
            outcome = "unknown" if lost else "confirmed"
        elif lost and one.open:
            outcome = data.draw(st.sampled_from(["unknown", "pending"]))
        else:
            outcome = data.draw(st.sampled_from(["failed", "refused"]))
            one.over = True
        self._report(one, outcome)

    def _report(self, one: Attempt, outcome: str) -> None:
        one.ended = one.ended or one.begun
        receipt = f"r-{one.permit.id}" if outcome == "confirmed" else None
        try:
            self.town.report(one.permit, outcome, receipt=receipt)
        except OperationReused:
            return
        except (Refusal, StaleGeneration):
            if outcome not in {"confirmed", "refused"}:
                return
            self.town.observe(one.permit, outcome, receipt=receipt)
        if outcome == "confirmed":
            self.receipts.add(one.permit.id)

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def beat(self, data: Any) -> None:
        self.town.beat(data.draw(st.sampled_from(self.attempts)).permit, "half way")

    # Nobody reports.

    @rule(expire=st.booleans())
    def sweep(self, expire: bool) -> None:
        if expire:
            self.town.sql("UPDATE unrewind_work SET sweep_at = '2001' || substr(sweep_at, 5)")
        self.town.sweep()

    @rule()
    def come_due(self) -> None:
        self.town.sql("UPDATE unrewind_work SET due = '2001' || substr(due, 5)")

    # By hand.

    @rule(data=st.data(), what=st.sampled_from(["cancel", "replay", "drain", "settle"]))
    def handle(self, data: Any, what: str) -> None:
        identity = data.draw(st.sampled_from(self._releases()))
        try:
            if what == "cancel":
                before = self.town.status(identity)
                self.town.do(handling.cancel, identity, "a test")
                assert before != Status.READY or self.town.status(identity) == Status.CANCELLED
            elif what == "settle":
                self._settle(identity)
            else:
                self.town.do(getattr(handling, what), [identity], "a test")
        except Refusal:
            return

    def _settle(self, identity: str) -> None:
        """A person who settles a release made sure that nobody is at it any more."""
        if self.town.status(identity) not in {Status.UNKNOWN, Status.DEAD}:
            return
        for one in self.attempts:
            if one.permit.id == identity and not one.done:
                one.over = True
        happened = self.effects[identity] > 0
        self.town.do(handling.settle, identity, happened, "a person looked", None)
        if happened:
            self.receipts.add(identity)

    def _releases(self) -> list[str]:
        sql = "SELECT id FROM unrewind_work WHERE entity = ? ORDER BY number"
        return [identity for (identity,) in self.town.sql(sql, self.entity)]

    # Restarts and rewinds.

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        if crash:
            self.town.crash()
            self.town.open()
        else:
            self.town.reopen()

    @rule()
    def keep(self) -> None:
        self.town.settle()
        self.snapshots += 1
        self.town.keep(self.folder / f"kept-{self.snapshots}")

    @precondition(lambda self: self.snapshots)
    @rule(data=st.data(), anyway=st.booleans())
    def rewind(self, data: Any, anyway: bool) -> None:
        self._rewind(data.draw(st.integers(1, self.snapshots)), anyway)

    def _rewind(self, number: int, anyway: bool) -> None:
        self.town.settle()
        self.town.restore(self.folder / f"kept-{number}")
        if anyway or self.pushed or self.town.detect() is not Verdict.CLEAN:
            self.town.recover()
            # The number of a snapshot may be given out again; what it holds is of an old history.
            assert self.town.detect() is Verdict.CLEAN

    # What must hold.

    @invariant()
    def an_effect_happens_once(self) -> None:
        if not self.suppressed:
            assert all(count <= 1 for count in self.effects.values())

    @invariant()
    def what_has_ended_says_what_happened(self) -> None:
        for identity in self._releases():
            row = self.town.row(identity)
            happened = self.effects[identity] > 0
            mine = [one for one in self.attempts if one.permit.id == identity]
            if row.status in {Status.CANCELLED, Status.REFUSED}:
                assert not happened
                assert not any(one.open and one.begun for one in mine)
            if row.status == Status.DONE:
                assert happened
            if row.status == Status.READY:
                assert not mine

    @rule()
    def everything_follows_from_the_journal(self) -> None:
        drive(settle(self.town.record))
        whole = _Journal(self.town.settings)
        assert list(whole.findings()) == []
        wanted = derived(whole.decisions, self.town.settings)
        assert list(differences(wanted, stored(self.town.settings))) == []
        assert list(miscounted(self.town.settings)) == []


class Suppressed(Releases):
    """A receiver that makes one effect of however many attempts."""

    kind, lane = "payment", "pay"
    suppressed = True


class Asked(Releases):
    """A lane that pushes to a receiver that can be asked."""

    kind, lane = "transfer", "bank"
    pushed = True

    @rule()
    def kill(self) -> None:
        """Every worker so far dies: what it has not begun it never begins."""
        for one in self.attempts:
            self.dead.add(one.worker)
            one.over = one.over or not one.begun
            one.ended = True

    @rule(data=st.data())
    def time_passes(self, data: Any) -> None:
        """After an hour the receiver is done with what it has; a worker that hangs may go on."""
        for one in self.attempts:
            if one.open and one.ended:
                one.done = data.draw(st.booleans())
                one.over = not one.done
                self.effects[one.permit.id] += one.done
        self._later()

    @rule(
        begun=st.booleans(),
        kill=st.booleans(),
        rewound=st.booleans(),
        wait=st.booleans(),
        land=st.booleans(),
    )
    def asked_round(self, begun: bool, kill: bool, rewound: bool, wait: bool, land: bool) -> None:
        """Nothing is heard of an attempt, and its receiver knows nothing of it yet."""
        attempts = self._claimed()
        if rewound:
            self.keep()
        for one in attempts if begun else []:
            self._carry_out(one)
        if rewound:
            self._rewind(self.snapshots, anyway=True)
        self.sweep(expire=True)
        if kill:
            self.kill()
        if wait:
            for one in self.attempts:
                one.over = one.over or (one.ended and not one.done)
            self._later()
        for identity in self._releases():
            if not self.effects[identity]:
                self._ask(identity, Told.NOT_FOUND)
        again = self._claimed()
        for one in [*attempts, *again, *again] if land else []:
            self._carry_out(one)

    def _later(self) -> None:
        for identity in self._releases():
            row = self.town.row(identity)
            moved = {
                name: after_seconds(getattr(row, name), -HOUR)
                for name in ("claimed", "started")
                if getattr(row, name) is not None
            }
            if moved:
                self.town.meddle(identity, **moved)

    @rule(data=st.data())
    def ask(self, data: Any) -> None:
        """The receiver tells what it knows: nothing of a request that it is still working on."""
        identity = data.draw(st.sampled_from(self._releases()))
        told = [Told.UNKNOWN]
        if self.effects[identity]:
            told.append(Told.DONE)
        else:
            told += [Told.NOT_FOUND, Told.NOT_FOUND, Told.PENDING]
        self._ask(identity, data.draw(st.sampled_from(told)))

    def _ask(self, identity: str, answer: Told) -> None:
        said = Reported(identity, Outcome.UNKNOWN, receipt="r" if answer is Told.DONE else None)
        with mock.patch("journal.asking.is_dead", self.dead.__contains__):
            try:
                after = self.town.do(take_answer, answer, said)
            except Refusal:
                return
        if after is not None and after.status == Status.DONE:
            self.receipts.add(identity)


EXAMPLES, STEPS = (400, 40) if LONG else (6, 25)
LIMITS = hypothesis.settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize=not LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", autouse=True)
def proof() -> Iterator[None]:
    yield
    if LONG:
        command = "UNREWIND_SOAK=1 python -m pytest -m soak tests/journal/test_release_machine.py"
        record("machine-releases", command, scope=3 * EXAMPLES, steps=STEPS)


TestReleases = Releases.TestCase
TestReleases.settings = LIMITS
TestSuppressed = Suppressed.TestCase
TestSuppressed.settings = LIMITS
TestAsked = Asked.TestCase
TestAsked.settings = LIMITS
