"""R24: what is kept before anything is written to, byte for byte, and that it stays so."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal.control import Stage
from journal.detection import Verdict
from journal.errors import Refused
from journal.record import Record
from journal.settings import Settings
from journal.sqlite import Database
from journal.worker import drive
from reconstruct import evidence, recovery
from reconstruct.bundles import Bundle, journalled, list_bundles
from reconstruct.copying import copy_apart
from reconstruct.evidence import MANIFEST, Evidence, Given
from reconstruct.snapshots import FILE
from tests.reconstruct.scenes import Scene, kill
from tests.soak.processes import Site, site_at
from tests.support.releases import Yard, lane_settings
from tests.support.tenants import operation
from tests.support.whole import verify_files


@pytest.fixture
def kept(scene: Scene, tmp_path: Path) -> Scene:
    """A tenant with a snapshot in `old` and decisions that it lacks."""
    scene.fill(6)
    scene.keep(tmp_path / "old")
    scene.fill(6)
    scene.settle()
    return scene


def folder_of(settings: Settings, kept: Evidence) -> Path:
    return settings.home / kept.directory


def read(settings: Settings, kept: Evidence, name: str) -> Any:
    return msgspec.json.decode((folder_of(settings, kept) / name).read_bytes())


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def store_files(settings: Settings) -> dict[str, bytes]:
    """The database and its log; the index in memory is nobody's evidence."""
    found = {path.name: path for path in settings.store_file.parent.iterdir() if path.is_file()}
    read = {name: path.read_bytes() for name, path in found.items() if "-shm" not in name}
    return {name: each for name, each in read.items() if each}


def listed(scene: Scene, *, verify: bool = True) -> list[Bundle]:
    return list_bundles(scene.settings, scene.do(journalled), None, verify=verify)


def snapshot_put_here_by_hand(settings: Settings, snapshot: Path) -> bytes:
    """A restore by means that leave no note; the bytes that it put there."""
    for path in settings.store_file.parent.iterdir():
        path.unlink()
    shutil.copyfile(snapshot / FILE, settings.store_file)
    return settings.store_file.read_bytes()


# What is kept.


def test_r24_a_bundle_holds_the_files_as_found_and_what_was_known(tmp_path: Path) -> None:
    yard = Yard(lane_settings(tmp_path))
    pushed, waiting = yard.release("letter/1"), yard.release("payment/2")
    yard.claim("post")
    yard.accept(operation("task/1", "start"))
    attached = [tmp_path / "one/flows.json", tmp_path / "two/flows.json"]
    for number, path in enumerate(attached):
        path.parent.mkdir()
        path.write_bytes(b"%d" % number)
    config = tmp_path / "unrewind.toml"
    config.write_bytes(b"# as it is \xff\n")
    settings, entries = yard.settings, yard.journal_sql("SELECT count(*) FROM entries")[0][0]
    yard_commands = yard.commands("task/1")
    kill(yard.records.pop())
    found = {path.name: path.read_bytes() for path in settings.store_file.parent.iterdir()}
    assert {"main.db", "main.db-wal"} <= set(found)

    given = Given("bookmark 17", tuple(attached), config)
    kept = recovery.stop(settings, "why", given).evidence
    folder = folder_of(settings, kept)
    assert content(folder / "store") == found
    for name, stored in content(folder).items():
        assert not stat.S_IMODE((folder / name).stat().st_mode) & 0o222, name
        if name == MANIFEST:
            assert sha256(stored).hexdigest() == kept.sha256
            continue
        (piece,) = [piece for piece in kept.pieces if piece.name == name]
        assert (piece.size, piece.sha256) == (len(stored), sha256(stored).hexdigest())
    manifest = read(settings, kept, MANIFEST)
    assert (manifest["schema"], manifest["reason"]) == ("unrewind-evidence/1", "why")
    assert set(kept.missing) == set()
    assert (folder / "notes.txt").read_text() == "bookmark 17\n"
    assert (folder / "attached/flows.json").read_bytes() == b"0"
    assert (folder / "attached/2/flows.json").read_bytes() == b"1"
    assert (folder / "configuration/unrewind.toml").read_bytes() == b"# as it is \xff\n"

    control = read(settings, kept, "control.json")
    assert [each["sequence"] for each in control] == [1]
    assert msgspec.json.decode(control[0]["envelope"])["action"] == "found"
    assert read(settings, kept, "journal.json")["position"] == entries
    marker = read(settings, kept, "marker.json")
    assert (marker["verdict"], marker["marker"]["instance"]) == ("clean", "default")
    work = read(settings, kept, "work.json")
    assert {pushed, waiting} < {row["id"] for row in work["unfinished"]}
    assert len(work["unfinished"]) == 2 + len(yard_commands)
    assert [call["id"] for call in work["in_flight"]] == [pushed]
    assert read(settings, kept, "gaps.json") == []
    assert read(settings, kept, "settings.json")["tenant"] == "main"
    assert read(settings, kept, "version.json")["sqlite"] == sqlite3.sqlite_version
    assert read(settings, kept, "witness/main.json")["tenant"] == "main"

    yard.open()
    yard.do(recovery.begin, "why", None, kept)
    assert yard.do(journalled) == [kept.sha256]
    yard.do(recovery.apply)
    yard.do(recovery.reopen)
    yard.close()


