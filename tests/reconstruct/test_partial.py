"""A part of the store is put back alone: its marker and its entities are right, its work is old."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from journal import standing, writepath
from journal.detection import Finding, Verdict
from journal.errors import Damaged, JournalUnavailable, Recovering
from journal.record import Record
from journal.sqlite import Database
from journal.standing import detect
from reconstruct.planning import find_plan
from reconstruct.verification import verify
from tests.reconstruct.towns import Town
from tests.support.releases import lane_settings
from tests.support.tenants import operation

PAYMENT = "payment/1"
WORK = "unrewind_work"


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    made = Town(lane_settings(tmp_path))
    try:
        yield made
    finally:
        made.close()


def kept(town: Town) -> list[tuple[Any, ...]]:
    """The table of work as it stands now."""
    return town.sql(f"SELECT * FROM {WORK} ORDER BY number")


def put_back(town: Town, rows: list[tuple[Any, ...]]) -> None:
    """Put the table of work back alone, in a way that no stamp tells, as on a server."""
    town.sql(f"DELETE FROM {WORK}")
    for row in rows:
        town.sql(f"INSERT INTO {WORK} VALUES ({', '.join('?' * len(row))})", *row)
    town.record.saw()


def paid(town: Town) -> str:
    """A payment that was permitted, and later made; the table is put back to before it was made."""
    release = town.release(PAYMENT)
    old = kept(town)
    town.report(town.permit("pay"), "confirmed", receipt="r-1")
    put_back(town, old)
    return release


def paid_later(town: Town) -> str:
    """A payment whose first attempt was not taken; it is put back to before the second one."""
    release = town.release(PAYMENT)
    town.report(town.permit("pay"), "failed")
    old = kept(town)
    town.let_come(release)
    town.report(town.permit("pay"), "confirmed", receipt="r-1")
    put_back(town, old)
    town.let_come(release)
    town.record.saw()
    return release


def withdrawn(town: Town) -> str:
    """A permission that was withdrawn; it is put back to before that."""
    release = town.release(PAYMENT)
    old = kept(town)
    town.accept(operation(PAYMENT, "revoke"))
    put_back(town, old)
    return release


CASES = [(paid, "done"), (paid_later, "done"), (withdrawn, "cancelled")]


@pytest.mark.parametrize(("made", "status"), CASES)
def test_p4_p8_work_put_back_alone_gets_no_second_permit(
    town: Town, made: Callable[[Town], str], status: str
) -> None:
    release = made(town)
    with pytest.raises(Recovering, match="not the ones that the journal names") as refused:
        town.claim("pay")
    assert release in refused.value.detail
    assert town.control().authority.stage == "closed"
    with pytest.raises(Recovering):
        town.accept(operation("payment/2", "approve", version="1"))

    report = verify(town.settings)
    assert [(found.kind, found.entity) for found in report.findings] == [("work", PAYMENT)]
    assert town.do(find_plan).rebuild == [PAYMENT]
    town.recover()
    assert town.status(release) == status
    assert town.claim("pay").permits == []
    town.finish_off()


@pytest.mark.parametrize(("made", "status"), CASES)
def test_p8_the_comparison_of_all_heads_finds_open_work_that_was_put_back(
    town: Town, made: Callable[[Town], str], status: str
) -> None:
    release = made(town)
    finding = town.do(detect, deep=True)
    assert finding.verdict is Verdict.REWOUND
    assert finding.facts["releases"] == [release]
    town.recover()
    assert town.status(release) == status
    town.finish_off()


def test_p4_p8_a_sweep_of_work_that_was_put_back_closes_instead_of_going_on_for_ever(
    town: Town,
) -> None:
    release = town.release("letter/1")
    town.permit("post")
    town.let_expire(release)
    old = kept(town)
    assert town.sweep().count == 1
    put_back(town, old)
    with pytest.raises(Recovering, match="not the ones that the journal names") as refused:
        town.sweep()
    assert release in refused.value.detail
    assert town.control().authority.stage == "closed"
    town.recover()
    assert town.status(release) == "unknown"
    assert town.sweep().count == 0


def test_p8_a_store_that_is_damaged_under_a_claim_is_compared_whole_before_the_next_turn(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    town.release(PAYMENT)
    compared: list[bool] = []
    whole = standing.compare_heads

    async def compare(record: Record, finding: Finding) -> Finding:
        compared.append(True)
        return await whole(record, finding)

    async def damaged(*_: Any) -> None:
        raise Damaged("a page of it is malformed", file="main.db")

    with monkeypatch.context() as patch:
        patch.setattr(type(town.record.store), "batch", damaged)
        with pytest.raises(JournalUnavailable, match="malformed"):
            town.claim("pay")
    monkeypatch.setattr(writepath, "compare_heads", compare)
    town.accept(operation("payment/2", "approve", version="1"))
    assert compared
    town.report(town.permit("pay"), "confirmed")
    town.finish_off()


def test_p12_a_release_that_is_gone_is_found_and_comes_back(town: Town) -> None:
    put_before = kept(town)
    release = town.release(PAYMENT)
    put_back(town, put_before)
    assert town.claim("pay").permits == []
    report = verify(town.settings)
    assert [(found.kind, found.entity) for found in report.findings] == [("work", PAYMENT)]
    assert release in report.findings[0].detail
    town.do(detect, deep=True)
    town.record.distrust()
    assert town.do(find_plan).rebuild == [PAYMENT]
    town.recover()
    town.report(town.permit("pay"), "confirmed")
    assert town.status(release) == "done"
    town.finish_off()


@pytest.mark.parametrize(
    "changes",
    [{"recipient": "somebody else"}, {"data": '{"amount":1000}'}, {"operation": "nobody's"}],
)
def test_p4_what_its_permission_does_not_say_does_not_leave(
    town: Town, changes: dict[str, Any]
) -> None:
    release = town.release(PAYMENT, amount=1)
    other = town.release("payment/2", amount=2)
    town.meddle(release, **changes)
    town.record.saw()
    assert [permit.id for permit in town.claim("pay", limit=2).permits] == [other]
    assert town.row(release).step.startswith("held: ")
    report = verify(town.settings)
    assert [(found.kind, found.entity) for found in report.findings] == [("work", PAYMENT)]
    town.record.distrust()
    town.recover()
    assert town.permit("pay").id == release
    town.finish_off()


def test_p9_a_damaged_schema_that_names_no_text_is_told_as_damage(tmp_path: Path) -> None:
    file = tmp_path / "store" / "main.db"
    file.parent.mkdir()
    with closing(sqlite3.connect(file)) as made:
        made.execute("CREATE TABLE things (name TEXT)")
        made.execute("CREATE INDEX by_name ON things (name)")
        made.execute("PRAGMA writable_schema = ON")
        damage = "UPDATE sqlite_schema SET name = CAST(x'dbe6f4' AS TEXT), tbl_name = 'gone'"
        made.execute(f"{damage} WHERE type = 'index'")
        made.commit()
    with pytest.raises(Damaged, match="malformed database schema"):
        Database(file, read_only=True)
