"""Every statement of this code runs on PostgreSQL, and the large tables are never read whole."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from journal.acceptance import EntityHead, Place
from journal.control import Abandoned, Control, fold
from journal.decrees import founding
from journal.entry import GENESIS
from journal.history import Flaw, Head
from journal.log import FIRST_FLAW, Append, EntityChain, FlawRow, Log, Look, Rival, Row
from journal.log.engine import SqlLog
from journal.postgres.database import PostgresDatabase
from journal.postgres.dialect import key_columns, numbered, translated
from journal.sql import Rows, Statement
from journal.store import accounts, reconciled, tables
from journal.store import work as works
from journal.store.reconciled import Evidence, Found
from journal.store.tables import FORMAT, Marker
from reconstruct.orders import holes, lost_above
from reconstruct.walking import _WALK
from tests.api import test_plans
from tests.support.engines import Postgres
from tests.support.postgres import PostgresServer
from tests.support.releases import PAST, row_of_work
from tests.support.sealing import HISTORY, MOMENT, sealed

Made = Statement | Rows | Iterable[Statement | Rows]

MARKER = Marker(FORMAT, "main", "production", Place(HISTORY, 1, 0, GENESIS), 0)
HEAD = EntityHead("case/1", 1, HISTORY, "a" * 64, 1, "open", None, "{}")
ENTRY = sealed(b"", sequence=1)
ROW = Row(1, "decisions", 1, HISTORY, "case/1", 1, "op-1", ENTRY.digest, b"\xff{", b"")
FOUND = Found("rel_1", 1, "done", PAST, Evidence("asked", receiver="bank"))

TABLES: Mapping[str, Made] = {
    "copy_control": tables.copy_control([ENTRY]),
    "count_decisions": tables.count_decisions(1),
    "delete_decisions_above": tables.delete_decisions_above(1),
    "delete_heads": tables.delete_heads(["case/1"]),
    "drop_control_above": tables.drop_control_above(1),
    "entities_above": tables.entities_above(1),
    "fence": tables.fence(MARKER, MARKER.place, 0),
    "found": [Statement("DELETE FROM unrewind_marker"), tables.found(MARKER)],
    "insert_decisions": tables.insert_decisions([ENTRY]),
    "keep_decisions": tables.keep_decisions([ROW, msgspec.structs.replace(ROW, sequence=2)]),
    "list_entities": [tables.list_entities(None, "", 9), tables.list_entities("case", "", 9)],
    "page_of_heads": tables.page_of_heads("", 9),
    "read_control": tables.read_control(0, 9),
    "read_decisions": tables.read_decisions(0, 9),
    "read_decisions_down": tables.read_decisions_down(9, 9),
    "read_digests": tables.read_digests(0, 9),
    "read_envelopes_down": tables.read_envelopes_down(9, 9),
    "read_heads": tables.read_heads(["case/1"]),
    "upsert_heads": tables.upsert_heads([HEAD, HEAD]),
    "write_decisions": [],  # the two above, of decisions
    "write_heads": [],
}
ACCOUNTS: Mapping[str, Made] = {
    "read_backlog": accounts.read_backlog(PAST),
    "read_named": accounts.read_named(["rel_1"]),
    "read_of_operations": accounts.read_of_operations([("case/1", "op-1")]),
    "read_open_operations": [
        accounts.read_open_operations(entity, (PAST, "op-1"), 9) for entity in (None, "case/1")
    ],
    "select_numbered": [],  # of work.py
}
RECONCILED: Mapping[str, Made] = {
    "count": reconciled.count(1),
    "count_left": reconciled.count_left(1, PAST, 1),
    "count_undone": reconciled.count_undone("rel_1", 1, PAST),
    "count_unreachable": reconciled.count_unreachable(1),
    "read_again": reconciled.read_again(1, ["done"], PAST, "", 9),
    "read_delivered": [
        reconciled.read_delivered(1, "case", action, ("", 0), 9) for action in (None, "pay")
    ],
    "read_found": [
        reconciled.read_found(1, found, "", 9, wrong=wrong)
        for found in (None, "done")
        for wrong in (True, False)
    ],
    "read_fresh": reconciled.read_fresh(1, PAST, ("", 0), 9),
    "remove_underived": reconciled.remove_underived("rel_1"),
    "write": reconciled.write([FOUND, FOUND]),
}
WORK: Mapping[str, Made] = {
    **test_plans.STATEMENTS,
    "write_work": works.write_work([row_of_work(), row_of_work(data='{"n":"\U0001f9ed"}')]),
}
MODULES = {tables: TABLES, accounts: ACCOUNTS, reconciled: RECONCILED, works: WORK}
ALL: dict[str, Made] = {
    f"{module.__name__.rpartition('.')[2]}.{name}": made
    for module, by_name in MODULES.items()
    for name, made in {
        **by_name,
        **{name: value for name, value in vars(module).items() if isinstance(value, Statement)},
    }.items()
}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_statement_is_looked_at(module: Any) -> None:
    made = {
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if not name.startswith("_")
        and any(
            kind in str(inspect.signature(function).return_annotation)
            for kind in ("Statement", "Rows", "Fence")
        )
    }
    assert made == MODULES[module].keys()


@pytest.fixture(scope="module")
def engine(postgres_stores: PostgresServer) -> Postgres:
    return Postgres(postgres_stores)


@pytest.fixture(scope="module")
def store(engine: Postgres) -> Iterator[PostgresDatabase]:
    made = engine.store(MARKER).database
    assert isinstance(made, PostgresDatabase)
    yield made
    made.close()


def each(made: Made) -> list[Statement | Rows]:
    return [made] if isinstance(made, Statement | Rows) else list(made)


class Undone(Exception):
    """Nothing of a test's statement is to stay."""


