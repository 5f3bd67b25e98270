"""A schema of a PostgreSQL server as a database: who wins, what breaks, what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

import journal
from journal.acceptance import EntityHead, Place
from journal.errors import (
    ConstraintFailed,
    Damaged,
    EngineError,
    FenceFailed,
    FileChanged,
    Invalid,
    SettingsInvalid,
    Unreachable,
)
from journal.log import DECISIONS, Append, Moved
from journal.log.postgres import PostgresLog
from journal.postgres import wire
from journal.sql import Projected, Rows, Statement
from journal.store import tables
from journal.store.postgres import PostgresStore
from journal.store.tables import FORMAT, Marker
from journal.worker import drive
from tests.support.engines import NO_LOOK, Postgres
from tests.support.postgres import PostgresServer
from tests.support.sealing import HISTORY, sealed
from tests.support.sessions import (
    FENCE,
    MARKER,
    at_once,
    cut,
    found_log_of,
    marker_of,
    until,
)
from tests.support.tenants import make_settings, operation

pytestmark = pytest.mark.engines


@pytest.fixture
def engine(postgres_stores: PostgresServer) -> Postgres:
    return Postgres(postgres_stores)


@pytest.fixture
def store(engine: Postgres) -> Iterator[PostgresStore]:
    made = engine.store(MARKER)
    assert isinstance(made, PostgresStore)
    made.database.batch([Projected("CREATE TABLE app (id bigint PRIMARY KEY, name text)")])
    yield made
    made.database.close()


# Who wins.


def test_p8_of_two_fences_on_one_marker_committed_at_once_one_wins(engine: Postgres) -> None:
    stores = [engine.store(MARKER), engine.same_store()]
    marker = MARKER
    for number in range(1, 11):
        places = [Place(HISTORY, 1, number, f"{side}{number:063}") for side in (1, 2)]
        before = marker

        def commit(side: int, before: Marker = before, places: list[Place] = places) -> None:
            drive(stores[side].batch([tables.fence(before, places[side], 0)]))

        results = at_once(lambda: commit(0), lambda: commit(1))
        won = [side for side, result in enumerate(results) if result is None]
        assert len(won) == 1, results
        assert isinstance(results[1 - won[0]], FenceFailed)
        found = tables.marker_of(drive(stores[0].read([tables.READ_MARKER]))[0])
        assert found is not None
        assert found.place == places[won[0]]
        marker = found
    for store in stores:
        store.database.close()


def test_r8_of_two_appends_that_expect_one_standing_at_once_one_is_moved(engine: Postgres) -> None:
    logs = [drive(engine.log()), engine.same_log()]
    for number in range(10):
        look = drive(logs[0].look())
        entries = [
            sealed(b"", entity=f"case/{number}", operation=f"{side}-{number}", sequence=number + 1)
            for side in (0, 1)
        ]

        def append(side: int, look: Any = look, entries: Any = entries) -> None:
            drive(logs[side].append(Append(entries=[(DECISIONS, entries[side])]), look))

        results = at_once(lambda: append(0), lambda: append(1))
        won = [side for side, result in enumerate(results) if result is None]
        assert len(won) == 1, results
        assert isinstance(results[1 - won[0]], Moved)
        last = drive(logs[0].look()).last
        assert last is not None
        assert last.digest == entries[won[0]].digest
    for log in logs:
        log.database.close()


def test_of_two_foundings_at_once_one_wins_and_the_other_finds_it(
    postgres_stores: PostgresServer,
) -> None:
    for _ in range(3):
        engine = Postgres(postgres_stores)
        found_store = partial(engine.store, MARKER)
        made = at_once(found_store, found_store)
        assert sorted(type(one).__name__ for one in made) == ["ConstraintFailed", "PostgresStore"]
        found_log = partial(found_log_of, engine)
        logs = at_once(found_log, found_log)
        assert sorted(type(one).__name__ for one in logs) == ["Moved", "PostgresLog"]
        for one in (*made, *logs):
            if not isinstance(one, EngineError):
                one.database.close()
        assert PostgresStore.exists(engine.url, engine.tenant)
        assert PostgresLog.exists(engine.url, engine.tenant)


def test_a_founding_that_fails_leaves_no_schema(engine: Postgres) -> None:
    store = PostgresStore(engine.url, engine.tenant, create=True)
    with pytest.raises(ConstraintFailed):
        store.database.batch([tables.found(MARKER), tables.found(MARKER)])
    assert not PostgresStore.exists(engine.url, engine.tenant)
    schema = store.database.where.schema
    assert not engine.server.query("SELECT FROM pg_namespace WHERE nspname = %s", schema)
    # The same object can found it all the same.
    store.database.batch([tables.found(MARKER)])
    assert marker_of(store) == MARKER
    store.database.close()


def test_a_founding_whose_process_is_gone_leaves_no_schema(engine: Postgres) -> None:
    store = PostgresStore(engine.url, engine.tenant, create=True)

    def die_halfway() -> None:
        with store.database.transaction():
            store.database.run(tables.found(MARKER))
            cut(engine)

    with pytest.raises(Unreachable):
        die_halfway()
    store.database.close()
    schema = store.database.where.schema
    assert not engine.server.query("SELECT FROM pg_namespace WHERE nspname = %s", schema)


def test_a_schema_without_its_first_row_is_no_store_yet(engine: Postgres) -> None:
    """As an administrator makes it beforehand."""
    store = PostgresStore(engine.url, engine.tenant, create=True)
    store.database.batch([tables.found(MARKER)])
    store.database.batch([Statement("DELETE FROM unrewind_marker")])
    assert not PostgresStore.exists(engine.url, engine.tenant)
    again = PostgresStore(engine.url, engine.tenant, create=True)
    again.database.batch([tables.found(MARKER)])
    assert PostgresStore.exists(engine.url, engine.tenant)
    for one in (store, again):
        one.database.close()


def test_a_writer_of_too_old_a_format_is_refused(engine: Postgres, store: PostgresStore) -> None:
    store.require(FORMAT + 6)
    other = engine.same_store()
    with pytest.raises(FenceFailed, match=f"format {FORMAT + 6} or later"):
        drive(other.batch([FENCE]))
    assert marker_of(store) == MARKER
    other.database.close()


# One round trip, whole or not at all.


def test_a_batch_and_an_append_are_one_round_trip_each(
    engine: Postgres, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = drive(engine.log())
    sent: list[int] = []
    send = wire.Wire.send

    def counting(self: wire.Wire, statements: Any) -> Any:
        sent.append(len(statements))
        return send(self, statements)

    monkeypatch.setattr(wire.Wire, "send", counting)
    rows = Rows("INSERT INTO app (id, name) VALUES {rows}", [(n, "x") for n in range(300)])
    drive(store.batch([FENCE, rows, tables.READ_MARKER]))
    assert len(sent) == 1
    look = drive(log.look())
    entry = sealed(b"", entity="case/1", operation="op-1", sequence=1)
    drive(log.append(Append(entries=[(DECISIONS, entry)]), look))
    assert len(sent) == 3
    log.database.close()


def test_a_transaction_in_which_a_statement_failed_never_commits(store: PostgresStore) -> None:

    def go_on_regardless() -> None:
        with store.database.transaction():
            store.database.run(Statement("INSERT INTO app VALUES (1, 'one')"))
            with pytest.raises(ConstraintFailed):
                store.database.run(Statement("INSERT INTO app VALUES (1, 'two')"))

    with pytest.raises(EngineError, match="failed before"):
        go_on_regardless()
    assert store.database.read([Statement("SELECT count(*) FROM app")]) == [[(0,)]]


def test_a_deadlock_or_a_clash_of_a_fenced_batch_is_a_fence_that_failed(
    engine: Postgres, store: PostgresStore
) -> None:
    raising = "CREATE FUNCTION clash() RETURNS void LANGUAGE plpgsql AS $$ BEGIN"
    raising += " RAISE EXCEPTION 'as if' USING ERRCODE = '40P01'; END $$"
    store.database.batch([Projected(raising)])
    clash = Statement("SELECT clash()")
    with pytest.raises(FenceFailed):
        drive(store.batch([FENCE, clash]))
    with pytest.raises(Unreachable):
        store.database.batch([clash])
    assert marker_of(store) == MARKER


# What a statement may hold.


def test_text_that_postgresql_does_not_keep_is_refused_and_breaks_nothing(
    store: PostgresStore,
) -> None:
    find = Statement("SELECT id FROM app WHERE name = ?", ("a\0b",))
    listed = tables.read_heads(["case/\0"])
    for query in (find, listed, Statement("SELECT id FROM app WHERE name = ?", ("\ud800",))):
        with pytest.raises(Invalid, match=r"U\+0000"):
            drive(store.read([query]))
    put = Statement("INSERT INTO app VALUES (1, ?)", ("a\0b",))
    with pytest.raises(ConstraintFailed, match=r"U\+0000"):
        drive(store.batch([FENCE, put]))
    assert marker_of(store) == MARKER
    drive(store.batch([FENCE, Statement("INSERT INTO app VALUES (1, ?)", ("a\1b",))]))


@pytest.mark.parametrize(
    ("sql", "parameters"),
    [
        ("INSERT INTO app VALUES (?, ?)", ("many", "one")),
        ("INSERT INTO app VALUES (?, ?)", (1, object())),
        ("INSERT INTO app VALUES (?, ?)", (1, "a\0")),
        ("INSERT INTO nowhere VALUES (?)", (1,)),
        ("INSERT INT app", ()),
        ("INSERT INTO app VALUES (1 / ?, 'x')", (0,)),
        ("INSERT INTO app VALUES (?, ?)", (1,)),
    ],
)
def test_what_is_wrong_with_an_applications_statement_is_its_fault_alone(
    store: PostgresStore, sql: str, parameters: tuple[Any, ...]
) -> None:
    with pytest.raises(ConstraintFailed) as failed:
        drive(store.batch([FENCE, Projected(sql, parameters)]))
    assert failed.value.members.get("projection") is True
    assert marker_of(store) == MARKER
    drive(store.batch([FENCE, Projected("INSERT INTO app VALUES (?, ?)", (1, "one"))]))


def test_an_applications_columns_may_have_any_type(store: PostgresStore) -> None:
    columns = "id uuid, at timestamptz, amount numeric, doc jsonb, raw bytea, yes boolean, n int"
    store.database.batch([Projected(f"CREATE TABLE kinds ({columns})")])
    values = (
        "8d2b5f6e-0b5c-4b6e-9d0a-3f1c2b4a5d6e",
        "2026-01-02T03:04:05.000006Z",
        "12.50",
        '{"a":[1]}',
        b"\x00\xff",
        True,
        7,
    )
    put = Projected("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    nothing = Projected("INSERT INTO kinds VALUES (?, ?, ?, ?, ?, ?, ?)", (None,) * 7)
    drive(store.batch([FENCE, put, nothing]))
    wanted = "SELECT id::text, amount, doc, raw, yes, n FROM kinds WHERE amount = ?"
    assert store.database.read([Projected(wanted, (12.5,))]) == [
        [(values[0], 12.5, {"a": [1]}, b"\x00\xff", True, 7)]
    ]


# Streams.


def test_a_stream_is_read_beside_everything_else_and_may_be_left(store: PostgresStore) -> None:
    rows = Rows("INSERT INTO app (id, name) VALUES {rows}", [(n, "x") for n in range(3000)])
    drive(store.batch([FENCE, rows]))
    wanted = Statement("SELECT id FROM app WHERE id >= ? ORDER BY id", (0,))
    found = []
    for (number,) in store.database.stream(wanted):
        found.append(number)
        if number == 10:
            store.database.batch([Statement("UPDATE app SET name = 'y' WHERE id = 2999")])
            assert len(list(store.database.stream(wanted))) == 3000
    assert found == list(range(3000))
    for (number,) in store.database.stream(wanted):
        assert number == 0
        break
    assert next(iter(store.database.stream(wanted))) == (0,)
    with pytest.raises(Damaged):
        list(store.database.stream(Statement("SELECT 1 FROM unrewind_nowhere")))
    assert len(list(store.database.stream(wanted))) == 3000


async def test_l9_no_table_is_read_whole_while_decisions_are_taken(
    postgres_stores: PostgresServer, tmp_path: Path
) -> None:
    """Not even a young one, of which the server knows nothing yet."""
    engine = Postgres(postgres_stores)
    url, tenant = engine.url, engine.tenant
    settings = make_settings(
        tmp_path, tenant=tenant, store=url, journal=url, accept=["same-server"]
    )
    async with journal.open(settings) as service:
        for start in range(0, 300, 50):
            await asyncio.gather(
                *(
                    service.accept(operation(f"case/{n % 40}", "open", id=f"op-{n}"))
                    for n in range(start, start + 50)
                )
            )
        await service.accept(operation("case/7", "open", id="op-7"))
    # What a session counted is told when it ends.
    read = "SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname LIKE %s"
    written = "SELECT sum(n_tup_ins) FROM pg_stat_user_tables WHERE schemaname LIKE %s"
    until(
        "everything is counted",
        lambda: (engine.server.query(written, f"unrewind%{tenant}")[0][0] or 0) >= 640,
    )
    scans = dict(engine.server.query(read, f"unrewind%{tenant}"))
    # Each index was built by a scan of the empty table.
    built = "SELECT tablename, count(*) FROM pg_indexes WHERE schemaname LIKE %s GROUP BY 1"
    allowed = dict(engine.server.query(built, f"unrewind%{tenant}"))
    for table in ("entries", "dropped", "unrewind_decisions", "unrewind_entities", "unrewind_work"):
        assert scans[table] <= allowed[table], (table, scans)


# What is shown, and what is no URL.


def test_no_password_is_in_a_label_or_a_message(postgres_stores: PostgresServer) -> None:
    url = f"postgresql://nobody:s3cret@127.0.0.1:{postgres_stores.port}/nowhere"
    with pytest.raises(Unreachable) as failed:
        PostgresStore(url, "main")
    assert "s3cret" not in str(failed.value)
    assert f"127.0.0.1:{postgres_stores.port}/nowhere" in str(failed.value)
    for wrong in ("postgresql://u:s3cret@h:5:/x%zz", "postgresql://u:s3cret@h/d?nosuch=1"):
        with pytest.raises(SettingsInvalid) as refused:
            PostgresStore(wrong, "main")
        assert "s3cret" not in str(refused.value)


def test_tenants_have_schemas_of_their_own_however_they_are_named() -> None:
    from journal.postgres.where import JOURNAL, STORE, schema_of

    names = ["main", "journal_main", "a" * 64, "a" * 63 + "b", "a-b", "a_b", "journal_" + "c" * 56]
    made = [schema_of(kind, name) for kind in (STORE, JOURNAL) for name in names]
    assert len(set(made)) == len(made)
    assert all(len(name) <= 63 for name in made)
    assert made[0] == "unrewind_main"
    assert schema_of(JOURNAL, "main") == "unrewind_journal_main"


def test_a_database_of_any_collation_and_search_path_compares_bytes(engine: Postgres) -> None:
    store = engine.store(MARKER)
    names = ["case/B", "case/a", "case/Z", "case/\u00e4", "case/_"]
    heads = [EntityHead(n, 1, HISTORY, "a" * 64, 1, "s", None, "{}") for n in names]
    drive(store.batch([FENCE, tables.upsert_heads(heads)]))
    page = tables.heads_of(drive(store.read([tables.page_of_heads("", 9)]))[0])
    assert list(page) == sorted(names)
    with psycopg.connect(engine.url, autocommit=True) as other:
        # Functions of these names in the path are not the ones that are called.
        other.execute("CREATE FUNCTION hex(bytea) RETURNS text LANGUAGE sql AS $$ SELECT 'x' $$")
    assert tables.heads_of(drive(store.read([tables.page_of_heads("", 9)]))[0]) == page
    store.database.close()


def test_a_log_that_is_founded_anew_is_another_one(engine: Postgres) -> None:
    log = drive(engine.log())
    engine.replace_log()
    with pytest.raises(FileChanged):
        drive(log.append(Append(), NO_LOOK))
    log.database.close()
