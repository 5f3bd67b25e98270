"""A database that already has rows: a baseline for each, taken once, compared, and rebuilt."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal.driving import drive
from journal.errors import Invalid, Refused
from journal.inside import Inside
from journal.inside.adopting import Adopted, Existing, adopt, compare, paired
from journal.inside.beside import found_beside
from journal.inside.querying import opened
from journal.lifecycle import Kind, Lifecycle, Owner
from journal.record import Record
from journal.settings import Settings
from journal.writepath import turn
from reconstruct import recovery
from tests.inside.apps import Plain, operation, put, rows_of
from tests.inside.conftest import PAYOUT, finish, settings_of
from tests.support.commanding import unrewind

QUERY = "SELECT 'payout/' || id, state, NULL, {object} FROM payouts ORDER BY id"
OBJECTS = {
    "sqlite": "json_object('revision', revision)",
    "postgres": "json_build_object('revision', revision)",
}
STATES = ["draft", "requested", "approved"]


def fill(app: Plain, count: int) -> None:
    with app.transaction():
        for number in range(count):
            put(app, f"{number:04}", STATES[number % 3], number)


@pytest.fixture
def query(engine: str) -> str:
    return QUERY.format(object=OBJECTS[engine])


@pytest.fixture
def record(settings: Settings) -> Any:
    made = Record(settings)
    drive(made.open())
    yield made
    drive(made.close())


def taken(record: Record, query: str, **more: Any) -> Adopted:
    with opened(record, query) as found:
        return adopt(record, found.pairs(), **more)


def test_each_row_becomes_one_baseline_however_often(
    record: Record, plain: Plain, inside: Inside, query: str, settings: Settings
) -> None:
    fill(plain, 7)
    first = taken(record, query)
    assert (first.rows, first.baselines, first.known, first.refused) == (7, 7, 0, 0)
    again = taken(record, query)
    assert (again.baselines, again.known) == (0, 7)
    # From there the application decides on.
    with plain.transaction():
        decision = inside.decide_in(plain.connection, operation("approve", "0001"))
        put(plain, "0001", decision.state, 1)
    assert inside.confirmed(decision).revision == 2
    with opened(record, query) as found:
        done = compare(found.pairs(), found.extra())
    assert (done.rows, done.agreeing, done.differing) == (7, 7, 0)
    assert len(rows_of(settings)) == 7


def test_an_adoption_that_was_interrupted_is_run_again(
    record: Record, plain: Plain, query: str
) -> None:
    fill(plain, 12)

    class Killed(BaseException):
        """What ends it in the middle."""

    def die(done: Adopted) -> None:
        raise Killed

    with pytest.raises(Killed), opened(record, query) as found:
        adopt(record, [pair for pair, _ in zip(found.pairs(), range(5), strict=False)], show=die)
    rest = taken(record, query)
    assert (rest.baselines, rest.known) == (7, 5)


def test_a_comparison_names_what_differs_and_takes_it_again(
    record: Record, plain: Plain, query: str
) -> None:
    fill(plain, 4)
    taken(record, query)
    with plain.transaction():
        put(plain, "0000", "rejected", 0)  # what the lifecycle would not have allowed
        put(plain, "0001", "requested", 77)
        plain.run("DELETE FROM payouts WHERE id = '0002'")
        put(plain, "0009", "draft", 9)
    with opened(record, query) as found:
        done = compare(found.pairs(), found.extra())
    assert {(each.entity, each.kind) for each in done.differences} == {
        ("payout/0000", "state"),
        ("payout/0001", "data"),
        ("payout/0002", "extra"),
        ("payout/0009", "missing"),
    }
    again = taken(record, query, again=True)
    assert (again.baselines, again.rebaselines, again.known) == (1, 2, 1)
    assert taken(record, query, again=True).rebaselines == 0
    with opened(record, query) as found:
        assert compare(found.pairs(), found.extra()).kinds == {"extra": 1}


def test_rows_that_cannot_be_a_baseline_are_named(record: Record, plain: Plain) -> None:
    with plain.transaction():
        put(plain, "0001", "lost", 1)
        put(plain, "0002", "draft", 2)
    done = taken(record, "SELECT 'payout/' || id, state, NULL, NULL FROM payouts ORDER BY id")
    assert (done.baselines, done.refused) == (1, 1)
    assert "no action of the lifecycle leads to the state lost" in done.unfit[0].detail
    done = taken(record, "SELECT 'nothing/' || id, state, NULL, '[1]' FROM payouts ORDER BY id")
    assert [each.detail for each in done.unfit] == ["the fourth column must be a JSON object"] * 2
    done = taken(record, "SELECT 'nothing/' || id, state, NULL, NULL FROM payouts ORDER BY id")
    assert "entity type nothing is not declared" in done.unfit[0].detail
    with pytest.raises(Invalid, match="the query fails"):
        taken(record, "SELECT id FROM payouts")


def test_nobody_else_takes_a_baseline(record: Record, inside: Inside, plain: Plain) -> None:
    with plain.transaction(), pytest.raises(Invalid, match="unrewind adopt"):
        inside.decide_in(plain.connection, operation("baseline.approved"))
    done = adopt(record, paired(record, [Existing("payout/1", "approved", "v1", {"a": None})]))
    assert done.baselines == 1
    # Only an entity's first decision, whatever asks for it.
    again = operation("baseline.draft", "1", operation="other")
    assert "baseline is not allowed here" in str(drive(turn(record, [again]))[0])


def test_p2_a_rewind_brings_baselines_back_with_the_rows(tmp_path: Path) -> None:
    ledger = {
        **settings_of(tmp_path).lifecycle,
        "account": Lifecycle(
            kind=Kind.FREE, owner=Owner.EMBEDDED, projection="tests.support.ledger:Ledger"
        ),
    }
    settings = settings_of(tmp_path, lifecycle=ledger)
    settings.store_file.parent.mkdir(parents=True)
    from tests.support.ledger import Ledger

    with closing(sqlite3.connect(settings.store_file)) as base:
        for ddl in Ledger().tables:
            base.execute(ddl)
        columns = [name for _, name, *_ in base.execute("PRAGMA table_info(ledger)")]
        values = {"entity": "account/1", "state": "open", "revision": 1}
        base.execute(
            f"INSERT INTO ledger ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})",
            [values.get(name, 0) for name in columns],
        )
        base.commit()
    assert found_beside(settings)
    record = Record(settings)
    drive(record.open())
    before = rows_of(settings, "SELECT * FROM ledger")
    copy = tmp_path / "before.db"
    assert record.store is not None
    record.store.copy_to(copy)
    with closing(sqlite3.connect(copy)) as base:
        base.execute("DELETE FROM ledger")
        base.commit()
    adopt(record, paired(record, [Existing("account/1", "open")]))
    assert rows_of(settings, "SELECT * FROM ledger") == before
    drive(record.close())
    for suffix in ("-wal", "-shm"):
        settings.store_file.with_name(f"main.db{suffix}").unlink(missing_ok=True)
    copy.replace(settings.store_file)
    record = Record(settings)
    drive(record.open())
    recovery.stop(settings, "a test")
    drive(recovery.begin(record, "a test"))
    plan = drive(recovery.plan(record))
    drive(recovery.apply(record, plan.plan))
    drive(recovery.reopen(record))
    drive(record.close())
    assert rows_of(settings, "SELECT entity, state, revision FROM ledger") == [
        ("account/1", "open", 1)
    ]
    finish(settings)


# The command, over a file that the application had.


def configured(home: Path) -> None:
    actions = "".join(
        f"[lifecycle.payout.actions.{name}]\nfrom = {msgspec.json.encode(rule.source).decode()}\n"
        f'to = "{rule.to}"\n'
        for name, rule in PAYOUT.actions.items()
    )
    (home / "unrewind.toml").write_text(f'tenant = "app"\nstore = "."\n{actions}')


def test_the_command_adopts_a_file_and_compares_it(tmp_path: Path) -> None:
    configured(tmp_path)
    with closing(sqlite3.connect(tmp_path / "app.db")) as base:
        base.execute("CREATE TABLE payouts (id TEXT, state TEXT, revision INTEGER)")
        base.execute("INSERT INTO payouts VALUES ('1', 'draft', 1), ('2', 'lost', 2)")
        base.commit()
    query = tmp_path / "baseline.sql"
    query.write_text("SELECT 'payout/' || id, state, NULL, NULL FROM payouts;\n")
    done = unrewind(["adopt", "--query-file", str(query), "--json"], tmp_path, {})
    assert (done.code, done.json["founded"], done.json["baselines"]) == (1, True, 1)
    assert done.json["unfit"][0]["entity"] == "payout/2"
    done = unrewind(["adopt", "--query-file", str(query)], tmp_path, {})
    assert done.code == 1
    assert "known before" in done.out
    compared = unrewind(["adopt", "--query-file", str(query), "--compare", "--json"], tmp_path, {})
    assert (compared.code, compared.json["kinds"]) == (1, {"missing": 1})
    told = unrewind(["adopt", "--query-file", str(query), "--compare"], tmp_path, {})
    assert "1 missing" in told.out
    assert unrewind(["adopt", "--compare"], tmp_path, {}).code == 2
    assert unrewind(["verify"], tmp_path, {}).code == 0


def test_tables_that_are_gone_are_no_adoption(tmp_path: Path) -> None:
    configured(tmp_path)
    with closing(sqlite3.connect(tmp_path / "app.db")) as base:
        base.execute("CREATE TABLE payouts (id TEXT, state TEXT, revision INTEGER)")
    settings = settings_of(tmp_path, data=str(tmp_path / "data"), tenant="app")
    settings = msgspec.structs.replace(settings, store=str(tmp_path))
    inside = Inside(settings)
    with (
        closing(sqlite3.connect(tmp_path / "app.db")) as base,
        pytest.raises(Refused, match="unrewind adopt"),
    ):
        inside.decide_in(base, operation("request"))
    inside.close()
    assert found_beside(settings)
    assert not found_beside(settings)
    record = Record(settings)
    drive(record.open())
    drive(record.close())
    (tmp_path / "app.db").unlink()
    with closing(sqlite3.connect(tmp_path / "app.db")) as base:
        base.execute("CREATE TABLE payouts (id TEXT, state TEXT, revision INTEGER)")
    settings.journal_file.unlink()
    with pytest.raises(Refused, match="bring both back"):
        found_beside(settings)
