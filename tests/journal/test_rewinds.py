"""P8: a rewound, replaced or torn store is noticed before another decision is acknowledged."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import journal
from journal.clock import SystemClock
from journal.detection import Verdict
from journal.errors import JournalUnavailable, Recovering, Refused
from journal.filesystem import check_filesystem, filesystem_of
from journal.record import Record
from journal.standing import detect
from journal.status import status
from journal.store.sqlite import SqliteStore
from journal.worker import drive
from tests.support.tenants import Tenant, make_settings, operation
from tests.support.whole import rows_of

ENTITY = "document/7"


FILLER = [f"document/{n}" for n in range(10, 40)]
PADDING = {"padding": "x" * 1500}


def seven(tenant: Tenant, folder: Path) -> Path:
    """Journal at revision 7, a consistent copy of the store at 5, and what makes it dangerous.

    Rows fill many pages, the -wal was emptied by a checkpoint after revision 7, and holds one later
    decision about an entity far away: it shows the newest marker over whatever the file holds.
    """
    tenant.turn(*(operation(name, "submit", PADDING) for name in FILLER))
    tenant.decide(ENTITY, *["submit"] * 5, body={"n": 5, **PADDING})
    copy = tenant.snapshot(folder / "copy")
    tenant.decide(ENTITY, *["submit"] * 2, body={"n": 7})
    tenant.sql("PRAGMA wal_checkpoint(TRUNCATE)")
    tenant.record.saw()
    tenant.decide(FILLER[0], "submit")
    return copy


def refused(tenant: Tenant, verdict: Verdict | None = None) -> None:
    """The next decision is refused, nothing is journalled for it, and the tenant stays closed."""
    before = positions(tenant)
    for _ in range(2):
        with pytest.raises(Recovering):
            tenant.turn(operation(ENTITY))
    assert tenant.record.stop.stands()
    added = tenant.journal_sql("SELECT stream FROM entries WHERE position > ?", before)
    assert {stream for (stream,) in added} <= {"control"}
    found = drive(status(tenant.record))
    assert found.stage == "closed"
    if verdict is not None:
        assert tenant.record.stop.facts()["verdict"] == verdict
    tenant.diverged()


def positions(tenant: Tenant) -> int:
    count: int = tenant.journal_sql("SELECT max(position) FROM entries")[0][0]
    return count


def side_files(file: Path) -> list[Path]:
    return [file.with_name(file.name + suffix) for suffix in ("-wal", "-shm")]


def by_rename(tenant: Tenant, copy: Path) -> None:
    tenant.rewind(copy)


def by_rename_beside_its_wal(tenant: Tenant, copy: Path) -> None:
    """Only the database file is replaced; its newer -wal is left."""
    aside = tenant.settings.store_file.with_name("aside.db")
    shutil.copyfile(copy, aside)
    aside.replace(tenant.settings.store_file)


def overwrite(file: Path, copy: Path) -> None:
    """Write a copy over the file, and see that it opens without complaint."""
    shutil.copyfile(copy, file)
    assert rows_of(file, f"SELECT revision FROM unrewind_entities WHERE entity = '{ENTITY}'") == [
        (5,)
    ]


def in_place(tenant: Tenant, copy: Path) -> None:
    overwrite(tenant.settings.store_file, copy)


def in_place_and_side_files_gone(tenant: Tenant, copy: Path) -> None:
    shutil.copyfile(copy, tenant.settings.store_file)
    for path in side_files(tenant.settings.store_file):
        path.unlink(missing_ok=True)


def in_place_with_old_times(tenant: Tenant, copy: Path) -> None:
    """As a backup tool does that sets the file's times afterwards."""
    before = tenant.settings.store_file.stat()
    shutil.copyfile(copy, tenant.settings.store_file)
    times = (before.st_atime_ns, before.st_mtime_ns)
    os.utime(tenant.settings.store_file, ns=times)


def removed(tenant: Tenant, _copy: Path) -> None:
    for path in (tenant.settings.store_file, *side_files(tenant.settings.store_file)):
        path.unlink(missing_ok=True)


def emptied(tenant: Tenant, _copy: Path) -> None:
    for path in side_files(tenant.settings.store_file):
        path.unlink(missing_ok=True)
    aside = tenant.settings.store_file.with_name("aside.db")
    aside.touch()
    aside.replace(tenant.settings.store_file)


