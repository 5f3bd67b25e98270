"""A look that is remembered: nobody else's change, and no failure of our own, is ever missed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from journal.acceptance import Acceptance
from journal.control import Stage
from journal.entry import Entry
from journal.errors import ConstraintFailed, DiskFailed
from journal.log import CONTROL, DECISIONS, OBSERVATIONS, Append, Look, Moved
from journal.log.sqlite import SqliteLog
from journal.worker import drive
from journal.writepath import turn
from tests.contract.test_log import FORCE, as_decisions, decisions
from tests.support.sealing import sealed
from tests.support.tenants import Tenant, operation


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[tuple[SqliteLog, SqliteLog, Path]]:
    """Two processes' connections to one journal, and its path."""
    path = tmp_path / "main.db"
    ours = SqliteLog(path, create=True)
    founding = sealed(b"", entity="control/tenant", operation="found", sequence=1)
    drive(ours.append(Append([(CONTROL, founding)], becomes=FORCE), drive(ours.look())))
    theirs = SqliteLog(path)
    yield ours, theirs, path
    drive(theirs.close())
    drive(ours.close())


def look_anew(path: Path) -> Look:
    """What a connection says that remembers nothing."""
    fresh = SqliteLog(path, read_only=True)
    try:
        return drive(fresh.look())
    finally:
        drive(fresh.close())


def add(log: SqliteLog, *entries: Entry) -> None:
    drive(log.append(Append(as_decisions(entries)), drive(log.look())))


def statements(log: SqliteLog) -> list[str]:
    """From now on what the log runs."""
    ran: list[str] = []
    log.database.connection.set_trace_callback(ran.append)
    return ran


def test_p8_a_look_is_remembered_only_while_nobody_else_writes(
    journal: tuple[SqliteLog, SqliteLog, Path],
) -> None:
    ours, theirs, path = journal
    first, second, third = decisions(3)
    add(ours, first)
    ran = statements(ours)
    assert drive(ours.look()) == look_anew(path)
    assert ran == ["PRAGMA data_version"]
    add(theirs, second)
    assert drive(ours.look()) == look_anew(path)
    assert any("FROM entries" in sql for sql in ran)
    add(ours, third)
    assert drive(theirs.look()) == look_anew(path)


def test_p8_an_append_is_refused_after_anothers(
    journal: tuple[SqliteLog, SqliteLog, Path],
) -> None:
    ours, theirs, path = journal
    first, second, third = decisions(3)
    add(ours, first)
    seen = drive(ours.look())
    add(theirs, second)
    with pytest.raises(Moved):
        drive(ours.append(Append(as_decisions([third])), seen))
    assert drive(ours.look()) == look_anew(path)


def test_p1_an_append_that_failed_is_not_remembered(
    journal: tuple[SqliteLog, SqliteLog, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, _, path = journal
    first, second = decisions(2)
    add(ours, first)
    seen = drive(ours.look())
    with pytest.raises(ConstraintFailed):
        drive(ours.append(Append(as_decisions([second, first])), seen))
    assert drive(ours.look()) == seen == look_anew(path)

    wrote = ours._wrote

    def fail(append: Append, before: Look) -> None:
        wrote(append, before)
        raise DiskFailed("the disk is full")

    monkeypatch.setattr(ours, "_wrote", fail)
    with pytest.raises(DiskFailed):
        drive(ours.append(Append(as_decisions([second])), seen))
    assert drive(ours.look()) == seen == look_anew(path)


@pytest.mark.parametrize("seed", range(5))
def test_p8_whatever_is_appended_by_whom_a_look_is_what_the_file_says(
    journal: tuple[SqliteLog, SqliteLog, Path], seed: int
) -> None:
    ours, theirs, path = journal
    chance = random.Random(seed)
    entries = iter(decisions(200))
    force = FORCE
    for number in range(2, 80):
        log = chance.choice([ours, theirs])
        seen = drive(log.look())
        assert seen == look_anew(path)
        act = chance.randrange(5)
        if act == 0:
            stage = chance.choice([*Stage])
            force = msgspec.structs.replace(force, stage=stage)
            name = f"control/token-{number}"
            entry = sealed(b"", entity=name, operation=f"c-{number}", sequence=seen.control + 1)
            append = Append([(CONTROL, entry)], becomes=force)
        elif act == 1:
            entry = sealed(b"", entity=f"seen/{number}", operation=f"o-{number}", sequence=number)
            append = Append([(OBSERVATIONS, entry)])
        else:
            taken = [next(entries) for _ in range(chance.randrange(1, 3))]
            append = Append([(DECISIONS, entry) for entry in taken])
        drive(log.append(append, seen))
    assert drive(ours.look()) == drive(theirs.look()) == look_anew(path)


def test_p8_turns_of_two_processes_follow_each_other(tenant: Tenant) -> None:
    other = tenant.companion()
    for number in range(6):
        record = tenant.record if number % 2 else other
        (answer,) = drive(turn(record, [operation("case/1", "note")]))
        assert isinstance(answer, Acceptance)
        assert answer.revision == number + 1
