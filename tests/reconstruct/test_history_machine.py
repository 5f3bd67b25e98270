"""Histories of every owner, with entries that are late, that contradict, and that are cut off.

A model that knows only which entries were sent says how far each history is durable, what is wrong
with it and whether the gate lets go. Recoveries and restarts come in between.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from journal import reading
from journal.entry import Entry
from journal.errors import Forked, NotFound, Refusal, StaleGeneration
from journal.gate import GO, HELD
from reconstruct import verification
from tests.reconstruct.cuts import apply, cut, gaps, reopen
from tests.reconstruct.scenes import Scene
from tests.soak.processes import LONG
from tests.support.proof import record
from tests.support.sealing import Caller
from tests.support.tenants import make_settings

if LONG:
    pytestmark = pytest.mark.soak

EXAMPLES, STEPS = (300, 40) if LONG else (8, 25)
ENTITIES = ("contract/1", "contract/2")
CASES = ("case/1", "case/2")


@pytest.fixture(scope="module", autouse=True)
def proof() -> Iterator[None]:
    yield
    if LONG:
        command = (
            "UNREWIND_SOAK=1 python -m pytest -m soak tests/reconstruct/test_history_machine.py"
        )
        record("machine-histories", command, scope=EXAMPLES, steps=STEPS)


def test_p5_an_entity_of_which_nothing_is_left_is_held(scene: Scene) -> None:
    """Its only entry stood behind a gap, and went with it: there is no decision to go by."""
    _, second = scene.caller().chain("contract/1", 2)
    scene.append(second)
    apply(scene)
    assert cut(scene, "contract/1").through == 0
    reopen(scene)
    ruling = scene.do(reading.read_gate, "contract/1", None)
    assert (ruling.gate, ruling.revision) == (HELD, 0)
    scene.whole()


class Told:
    """One caller-owned history, as its caller knows it."""

    def __init__(self) -> None:
        self.chain: list[Entry] = []
        """Every revision that was sealed and is part of it, in order."""
        self.stored: set[int] = set()
        self.disputed: set[int] = set()
        self.dropped: list[Entry] = []
        self.boundary = 0

    def settle(self) -> None:
        """How far it is durable now: never back, and never into what is in dispute."""
        through = 0
        while through + 1 in self.stored:
            through += 1
        if self.disputed:
            through = min(through, min(self.disputed) - 1)
        self.boundary = max(self.boundary, through)

    @property
    def newest(self) -> int:
        return max(self.stored, default=0)

    @property
    def missing(self) -> set[int]:
        return set(range(1, self.newest)) - self.stored

    @property
    def complete(self) -> bool:
        return not self.missing and not self.disputed


class Histories(RuleBasedStateMachine):
    """Two histories of a caller, two of the house."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.scene = Scene(make_settings(self.folder))
        self.told = {entity: Told() for entity in ENTITIES}
        self.cases = dict.fromkeys(CASES, 0)
        self.kept = 0
        self.caller = self.scene.caller()

    def teardown(self) -> None:
        try:
            self.scene.settle()
            self.scene.close()
            report = verification.verify(self.scene.settings)
            wanted = set()
            if any(told.missing for told in self.told.values()):
                wanted.add("gap")
            if any(told.disputed for told in self.told.values()):
                wanted.add("fork")
            assert {str(item.kind) for item in report.findings} == wanted, report.findings
        finally:
            self.scene.close()
            shutil.rmtree(self.folder)

    # What is decided.

    @rule(entity=st.sampled_from(CASES))
    def decide(self, entity: str) -> None:
        answer = self.scene.put(entity, self.cases[entity])
        self.cases[entity] += 1
        assert answer.revision == answer.durable_through == self.cases[entity]

    @rule(entity=st.sampled_from(ENTITIES), count=st.integers(1, 3), action=st.sampled_from("ab"))
    def seal(self, entity: str, count: int, action: str) -> None:
        """The caller decides, and sends nothing yet."""
        self.told[entity].chain += self.caller.chain(entity, count, action)

    @precondition(lambda self: any(told.chain for told in self.told.values()))
    @rule(data=st.data())
    def send(self, data: Any) -> None:
        """Some entries of one history, new or sent before, in any order."""
        entity = data.draw(st.sampled_from([e for e in ENTITIES if self.told[e].chain]))
        told = self.told[entity]
        entries = data.draw(
            st.lists(st.sampled_from(told.chain), min_size=1, max_size=4, unique=True)
        )
        ended = [entry for entry in entries if entry.envelope.history != self.caller.history]
        if any(not self._named(told, entry, entries) for entry in ended):
            # Nothing stored names them as the one before it: what they were is not known any more.
            with pytest.raises(StaleGeneration):
                self.scene.append(*entries)
            return
        answers = self.scene.append(*entries)
        told.stored |= {entry.envelope.revision for entry in entries}
        told.settle()
        for answer in answers:
            assert (answer.durable_through, answer.complete) == (told.boundary, told.complete)

    def _named(self, told: Told, entry: Entry, beside: list[Entry]) -> bool:
        """Whether it is there already, or its successor is, or comes with it."""
        revision = entry.envelope.revision
        if {revision, revision + 1} & told.stored:
            return True
        later = [each for each in beside if each.envelope.revision == revision + 1]
        return bool(later) and (
            later[0].envelope.history == self.caller.history or self._named(told, later[0], beside)
        )

    @precondition(lambda self: any(told.stored for told in self.told.values()))
    @rule(data=st.data())
    def contradict(self, data: Any) -> None:
        """Another entry at a revision that is there, by somebody who has the same history."""
        entity = data.draw(st.sampled_from([e for e in ENTITIES if self.told[e].stored]))
        told = self.told[entity]
        revision = data.draw(st.sampled_from(sorted(told.stored)))
        if told.chain[revision - 1].envelope.history != self.caller.history:
            return
        other = Caller(self.caller.history, self.caller.generation)
        if revision > 1:
            other.heads[entity] = told.chain[revision - 2]
        with pytest.raises(Forked):
            self.scene.append(other.seal(entity, "rival", operation=f"rival {entity} {revision}"))
        told.disputed.add(revision)

    @precondition(lambda self: any(told.dropped for told in self.told.values()))
    @rule(data=st.data())
    def send_what_was_dropped(self, data: Any) -> None:
        """It is evidence at most: nothing below shows a trace of it."""
        entity = data.draw(st.sampled_from([e for e in ENTITIES if self.told[e].dropped]))
        entry = data.draw(st.sampled_from(self.told[entity].dropped))
        try:
            (answer,) = self.scene.append(entry)
        except (Refusal, StaleGeneration, Forked):
            return
        assert answer.durable_through == self.told[entity].boundary

    # Restarts and recoveries.

    @rule(crash=st.booleans())
    def restart(self, crash: bool) -> None:
        if crash:
            self.scene.crash()
            self.scene.open()
        else:
            self.scene.reopen()

    @rule()
    def keep(self) -> None:
        self.scene.settle()
        self.kept += 1
        self.scene.keep(self.folder / f"kept-{self.kept}")

    @rule(data=st.data(), abandon=st.booleans())
    def recover(self, data: Any, abandon: bool) -> None:
        """The store is put back or stays; what is incomplete may be cut off."""
        self.scene.settle()
        if self.kept and data.draw(st.booleans()):
            self.scene.restore(self.folder / f"kept-{data.draw(st.integers(1, self.kept))}")
        apply(self.scene)
        force = self.scene.control().authority
        self.caller = Caller(force.history, force.generation)
        for entity, told in self.told.items():
            if abandon and not told.complete:
                # The rivals are dropped, so what is stored stands as far as it goes.
                told.disputed = set()
                told.settle()
                assert cut(self.scene, entity).through == told.boundary
                told.dropped += told.chain[told.boundary :]
                told.stored = set(range(1, told.boundary + 1))
            # What nothing stored names is sealed anew, from the newest that is there.
            told.chain = told.chain[: told.newest]
            if told.chain:
                self.caller.heads[entity] = told.chain[-1]
        reopen(self.scene)

    # What must hold.

    @invariant()
    def each_history_is_as_durable_as_what_was_sent_of_it(self) -> None:
        listed = gaps(self.scene)
        for entity, told in self.told.items():
            missing = {
                revision
                for gap in listed
                if gap.entity == entity and gap.flaw == "gap"
                for revision in range(gap.first, gap.last + 1)
            }
            forks = {gap.first for gap in listed if gap.entity == entity and gap.flaw == "fork"}
            assert (missing, forks) == (told.missing, told.disputed)
            ruling = self.scene.do(reading.read_gate, entity, None)
            assert (ruling.gate == GO) == (bool(told.stored) and told.complete), ruling
            if not told.stored:
                continue
            view = self.scene.do(reading.read_entity, entity, None)
            assert (view.revision, view.complete) == (told.boundary, told.complete)
            if told.boundary:
                assert view.digest == told.chain[told.boundary - 1].digest

    @invariant()
    def decisions_of_the_house_are_whole(self) -> None:
        for entity, count in self.cases.items():
            if count:
                assert self.scene.do(reading.read_entity, entity, None).revision == count
                assert self.scene.do(reading.read_gate, entity, None).gate == GO
            else:
                with pytest.raises(NotFound):
                    self.scene.do(reading.read_entity, entity, None)


TestHistories = Histories.TestCase
TestHistories.settings = hypothesis.settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    derandomize=not LONG,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