def another_tenants(tenant: Tenant, _copy: Path) -> None:
    other = Tenant(make_settings(tenant.settings.home.parent, tenant="other"))
    other.decide(ENTITY, "submit")
    file = other.settings.store_file
    other.finish()
    tenant.rewind(file)


WAYS: dict[str, Callable[[Tenant, Path], None]] = {
    "by rename": by_rename,
    "by rename, its newer -wal left": by_rename_beside_its_wal,
    "overwritten in place": in_place,
    "overwritten in place, side files gone": in_place_and_side_files_gone,
    "overwritten in place, old times": in_place_with_old_times,
    "removed": removed,
    "emptied": emptied,
    "another tenant's": another_tenants,
}


@pytest.mark.parametrize("way", WAYS)
def test_p8_r6_a_store_rewound_under_the_open_record_decides_nothing(
    tenant: Tenant, tmp_path: Path, way: str
) -> None:
    WAYS[way](tenant, seven(tenant, tmp_path))
    refused(tenant)


@pytest.mark.parametrize("way", WAYS)
def test_p8_r6_a_store_rewound_after_a_clean_stop_decides_nothing(
    settings: journal.Settings, tmp_path: Path, way: str
) -> None:
    tenant = Tenant(settings)
    copy = seven(tenant, tmp_path)
    stop_clean(tenant)
    WAYS[way](tenant, copy)
    tenant.open()
    refused(tenant)
    tenant.finish()


@pytest.mark.parametrize("way", WAYS)
def test_p8_r6_a_store_rewound_while_stopped_opens_closed(
    settings: journal.Settings, tmp_path: Path, way: str
) -> None:
    tenant = Tenant(settings)
    copy = seven(tenant, tmp_path)
    stop_clean(tenant)
    WAYS[way](tenant, copy)

    async def serve() -> None:
        async with journal.open(settings) as opened:
            with pytest.raises(Recovering):
                await opened.accept(operation(ENTITY))
            with pytest.raises(Recovering):
                await opened.entity(ENTITY)
            found = await opened.status()
            assert found.stage == "closed"
            assert found.verdict not in {"clean", "crashed"}

    asyncio.run(serve())


def test_p8_a_torn_store_is_never_remembered_as_sound_by_a_clean_stop(
    settings: journal.Settings, tmp_path: Path
) -> None:
    """Overwritten under an idle server that is then stopped: the next start must see it."""

    async def serve() -> None:
        async with journal.open(settings) as opened:
            await opened.accept_many([operation(name, "submit", PADDING) for name in FILLER])
            for _ in range(5):
                await opened.accept(operation(ENTITY, "submit", {"n": 5, **PADDING}))
            copy = await opened.write(snapshot, tmp_path)
            for _ in range(2):
                await opened.accept(operation(ENTITY, "submit", {"n": 7}))
            await opened.write(checkpoint)
            await opened.accept(operation(FILLER[0]))
            assert (await opened.detect(deep=True)).verdict.sound
            overwrite(settings.store_file, copy)

    asyncio.run(serve())

    async def again() -> None:
        async with journal.open(settings) as opened:
            with pytest.raises(Recovering):
                await opened.accept(operation(ENTITY))

    asyncio.run(again())


async def checkpoint(record: Record) -> None:
    assert isinstance(record.store, SqliteStore)
    record.store.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    record.saw()


async def snapshot(record: Record, folder: Path) -> Path:
    assert record.store is not None
    target = folder / "copy.db"
    record.store.copy_to(target)
    return target


def stop_clean(tenant: Tenant) -> None:
    finding = drive(detect(tenant.record, deep=True))
    assert finding.verdict.sound
    drive(tenant.record.close_and_mark())
    tenant.close()


def test_p8_a_store_overwritten_while_its_wal_held_every_page_is_refused_or_whole(
    tenant: Tenant, tmp_path: Path
) -> None:
    tenant.decide(ENTITY, *["submit"] * 5, body={"n": 5})
    copy = tenant.snapshot(tmp_path / "copy")
    tenant.decide(ENTITY, *["submit"] * 2, body={"n": 7})
    shutil.copyfile(copy, tenant.settings.store_file)
    try:
        tenant.turn(operation(ENTITY))
    except Recovering:
        tenant.diverged()


def test_p8_r6_the_refusal_survives_putting_the_newer_store_back(
    tenant: Tenant, tmp_path: Path
) -> None:
    """R19: un-rewinding does not by itself undo what was found."""
    copy = seven(tenant, tmp_path)
    newest = tenant.snapshot(tmp_path / "newest")
    tenant.rewind(copy)
    refused(tenant, Verdict.REWOUND)
    tenant.rewind(newest)
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))