def test_r24_each_begin_keeps_a_bundle_of_its_own_and_changes_no_earlier_one(
    kept: Scene, tmp_path: Path
) -> None:
    first = recovery.stop(kept.settings, "one").evidence
    kept.do(recovery.begin, "one", None, first)
    before = content(folder_of(kept.settings, first))
    kept.close()
    restored = snapshot_put_here_by_hand(kept.settings, tmp_path / "old")
    second = recovery.stop(kept.settings, "two").evidence
    kept.open()
    assert kept.do(recovery.begin, "two", None, second).resumed
    assert kept.do(recovery.begin, "two", None, second).evidence_sha256 == second.sha256
    assert kept.do(journalled) == [first.sha256, second.sha256]
    assert (folder_of(kept.settings, second) / "store/main.db").read_bytes() == restored
    kept.do(recovery.apply)
    third = recovery.stop(kept.settings, "three").evidence
    assert kept.do(recovery.begin, "three", None, third).resumed
    kept.do(recovery.apply)
    kept.do(recovery.reopen)
    assert content(folder_of(kept.settings, first)) == before
    found = listed(kept)
    assert [bundle.sha256 for bundle in found] == [first.sha256, second.sha256, third.sha256]
    assert [bundle.reason for bundle in found] == ["one", "two", "three"]
    assert not any(bundle.findings for bundle in found)
    kept.repeats()
    kept.whole()


def test_what_cannot_be_read_is_named_and_keeps_nothing_else_away(
    kept: Scene, tmp_path: Path
) -> None:
    kept.close()
    kept.settings.journal_file.rename(tmp_path / "journal.db")
    given = Given(attached=(tmp_path / "gone.txt", tmp_path / "old"))
    found = recovery.stop(kept.settings, "a test", given).evidence
    assert "journal" in found.missing["control.json"]
    assert found.missing["attached/gone.txt"] == os.strerror(2)
    assert found.missing["attached/old"] == os.strerror(21)
    names = {piece.name for piece in found.pieces}
    assert {"store/main.db", "work.json", "settings.json", "version.json"} <= names
    assert {"control.json", "attached/gone.txt"}.isdisjoint(names)
    (tmp_path / "journal.db").rename(kept.settings.journal_file)
    kept.open()
    kept.recover()
    kept.whole()


