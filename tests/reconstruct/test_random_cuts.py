"""Random chains, random damage, abandoned, gone on with and rewound: the rest is as it was."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from journal.errors import NotFound, Refused
from journal.worker import drive
from reconstruct import verification
from tests.reconstruct.cuts import apply, cut, damage, flipped, gaps, removed, reopen, swapped
from tests.reconstruct.scenes import Scene, query
from tests.support.sealing import Caller
from tests.support.tenants import make_settings

ENTITIES = ("case/1", "case/2", "account/1", "contract/1")
CONTRACT = "contract/1"
HOWS = ("removed", "flipped", "swapped")
ROUND = st.tuples(
    st.lists(st.sampled_from(ENTITIES), min_size=4, max_size=12),
    st.lists(
        st.tuples(st.sampled_from(ENTITIES), st.integers(0, 9), st.sampled_from(HOWS)),
        min_size=1,
        max_size=3,
    ),
)


class World:
    """A tenant whose journal is damaged in rounds, its store rewound to before all of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scene = Scene(make_settings(folder))
        self.scene.put("case/before", 1)
        self.scene.put("account/before", 1)
        self.scene.settle()
        self.scene.keep(folder / "old")
        self.cut: list[str] = []

    def decide(self, entity: str) -> None:
        scene = self.scene
        if entity != CONTRACT:
            scene.put(entity, len(scene.told))
            return
        force = scene.control().authority
        caller = Caller(force.history, force.generation)
        newest = drive(scene.log.newest(CONTRACT))
        if newest is not None:
            caller.heads[CONTRACT] = newest.entry()
        name = f"own-{force.generation}-{1 if newest is None else newest.revision + 1}"
        entry = caller.seal(CONTRACT, "sign", operation=name)
        assert scene.append(entry)[0].complete

    def round(self, chosen: list[str], damages: list[tuple[str, int, str]]) -> None:
        for entity in chosen:
            self.decide(entity)
        self.decide("case/after")
        self.scene.settle()
        once = {each[0]: each for each in damages}
        statements = [change for each in once.values() for change in self.damage(*each)]
        damage(self.scene, self.folder, *statements)
        apply(self.scene)
        flawed = {gap.entity for gap in gaps(self.scene)}
        for entity in ENTITIES:
            with suppress(Refused, NotFound):  # nothing is wrong with it
                self.cut.append(cut(self.scene, entity).entity)
                flawed.discard(entity)
        assert flawed == set()
        assert gaps(self.scene) == []
        self.sound()
        reopen(self.scene)
        for entity in ENTITIES:
            self.decide(entity)
        self.scene.settle()

    def damage(self, entity: str, number: int, how: str) -> list[Any]:
        """One change, of an entry that counts; an entity's newest is not removed unnoticed."""
        rows = query(
            self.scene.settings.journal_file,
            "SELECT revision, position FROM entries WHERE entity = ?"
            " AND position NOT IN (SELECT position FROM dropped) ORDER BY revision",
            entity,
        )
        last = len(rows) - (1 if how == "removed" else 0)
        if last < 1:
            return []
        revision, position = rows[number % last]
        if how == "swapped" and self.alone(revision, entity, position):
            return [swapped(self.scene, entity, revision)]
        made = removed(entity, revision) if how == "removed" else flipped(entity, revision)
        return [f"{made} AND position = {position}"]

    def alone(self, revision: int, entity: str, position: int) -> bool:
        """Whether one entry alone stands at the revision."""
        rows = query(
            self.scene.settings.journal_file,
            "SELECT position FROM entries WHERE entity = ? AND revision = ?",
            entity,
            revision,
        )
        return rows == [(position,)]

    def sound(self) -> None:
        """Nothing is found, and what was abandoned is named."""
        report = verification.verify(self.scene.settings)
        assert (report.verdict, report.findings) == ("clean", []), report
        assert sorted(found.entity for found in report.abandoned) == sorted(self.cut)

    def rewind(self, *, anew: bool) -> None:
        digest, scene = self.scene.digest(), self.scene
        scene.restore(self.folder / "old")
        if anew:
            scene.close()
            scene.settings.store_file.unlink()
            scene.open()
        assert scene.recover().incomplete == []
        assert scene.digest() == digest
        self.sound()
        assert scene.plan().exceptions == 0


@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROUND, min_size=1, max_size=2), st.booleans())
def test_p10_p11_whatever_is_cut_off_the_rest_comes_back_the_same(
    rounds: list[Any], anew: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            for chosen, damages in rounds:
                world.round(chosen, damages)
            world.rewind(anew=anew)
            world.decide("case/1")
            world.scene.whole()
        finally:
            world.scene.close()
