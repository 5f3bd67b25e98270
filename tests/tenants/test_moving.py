"""Moving a tenant: everything arrives, and whoever has the old place open is fenced."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from api.opening import deciding, writing
from journal import Settings, permits
from journal.control import Opening, Role, Stage, TenantMoved
from journal.errors import Forked, JournalUnavailable, Recovering, Refused, UnrewindError
from journal.observing import observe
from journal.outcomes import Outcome, Reported
from journal.permits import Asked
from journal.record import Record
from journal.registry import Registry
from journal.service import Journal
from journal.sqlite import Database
from journal.standing import change_control, detect
from journal.tokens import create_token
from journal.worker import drive
from journal.writepath import settle, turn
from reconstruct import moving
from reconstruct.moving import go_back, move
from reconstruct.verification import verify
from tests.support.sealing import Caller
from tests.support.tenants import Tenant, accepted, make_settings, operation
from tests.support.whole import verify_files

SHARE = 13
"""One point in so many is tried in a plain run, all of them in the long one. Odd: both sides."""


@pytest.fixture
def there(tmp_path: Path) -> Settings:
    return at(make_settings(tmp_path), tmp_path / "there")


def at(settings: Settings, folder: Path) -> Settings:
    return msgspec.structs.replace(
        settings, store=str(folder / "store"), journal=str(folder / "journal")
    )


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(sql).fetchall()


def fill(tenant: Tenant, *, embedded: bool = True) -> None:
    """Something of everything: decisions of all owners, rivals, gaps, work, observations."""
    tenant.decide("document/1", "submit", body={"title": "plan"})
    tenant.accept(operation("document/1", "approve", version="v1"))
    tenant.accept(operation("document/1", "release", version="v1"))
    tenant.decide("case/1", "open", "note", body={"value": 1})
    if embedded:
        tenant.decide("account/1", "set", body={"balance": 3})
    caller = tenant.caller(sequenced=True)
    first = caller.seal("contract/1")
    second = caller.seal("contract/1")
    tenant.append(first, second)
    gap = tenant.caller()
    gap.seal("contract/2")
    tenant.append(gap.seal("contract/2"))
    fork = tenant.caller()
    tenant.append(fork.seal("contract/3"))
    rival = Caller(fork.history, fork.generation)
    with pytest.raises(Forked):
        tenant.append(rival.seal("contract/3", action="other"))
    tenant.do(observe, Reported("rel_unknown", Outcome.CONFIRMED, receipt="r-1"), "a test")
    tenant.do(create_token, Role.WRITER, "a writer")
    tenant.do(settle)


@pytest.fixture
def full(tmp_path: Path) -> Settings:
    """A tenant that holds something of everything, closed."""
    settings = make_settings(tmp_path)
    tenant = Tenant(settings)
    try:
        fill(tenant)
    finally:
        tenant.close()
    return settings


def decide(settings: Settings, *wanted: str) -> None:
    with deciding(settings, create=False) as record:
        for each in wanted:
            accepted(drive(turn(record, [operation("case/1", "note", id=each)]))[0])


def same(old: Settings, new: Settings) -> None:
    """The new place holds what the old one does, and one entry more."""
    entries = "SELECT * FROM entries ORDER BY position"
    before, after = rows(old.journal_file, entries), rows(new.journal_file, entries)
    assert after[: len(before)] == before
    assert before[-1][6] != after[-1][6]
    for table in ("rivals", "chains", "flaws", "dropped"):
        query = f"SELECT * FROM {table} ORDER BY 1, 2" if table != "dropped" else "SELECT 1"
        assert rows(old.journal_file, query) == rows(new.journal_file, query), table
    for table in ("entities", "decisions", "work", "counts", "budgets", "callbacks"):
        query = f"SELECT * FROM unrewind_{table} ORDER BY 1, 2"
        assert rows(old.store_file, query) == rows(new.store_file, query), table
    ledger = "SELECT * FROM ledger ORDER BY 1"
    assert rows(old.store_file, ledger) == rows(new.store_file, ledger)


def test_p2_everything_arrives_and_the_tenant_goes_on(full: Settings, there: Settings) -> None:
    digest = verify(full).state_digest
    done = move(full, there, "somebody")
    assert (done.changed, done.stage, done.generation) == (True, "open", 3)
    assert done.state_digest == digest
    assert rows(there.journal_file, "SELECT count(*) FROM rivals")[0][0] == 1
    assert rows(there.journal_file, "SELECT count(*) FROM flaws")[0][0] > 1
    same(full, there)
    assert verify(there).state_digest == digest
    decide(there, "op-new")
    assert verify_files(there) == []
    known = Registry(full.home).read("main")
    assert known is not None
    assert (known.store, known.journal) == (there.store, there.journal)
    assert [(one.store, one.journal) for one in known.earlier] == [(None, None)]


def test_the_old_place_is_kept_closed_and_says_where_the_tenant_went(
    full: Settings, there: Settings
) -> None:
    move(full, there)
    assert full.store_file.exists()
    report = verify(full)
    assert str(there.store_file) in report.findings[-1].detail
    with pytest.raises(Recovering, match="moved to"):
        decide(full, "op-late")
    assert not full.beside("stop").exists()
    assert verify_files(there) == []


def test_p7_whoever_has_the_old_place_open_is_fenced_in_store_and_journal(
    tmp_path: Path, there: Settings
) -> None:
    tenant = Tenant(make_settings(tmp_path))
    tenant.diverged()
    tenant.damaged()
    try:
        tenant.decide("case/1", "note")
        move(tenant.settings, there)
        answered = len(rows(tenant.settings.journal_file, "SELECT 1 FROM entries"))
        stored = rows(tenant.settings.store_file, "SELECT * FROM unrewind_decisions")
        with pytest.raises(Recovering, match="moved to"):
            tenant.decide("case/1", "note")
        with pytest.raises(JournalUnavailable):
            tenant.do(observe, Reported("rel_1", Outcome.CONFIRMED), "late")
        for late in (
            lambda: tenant.do(create_token, Role.READER, "late"),
            lambda: tenant.do(settle),
            lambda: tenant.do(permits.claim, Asked("delivery", "w", "claim-late")),
            lambda: tenant.put_in_force(stage=Stage.OPEN),
        ):
            with pytest.raises(UnrewindError):
                late()
        assert not tenant.do(detect, deep=True).verdict.sound
        with pytest.raises(Refused, match="is at"):
            go_back(tenant.settings)
        with pytest.raises(Refused, match="is at"):
            move(tenant.settings, at(tenant.settings, tmp_path / "third"))
    finally:
        tenant.close()
    assert len(rows(tenant.settings.journal_file, "SELECT 1 FROM entries")) == answered
    assert rows(tenant.settings.store_file, "SELECT * FROM unrewind_decisions") == stored
    # Its stop would have been the stop of the tenant where it is now.
    assert not there.beside("stop").exists()
    decide(there, "op-new")
    assert verify_files(there) == []


async def test_p7_a_server_that_has_the_old_place_open_decides_nothing_more(
    tmp_path: Path, there: Settings
) -> None:
    settings = make_settings(tmp_path)
    journal = Journal(settings)
    await journal.start()
    try:
        await journal.accept(operation("case/1", "note", id="op-1"))
        await _apart(move, settings, there)
        with pytest.raises(Recovering):
            await journal.accept(operation("case/1", "note", id="op-2"))
        with pytest.raises(TenantMoved, match="moved to"):
            await journal.read(_control)
        await journal.settle()
        await journal.detect(deep=True)
    finally:
        await journal.stop()
    decide(there, "op-2")
    assert verify_files(there) == []


async def _control(record: Record) -> Any:
    return await record.read_control()


async def _apart(function: Callable[..., Any], *given: Any) -> None:
    import asyncio

    await asyncio.to_thread(function, *given)


def test_there_and_back_again(full: Settings, there: Settings) -> None:
    move(full, there)
    decide(there, "op-there")
    move(there, full)
    decide(full, "op-here")
    assert verify_files(full) == []
    with pytest.raises(Recovering, match="moved to"):
        decide(there, "op-late")
    known = Registry(full.home).read("main")
    assert known is not None
    assert len(known.earlier) == 2
    assert [path.name for path in full.store_file.parent.glob("replaced-main-*")] != []


@pytest.mark.parametrize("which", ["store", "journal"])
def test_one_of_the_two_moves_alone(full: Settings, there: Settings, which: str) -> None:
    target = msgspec.structs.replace(full, **{which: getattr(there, which)})
    move(full, target)
    decide(target, "op-new")
    assert verify_files(target) == []
    again = move(target, target)
    assert not again.changed


def test_a_store_is_not_moved_alone_from_under_a_live_process(
    tmp_path: Path, there: Settings
) -> None:
    tenant = Tenant(make_settings(tmp_path))
    try:
        target = msgspec.structs.replace(tenant.settings, store=there.store)
        with pytest.raises(Refused, match="while no process has the tenant open"):
            move(tenant.settings, target)
        tenant.decide("case/1", "note")
        tenant.finish()
    finally:
        tenant.close()


def test_the_stage_that_was_in_force_is_in_force_there(full: Settings, there: Settings) -> None:
    with writing(full) as record:
        drive(
            change_control(
                record,
                "stage",
                lambda control: msgspec.structs.replace(control.authority, stage=Stage.EXTERNAL),
                {"reason": "a test", "opening": {"lanes": ["delivery"], "rate": 2.0}},
            )
        )
    assert move(full, there).stage == "external"
    with writing(there) as record:
        control = drive(record.read_control())
    assert control.opening == Opening(lanes=("delivery",), rate=2.0)
    assert control.begun is None
    assert [token.name for token in control.tokens.values()] == ["a writer"]


def test_a_tenant_that_is_not_sound_does_not_move(full: Settings, there: Settings) -> None:
    shutil.copyfile(full.store_file, full.home / "older.db")
    decide(full, "op-lost")
    for suffix in ("-wal", "-shm"):
        full.store_file.with_name(full.store_file.name + suffix).unlink(missing_ok=True)
    shutil.move(full.home / "older.db", full.store_file)
    with pytest.raises(Refused, match="recover it before it moves"):
        move(full, there)
    assert not there.journal_file.exists()
    assert Registry(full.home).read("main") is None


def test_nothing_of_another_tenant_is_written_over(
    full: Settings, there: Settings, tmp_path: Path
) -> None:
    other = msgspec.structs.replace(there, data=str(tmp_path / "other"))
    tenant = Tenant(other)
    tenant.decide("case/1", "note")
    tenant.finish()
    with pytest.raises(Refused, match="another journal stands at"):
        move(full, there)
    assert verify_files(other) == []
    assert go_back(full).stage == "open"
    decide(full, "op-new")
    assert verify_files(full) == []
    with pytest.raises(Refused, match="no move"):
        go_back(other)


def running(settings: Settings) -> str:
    """Claim a release and leave it under way; its ID."""
    tenant = Tenant(settings)
    try:
        tenant.decide("document/1", "submit")
        tenant.accept(operation("document/1", "approve", version="v1"))
        tenant.accept(operation("document/1", "release", version="v1"))
        claimed = tenant.do(permits.claim, Asked("delivery", "w", "claim-1"))
        return claimed.permits[0].id
    finally:
        tenant.close()


def test_p4_calls_under_way_are_waited_for_and_else_the_tenant_stays(
    tmp_path: Path, there: Settings
) -> None:
    settings = make_settings(tmp_path)
    identity = running(settings)
    with pytest.raises(Refused, match=identity):
        move(settings, there, wait=0.1)
    with writing(settings) as record:
        assert drive(record.read_control()).authority.stage is Stage.OPEN
    assert not there.store_file.exists()
    decide(settings, "op-new")
    assert verify_files(settings) == []


# Kills.


class Fuse:
    """Kills this process at the n-th call, before or after it has done its work; 0 never."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.at, self.after, self.made = at, after, 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*given: Any, **named: Any) -> Any:
            self.made += 1
            number = self.made
            if number == self.at and not self.after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*given, **named)
            if number == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return called