def undone(store: PostgresDatabase, statements: Iterable[Statement | Rows]) -> list[Any]:
    """What statements of one transaction give, before it is undone."""
    found: list[Any] = []

    def run() -> None:
        with store.transaction():
            found.extend(store.run(statement) for statement in statements)
            raise Undone

    with pytest.raises(Undone):
        run()
    return found


@pytest.mark.engines
@pytest.mark.parametrize("name", ALL)
def test_every_statement_of_the_store_runs(store: PostgresDatabase, name: str) -> None:
    undone(store, each(ALL[name]))


@pytest.mark.engines
@pytest.mark.parametrize(
    "name", [name for name in ALL if name.startswith("work.") and name != "work.write_work"]
)
def test_l9_no_statement_reads_the_work_whole(store: PostgresDatabase, name: str) -> None:
    # Where there is no index to go by there is no other way, whatever it is said to cost.
    statements = [Statement("SET LOCAL enable_seqscan = off")]
    for statement in each(ALL[name]):
        assert isinstance(statement, Statement)
        statements.append(Statement(f"EXPLAIN {statement.sql}", statement.parameters))
    for plan in undone(store, statements)[1:]:
        assert not [line for (line,) in plan if "Seq Scan on unrewind_work" in line], plan


# The journal.


@pytest.fixture
async def log(engine: Postgres) -> Any:
    made = await Postgres(engine.server).log()
    yield made
    await made.close()


CUT = Abandoned(
    entity="case/1", through=1, digest=None, history=None, position=1, dropped=(), reason="r",
    evidence="e", since=MOMENT, ended=(HISTORY,),
)  # fmt: skip
CALLS: Mapping[str, tuple[Any, ...]] = {
    "at": (1,),
    "chain": ("case/1",),
    "chains": ("case", "", 9),
    "control": (),
    "count_decisions": (9,),
    "count_flaws": (),
    "decisions": (0, 9),
    "feed": (0, 9),
    "flawed": (),
    "flaws": ("case/1", FIRST_FLAW, 9),
    "forks": ("case/1",),
    "heads": ("", 9),
    "histories": ({"case/1": 1}, 9),
    "history": ("case/1", 1, 9, 9),
    "last_in": ("decisions",),
    "links": ("case/1", 1, 9),
    "look": (),
    "newest": ("case/1",),
    "operations": (["op-1"],),
    "place": (1,),
    "place_in": ("decisions", HISTORY, 1),
    "rivals": ("case/1",),
    "stream": ("decisions", 0, 9),
}