def test_p8_a_row_that_differs_under_a_fitting_marker_is_rewound(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit", body={"n": 1})
    tenant.sql("UPDATE unrewind_entities SET data = '{\"n\":2}'")
    assert drive(detect(tenant.record, deep=False)).verdict is Verdict.CLEAN
    assert drive(detect(tenant.record, deep=True)).verdict is Verdict.REWOUND
    refused(tenant)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE unrewind_entities SET revision = 1 WHERE entity = 'document/7'",
        "UPDATE unrewind_entities SET digest = x'00' WHERE entity = 'document/7'",
        "DELETE FROM unrewind_entities WHERE entity = 'document/7'",
        (
            "INSERT INTO unrewind_entities SELECT 'document/8', revision, history, digest,"
            " sequence, state, version, data FROM unrewind_entities WHERE entity = 'document/7'"
        ),
    ],
)
def test_p8_every_head_is_compared_at_a_start_after_a_crash(
    settings: journal.Settings, change: str
) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit", "approve")
    tenant.decide("document/9", "submit")
    tenant.sql(change)
    tenant.crash()

    async def serve() -> None:
        async with journal.open(settings) as opened:
            assert (await opened.status()).verdict == Verdict.REWOUND
            with pytest.raises(Recovering):
                await opened.entity("document/9")
            with pytest.raises(Recovering):
                await opened.accept(operation("document/9", "approve"))

    asyncio.run(serve())


async def test_s10_a_start_after_a_clean_stop_trusts_the_file_and_any_other_does_not(
    settings: journal.Settings,
) -> None:
    async with journal.open(settings) as first:
        await first.accept(operation(ENTITY))
    assert not any(path.exists() for path in side_files(settings.store_file))
    assert await trusted(settings)
    os.utime(settings.store_file)
    assert not await trusted(settings)


async def trusted(settings: journal.Settings) -> bool:
    record = Record(settings)
    await record.open()
    found = record.stopped_clean()
    await record.close()
    return found


# The journal's side.


def test_r10_a_missing_journal_beside_a_store_is_journal_rewound_not_a_first_start(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.close()
    settings.journal_file.unlink()
    tenant.open()
    assert drive(detect(tenant.record, deep=True)).verdict is Verdict.JOURNAL_REWOUND
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))
    assert tenant.record.stop.facts()["verdict"] == Verdict.JOURNAL_REWOUND
    assert not settings.journal_file.exists()
    assert drive(status(tenant.record)).verdict == Verdict.JOURNAL_REWOUND
    tenant.close()


def test_r10_a_rewound_journal_is_told_and_nothing_is_appended_to_it(
    settings: journal.Settings, tmp_path: Path
) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.reopen()
    old = tmp_path / "old.db"
    tenant.log.database.copy_to(old)
    tenant.decide(ENTITY, "submit", "submit")
    tenant.reopen()
    drive(detect(tenant.record, deep=True))
    accepted = tenant.accept(operation("document/8"))
    tenant.close()
    shutil.copyfile(old, settings.journal_file)
    for path in side_files(settings.journal_file):
        path.unlink(missing_ok=True)
    tenant.open()
    before = positions(tenant)
    with pytest.raises(Recovering):
        tenant.turn(operation("document/8", id=accepted.operation))
    assert tenant.record.stop.facts()["verdict"] == Verdict.JOURNAL_REWOUND
    assert positions(tenant) == before
    tenant.close()


def test_p9_a_journal_cut_to_nothing_is_closed(settings: journal.Settings) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.close()
    settings.journal_file.write_bytes(b"")
    tenant.open()
    with pytest.raises((Recovering, JournalUnavailable)):
        tenant.turn(operation(ENTITY))
    assert drive(status(tenant.record)).stage == "closed"
    tenant.close()


