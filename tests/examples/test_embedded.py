"""The embedded application: its own rows commit, rewind and return together with the decisions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import journal
from examples.embedded import app
from examples.embedded.app import intention, read_tables
from journal import Acceptance, Decided, Operation, Statement
from journal.entry import JSON_TYPE
from journal.errors import NotFound, Recovering, SettingsInvalid, TransitionRefused
from journal.lifecycle import Kind, Lifecycle, Owner
from journal.sql import Rows
from journal.sqlite import Database
from journal.store.sqlite import SqliteStore
from reconstruct import recovery
from reconstruct.snapshots import restore, snapshot
from reconstruct.verification import verify

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[journal.Settings]:
    """The example's settings; what they lead to is verified when the test ends."""
    made = app.settings_for(tmp_path / "data")
    yield made
    assert_whole(made)


@pytest.fixture
async def tenant(settings: journal.Settings) -> AsyncIterator[journal.Journal]:
    async with journal.open(settings) as made:
        yield made


def assert_whole(settings: journal.Settings) -> None:
    report = verify(settings)
    assert (report.verdict, report.findings) == ("clean", [])


def run(*arguments: str, data: Path | None = None) -> subprocess.CompletedProcess[str]:
    where = [] if data is None else ["--data", str(data)]
    return subprocess.run(
        [sys.executable, "-m", "examples.embedded.app", *where, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def submit(document: str, title: str, folder: str = "sales") -> Operation:
    return intention("submit", document, actor="ada", folder=folder, title=title)


def approve(document: str, **fields: Any) -> Operation:
    return intention("approve", document, actor="eve", **fields)


async def decide_some(tenant: journal.Journal) -> None:
    """Two documents, a renaming, a title taken over, and one refusal."""
    for operation in (submit("a", "One"), submit("a", "Two"), submit("b", "One"), approve("b")):
        await tenant.accept(operation)
    with pytest.raises(TransitionRefused):
        await tenant.accept(submit("c", "Two"))


async def recover(tenant: journal.Journal) -> recovery.Applied:
    recovery.stop(tenant.settings, "a test")
    await tenant.write(recovery.begin, "a test")
    plan = await tenant.write(recovery.plan)
    applied = await tenant.write(recovery.apply, plan.plan)
    await tenant.write(recovery.reopen)
    return applied


# The story and the commands, as they are typed.


def test_the_story_ends_with_nothing_lost(tmp_path: Path) -> None:
    done = run("story", data=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 decisions lost, 0 rows differ"
    settings = app.settings_for(tmp_path)
    assert_whole(settings)
    assert read_tables(settings)["documents"] == [
        ("invoice-1", "sales", "Invoice", "revoked", None, 3),
        ("memo-1", "sales", "Memo", "submitted", None, 1),
        ("offer-1", "sales", "Offer", "committed", "v1", 3),
        ("offer-2", "archive", "Offer", "cancelled", None, 2),
    ]
    again = run("story", data=tmp_path)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1)


def test_commands_decide_repeat_and_refuse(tmp_path: Path) -> None:
    submitting = ("submit", "d1", "sales", "Offer", "--actor", "ada", "--operation", "op-1")
    assert run(*submitting, data=tmp_path).stdout.startswith("accepted: document/d1 is submitted")
    assert run(*submitting, data=tmp_path).stdout.startswith("duplicate: document/d1 is submitted")
    refused = run("release", "d1", data=tmp_path)
    assert refused.returncode == 1
    assert "release is not allowed in state submitted" in refused.stderr
    assert "sales/Offer" in run("list", data=tmp_path).stdout
    assert_whole(app.settings_for(tmp_path))


# Rows and decisions together.


async def test_p2_the_applications_rows_rewind_with_the_store_and_come_back(
    settings: journal.Settings, tmp_path: Path
) -> None:
    backup = tmp_path / "backup"
    async with journal.open(settings) as tenant:
        await decide_some(tenant)
        earlier = read_tables(settings)
        await tenant.read(snapshot, backup)
        for operation in (approve("a"), intention("cancel", "b", actor="ada"), submit("c", "New")):
            await tenant.accept(operation)
        last = read_tables(settings)
        history = (await tenant.status()).history
    restore(settings, backup, settings.tenant, str(history))
    assert read_tables(settings) == earlier != last

    async with journal.open(settings) as tenant:
        with pytest.raises(Recovering):
            await tenant.accept(approve("c"))
        assert read_tables(settings) == earlier
        applied = await recover(tenant)
        assert (applied.replayed, applied.incomplete) == (3, [])
        assert read_tables(settings) == last
        await tenant.accept(approve("c"))


async def test_p2_the_applications_rows_come_back_into_an_empty_store(
    settings: journal.Settings,
) -> None:
    async with journal.open(settings) as tenant:
        await decide_some(tenant)
        last = read_tables(settings)
    for file in settings.store_file.parent.iterdir():
        file.unlink()
    async with journal.open(settings) as tenant:
        with pytest.raises(Recovering):
            await tenant.accept(approve("a"))
        applied = await recover(tenant)
    assert (applied.replayed, applied.incomplete) == (4, [])
    assert read_tables(settings) == last


async def test_a_constraint_refuses_row_and_decision_and_no_batch_mate(
    tenant: journal.Journal,
) -> None:
    await tenant.accept(submit("a", "One"))
    operations = [
        submit("b", "Two"),
        submit("c", "One"),  # taken by document a
        submit("d", "Two"),  # taken by its batch mate
        submit("c", "Three"),  # the same document with a title that is free
        intention("submit", "e", actor="ada"),  # no title at all
        approve("b"),
        submit("d", "One", folder="archive"),
    ]
    answers = await tenant.accept_many(operations)
    accepted = [isinstance(answer, Acceptance) for answer in answers]
    assert accepted == [True, False, False, True, False, True, True]
    taken = "UNIQUE constraint failed: documents.folder, documents.title"
    missing = "NOT NULL constraint failed: documents.folder"
    for number, constraint in ((1, taken), (2, taken), (4, missing)):
        refusal = answers[number]
        assert isinstance(refusal, TransitionRefused)
        assert refusal.members["constraint"] == constraint
        with pytest.raises(NotFound):
            await tenant.operation(operations[number].operation)
    found = {
        (name, title, revision)
        for name, _, title, _, _, revision in read_tables(tenant.settings)["documents"]
    }
    assert found == {("a", "One", 1), ("b", "Two", 2), ("c", "Three", 1), ("d", "One", 1)}


async def test_one_refusal_among_many_costs_few_batches(
    tenant: journal.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tenant.accept(submit("a", "One"))
    batches = count_batches(monkeypatch)
    operations = [submit(f"b{number}", f"Title {number}") for number in range(256)]
    operations[100] = submit("b100", "One")
    answers = await tenant.accept_many(operations)
    refused = [n for n, answer in enumerate(answers) if not isinstance(answer, Acceptance)]
    assert refused == [100]
    assert len(batches) <= 20  # halved eight times: a failed and a good one each, and the last


async def test_two_documents_of_one_batch_are_one_transaction(
    tenant: journal.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = count_batches(monkeypatch)
    answers = await tenant.accept_many([submit("a", "One"), submit("b", "Two"), approve("a")])
    receipts = [answer for answer in answers if isinstance(answer, Acceptance)]
    assert [receipt.sequence for receipt in receipts] == [1, 2, 3]
    assert len(batches) == 1
    rows = read_tables(tenant.settings)
    assert rows["documents"] == [
        ("a", "sales", "One", "approved", None, 2),
        ("b", "sales", "Two", "submitted", None, 1),
    ]
    assert [(*row[:4], row[5]) for row in rows["audit"]] == [
        ("a", 1, "submit", "ada", receipts[0].digest),
        ("a", 2, "approve", "eve", receipts[2].digest),
        ("b", 1, "submit", "ada", receipts[1].digest),
    ]


async def test_the_applications_own_connection_sees_no_half_batch(
    tenant: journal.Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tenant.settings.store_file
    plain, seen = Database.run, []

    def looked_at(database: Database, statement: Statement | Rows) -> Any:
        result = plain(database, statement)
        if database.path == file and not database.read_only and database.connection.in_transaction:
            seen.append(read_tables(tenant.settings))
        return result

    monkeypatch.setattr(Database, "run", looked_at)
    states = [read_tables(tenant.settings)]
    for batch in ([submit("a", "One"), submit("b", "Two")], [approve("a"), approve("b")]):
        assert all(isinstance(answer, Acceptance) for answer in await tenant.accept_many(batch))
        states.append(read_tables(tenant.settings))
    assert [len(state["audit"]) for state in states] == [0, 2, 4]
    # Both batches were looked at after each of their statements, and showed what was before them.
    assert [seen.count(state) > 4 for state in states] == [True, True, False]
    assert all(look in states for look in seen)


def count_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    plain, batches = SqliteStore.batch, []

    async def counted(store: SqliteStore, statements: Sequence[Statement | Rows]) -> None:
        batches.append(len(statements))
        await plain(store, statements)

    monkeypatch.setattr(SqliteStore, "batch", counted)
    return batches


# What a projection may get wrong.


class Clumsy:
    """Does what the data of the decision ask for."""

    tables: Sequence[str] = (
        "CREATE TABLE IF NOT EXISTS things (entity TEXT PRIMARY KEY, value ANY) STRICT",
    )
    broken = True

    def apply(self, decision: Decided) -> Sequence[Statement]:
        insert = "INSERT OR REPLACE INTO things (entity, value) VALUES (?,?)"
        entity, fault = decision.entity, decision.data.get("fault")
        gives: dict[str, Any] = {
            "nothing": None,
            "no statement": [(insert, (entity, 1))],
            "syntax": [Statement("INSERT OR INTO things")],
            "no table": [Statement("INSERT INTO others VALUES (1)")],
            "too few values": [Statement(insert, (entity,))],
            "no value": [Statement(insert, (entity, {"a": 1}))],
            "too large": [Statement(insert, (entity, 2**70))],
            "no text": [Statement(insert, (entity, "\ud800"))],
            "two at once": [Statement(f"{insert}; DELETE FROM things", (entity, 1))],
            "late": [Statement(insert, (entity, 1)), Statement("INSERT INTO others VALUES (1)")],
            "commit": [Statement("COMMIT")],
            "schema": [Statement("DROP TABLE things")],
        }
        if fault == "raises":
            raise KeyError("amount")
        if fault == "stops":
            next(iter(()))
        if fault in gives and Clumsy.broken:
            found: Sequence[Statement] = gives[fault]
            return found
        return [Statement(insert, (entity, decision.revision))]

    def clear(self, entity: str) -> Sequence[Statement]:
        return [Statement("DELETE FROM things WHERE entity = ?", (entity,))]


class WithoutClear:
    tables: Sequence[str] = ()

    def apply(self, decision: Decided) -> Sequence[Statement]:
        return []


class OneString(Clumsy):
    tables = "CREATE TABLE IF NOT EXISTS things (entity TEXT)"


class Misspelt(Clumsy):
    tables = ("CREATE TABEL things (entity TEXT)",)


class Unbuildable(Clumsy):
    def __init__(self, tables: Sequence[str]) -> None:
        self.tables = tuple(tables)


def things(tmp_path: Path, projection: str) -> journal.Settings:
    path = projection if ":" in projection else f"{__name__}:{projection}"
    lifecycle = Lifecycle(kind=Kind.FREE, owner=Owner.EMBEDDED, projection=path)
    return journal.Settings(data=str(tmp_path / "data"), lifecycle={"thing": lifecycle})


def thing(name: str, fault: str | None = None) -> Operation:
    body = msgspec.json.encode({"fault": fault})
    return Operation(f"op-{name}-{fault}", f"thing/{name}", "set", body, JSON_TYPE)


FAULTS = {
    "raises": "Clumsy.apply: KeyError: 'amount'",
    "stops": "Clumsy.apply: StopIteration",
    "nothing": "Clumsy.apply: TypeError: 'NoneType' object is not iterable",
    "no statement": "Clumsy.apply: TypeError: it gave a tuple, not a journal.Statement",
    "syntax": 'near "INTO": syntax error',
    "no table": "no such table: others",
    "too few values": "Incorrect number of bindings",
    "no value": "type 'dict' is not supported",
    "too large": "too large to convert to SQLite INTEGER",
    "no text": "surrogates not allowed",
    "two at once": "one statement at a time",
    "late": "no such table: others",
    "commit": "a batch takes INSERT, UPDATE, DELETE, REPLACE, WITH alone, not: COMMIT",
    "schema": "a batch takes INSERT, UPDATE, DELETE, REPLACE, WITH alone, not: DROP TABLE things",
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_projection_that_fails_refuses_its_own_decision_alone(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = things(tmp_path, "Clumsy")
    managed = Operation("op-managed", "document/7", "submit")
    async with journal.open(settings) as tenant:
        before, failed, after, other = await tenant.accept_many(
            [thing("a"), thing("b", fault), thing("c"), managed]
        )
        assert all(isinstance(answer, Acceptance) for answer in (before, after, other))
        assert isinstance(failed, TransitionRefused)
        assert failed.detail.startswith("thing/b: the application's projection failed: ")
        assert FAULTS[fault] in failed.detail
        assert "thing/b: a projection failed" in caplog.text
        with pytest.raises(NotFound):
            await tenant.operation(f"op-b-{fault}")
        # The writer goes on, also with the entity whose projection failed.
        await tenant.accept(thing("b"))
    stored = [row[0] for row in rows_of(settings, "SELECT entity FROM things ORDER BY entity")]
    assert stored == ["thing/a", "thing/b", "thing/c"]
    assert_whole(settings)


async def test_a_projection_that_fails_in_a_replay_stops_its_entity_until_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = things(tmp_path, "Clumsy")
    monkeypatch.setattr(Clumsy, "broken", False)
    async with journal.open(settings) as tenant:
        for name, fault in (("a", None), ("b", "no table"), ("c", "syntax"), ("d", "nothing")):
            await tenant.accept(thing(name, fault))
    last = rows_of(settings, "SELECT * FROM things ORDER BY entity")
    for file in settings.store_file.parent.iterdir():
        file.unlink()
    monkeypatch.setattr(Clumsy, "broken", True)
    async with journal.open(settings) as tenant:
        assert (await recover(tenant)).incomplete == ["thing/b", "thing/c", "thing/d"]
    assert rows_of(settings, "SELECT * FROM things ORDER BY entity") == last[:1]

    monkeypatch.setattr(Clumsy, "broken", False)
    async with journal.open(settings) as tenant:
        assert (await recover(tenant)).incomplete == []
    assert rows_of(settings, "SELECT * FROM things ORDER BY entity") == last
    assert_whole(settings)


@pytest.mark.parametrize(
    ("projection", "says"),
    [
        ("missing_module:Thing", "No module named 'missing_module'; install it, or name"),
        (f"{__name__}:Missing", "has no attribute 'Missing'"),
        ("journal:", 'write it as "module:name"'),
        ("WithoutClear", "it lacks clear"),
        ("OneString", "its tables are one string"),
        ("Misspelt", 'the tables of its projection: near "TABEL": syntax error'),
        ("Unbuildable", "missing 1 required positional argument"),
    ],
)
async def test_a_projection_that_is_none_is_refused_at_the_start(
    tmp_path: Path, projection: str, says: str
) -> None:
    with pytest.raises(SettingsInvalid) as refused:
        async with journal.open(things(tmp_path, projection)):
            pass
    assert refused.value.detail.startswith("[lifecycle.thing]")
    assert says in refused.value.detail


def test_a_start_that_fails_lets_the_process_end(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys, types, journal\n"
        "from journal.lifecycle import Kind, Lifecycle, Owner\n"
        "class P:\n"
        "    tables = ['CREATE TABEL t (x)']\n"
        "    def apply(self, decision): return []\n"
        "    def clear(self, entity): return []\n"
        "sys.modules['made'] = types.ModuleType('made'); sys.modules['made'].P = P\n"
        "made = Lifecycle(kind=Kind.FREE, owner=Owner.EMBEDDED, projection='made:P')\n"
        "async def main():\n"
        "    async with journal.open(journal.Settings(data=sys.argv[1], lifecycle={'t': made})):\n"
        "        pass\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "SettingsInvalid" in done.stderr


def rows_of(settings: journal.Settings, sql: str) -> list[tuple[Any, ...]]:
    database = Database(settings.store_file, read_only=True)
    try:
        return database.read([Statement(sql)])[0]
    finally:
        database.close()


async def test_a_title_that_changed_hands_is_replayed_in_order(
    settings: journal.Settings,
) -> None:
    """A was One, became Two, and B took One: rebuilding A alone would find One taken."""
    async with journal.open(settings) as tenant:
        for who, title in (("a", "One"), ("a", "Two"), ("b", "One")):
            await tenant.accept(intention("submit", who, actor="x", folder="f", title=title))
        before = read_tables(settings)
    damaged = Database(settings.store_file)
    damaged.run(Statement("UPDATE unrewind_entities SET data = '{}' WHERE entity = 'document/a'"))
    damaged.close()
    async with journal.open(settings) as tenant:
        with pytest.raises(Recovering):
            await tenant.accept(intention("approve", "a", actor="x"))
        recovery.stop(settings, "a test")
        await tenant.write(recovery.begin, "a test")
        applied = await tenant.write(recovery.apply)
        assert applied.incomplete == []
        await tenant.write(recovery.reopen)
    assert read_tables(settings) == before