TOUCHED: list[tuple[Any, str]] = [
    (Database, "batch"),
    (Database, "run"),
    (Database, "copy_to"),
    (Database, "__init__"),
    (Path, "rename"),
    (Path, "replace"),
    (Path, "mkdir"),
    (os, "replace"),
]


def killed_at(old: Settings, new: Settings, number: int, *, after: bool = False) -> int | None:
    """Move in a child that is killed at a call; None if it was, else how many calls it made."""
    log = old.home / "calls"
    log.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            fuse = Fuse(number, after=after)
            for owner, name in TOUCHED:
                setattr(owner, name, fuse.around(getattr(owner, name)))
            move(old, new, wait=0)
            log.write_text(json.dumps(fuse.made))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return None
    assert os.WEXITSTATUS(status) == 0
    return int(json.loads(log.read_text()))


def points(folder: Path) -> list[tuple[int, bool]]:
    copied = at(make_settings(folder), folder / "there")
    calls = killed_at(make_settings(folder), copied, 0)
    assert calls is not None
    return [(number, after) for number in range(1, calls + 1) for after in (False, True)]


def kill_and_run_again(template: Path, folder: Path, number: int, *, after: bool) -> None:
    shutil.copytree(template, folder)
    old = make_settings(folder)
    new = at(old, folder / "there")
    digest = verify(old).state_digest
    assert killed_at(old, new, number, after=after) is None, number
    registered = Registry(old.home).read("main") is not None
    done = move(new if registered else old, new, wait=0)
    assert done.stage == "open"
    same(old, new)
    assert verify(new).state_digest == digest, (number, after)
    with pytest.raises(Recovering, match="moved to"):
        decide(old, "op-late")
    decide(new, "op-new")
    assert verify_files(new) == []
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("template") / "made"
    tenant = Tenant(make_settings(folder))
    try:
        fill(tenant)
    finally:
        tenant.close()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_p11_a_move_killed_at_a_step_ends_the_same_when_it_is_run_again(
    template: Path, tmp_path: Path
) -> None:
    shutil.copytree(template, tmp_path / "counted")
    every = points(tmp_path / "counted")
    assert len(every) > SHARE * 4
    for number, after in every[::SHARE]:
        kill_and_run_again(template, tmp_path / f"{number}-{after}", number, after=after)


