"""Any order of decisions, snapshots, restores, crashes and recoveries keeps what was told."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.errors import EngineError, UnrewindError
from reconstruct import verification
from tests.reconstruct.scenes import Scene, kill, overwrite, query
from tests.support.faults import fail_log
from tests.support.tenants import make_settings, operation

DECIDE = st.tuples(
    st.just("decide"), st.sampled_from(["case/1", "case/2", "account/1", "account/2"])
)
STEPS = st.lists(
    st.one_of(
        DECIDE,
        DECIDE,
        st.tuples(st.just("snapshot"), st.none()),
        st.tuples(st.just("restore"), st.integers(0, 5)),
        st.tuples(st.just("crash"), st.sampled_from(["case/1", "account/2", "case/new"])),
        st.tuples(st.just("kill"), st.none()),
        st.tuples(st.just("rename"), st.integers(0, 5)),
        st.tuples(st.just("overwrite"), st.integers(0, 5)),
        st.tuples(st.just("lose"), st.none()),
        st.tuples(st.just("recover"), st.none()),
        st.tuples(st.just("settle"), st.none()),
    ),
    max_size=14,
)


class World:
    """Does the steps; a step that a closed tenant refuses is a step that did nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scene = Scene(make_settings(folder))
        self.snapshots: list[Path] = []
        self.sequences: list[int] = []

    def step(self, name: str, argument: Any) -> None:
        try:
            getattr(self, name)(argument)
        except UnrewindError:
            if not self.scene.records:
                self.scene.open()
        if name == "crash":
            self.scene.reopen()

    def decide(self, entity: str) -> None:
        answer = self.scene.put(entity, len(self.scene.told))
        assert answer.sequence is not None
        assert all(answer.sequence > earlier for earlier in self.sequences)
        self.sequences.append(answer.sequence)

    def snapshot(self, _: None) -> None:
        target = self.folder / f"snapshot-{len(self.snapshots)}"
        self.scene.keep(target)
        self.snapshots.append(target)

    def restore(self, number: int) -> None:
        if self.snapshots:
            self.scene.restore(self.snapshots[number % len(self.snapshots)])

    def rename(self, number: int) -> None:
        if self.snapshots:
            self.scene.settings.store_file.parent.mkdir(exist_ok=True)
            self.scene.rewind(self.snapshots[number % len(self.snapshots)] / "store.db")

    def overwrite(self, number: int) -> None:
        file = self.scene.settings.store_file
        if self.snapshots and file.exists():
            content = self.snapshots[number % len(self.snapshots)] / "store.db"
            overwrite(file, content.read_bytes())

    def crash(self, entity: str) -> None:
        fail_log(self.scene.record, before=[EngineError("the journal is away")])
        self.scene.turn(operation(entity, "set", {"value": "local", "balance": 2}))

    def kill(self, _: None) -> None:
        kill(self.scene.record)
        self.scene.records.clear()
        self.scene.open()

    def lose(self, _: None) -> None:
        self.scene.close()
        shutil.rmtree(self.scene.settings.store_file.parent, ignore_errors=True)
        self.scene.open()

    def settle(self, _: None) -> None:
        self.scene.settle()

    def recover(self, _: None) -> None:
        self.scene.recover()
        self.scene.repeats()
        assert verification.verify(self.scene.settings).findings == []


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(STEPS)
def test_p2_p6_every_answer_repeats_after_whatever_happened(steps: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            for name, argument in steps:
                world.step(name, argument)
            world.recover(None)
            world.scene.whole()
            ledger = query(world.scene.settings.store_file, "SELECT entity, revision FROM ledger")
            heads = query(
                world.scene.settings.store_file,
                "SELECT entity, revision FROM unrewind_entities WHERE entity LIKE 'account/%'",
            )
            assert sorted(ledger) == sorted(heads)
        finally:
            world.scene.close()
