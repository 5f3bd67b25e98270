"""Every way in which a store was seen to change under a tenant, each noticed and recovered from."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import journal
from journal.control import Role
from journal.detection import Verdict
from journal.errors import JournalUnavailable, Recovering, Refused, UnrewindError
from journal.settings import Settings
from journal.store import tables
from journal.worker import drive
from journal.writepath import turn
from reconstruct import recovery, snapshots, verification
from reconstruct.snapshots import FILE
from tests.reconstruct.scenes import Scene, checkpoint, facts, kill, overwrite, query, raw
from tests.support.tenants import Tenant, make_settings, operation


def moved(scene: Scene, tmp_path: Path) -> str | None:
    """Decisions, a snapshot, more decisions; the digest of the newest state."""
    scene.fill(9)
    scene.fill(3, kind="account")
    scene.settle()
    scene.keep(tmp_path / "old")
    scene.fill(9, entities=4)
    scene.fill(4, kind="account", entities=4)
    scene.settle()
    return scene.digest()


def test_p8_a_store_replaced_by_rename_under_an_open_record(scene: Scene, tmp_path: Path) -> None:
    before = moved(scene, tmp_path)
    scene.rewind(tmp_path / "old" / FILE)
    with pytest.raises(Recovering, match="the store ends at sequence"):
        scene.put("case/0", "on the wrong file")
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


async def test_p8_a_store_replaced_by_rename_under_an_open_service(
    settings: Settings, tmp_path: Path
) -> None:
    async with journal.open(settings) as service:
        for number in range(5):
            await service.accept(operation(f"case/{number}", "set", {"value": number}))
        snapshots_of = Tenant(settings)
        drive(snapshots.snapshot(snapshots_of.record, tmp_path / "old"))
        late = [
            await service.accept(operation(f"case/{number}", "set", {"value": -number}))
            for number in range(5)
        ]
        before = verification.verify(settings).state_digest
        snapshots_of.rewind(tmp_path / "old" / FILE)
        snapshots_of.close()
        with pytest.raises(Recovering):
            await service.accept(operation("case/0", "set"))
        with pytest.raises(Recovering):
            await service.entity("case/0")
        assert (await service.status()).verdict == "rewound"
        recovery.stop(settings, "a test")
        rescuer = Tenant(settings)
        rescuer.do(recovery.begin, "a test")
        rescuer.do(recovery.apply)
        rescuer.do(recovery.reopen)
        rescuer.close()
        assert verification.verify(settings).state_digest == before
        assert (await service.operation(late[0].operation)).digest == late[0].digest
        view = await service.entity("case/1")
        assert view.revision == 2
        assert (await service.accept(operation("case/1", "set"))).revision == 3
    assert verification.verify(settings).verdict == "clean"


async def test_p8_a_store_overwritten_in_place_under_a_service_and_stopped_cleanly(
    settings: Settings, tmp_path: Path
) -> None:
    async with journal.open(settings) as service:
        for number in range(400):
            body = {"value": f"{number}-" + "x" * 500}
            await service.accept(operation(f"case/{number % 40}", "set", body))
        beside = Tenant(settings)
        drive(snapshots.snapshot(beside.record, tmp_path / "old"))
        for number in range(40):
            await service.accept(operation(f"case/{number}", "set", {"value": f"new {number}"}))
        before = verification.verify(settings).state_digest
        beside.close()
        checkpoint(settings.store_file)
        overwrite(settings.store_file, (tmp_path / "old" / FILE).read_bytes())
    # The service has stopped; whatever it thought of it, a start notices.
    async with journal.open(settings) as service:
        with pytest.raises(Recovering):
            await service.accept(operation("case/1", "set"))
    scene = Scene(settings)
    assert scene.detect() in {Verdict.REWOUND, Verdict.REPLACED}
    scene.recover()
    assert scene.digest() == before
    scene.whole()
    scene.close()


async def test_p8_a_store_overwritten_in_place_takes_no_decision(
    settings: Settings, tmp_path: Path
) -> None:
    async with journal.open(settings) as service:
        for number in range(40):
            await service.accept(operation(f"case/{number}", "set", {"value": number}))
        beside = Tenant(settings)
        drive(snapshots.snapshot(beside.record, tmp_path / "old"))
        beside.close()
        for number in range(20):
            await service.accept(operation(f"case/{number}", "set", {"value": f"new {number}"}))
        checkpoint(settings.store_file)
        overwrite(settings.store_file, (tmp_path / "old" / FILE).read_bytes())
        with pytest.raises(Recovering):
            await service.accept(operation("case/1", "set"))


def test_p8_an_older_database_file_beside_its_newer_log(scene: Scene, tmp_path: Path) -> None:
    scene.fill(300, entities=100)
    scene.settle()
    checkpoint(scene.settings.store_file)
    old = scene.settings.store_file.read_bytes()
    scene.fill(100, entities=50)
    checkpoint(scene.settings.store_file)
    scene.put("case/7", "in the log alone")
    before = scene.digest()
    kill(scene.record)
    scene.records.clear()
    assert scene.settings.store_file.with_name("main.db-wal").stat().st_size > 0
    overwrite(scene.settings.store_file, old)
    scene.open()
    assert scene.detect() in {Verdict.REWOUND, Verdict.REPLACED}
    with pytest.raises(Recovering):
        scene.put("case/7", "not now")
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("content", [b"", b"garbage" * 5000, b"SQLite format 3\0" + b"x" * 9000])
def test_a_store_of_no_use_is_built_anew(scene: Scene, tmp_path: Path, content: bytes) -> None:
    before = moved(scene, tmp_path)
    scene.close()
    for suffix in ("-wal", "-shm"):
        scene.settings.store_file.with_name("main.db" + suffix).unlink(missing_ok=True)
    scene.settings.store_file.write_bytes(content)
    scene.open()
    assert scene.detect() is Verdict.REPLACED
    with pytest.raises(Recovering):
        scene.put("case/0", 1)
    applied = scene.recover()
    assert applied.replayed == len(scene.told)
    assert scene.digest() == before
    kept = list(scene.settings.store_file.parent.glob("replaced-*/main.db"))
    assert [file.read_bytes() for file in kept] == [content]
    scene.repeats()
    scene.whole()


def test_a_store_that_is_gone_is_built_anew(scene: Scene, tmp_path: Path) -> None:
    before = moved(scene, tmp_path)
    scene.close()
    shutil.rmtree(scene.settings.store_file.parent)
    scene.open()
    assert scene.detect() is Verdict.REPLACED
    assert scene.plan().fresh_store
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_store_with_zeroed_pages_is_never_trusted(
    scene: Scene, tmp_path: Path, share: float
) -> None:
    scene.fill(300, entities=100)
    scene.fill(100, kind="account", entities=50)
    scene.settle()
    before = scene.digest()
    scene.close()
    file = scene.settings.store_file
    size = file.stat().st_size
    page = 4096
    with file.open("r+b") as handle:
        handle.seek(int(size * share) // page * page)
        handle.write(bytes(3 * page))
    scene.open()
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def test_a_missing_journal_closes_without_an_append_and_comes_back(
    scene: Scene, tmp_path: Path
) -> None:
    before = moved(scene, tmp_path)
    folder = scene.settings.journal_file.parent
    scene.close()
    away = folder.with_name("away")
    folder.rename(away)
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    assert scene.record.stop.stands()
    for _ in range(2):
        with pytest.raises(Refused, match="stopped, not fenced: do not restore"):
            scene.do(recovery.begin, "a test")
    with pytest.raises(UnrewindError):
        scene.put("case/0", 1)
    assert scene.plan().direction == "journal"
    assert not scene.settings.journal_file.exists()
    scene.close()
    shutil.rmtree(folder, ignore_errors=True)
    away.rename(folder)
    scene.open()
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("content", [b"", b"garbage" * 5000])
def test_an_unreadable_journal_is_stopped_and_not_fenced(
    scene: Scene, tmp_path: Path, content: bytes
) -> None:
    before = moved(scene, tmp_path)
    scene.close()
    file = scene.settings.journal_file
    good = file.read_bytes()
    file.write_bytes(content)
    for suffix in ("-wal", "-shm"):
        file.with_name("main.db" + suffix).unlink(missing_ok=True)
    scene.open()
    with pytest.raises(Refused, match="stopped, not fenced: do not restore"):
        scene.do(recovery.begin, "a test")
    with pytest.raises(UnrewindError):
        scene.put("case/0", 1)
    planned = scene.plan()
    assert (planned.direction, planned.exceptions > 0) == ("journal", True)
    scene.close()
    for suffix in ("-wal", "-shm"):
        file.with_name("main.db" + suffix).unlink(missing_ok=True)
    file.write_bytes(good)
    scene.open()
    scene.recover()
    assert scene.digest() == before
    scene.repeats()


def test_r10_p2_a_rewound_journal_is_never_taken_for_a_longer_store(
    scene: Scene, tmp_path: Path
) -> None:
    moved(scene, tmp_path)
    scene.do(recovery.begin, "a test")
    scene.do(recovery.apply)
    scene.close()
    copy = scene.settings.journal_file.read_bytes()
    scene.open()
    scene.do(recovery.reopen)
    scene.fill(5)
    scene.settle()
    acknowledged = query(scene.settings.store_file, "SELECT * FROM unrewind_decisions")
    scene.close()
    scene.settings.journal_file.write_bytes(copy)
    scene.open()
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    with pytest.raises(Refused, match="do not restore"):
        scene.do(recovery.begin, "a test")
    planned = scene.plan()
    assert (planned.direction, planned.missing) == ("journal", 5)
    with pytest.raises(Refused, match="plan is now"):
        scene.do(recovery.apply, "0123456789abcdef")
    assert scene.detect() is Verdict.JOURNAL_REWOUND
    applied = scene.do(recovery.apply, planned.plan)
    assert (applied.undone, applied.incomplete) == (0, [])
    assert query(scene.settings.store_file, "SELECT * FROM unrewind_decisions") == acknowledged
    scene.do(recovery.reopen, despite={"reconciled"})
    scene.repeats()
    scene.whole()


def test_r19_restored_twice_and_unrewound_three_histories_and_nothing_lost(
    scene: Scene, tmp_path: Path
) -> None:
    moved(scene, tmp_path)
    scene.keep(tmp_path / "newest")
    histories = [scene.control().authority.history]
    for folder in ("old", "newest", "old", "old"):
        scene.restore(tmp_path / folder)
        # The newest file agrees with the journal only until a recovery has ended its history.
        assert scene.detect() is Verdict.REWOUND
        histories.append(scene.recover().history)
        scene.fill(5)
        scene.repeats()
        scene.whole()
    records = scene.control().histories
    assert [record.history for record in records] == histories
    assert [record.parent for record in records] == [None, *histories[:-1]]
    assert len(set(histories)) == 5


def test_the_same_snapshot_twice_before_a_reopening(scene: Scene, tmp_path: Path) -> None:
    before = moved(scene, tmp_path)
    scene.restore(tmp_path / "old")
    scene.do(recovery.begin, "a test")
    first = scene.do(recovery.apply)
    scene.restore(tmp_path / "old")
    assert scene.detect() is Verdict.REWOUND
    with pytest.raises(Refused):
        scene.do(recovery.reopen)
    applied = scene.recover()
    assert applied.history == first.history
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def other(tmp_path: Path, **changes: str) -> Scene:
    """Another tenant or instance with decisions of its own."""
    foreign = Scene(make_settings(tmp_path / "foreign", **changes))
    foreign.fill(7, entities=5)
    foreign.fill(3, kind="account", entities=2)
    foreign.settle()
    return foreign


@pytest.mark.parametrize("changes", [{"tenant": "other"}, {"instance": "staging"}])
def test_r18_a_foreign_store_is_refused_and_kept_as_it_was(
    scene: Scene, tmp_path: Path, changes: dict[str, str]
) -> None:
    before = moved(scene, tmp_path)
    foreign = other(tmp_path, **changes)
    foreign.close()
    content = foreign.settings.store_file.read_bytes()
    scene.close()
    scene.settings.store_file.write_bytes(content)
    scene.open()
    assert scene.detect() is Verdict.REPLACED
    planned = scene.plan()
    assert planned.fresh_store
    assert planned.local_only == []
    scene.recover()
    assert scene.digest() == before
    kept = list(scene.settings.store_file.parent.glob("replaced-*/main.db"))
    marker = query(kept[0], "SELECT tenant, instance, generation FROM unrewind_marker")
    assert marker == [(foreign.settings.tenant, foreign.settings.instance, 1)]
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("changes", [{"tenant": "other"}, {"instance": "staging"}])
def test_r18_a_journal_of_another_tenant_or_instance_closes(
    scene: Scene, tmp_path: Path, changes: dict[str, str]
) -> None:
    moved(scene, tmp_path)
    foreign = other(tmp_path, **changes)
    foreign.close()
    scene.close()
    content = foreign.settings.journal_file.read_bytes()
    scene.settings.journal_file.write_bytes(content)
    scene.open()
    assert scene.detect() is Verdict.CLOSED
    assert scene.record.stop.stands()
    with pytest.raises(Recovering):
        scene.put("case/0", 1)
    with pytest.raises(Refused, match="do not restore"):
        scene.do(recovery.begin, "a test")
    for step in (recovery.plan, recovery.apply):
        with pytest.raises(UnrewindError):
            scene.do(step)
    scene.close()
    assert scene.settings.journal_file.read_bytes() == content


def test_a_crash_between_store_and_journal_is_handed_off(scene: Scene) -> None:
    scene.fill(3)
    wanted = operation("case/0", "set", {"value": "half way"})
    scene.local_only(wanted)
    kill(scene.record)
    scene.records.clear()
    scene.open()
    assert scene.detect() is Verdict.CRASHED
    answer = scene.submit(wanted)
    assert answer.outcome == "duplicate"
    assert len(scene.control().histories) == 1
    scene.repeats()
    scene.whole()


def test_a_crash_is_handed_off_by_begin(scene: Scene) -> None:
    scene.fill(3)
    wanted = operation("case/0", "set", {"value": "half way"})
    scene.local_only(wanted)
    applied = scene.recover()
    assert (applied.undone, applied.rebuilt) == (0, 0)
    assert scene.submit(wanted).outcome == "duplicate"
    scene.repeats()
    scene.whole()


def branched(scene: Scene, tmp_path: Path, mine: int, theirs: int) -> tuple[list, list]:
    """A snapshot with ``mine`` local-only decisions; the journal has ``theirs`` in their places."""
    scene.fill(6)
    scene.fill(2, kind="account", entities=1)
    scene.settle()
    scene.keep(tmp_path / "common")
    entities = ["case/0", "case/new", "account/0", "account/new", "document/new", "case/1"]
    actions = ["set", "set", "set", "set", "submit", "set"]
    local = [
        operation(entity, action, {"value": "local", "balance": 7})
        for entity, action in list(zip(entities, actions, strict=True))[:mine]
    ]
    scene.local_only(*local[:1])
    if mine > 1:
        # The journal is still away: decisions pile up in the store alone.
        pile_up(scene, local[1:])
    scene.keep(tmp_path / "local")
    scene.close()
    snapshots.restore(
        scene.settings,
        tmp_path / "common",
        "main",
        query(scene.settings.journal_file, "SELECT history FROM authority")[0][0],
    )
    scene.open()
    for number in range(theirs):
        scene.put(f"case/{number}", f"theirs {number}")
    return local, entities


def pile_up(scene: Scene, wanted: list) -> None:
    """More local-only decisions than the write path itself would leave."""
    from journal.acceptance import Context, View, judge
    from journal.control import tip_of

    record = scene.record
    assert record.store is not None
    for each in wanted:
        marker = drive(record.marker())
        assert marker is not None
        control = drive(record.read_control())
        tip = tip_of(control.authority, marker.place)
        heads = tables.heads_of(drive(record.store.read([tables.read_heads([each.entity])]))[0])
        context = Context(record.rules, record.clock.now())
        judged = judge([each], View(tip, heads, {}), context)
        from journal.writepath import project

        statements: list[Any] = [
            tables.fence(marker, judged.tip, marker.journalled),
            *tables.write_decisions(judged.decisions),
            *project(record, judged.decisions),
        ]
        drive(record.store.batch(statements))


@pytest.mark.parametrize(
    ("mine", "theirs"), [(1, 0), (6, 0), (1, 1), (6, 1), (6, 6), (1, 6), (6, 9)]
)
def test_local_only_decisions_are_undone_in_every_table(
    scene: Scene, tmp_path: Path, mine: int, theirs: int
) -> None:
    local, _ = branched(scene, tmp_path, mine, theirs)
    scene.settle()
    before = scene.digest()
    ledger = query(scene.settings.store_file, "SELECT * FROM ledger ORDER BY entity")
    scene.restore(tmp_path / "local")
    if theirs == 0:
        # Nothing contradicts them: they were merely not handed off yet.
        assert scene.detect() is Verdict.CRASHED
        applied = scene.recover()
        assert applied.undone == 0
        assert [scene.accept(each).outcome for each in local] == ["duplicate"] * mine
        scene.repeats()
        scene.whole()
        return
    assert scene.detect() is Verdict.FORKED
    planned = scene.plan()
    assert [item.operation for item in planned.local_only] == [each.operation for each in local]
    applied = scene.recover()
    assert applied.undone == mine
    assert scene.digest() == before
    assert query(scene.settings.store_file, "SELECT * FROM ledger ORDER BY entity") == ledger
    scene.repeats()
    for each in local:
        assert scene.submit(each).outcome == "accepted"
    scene.whole()


def test_p7_a_store_row_written_behind_a_fence_is_undone(scene: Scene, tmp_path: Path) -> None:
    """A record from before ``begin`` that still commits to a store makes no decision."""
    scene.fill(6)
    scene.settle()
    before = scene.digest()
    scene.keep(tmp_path / "kept")
    late = operation("case/0", "set", {"value": "too late"})
    pile_up(scene, [late])
    scene.keep(tmp_path / "ahead")
    scene.restore(tmp_path / "kept")
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    scene.restore(tmp_path / "ahead")
    applied = scene.do(recovery.apply)
    scene.do(recovery.reopen)
    assert applied.undone == 1
    assert scene.digest() == before
    scene.repeats()
    assert scene.accept(late).outcome == "accepted"
    scene.whole()


def test_p7_an_open_record_decides_nothing_after_begin(scene: Scene) -> None:
    scene.fill(3)
    old = scene.companion()
    recovery.stop(scene.settings, "a test")
    scene.do(recovery.begin, "a test")
    count = query(scene.settings.journal_file, "SELECT count(*) FROM entries")
    for stopped in (True, False):
        if not stopped:
            scene.record.stop.take_down()
        with pytest.raises(Recovering):
            drive(turn(old, [operation("case/0", "set")]))
    assert query(scene.settings.journal_file, "SELECT count(*) FROM entries") == count
    scene.do(recovery.apply)
    scene.do(recovery.reopen)
    answer = drive(turn(old, [operation("case/0", "set")]))[0]
    assert not isinstance(answer, UnrewindError)
    assert (answer.generation, answer.history) == (2, scene.control().authority.history)
    scene.whole()


def test_a_torn_store_whose_marker_is_ahead_of_its_decisions(scene: Scene, tmp_path: Path) -> None:
    before = moved(scene, tmp_path)
    scene.close()
    raw(scene.settings.store_file, "DELETE FROM unrewind_decisions WHERE sequence > 10")
    scene.open()
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def test_a_torn_store_whose_marker_is_behind_its_rows(scene: Scene, tmp_path: Path) -> None:
    before = moved(scene, tmp_path)
    place = query(
        scene.settings.journal_file,
        "SELECT lower(hex(digest)) FROM entries WHERE stream = 'decisions' AND sequence = 10",
    )[0][0]
    scene.close()
    raw(
        scene.settings.store_file,
        ("UPDATE unrewind_marker SET sequence = 10, digest = ?, journalled = 10", (place,)),
    )
    scene.open()
    assert scene.detect() is Verdict.REWOUND
    applied = scene.recover()
    assert applied.incomplete == []
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def test_a_torn_store_that_lacks_decisions_in_the_middle(scene: Scene, tmp_path: Path) -> None:
    before = moved(scene, tmp_path)
    scene.close()
    raw(scene.settings.store_file, "DELETE FROM unrewind_decisions WHERE sequence IN (3, 4, 11)")
    scene.open()
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def test_p8_rows_that_were_changed_behind_the_marker(scene: Scene, tmp_path: Path) -> None:
    before = moved(scene, tmp_path)
    scene.close()
    raw(
        scene.settings.store_file,
        "UPDATE unrewind_entities SET data = '{\"value\":\"forged\"}' WHERE entity = 'case/1'",
        "DELETE FROM unrewind_entities WHERE entity = 'case/2'",
        "INSERT INTO unrewind_entities SELECT 'case/ghost', revision, history, digest, sequence,"
        " state, version, data FROM unrewind_entities WHERE entity = 'case/0'",
    )
    scene.open()
    assert scene.detect() is Verdict.REWOUND
    planned = scene.plan()
    assert planned.rebuild == ["case/1", "case/2", "case/ghost"]
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


@pytest.mark.parametrize("how", ["lost", "flipped"])
def test_a_pending_decision_that_cannot_be_handed_off_does_not_block_recovery(
    scene: Scene, how: str
) -> None:
    scene.fill(4)
    scene.settle()
    before = scene.digest()
    wanted = [operation("case/0", "set", {"value": n}) for n in ("x", "y")]
    pile_up(scene, wanted)
    scene.close()
    if how == "lost":
        raw(scene.settings.store_file, "DELETE FROM unrewind_decisions WHERE sequence = 5")
    else:
        raw(
            scene.settings.store_file,
            "UPDATE unrewind_decisions SET envelope = replace(envelope, '\"set\"', '\"sat\"')"
            " WHERE sequence = 5",
        )
    scene.open()
    with pytest.raises(Recovering):
        scene.put("case/1", "not on this store")
    assert scene.record.stop.stands()
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def test_a_torn_store_under_a_live_companion_is_not_laundered_by_begin(
    scene: Scene, tmp_path: Path
) -> None:
    before = moved(scene, tmp_path)
    checkpoint(scene.settings.store_file)
    with closing(sqlite3.connect(scene.settings.store_file)) as database:
        database.execute("UPDATE unrewind_entities SET data = '{}' WHERE entity = 'case/1'")
        database.commit()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    # The record stays open, as a hung server would; the rescuer is another one.
    rescuer = Scene(scene.settings)
    recovery.stop(scene.settings, "a test")
    for step in (lambda: rescuer.do(recovery.begin, "a test"), rescuer.plan):
        step()
        rescuer.reopen()
    rescuer.recover()
    rescuer.close()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def test_a_snapshot_of_a_torn_store_is_not_trusted_for_being_restored(
    scene: Scene, tmp_path: Path
) -> None:
    before = moved(scene, tmp_path)
    scene.close()
    raw(
        scene.settings.store_file,
        "UPDATE unrewind_entities SET data = '{\"value\":\"forged\"}' WHERE entity = 'case/1'",
    )
    scene.open()
    scene.keep(tmp_path / "torn")
    scene.restore(tmp_path / "torn")
    assert not scene.record.stopped_clean()
    assert scene.detect(deep=not scene.record.stopped_clean()) is Verdict.REWOUND
    scene.recover()
    assert scene.digest() == before
    scene.repeats()
    scene.whole()


def test_a_clean_stop_is_trusted_and_nothing_else_is(scene: Scene, tmp_path: Path) -> None:
    import asyncio

    async def serve() -> None:
        async with journal.open(scene.settings):
            pass

    moved(scene, tmp_path)
    scene.close()
    asyncio.run(serve())
    scene.open()
    assert scene.record.stopped_clean()
    scene.close()
    verification.verify(scene.settings)  # a reader leaves an empty log behind
    scene.open()
    assert scene.record.stopped_clean()
    scene.close()
    content = scene.settings.store_file.read_bytes()
    overwrite(scene.settings.store_file, content)
    scene.open()
    assert not scene.record.stopped_clean()
    scene.detect()


def test_p9_tokens_and_decisions_are_refused_without_control(scene: Scene, tmp_path: Path) -> None:
    from journal.tokens import create_token

    moved(scene, tmp_path)
    drive(create_token(scene.record, Role.READER, "before"))
    scene.close()
    raw(
        scene.settings.journal_file,
        "UPDATE entries SET body = CAST('{}' AS BLOB) WHERE stream = 'control' AND sequence = 2",
    )
    scene.open()
    assert scene.detect() is Verdict.CLOSED
    with pytest.raises(Recovering):
        scene.put("case/0", 1)
    with pytest.raises(UnrewindError):
        drive(create_token(scene.record, Role.READER, "after"))
    with pytest.raises(Refused, match="do not restore"):
        scene.do(recovery.begin, "a test")


def test_facts_leave_out_only_what_the_first_answer_alone_can_tell(scene: Scene) -> None:
    answer = scene.put("case/0", 1)
    left_out = set(answer.__struct_fields__) - facts(answer).keys()
    assert left_out == {"outcome", "existing", "commands"}


def test_an_unreachable_journal_is_not_reported_as_closed_for_good(scene: Scene) -> None:
    scene.fill(2)
    assert scene.record.log is not None
    scene.record.log.database.close()
    with pytest.raises((JournalUnavailable, UnrewindError)):
        scene.put("case/0", 1)
    scene.reopen()
    scene.put("case/0", 1)
    scene.whole()