async def test_p9_a_server_over_a_journal_that_is_no_database_starts_closed(
    settings: journal.Settings,
) -> None:
    async with journal.open(settings) as first:
        await first.accept(operation(ENTITY))
    settings.journal_file.write_bytes(b"not a database" * 1000)
    async with journal.open(settings) as opened:
        with pytest.raises((Recovering, JournalUnavailable)):
            await opened.accept(operation(ENTITY))
        assert (await opened.status()).stage == "closed"


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM entries WHERE stream = 'control' AND sequence = 2",
        "DELETE FROM entries WHERE stream = 'control'",
        "DELETE FROM authority",
        "UPDATE authority SET stage = 'internal'",
        "UPDATE authority SET generation = 9",
        "UPDATE entries SET body = x'7b7d' WHERE stream = 'control' AND sequence = 1",
        (
            "UPDATE entries SET envelope = replace(envelope, 'open', 'shut') WHERE sequence = 1"
            " AND stream = 'control'"
        ),
        "UPDATE entries SET digest = x'00' WHERE stream = 'control' AND sequence = 3",
    ],
)
def test_p9_unreadable_control_is_closed(settings: journal.Settings, damage: str) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.put_in_force()
    tenant.put_in_force()
    for trigger in ("entries_no_update", "entries_no_delete"):
        tenant.journal_sql(f"DROP TRIGGER {trigger}")
    tenant.journal_sql(damage)
    tenant.reopen()
    before = positions(tenant)
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))
    assert positions(tenant) == before
    assert tenant.record.stop.facts()["verdict"] == Verdict.CLOSED
    assert drive(status(tenant.record)).stage == "closed"
    tenant.close()


def test_p9_control_damaged_under_the_open_record_is_closed(settings: journal.Settings) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.journal_sql("UPDATE authority SET generation = 2")
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))
    tenant.close()


def test_p9_a_stop_file_that_cannot_be_read_still_stands(tenant: Tenant) -> None:
    tenant.record.stop.path.write_bytes(b"\xff")
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))
    tenant.record.stop.take_down()
    assert tenant.decide(ENTITY, "submit")[0].revision == 1


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [({"instance": "production"}, Verdict.CLOSED), ({"tenant": "other"}, Verdict.CLOSED)],
    ids=["another instance", "another tenant"],
)
def test_r18_r22_a_journal_of_another_tenant_or_instance_is_refused(
    settings: journal.Settings, changes: dict[str, str], verdict: Verdict
) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.close()
    other = msgspec.structs.replace(settings, **changes)
    for mine, theirs in (
        (settings.store_file, other.store_file),
        (settings.journal_file, other.journal_file),
    ):
        if mine != theirs:
            shutil.copyfile(mine, theirs)
    before = other.journal_file.read_bytes()
    opened = Tenant(other)
    with pytest.raises(Recovering):
        opened.turn(operation(ENTITY))
    assert opened.record.stop.facts()["verdict"] == verdict
    opened.close()
    assert other.journal_file.read_bytes() == before


def test_r8_a_store_of_another_founding_is_noticed(settings: journal.Settings) -> None:
    """Two tenants of one name: the store of one beside the journal of the other."""
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.close()
    aside = settings.store_file.with_name("first.db")
    settings.store_file.rename(aside)
    settings.journal_file.unlink()
    settings.beside("founded").unlink()
    settings.witness_file.unlink()
    second = Tenant(settings)
    second.decide(ENTITY, "submit")
    second.close()
    aside.replace(settings.store_file)
    second.open()
    with pytest.raises(Recovering):
        second.turn(operation(ENTITY))
    second.diverged()
    second.finish()


# Founding.


def test_p9_a_tenant_whose_both_files_are_gone_is_not_founded_again(
    settings: journal.Settings,
) -> None:
    """Two disks that are not mounted are no first start: what they hold was acknowledged."""
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.close()
    away = [
        (path, path.with_suffix(".away")) for path in (settings.store_file, settings.journal_file)
    ]
    for path, aside in away:
        path.rename(aside)
    record = Record(settings)
    with pytest.raises(Refused, match="mounted"):
        drive(record.open())
    drive(record.close())
    assert not settings.store_file.exists()
    assert not settings.journal_file.exists()
    for path, aside in away:
        aside.rename(path)
    tenant.open()
    tenant.finish()


FOUND = """
import importlib, os, signal, sys
from pathlib import Path
from journal.record import Record
from journal.worker import drive
from tests.support.tenants import make_settings

module, owner, method = sys.argv[2].split(":")
owner = getattr(importlib.import_module(module), owner)
before, real = sys.argv[3] == "before", getattr(owner, method)

def die(*args, **named):
    if not before:
        done = real(*args, **named)
        if hasattr(done, "send"):
            drive(done)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, method, die)
drive(Record(make_settings(Path(sys.argv[1]))).open())
"""

