"""R11, P11: killed at every commit of a recovery, and run again, it ends in the same state."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from journal.detection import Verdict
from journal.files import SeenFile
from journal.settings import Settings
from journal.sqlite import stamp_of
from reconstruct import planning, recovery, snapshots
from tests.reconstruct.scenes import Fuse, Killed, Scene, fused, kill, query
from tests.reconstruct.test_variants import pile_up
from tests.soak.processes import LONG
from tests.support.tenants import make_settings, operation

LEDGER = "SELECT * FROM ledger ORDER BY entity"
MOST = 60
STRIDE = 1 if LONG else 3
"""A plain run kills at a third of the commits, and another one before than after them."""


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A closed tenant, rewound to a file with decisions that only it has; pages are small."""
    monkeypatch.setattr(planning, "PAGE", 7)
    monkeypatch.setattr("reconstruct.applying.PAGE", 3)
    scene = Scene(make_settings(tmp_path / "template"))
    scene.fill(6, entities=4)
    scene.fill(4, kind="account", entities=4)
    scene.settle()
    pile_up(
        scene,
        [
            operation(entity, "set", {"value": "local", "balance": 5})
            for entity in ("case/0", "account/0", "account/ghost", "case/ghost", "case/2", "case/3")
        ],
    )
    scene.keep(tmp_path / "local")
    # The journal goes on from a store that never had them.
    scene.close()
    shutil.rmtree(scene.settings.store_file.parent)
    scene.open()
    scene.recover()
    scene.fill(8, entities=5)
    scene.fill(5, kind="account", entities=5)
    scene.settle()
    scene.expected = (scene.digest(), query(scene.settings.store_file, LEDGER))  # type: ignore[attr-defined]
    scene.restore(tmp_path / "local")
    scene.close()
    return scene


def copy_of(template: Scene, folder: Path) -> Scene:
    """The template's files under another folder."""
    settings = make_settings(folder)
    shutil.copytree(template.settings.home, settings.home)
    # The copy is trusted as the restored file was: the first plan compares no head.
    stamp = stamp_of(settings.store_file)
    assert stamp is not None
    SeenFile(settings.journal_file.with_suffix(".seen")).note(stamp)
    scene = Scene(settings)
    assert scene.record.stopped_clean()
    scene.told = dict(template.told)
    return scene


def run(scene: Scene) -> None:
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    scene.do(recovery.apply)
    scene.do(recovery.reopen)


def go_on(scene: Scene) -> None:
    """Try again in the same process."""


def restart(scene: Scene) -> None:
    """Let go of the files as a process does that ends with an error."""
    scene.reopen()


def kill_nine(scene: Scene) -> None:
    """Let go of the files as a killed process does."""
    kill(scene.record)
    scene.records.clear()
    scene.open()


@pytest.mark.parametrize(
    "then",
    [
        pytest.param(go_on, marks=pytest.mark.soak),
        pytest.param(restart, marks=pytest.mark.soak),
        kill_nine,
    ],
)
@pytest.mark.parametrize("after", [False, True])
def test_r11_p11_a_recovery_killed_at_every_commit_ends_in_the_same_state(
    template: Scene, tmp_path: Path, then: Callable[[Scene], None], *, after: bool
) -> None:
    expected = template.expected  # type: ignore[attr-defined]
    for number in range(1 + after, MOST, STRIDE):
        scene = copy_of(template, tmp_path / f"{number}")
        histories = len(scene.control().histories)
        with fused(number, after=after) as fuse:
            burn(fuse, lambda scene=scene: run(scene))  # type: ignore[misc]
        if fuse.blown:
            then(scene)
            run(scene)
        assert (scene.digest(), query(scene.settings.store_file, LEDGER)) == expected
        generations = [record.generation for record in scene.control().histories]
        assert sorted(set(generations)) == generations
        # Killed after the journal had reopened, running it all again is a recovery of its own. The
        # store's copy of that entry comes later still.
        assert len(generations) - histories in ({1, 2} if fuse.blown else {1})
        scene.repeats()
        scene.whole()
        scene.close()
        shutil.rmtree(tmp_path / f"{number}")
        if not fuse.blown:
            assert number > 10
            return
    pytest.fail("the recovery never ended")


def burn(fuse: Fuse, work: Callable[[], Any]) -> None:
    try:
        work()
    except Killed:
        assert fuse.blown


@pytest.mark.parametrize("first", [1, 3, 5, 7])
def test_p11_killed_again_and_again(template: Scene, tmp_path: Path, first: int) -> None:
    """Each attempt gets a little further than the one before."""
    scene = copy_of(template, tmp_path / "copy")
    for number in range(first, MOST):
        with fused(number, after=number % 2 == 0) as fuse:
            burn(fuse, lambda: run(scene))
        if not fuse.blown:
            break
        (kill_nine if number % 3 else restart)(scene)
    assert not fuse.blown
    assert (scene.digest(), query(scene.settings.store_file, LEDGER)) == template.expected  # type: ignore[attr-defined]
    scene.repeats()
    scene.whole()
    scene.close()


def test_p11_a_recovery_of_nothing_but_the_journal_killed_at_every_commit(
    template: Scene, tmp_path: Path
) -> None:
    for number in range(1, MOST, STRIDE):
        scene = copy_of(template, tmp_path / f"{number}")
        scene.close()
        scene.settings.store_file.write_bytes(b"torn" * 1000)
        scene.open()
        with fused(number, after=bool(number % 2)) as fuse:
            burn(fuse, lambda scene=scene: run(scene))  # type: ignore[misc]
        if fuse.blown:
            kill_nine(scene)
            run(scene)
        assert (scene.digest(), query(scene.settings.store_file, LEDGER)) == template.expected  # type: ignore[attr-defined]
        scene.whole()
        scene.close()
        if not fuse.blown:
            return
    pytest.fail("the recovery never ended")


@pytest.mark.parametrize("where", ["reconstruct.snapshots._put_in_place", "copy", "rename"])
@pytest.mark.parametrize("again", [True, False])
def test_a_restore_killed_between_its_steps_loses_nothing(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, *, again: bool
) -> None:
    scene = Scene(settings)
    scene.fill(6)
    scene.keep(tmp_path / "old")
    scene.fill(6)
    scene.settle()
    before = scene.digest()
    history = scene.control().authority.history
    kill(scene.record)
    scene.records.clear()
    content = {path.name: path.read_bytes() for path in settings.store_file.parent.glob("main.db*")}
    content.pop("main.db-shm", None)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if where == "copy":
            patch.setattr("reconstruct.evidence.shutil.copyfileobj", killed)
        elif where == "rename":
            real = Path.rename

            def rename(self: Path, target: Path) -> Path:
                if self.name == "main.db-wal":
                    raise Killed
                return real(self, target)

            patch.setattr(Path, "rename", rename)
        else:
            patch.setattr(where, killed)
        with pytest.raises(Killed):
            snapshots.restore(settings, tmp_path / "old", "main", history)
    assert not settings.store_file.exists()
    found: dict[str, bytes] = {}
    for path in settings.store_file.parent.rglob("main.db*"):
        if path.name in content:
            assert path.name not in found
            found[path.name] = path.read_bytes()
    assert found == content
    if again:
        snapshots.restore(settings, tmp_path / "old", "main", history)
    scene.open()
    assert scene.detect() in {Verdict.REWOUND, Verdict.REPLACED}
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()
    scene.close()