def test_without_room_the_tenant_is_stopped_and_told_what_is_needed(
    kept: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: whole._replace(free=1000))
        with pytest.raises(Refused, match=r"needs .* bytes, and .* 1,000 free; make room"):
            recovery.stop(kept.settings, "a test")
    assert kept.record.stop.stands()
    home = kept.settings.evidence_home
    assert list(home.iterdir()) == []

    def refuses(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(evidence, "copy_apart", refuses)
        with pytest.raises(Refused, match="No space left on device; make room"):
            recovery.stop(kept.settings, "a test")
    assert list(home.iterdir()) == []
    kept.recover()
    kept.whole()


_KILLED = """
import os, signal, sys
from pathlib import Path
from journal.settings import Settings
from reconstruct import recovery
Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
recovery.stop(Settings(data=sys.argv[1]), "killed")
"""


def test_r11_one_cut_off_while_it_is_made_is_told_from_a_whole_one(kept: Scene) -> None:
    root = Path(evidence.__file__).parents[1]
    words = [sys.executable, "-c", _KILLED, kept.settings.data]
    assert subprocess.run(words, cwd=root, check=False).returncode == -9
    recovery.stop(kept.settings, "again")
    cut, whole = listed(kept)
    assert cut.directory.endswith(".partial")
    assert (cut.whole, cut.findings, whole.whole, whole.reason) == (False, [], True, "again")
    kept.recover()
    kept.whole()


@pytest.mark.parametrize("damage", ["flip", "shorten", "remove", "add", "manifest"])
def test_a_bundle_that_is_not_what_was_kept_is_found(kept: Scene, damage: str) -> None:
    stopped = recovery.stop(kept.settings, "a test")
    kept.do(recovery.begin, "a test", None, stopped.evidence)
    kept.do(recovery.apply)
    kept.do(recovery.reopen)
    (before,) = listed(kept)
    assert (before.whole, before.journalled, before.findings) == (True, True, [])
    folder = Path(before.directory)
    piece = folder / "store/main.db"
    piece.chmod(0o644)
    bytes_of = bytearray(piece.read_bytes())
    if damage == "flip":
        bytes_of[100] ^= 1
        piece.write_bytes(bytes_of)
    elif damage == "shorten":
        piece.write_bytes(bytes_of[:-1])
    elif damage == "remove":
        piece.unlink()
    elif damage == "add":
        (folder / "store/more").touch()
    else:
        (folder / MANIFEST).unlink()
    (after,) = listed(kept)
    assert len(after.findings) == 1
    named = {"add": "store/more", "manifest": MANIFEST}.get(damage, "store/main.db")
    assert named in after.findings[0]


# Before anything opens it for writing.


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_at(tmp_path / "site") as made:
        yield made


def test_r24_a_service_that_is_first_to_see_a_restored_file_leaves_it_as_it_is(
    site: Site, tmp_path: Path
) -> None:
    server = site.start()
    for number in range(4):
        assert server.decide(f"op-{number}", f"case/{number}")[0] == 201
        if number == 1:
            site.do("snapshot", str(tmp_path / "old"))
    assert server.stop() == 0
    restored = snapshot_put_here_by_hand(site.settings, tmp_path / "old")

    server = site.start()
    assert server.get("status")[1]["verdict"] == "rewound"
    assert server.decide("op-5", "case/5")[0] == 503
    assert store_files(site.settings) == {"main.db": restored}
    begun = site.do("recover", "begin", "--note", "bookmark 17", "--wait", "0")
    folder = site.folder / "data" / begun["evidence"]
    assert (folder / "store/main.db").read_bytes() == restored
    assert (folder / "configuration/unrewind.toml").read_bytes() == (
        site.folder / "unrewind.toml"
    ).read_bytes()
    # The same process goes on with the same file, which it may write to now.
    site.do("recover", "apply")
    site.do("recover", "reopen")
    assert server.decide("op-5", "case/5")[0] == 201
    assert server.stop() == 0
    (bundle,) = site.do("evidence", "--verify")["bundles"]
    assert (bundle["whole"], bundle["journalled"], bundle["findings"]) == (True, True, [])
    manifest = folder / MANIFEST
    manifest.chmod(0o644)
    manifest.write_bytes(manifest.read_bytes().replace(b"store/main.db", b"store/mail.db"))
    told = site.run("evidence", "--verify", "--json")
    assert told.code == 1, told
    assert told.json["bundles"][0]["journalled"] is False
    assert site.run("evidence", "nowhere").code == 2
    assert verify_files(site.settings) == []


@pytest.mark.parametrize("noted", [True, False], ids=["by-the-command", "by-hand"])
def test_r24_no_opening_comparing_or_closing_writes_to_a_store_that_was_put_back(
    kept: Scene, tmp_path: Path, noted: bool
) -> None:
    if noted:
        kept.restore(tmp_path / "old")
    else:
        kept.close()
        snapshot_put_here_by_hand(kept.settings, tmp_path / "old")
        kept.open()
    restored = (tmp_path / "old" / FILE).read_bytes()
    assert kept.record.guarded
    assert kept.detect() is Verdict.REWOUND
    with pytest.raises(Exception, match="closed"):
        kept.put("case/0", 1)
    kept.reopen()
    assert store_files(kept.settings) == {"main.db": restored}
    stopped = recovery.stop(kept.settings, "a test")
    assert (folder_of(kept.settings, stopped.evidence) / "store/main.db").read_bytes() == restored
    kept.recover()
    assert not kept.record.guarded
    kept.repeats()
    kept.whole()


def test_r24_an_older_file_beside_its_newer_log_is_not_merged_before_it_is_kept(
    kept: Scene, tmp_path: Path
) -> None:
    kept.close()
    old = kept.settings.store_file.read_bytes()
    kept.open()
    kept.fill(6)
    kill(kept.record)
    kept.records.clear()
    kept.settings.store_file.write_bytes(old)
    mixed = store_files(kept.settings)
    assert len(mixed) == 2
    kept.open()
    kept.detect()
    kept.reopen()
    assert store_files(kept.settings) == mixed
    kept.recover()
    kept.repeats()
    kept.whole()


def test_a_restart_after_a_crash_copies_nothing_and_goes_on(kept: Scene) -> None:
    kill(kept.record)
    kept.records.clear()
    kept.open()
    assert kept.record.guarded
    kept.fill(2)
    assert not kept.record.guarded
    assert not kept.settings.evidence_home.exists()
    kept.whole()


def test_r24_apply_keeps_a_store_that_was_put_back_after_begin(kept: Scene, tmp_path: Path) -> None:
    first = recovery.stop(kept.settings, "a test").evidence
    kept.do(recovery.begin, "a test", None, first)
    kept.close()
    restored = snapshot_put_here_by_hand(kept.settings, tmp_path / "old")
    kept.open()
    kept.do(recovery.apply)
    second = listed(kept)[-1]
    assert (Path(second.directory) / "store/main.db").read_bytes() == restored
    assert kept.do(journalled) == [first.sha256, second.sha256]
    kept.do(recovery.reopen)
    assert len(listed(kept)) == 2
    kept.repeats()
    kept.whole()


def test_r24_a_rollback_journal_is_kept_before_it_is_rolled_back(
    kept: Scene, tmp_path: Path
) -> None:
    """A backup of a database in another mode, taken within a transaction."""
    kept.close()
    snapshot_put_here_by_hand(kept.settings, tmp_path / "old")
    file = kept.settings.store_file
    hot = file.with_name("main.db-journal")
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("PRAGMA cache_size=1")
        database.execute("BEGIN IMMEDIATE")
        database.execute("UPDATE unrewind_entities SET data = '{}'")
        database.execute("CREATE TABLE filler AS SELECT zeroblob(100000) AS x")
        saved = {path: path.read_bytes() for path in (file, hot)}
        database.execute("ROLLBACK")
    for path, each in saved.items():
        path.write_bytes(each)
    kept.open()
    kept.detect()
    assert {path: path.read_bytes() for path in saved} == saved
    stopped = recovery.stop(kept.settings, "a test")
    folder = folder_of(kept.settings, stopped.evidence) / "store"
    assert {path: (folder / path.name).read_bytes() for path in saved} == saved
    kept.do(recovery.begin, "a test", None, stopped.evidence)
    assert not kept.plan().fresh_store
    kept.do(recovery.apply)
    kept.do(recovery.reopen)
    kept.repeats()
    kept.whole()


_WRITE = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], timeout=0)
try:
    database.execute("INSERT INTO t VALUES (1)")
    database.commit()
    print("written")
except sqlite3.OperationalError as error:
    print(error)
"""


def test_a_copy_takes_no_lock_from_a_database_that_is_open_here(tmp_path: Path) -> None:
    path = tmp_path / "open.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE t (x)")
        database.execute("BEGIN IMMEDIATE")
        (tmp_path / "copies").mkdir()
        copied = copy_apart([path, tmp_path / "gone"], tmp_path / "copies")
        words = [sys.executable, "-I", "-c", _WRITE, str(path)]
        told = subprocess.run(words, capture_output=True, check=True, text=True)
        assert told.stdout == "database is locked\n"
    assert copied["gone"] == os.strerror(2)
    assert (tmp_path / "copies/open.db").read_bytes() == path.read_bytes()


def test_a_guarded_store_refuses_whoever_writes_to_it_without_having_compared(
    kept: Scene, tmp_path: Path
) -> None:
    kept.restore(tmp_path / "old")
    other = Record(kept.settings)
    drive(other.open())
    assert other.guarded
    assert other.store is not None
    database = other.store.database
    assert isinstance(database, Database)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        database.connection.execute("DELETE FROM unrewind_entities")
    drive(other.close())
    kept.recover()
    assert kept.control().authority.stage is Stage.OPEN
    kept.whole()
