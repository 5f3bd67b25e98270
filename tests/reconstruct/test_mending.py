"""R10: a journal on a server cannot be replaced: it is healed where it stands.

Here a file stands for the server: it is opened through a place that says that there is none.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import journal.record
from journal import Settings
from journal.control import HEAL, Role
from journal.detection import Verdict
from journal.errors import Recovering, Refused
from journal.places import LogFile
from journal.tokens import create_token, revoke_token
from reconstruct import mending, salvage
from tests.reconstruct.scenes import Killed, Scene, fused, kill, raw
from tests.reconstruct.test_healing import (
    Older,
    _forget_witness,
    applied,
    entries,
    healed,
    rebase_facts,
    settled,
    survey,
)
from tests.support.tenants import operation


class Served(LogFile):
    """A journal of which nobody here knows a file."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.journal_file)
        self.file = None


@pytest.fixture(autouse=True)
def served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal.record, "place_of_log", Served)


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few decisions in one append, so that healing takes several."""
    monkeypatch.setattr(salvage, "PAGE_BYTES", 1500)


class Short:
    """A tenant whose journal lost two control entries and seven decisions."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.file = scene.settings.journal_file
        scene.fill(6, entities=3)
        scene.do(create_token, Role.WRITER, "kept")
        (self.token,) = scene.control().tokens
        older = Older(scene)
        scene.fill(3, entities=3)
        scene.do(revoke_token, self.token)
        scene.do(create_token, Role.READER, "new")
        scene.fill(4, entities=4)
        settled(scene)
        self.lost, self.state = entries(self.file), scene.digest()
        older.put_back()
        self.kept = entries(self.file)
        scene.open()

    def ended(self) -> None:
        """Everything is as if it had not been lost, and the witness has begun anew."""
        scene = self.scene
        now = entries(self.file)
        assert now[: len(self.kept)] == self.kept
        # Positions apart, what came back are the bytes that there were.
        assert {row[1:] for row in self.lost} <= {row[1:] for row in now}
        control = scene.control()
        assert control.tokens[self.token].revoked
        assert len(control.tokens) == 2
        assert control.rebased
        scene.repeats()
        assert scene.digest() == self.state
        scene.put("case/0", "after")
        scene.whole()


@pytest.fixture
def short(scene: Scene) -> Short:
    return Short(scene)


def test_r10_a_journal_is_healed_in_its_place_by_what_its_store_keeps(short: Short) -> None:
    scene = short.scene
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    plan = scene.plan()
    assert (plan.direction, plan.missing) == ("journal", 7)
    done = applied(scene).healed
    assert done is not None
    assert (done.control, done.decisions, done.first, done.last) == (2, 7, 7, 13)
    assert done.replaced is None
    actions = [row[6] for row in entries(short.file) if row[4] == "control/tenant"]
    assert len(actions) == len(set(actions))
    short.ended()


@pytest.mark.usefixtures("pages")
def test_r10_nothing_is_appended_between_the_pages_of_a_healing(
    short: Short, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even once everything is back that the store is known to have handed off."""
    scene = short.scene
    scene.close()
    _forget_witness(scene)
    raw(scene.settings.store_file, "UPDATE unrewind_marker SET journalled = 8")
    scene.open()
    real = mending._append
    seen: list[int] = []

    def looking(*given: Any) -> Any:
        seen.append(len(given[1]))
        # Somebody else opens the tenant now, between two appends.
        other = Scene(scene.settings)
        try:
            assert other.control().last == HEAL
            assert other.detect() is Verdict.JOURNAL_REWOUND
            with pytest.raises(Recovering):
                other.turn(operation("case/0", "set", {"value": 1}))
            with pytest.raises(Refused, match="its healing"):
                other.do(create_token, Role.READER, "no")
        finally:
            other.close()
        return real(*given)

    monkeypatch.setattr(mending, "_append", looking)
    loss = survey(scene).loss
    assert loss is not None
    applied(scene, loss.name)
    assert len(seen) > 1
    assert sum(seen) == 7
    short.ended()


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_r11_p11_a_healing_in_place_goes_on_wherever_it_was_killed(
    short: Short, at: int, *, after: bool
) -> None:
    scene = short.scene
    with fused(at, after=after) as fuse, pytest.raises(Killed):
        healed(scene)
    assert fuse.blown
    kill(scene.records.pop())
    scene.open()
    begun = scene.control().last == HEAL
    found = scene.detect()
    # The last append ends it: the journal is whole then.
    assert found in {Verdict.JOURNAL_REWOUND, Verdict.REWOUND}
    if found is Verdict.JOURNAL_REWOUND:
        if begun:
            assert survey(scene).detail.startswith("its healing has begun")
        assert healed(scene).decisions == 7
    assert rebase_facts(scene)["healed"]["decisions"] == 7
    scene.recover()
    short.ended()


@pytest.mark.usefixtures("pages")
def test_r10_a_healing_goes_on_only_with_the_store_it_began_with(
    short: Short, tmp_path: Path
) -> None:
    """What another store cannot give is named, and lost only where the loss is accepted."""
    scene = short.scene
    copy = scene.snapshot(tmp_path / "newest")
    with fused(3, after=True), pytest.raises(Killed):
        healed(scene)
    kill(scene.records.pop())
    scene.settings.store_file.unlink()
    scene.open()
    loss = survey(scene).loss
    assert loss is not None
    with pytest.raises(Refused, match="lost"):
        healed(scene)
    # The store comes back: then nothing is lost, and nothing is to be accepted.
    scene.close()
    scene.rewind(copy)
    scene.open()
    assert survey(scene).loss is None
    assert healed(scene).decisions == 7
    scene.recover()
    short.ended()


def test_r10_a_loss_is_accepted_by_name_after_half_a_healing(short: Short) -> None:
    scene = short.scene
    with fused(1, after=True), pytest.raises(Killed):
        healed(scene)
    kill(scene.records.pop())
    for suffix in ("", "-wal", "-shm"):
        scene.settings.store_file.with_name(f"main.db{suffix}").unlink(missing_ok=True)
    scene.open()
    loss = survey(scene).loss
    assert loss is not None
    assert healed(scene, loss.name).loss is not None
    assert scene.control().last == "rebase"
    assert scene.detect() is Verdict.REPLACED


def test_r10_a_journal_that_is_gone_is_founded_anew_from_its_store(scene: Scene) -> None:
    scene.fill(9, entities=3)
    settled(scene)
    file = scene.settings.journal_file
    lost = entries(file)
    file.unlink()
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    done = applied(scene).healed
    assert done is not None
    assert (done.control, done.decisions) == (1, 9)
    assert {row[1:] for row in lost} <= {row[1:] for row in entries(file)}
    scene.repeats()
    scene.whole()


def test_r10_what_the_journal_could_not_take_is_refused_before_anything_is_appended(
    short: Short, fork: Callable[[], None]
) -> None:
    scene = short.scene
    fork()
    before = entries(short.file)
    with pytest.raises(Refused, match="has used operation IDs"):
        healed(scene)
    assert entries(short.file) == before


@pytest.fixture
def fork(short: Short, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """The journal says that it knows an operation which it will be given."""

    def make() -> None:
        async def known(*_: Any) -> Any:
            row = await short.scene.log.at(2)
            return [row]

        monkeypatch.setattr(type(short.scene.log), "operations", known)

    return make


def test_r10_a_damaged_journal_is_not_healed_in_its_place(short: Short) -> None:
    scene = short.scene
    scene.close()
    short.file.write_bytes(b"no database" * 100)
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    with pytest.raises(Refused, match=r"cannot be healed there.*under another name"):
        healed(scene)