STEPS = [
    "journal.places:LogFile:open",
    "journal.sqlite:Database:_prepare",
    "journal.log.sqlite:SqliteLog:append",
    "journal.sqlite:Database:close",
    "pathlib:Path:replace",
    "journal.record:Record:_finish_founding",
    "journal.record:Record:create_store",
    "journal.sqlite:Database:batch",
    "journal.places:StoreFile:open",
    "journal.record:Record:_create_tables",
]


def killed_at(folder: Path, step: str, moment: str) -> None:
    """Open a tenant in a process that is killed before or after one step."""
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FOUND, str(folder), step, moment],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_p11_a_founding_killed_at_any_step_is_finished(
    tmp_path: Path, step: str, moment: str
) -> None:
    killed_at(tmp_path, step, moment)
    tenant = Tenant(make_settings(tmp_path))
    assert tenant.decide(ENTITY, "submit")[0].sequence == 1
    assert tenant.decide("account/1", "open")[0].sequence == 2
    tenant.finish()
    for file in (tenant.settings.store_file, tenant.settings.journal_file):
        assert list(file.parent.glob("*.new*")) == []


def test_a_founding_alone_is_finished_without_a_new_one(settings: journal.Settings) -> None:
    tenant = Tenant(settings)
    founded = tenant.control()
    tenant.close()
    settings.store_file.unlink()
    tenant.open()
    assert tenant.control() == founded
    assert tenant.decide(ENTITY, "submit")[0].sequence == 1
    tenant.finish()


def test_an_empty_store_beside_a_journal_with_decisions_is_replaced(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    tenant.close()
    settings.store_file.unlink()
    for content in (None, b""):
        if content is not None:
            settings.store_file.write_bytes(content)
        tenant.open()
        assert drive(detect(tenant.record, deep=False)).verdict is Verdict.REPLACED
        tenant.diverged()
        tenant.close()


def test_nothing_is_founded_where_it_was_not_asked_for(settings: journal.Settings) -> None:
    record = Record(settings, SystemClock())
    with pytest.raises(Refused):
        drive(record.open(create=False))
    drive(record.close())
    assert not settings.journal_file.exists()
    assert not settings.store_file.exists()


# R14: where the files lie.

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:44 / /srv/data rw,relatime shared:9 - nfs4 server:/export rw
31 30 254:1 / /srv/data/local rw - xfs /dev/vdb rw
32 22 0:45 / /srv/with\\040space rw - fuse.sshfs user@host:/ rw
33 22 254:1 / /srv/over rw - nfs server:/a rw
34 22 254:1 / /srv/over rw - ext4 /dev/vdc rw
garbage
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/", "ext4"),
        ("/home/x", "ext4"),
        ("/srv/data", "nfs4"),
        ("/srv/data/a/b", "nfs4"),
        ("/srv/database", "ext4"),
        ("/srv/data/local/x", "xfs"),
        ("/srv/with space/x", "fuse.sshfs"),
        ("/srv/over/x", "ext4"),
    ],
)
def test_r14_the_filesystem_is_the_innermost_mounts(mounts: Path, path: str, wanted: str) -> None:
    assert filesystem_of(Path(path), mounts) == wanted


@pytest.mark.parametrize("path", ["/srv/data/x", "/srv/with space/x"])
def test_r14_a_network_filesystem_is_refused_naming_the_override(mounts: Path, path: str) -> None:
    with pytest.raises(Refused, match="allow_network_filesystem = true"):
        check_filesystem(Path(path), mounts)


def test_r14_a_local_or_unknown_filesystem_passes(mounts: Path, tmp_path: Path) -> None:
    check_filesystem(Path("/srv/data/local"), mounts)
    assert filesystem_of(Path("/"), tmp_path / "absent") is None
    check_filesystem(Path("/"), tmp_path / "absent")


def test_r14_a_tenant_on_a_network_filesystem_is_refused_unless_allowed(
    settings: journal.Settings, mounts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts.write_text("22 1 0:9 / / rw - nfs4 server:/ rw\n", encoding="utf-8")
    real = check_filesystem
    monkeypatch.setattr("journal.record.check_filesystem", lambda path: real(path, mounts))
    record = Record(settings)
    with pytest.raises(Refused, match="network filesystem"):
        drive(record.open())
    drive(record.close())
    tenant = Tenant(msgspec.structs.replace(settings, allow_network_filesystem=True))
    assert "network filesystems are allowed" in " ".join(drive(status(tenant.record)).failure_scope)
    tenant.finish()