@pytest.mark.soak
def test_p11_a_move_killed_at_every_step(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template, tmp_path / "counted")
    for number, after in points(tmp_path / "counted"):
        kill_and_run_again(template, tmp_path / f"{number}-{after}", number, after=after)


def test_p11_killed_over_and_over_a_move_gets_there(template: Path, tmp_path: Path) -> None:
    shutil.copytree(template, tmp_path / "again")
    old = make_settings(tmp_path / "again")
    new = at(old, tmp_path / "again" / "there")
    kills, number = 0, 2
    while killed_at(old, new, number) is None:
        kills, number = kills + 1, number + 5
        if Registry(old.home).read("main") is not None:
            break
    assert kills > 3
    same(old, new)
    assert verify_files(new) == []


@pytest.mark.parametrize("step", ["sealed", "copied", "arrived"])
def test_a_move_that_has_not_ended_can_be_given_up(
    full: Settings, there: Settings, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    name = {"sealed": "_copy", "copied": "_arrive", "arrived": "_register"}[step]
    with monkeypatch.context() as patch:
        patch.setattr(moving, name, killed)
        with pytest.raises(Killed):
            move(full, there)
    with pytest.raises(Refused, match="on its way to"):
        move(full, at(full, full.home / "third"))
    done = go_back(full)
    assert (done.stage, done.generation) == ("open", 3)
    decide(full, "op-new")
    assert verify_files(full) == []
