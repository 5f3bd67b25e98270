"""One recovery at a time, by whoever comes; a restore that refuses what could do harm."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from journal.control import Stage
from journal.detection import Verdict
from journal.errors import LockHeld, Recovering, Refused, UnrewindError
from journal.locks import TurnLock
from journal.worker import drive
from reconstruct import recovery, snapshots
from reconstruct.snapshots import FILE, MANIFEST
from tests.reconstruct.scenes import Scene, kill, query, tree
from tests.support.tenants import make_settings


@pytest.fixture
def kept(scene: Scene, tmp_path: Path) -> Scene:
    scene.fill(6)
    scene.fill(2, kind="account")
    scene.keep(tmp_path / "old")
    scene.fill(6)
    scene.settle()
    return scene


def test_r8_a_second_apply_is_refused_while_the_first_holds(kept: Scene, tmp_path: Path) -> None:
    kept.restore(tmp_path / "old")
    recovery.stop(kept.settings, "a test")
    kept.do(recovery.begin, "a test")
    other = kept.companion()
    refused: list[str] = []

    def meanwhile(_done: int, _total: int, what: str) -> None:
        for step in (recovery.apply, recovery.reopen):
            with pytest.raises(Refused) as error:
                drive(step(other))
            refused.append(f"{what}: {error.value.detail}")

    first = drive(recovery.apply(kept.record, progress=meanwhile))
    assert {line.partition(":")[0] for line in refused} == {"planned", "replayed"}
    assert all("wait" in line for line in refused)
    second = drive(recovery.apply(other))
    assert second.history == first.history
    kept.do(recovery.reopen)
    kept.repeats()
    kept.whole()


def test_r8_each_recovery_has_a_history_and_a_generation_of_its_own(
    kept: Scene, tmp_path: Path
) -> None:
    seen = {kept.control().authority.history: kept.control().authority.generation}
    for _ in range(3):
        kept.restore(tmp_path / "old")
        other = kept.companion()
        recovery.stop(kept.settings, "a test")
        begun = [kept.do(recovery.begin, "one"), drive(recovery.begin(other, "two"))]
        assert len({each.generation for each in begun}) == 1
        applied = [kept.do(recovery.apply), drive(recovery.apply(other))]
        assert len({each.history for each in applied}) == 1
        assert applied[0].history not in seen
        seen[applied[0].history] = applied[0].generation
        drive(recovery.reopen(other))
    assert list(seen.values()) == [1, 2, 3, 4]
    firsts = [record.first for record in kept.control().histories]
    assert all(later >= earlier + 65_536 for earlier, later in pairwise(firsts))
    kept.repeats()
    kept.whole()


def test_a_generation_exceeds_the_one_of_the_store(kept: Scene, tmp_path: Path) -> None:
    """A store that knows a higher generation than the journal proves the journal rewound."""
    kept.close()
    journal = kept.settings.journal_file.read_bytes()
    kept.open()
    kept.recover()
    kept.close()
    kept.settings.journal_file.write_bytes(journal)
    kept.open()
    assert kept.detect() is Verdict.JOURNAL_REWOUND
    with pytest.raises(Refused, match="do not restore"):
        kept.do(recovery.begin, "a test")


def test_the_stop_file_alone_needs_no_lock(kept: Scene) -> None:
    settings = make_settings(kept.settings.home.parent, lock_timeout=0.05)
    lock = TurnLock(settings.beside("lock"), 1.0)
    with lock.held(), pytest.raises(LockHeld) as held:
        recovery.stop(settings, "a server hangs inside its turn")
    lock.close()
    assert held.value.members["pid"] == os.getpid()
    with pytest.raises(Recovering):
        kept.put("case/0", 1)
    assert kept.control().authority.stage is Stage.OPEN
    kept.recover()
    kept.whole()


def test_r12_side_files_are_moved_aside_with_their_database(kept: Scene, tmp_path: Path) -> None:
    history = kept.control().authority.history
    kill(kept.record)
    kept.records.clear()
    folder = kept.settings.store_file.parent
    (folder / "main.db-journal").write_bytes(b"a hot journal")
    (folder / "main.db-shm").write_bytes(bytes(32768))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert set(before) == {"main.db", "main.db-wal", "main.db-shm", "main.db-journal"}
    restored = snapshots.restore(kept.settings, tmp_path / "old", "main", history)
    assert restored.replaced is not None
    moved = {path.name: path.read_bytes() for path in Path(restored.replaced).iterdir()}
    assert moved == before
    assert {path.name for path in folder.iterdir()} == {"main.db", Path(restored.replaced).name}
    assert kept.settings.store_file.read_bytes() == (tmp_path / "old" / FILE).read_bytes()
    kept.open()
    kept.recover()
    kept.repeats()
    kept.whole()


@contextmanager
def unchanged(scene: Scene):
    before = tree(scene.settings.store_file.parent, scene.settings.journal_file.parent)
    yield
    assert tree(scene.settings.store_file.parent, scene.settings.journal_file.parent) == before


def test_r20_restore_refuses_what_was_not_confirmed(kept: Scene, tmp_path: Path) -> None:
    old = tmp_path / "old"
    history = kept.control().authority.history
    with unchanged(kept), pytest.raises(Refused, match="in use"):
        snapshots.restore(kept.settings, old, "main", history)
    kept.close()
    for tenant, named, why in (
        ("other", history, "tenant main, not other"),
        ("main", "f" * 32, f"history in force is {history}"),
        ("main", "", "history in force"),
    ):
        with unchanged(kept), pytest.raises(Refused, match=why):
            snapshots.restore(kept.settings, old, tenant, named)
    with unchanged(kept), pytest.raises(Refused, match="not a snapshot"):
        snapshots.restore(kept.settings, tmp_path, "main", history)
    kept.open()
    kept.recover()
    later = kept.control().authority.history
    kept.close()
    with unchanged(kept), pytest.raises(Refused, match=f"history in force is {later}"):
        snapshots.restore(kept.settings, old, "main", history)
    snapshots.restore(kept.settings, old, "main", later)


@pytest.mark.parametrize("damage", ["byte", "short", "manifest", "format", "absent", "link"])
def test_restore_refuses_a_damaged_snapshot(kept: Scene, tmp_path: Path, damage: str) -> None:
    old = tmp_path / "old"
    history = kept.control().authority.history
    kept.close()
    content = bytearray((old / FILE).read_bytes())
    manifest = msgspec.json.decode((old / MANIFEST).read_bytes())
    if damage == "byte":
        content[5000] ^= 1
        (old / FILE).write_bytes(content)
    elif damage == "short":
        (old / FILE).write_bytes(content[:4096])
    elif damage == "manifest":
        (old / MANIFEST).write_bytes(b"{")
    elif damage == "format":
        (old / MANIFEST).write_bytes(msgspec.json.encode(manifest | {"format": 9}))
    elif damage == "absent":
        (old / MANIFEST).unlink()
    else:
        (old / FILE).unlink()
    with unchanged(kept), pytest.raises(Refused):
        snapshots.restore(kept.settings, old, "main", history)


@pytest.mark.parametrize("changes", [{"tenant": "other"}, {"instance": "staging"}])
def test_r18_restore_refuses_a_snapshot_of_somebody_else(
    kept: Scene, tmp_path: Path, changes: dict[str, str]
) -> None:
    foreign = Scene(make_settings(tmp_path / "foreign", **changes))
    foreign.fill(3)
    foreign.keep(tmp_path / "theirs")
    foreign.close()
    history = kept.control().authority.history
    kept.close()
    with unchanged(kept), pytest.raises(Refused, match="belongs to tenant"):
        snapshots.restore(kept.settings, tmp_path / "theirs", "main", history)


def test_r18_r22_another_instance_name_starts_closed(kept: Scene) -> None:
    kept.close()
    staging = make_settings(kept.settings.home.parent, instance="staging")
    scene = Scene(staging)
    assert scene.detect() is Verdict.CLOSED
    for step in (recovery.plan, recovery.apply):
        with pytest.raises(UnrewindError):
            scene.do(step)
    with pytest.raises(Refused, match="do not restore"):
        scene.do(recovery.begin, "a test")
    with pytest.raises(Recovering):
        scene.put("case/0", 1)
    entries = query(staging.journal_file, "SELECT count(*) FROM entries")
    scene.close()
    kept.open()
    assert query(staging.journal_file, "SELECT count(*) FROM entries") == entries
    kept.recover()
    kept.repeats()
    kept.whole()


def test_a_snapshot_wants_a_new_directory_and_a_store(kept: Scene, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not empty"):
        kept.keep(tmp_path / "old")
    taken = snapshots.read_manifest(tmp_path / "old")
    assert (taken.tenant, taken.instance, taken.sound) == ("main", "default", True)
    assert taken.place.sequence == 8
    kept.close()
    kept.settings.store_file.unlink()
    kept.open()
    with pytest.raises(Refused, match="no readable store"):
        kept.keep(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_r17_a_record_holds_off_a_restore_and_a_restore_holds_off_a_record(
    kept: Scene, tmp_path: Path
) -> None:
    kept.close()
    handle = os.open(kept.settings.beside("presence"), os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(Refused, match="being replaced"):
        kept.open()
    os.close(handle)
    kept.records.clear()
    kept.open()
    kept.whole()


def test_stop_without_a_store_is_a_stop_all_the_same(kept: Scene) -> None:
    kept.close()
    kept.settings.store_file.unlink()
    evidence = recovery.stop(kept.settings, "a test").evidence
    assert "no store" in evidence.missing["store"]
    kept.open()
    with pytest.raises(Recovering, match="a test"):
        kept.put("case/0", 1)
    kept.recover()
    kept.repeats()
    kept.whole()
