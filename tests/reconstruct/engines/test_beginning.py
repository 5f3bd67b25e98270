"""R24: `begin` and its evidence where the store is on a server, also while that is down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from journal import Settings
from journal.detection import Verdict
from journal.errors import Recovering, Refused, UnrewindError
from journal.places import lock_of
from reconstruct import recovery, verification
from reconstruct.beginning import Begun
from reconstruct.bundles import list_bundles
from reconstruct.evidence import Given, capture
from tests.reconstruct.engines.world import STORED, ServerScene, World
from tests.support.postgres import PostgresServer
from tests.support.servers import require_postgres
from tests.support.tenants import operation

pytestmark = pytest.mark.engines


def begun(scene: ServerScene, given: Given | None = None) -> Begun:
    stopped = recovery.stop(scene.settings, "a test", given or Given())
    return scene.do(recovery.begin, "a test", None, stopped.evidence)


@pytest.mark.parametrize("world", STORED, indirect=True)
def test_r24_the_rows_of_a_store_are_kept_with_what_was_known(scene: ServerScene) -> None:
    scene.fill(4)
    scene.settle()
    done = begun(scene)
    assert done.verdict == Verdict.CLEAN
    (bundle,) = list_bundles(scene.settings, None, None, verify=True)
    assert (bundle.whole, bundle.findings) == (True, [])
    assert {name.partition("/")[0] for name in bundle.missing} == {"configuration", "witness"}
    folder = Path(bundle.directory)
    kept = (folder / "store" / "unrewind_decisions.copy").read_text().splitlines()
    assert len(kept) == 4
    for name in ("control", "journal", "marker", "work", "gaps"):
        assert (folder / f"{name}.json").exists()
    # A file that is changed afterwards is named.
    file = folder / "store" / "unrewind_decisions.copy"
    file.chmod(0o644)
    file.write_text("")
    (bundle,) = list_bundles(scene.settings, None, None, verify=True)
    assert bundle.findings
    # Run again it resumes, and what it keeps is not kept twice.
    again = begun(scene)
    assert again.resumed
    scene.recover()
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("world", ["postgres-sqlite"], indirect=True)
def test_no_password_is_kept_in_the_evidence(scene: ServerScene, tmp_path: Path) -> None:
    """Where the server asks for none it takes any; nobody but it is to read one."""
    secret = "hunter2secret"
    url = scene.settings.store
    assert url is not None
    scheme, _, rest = url.partition("://")
    user, at, where = rest.rpartition("@")
    given = f"{scheme}://{user or 'postgres'}:{secret}@{where}"
    assert at or not user
    settings = msgspec.structs.replace(scene.settings, store=given)
    file = tmp_path / "unrewind.toml"
    file.write_text(f'store = "{given}"\n')
    lock = lock_of(settings)
    kept = capture(settings, lock, scene.record.clock.now(), "a test", Given(configuration=file))
    lock.close()
    assert "configuration" in kept.missing
    folder = Path(scene.settings.data) / kept.directory
    for path in folder.rglob("*"):
        assert path.is_dir() or secret.encode() not in path.read_bytes()
    assert (folder / "settings.json").exists()


@pytest.fixture
def down(server_area: None, tmp_path: Path) -> Iterator[tuple[ServerScene, PostgresServer]]:
    """A tenant with a store on a server that the test stops."""
    require_postgres()
    with PostgresServer() as server:
        scene = ServerScene(World("postgres-sqlite", tmp_path, server.create_database(), None))
        try:
            yield scene, server
        finally:
            scene.close()


def test_r24_begin_fences_the_journal_while_the_stores_server_is_down(
    down: tuple[ServerScene, PostgresServer], tmp_path: Path
) -> None:
    """It is being restored; nothing older decides when it is back."""
    scene, server = down
    scene.fill(4)
    older = scene.keep(tmp_path / "older")
    scene.fill(3)
    scene.settle()
    state = scene.digest()
    server.stop("immediate")
    done = begun(scene)
    assert (done.verdict, done.safe_to_restore) == ("unreachable", True)
    (bundle,) = list_bundles(scene.settings, None, None, verify=True)
    assert "does not answer" in bundle.missing["store"]
    assert "marker.json" in bundle.missing
    assert scene.control().begun == done.generation
    report = verification.verify(scene.settings)
    assert (report.verdict, report.entities) == ("unreachable", 3)
    with pytest.raises(UnrewindError):
        scene.plan()
    # From another start, with nothing opened before.
    scene.crash()
    scene.open()
    assert begun(scene).verdict == "unreachable"
    server.start()
    scene.restore(older)
    with pytest.raises(Recovering):
        scene.turn(operation("case/0", "set", {"value": 1}))
    assert scene.plan().missing == 3
    scene.do(recovery.apply)
    # What was restored had not been seen by `begin`: it was kept before it was written to.
    assert len(list_bundles(scene.settings, None, None, verify=True)) > 1
    scene.do(recovery.reopen, despite={"reconciled"})
    assert scene.digest() == state
    scene.repeats()
    scene.whole()


def test_restore_refuses_a_store_whose_server_is_down(
    down: tuple[ServerScene, PostgresServer], tmp_path: Path
) -> None:
    scene, server = down
    scene.fill(2)
    older = scene.keep(tmp_path / "older")
    history = scene.control().authority.history
    scene.close()
    server.stop("immediate")
    with pytest.raises(UnrewindError, match=r"127\.0\.0\.1"):
        _restored(scene.settings, older, history)
    server.start()
    _restored(scene.settings, older, history)
    scene.open()
    assert scene.detect().sound or scene.detect() is Verdict.REWOUND


def _restored(settings: Settings, folder: Path, history: str) -> None:
    from reconstruct import snapshots

    snapshots.restore(settings, folder, settings.tenant, history)


@pytest.mark.parametrize("world", ["postgres-sqlite"], indirect=True)
def test_a_snapshot_is_put_back_only_whole_and_where_it_belongs(
    scene: ServerScene, tmp_path: Path
) -> None:
    scene.fill(2)
    folder = scene.keep(tmp_path / "older")
    history = scene.control().authority.history
    scene.close()
    with pytest.raises(Refused, match="belongs to tenant"):
        _restored(msgspec.structs.replace(scene.settings, tenant="other"), folder, history)
    embedded = msgspec.structs.replace(scene.settings, store=None)
    with pytest.raises(Refused, match="of a store on a server"):
        _restored(embedded, folder, history)
    (folder / "store" / "unrewind_entities.copy").write_text("")
    with pytest.raises(Refused, match="not what was copied"):
        _restored(scene.settings, folder, history)
    scene.open()
    scene.repeats()
    scene.whole()


def test_r10_a_journal_whose_server_is_down_fences_nothing_and_is_not_taken_for_lost(
    server_area: None, tmp_path: Path
) -> None:
    require_postgres()
    with PostgresServer() as server:
        scene = ServerScene(World("sqlite-postgres", tmp_path, None, server.create_database()))
        try:
            scene.fill(3)
            scene.settle()
            for reopened in (False, True):
                server.stop("immediate")
                if reopened:
                    scene.crash()
                    scene.open()
                with pytest.raises(Refused, match="stopped, not fenced: do not restore"):
                    begun(scene)
                with pytest.raises(UnrewindError, match=r"127\.0\.0\.1"):
                    scene.plan()
                server.start()
            assert scene.detect().sound
            assert scene.recover().replayed == 0
            scene.repeats()
            scene.whole()
        finally:
            scene.close()