@pytest.mark.engines
async def test_every_query_of_the_journal_runs(log: SqlLog) -> None:
    entry = sealed(b"x", entity="case/1", operation="op-1", sequence=1)
    append = Append(
        entries=[("decisions", entry)],
        rivals=[Rival(sealed(b"rival", entity="case/1"), entry.digest, MOMENT)],
        chains=[EntityChain("case/1", Head(1, HISTORY, entry.digest), "s", 1)],
        settled=["case/1"],
        flaws=[FlawRow("case/1", Flaw.FORK, 1, 1, ("a",), 1, 0, MOMENT, "forked")],
        drops=[CUT],
        anew=True,
    )
    await log.append(append, await log.look())
    names = {name for name, _ in inspect.getmembers(Log, inspect.isfunction)}
    public = {name for name in names if not name.startswith("_")}
    assert public - {"append", "close"} == CALLS.keys()
    empty = {
        name: bool(answer) or isinstance(answer, Look)
        for name, arguments in CALLS.items()
        if (answer := await getattr(log, name)(*arguments)) is not False
    }
    assert all(empty.values()), empty
    assert log.is_indexed([CUT])


@pytest.mark.engines
async def test_the_questions_of_a_verification_run(log: SqlLog) -> None:
    gap = [sealed(b"", entity=f"case/{n}", operation=f"op-{n}", sequence=n) for n in (2, 3, 6)]
    await log.append(Append(entries=[("decisions", entry) for entry in gap]), await log.look())
    entry = founding("main", "production", "j" * 32, HISTORY, "control-1", MOMENT)
    control: Control = fold([entry], "main")
    found = holes(log.database, control)
    assert [(hole.first, hole.last) for hole in found] == [(1, 1), (4, 5)]
    assert [(hole.first, hole.last) for hole in lost_above(log.database, control, 1)] == [(4, 5)]
    assert holes(log.database, None)[-1].last == 5
    walked = [row[0] for row in log.database.stream(Statement(_WALK, ("", "z")))]
    assert walked == ["case/2", "case/3", "case/6", "control/tenant"]


# The rules themselves.


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("SELECT '?' || a FROM t WHERE b = ?", "SELECT '?' || a FROM t WHERE b = $1"),
        ("SELECT 'it''s ?', ? -- why?\n, ?", "SELECT 'it''s ?', $1 -- why?\n, $2"),
        ('SELECT "?" FROM t WHERE a = ? OR b = ?', 'SELECT "?" FROM t WHERE a = $1 OR b = $2'),
    ],
)
def test_placeholders_are_numbered_and_literals_left_alone(written: str, becomes: str) -> None:
    assert numbered(written) == becomes


def test_our_tables_and_functions_are_named_with_their_schema() -> None:
    written = "SELECT authority, julianday(at) FROM entries e JOIN authority a ON e.entries = 1"
    assert translated(written, '"s"') == (
        'SELECT authority, "s".julianday(at) FROM "s".entries e'
        ' JOIN "s".authority a ON e.entries = 1'
    )


def test_rows_of_an_upsert_are_told_apart_by_its_key() -> None:
    assert key_columns("INSERT INTO t (a, b, c) VALUES {rows} ON CONFLICT (c, a) DO UPDATE") == (
        2,
        0,
    )
    assert key_columns("INSERT INTO t (a) VALUES {rows} ON CONFLICT (a) DO NOTHING") == ()
