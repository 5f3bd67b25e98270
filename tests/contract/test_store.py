"""What every store engine must do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from journal.acceptance import EntityHead, Place
from journal.entry import GENESIS
from journal.errors import (
    ConstraintFailed,
    EngineError,
    FenceFailed,
    FileChanged,
    Unreachable,
)
from journal.sql import Rows, Statement
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.tables import FORMAT, Marker
from tests.support.engines import Engine
from tests.support.sealing import HISTORY, OTHER_HISTORY, sealed

START = Place(HISTORY, 1, 0, GENESIS)
MARKER = Marker(FORMAT, "main", "production", START, 0)
NEXT = Place(HISTORY, 1, 1, "1" * 64)
FENCE = tables.fence(MARKER, NEXT, 0)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[SqlStore]:
    made = engine.store(MARKER)
    engine.run(made, "CREATE TABLE app (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)")
    yield made
    await made.close()


async def marker_of(store: SqlStore) -> Marker | None:
    return tables.marker_of((await store.read([tables.READ_MARKER]))[0])


def put(number: int, name: str | None) -> Statement:
    return Statement("INSERT INTO app (id, name) VALUES (?, ?)", (number, name))


async def names(store: SqlStore) -> list[str]:
    return [
        row[0] for row in (await store.read([Statement("SELECT name FROM app ORDER BY id")]))[0]
    ]


async def test_a_batch_moves_the_marker_and_commits_everything(
    engine: Engine, store: SqlStore
) -> None:
    await store.batch([FENCE, put(1, "one"), put(2, "two")])
    other = engine.same_store()
    assert await marker_of(other) == msgspec.structs.replace(MARKER, place=NEXT)
    assert await names(other) == ["one", "two"]
    await other.close()


WRONG = {
    "history": msgspec.structs.replace(START, history=OTHER_HISTORY),
    "generation": msgspec.structs.replace(START, generation=2),
    "sequence below": msgspec.structs.replace(START, sequence=-1),
    "sequence above": msgspec.structs.replace(START, sequence=1),
    "digest": msgspec.structs.replace(START, digest="f" * 64),
}


@pytest.mark.parametrize("component", [*WRONG, "instance"])
async def test_p8_a_fence_whose_marker_differs_in_one_component_fails_and_leaves_nothing(
    store: SqlStore, component: str
) -> None:
    if component == "instance":
        expected = msgspec.structs.replace(MARKER, instance="staging")
    else:
        expected = msgspec.structs.replace(MARKER, place=WRONG[component])
    with pytest.raises(FenceFailed):
        await store.batch([tables.fence(expected, NEXT, 0), put(1, "one")])
    assert await marker_of(store) == MARKER
    assert await names(store) == []


async def test_p8_a_fence_fails_in_a_store_without_a_marker(
    engine: Engine, store: SqlStore
) -> None:
    engine.run(store, "DELETE FROM unrewind_marker")
    with pytest.raises(FenceFailed):
        await store.batch([FENCE])
    assert await marker_of(store) is None


async def test_p8_a_fence_passes_once(engine: Engine, store: SqlStore) -> None:
    other = engine.same_store()
    await store.batch([FENCE])
    with pytest.raises(FenceFailed):
        await other.batch([FENCE])
    await other.close()


async def test_a_fence_takes_the_watermark_and_leaves_the_owner(store: SqlStore) -> None:
    to = Place(OTHER_HISTORY, 2, 65_538, "e" * 64)
    await store.batch([tables.fence(MARKER, to, 65_538)])
    assert await marker_of(store) == Marker(FORMAT, "main", "production", to, 65_538)


async def test_a_second_founding_is_refused(store: SqlStore) -> None:
    with pytest.raises(EngineError):
        await store.batch([tables.found(MARKER)])
    assert await marker_of(store) == MARKER


@pytest.mark.parametrize("at", [1, 2, 3])
async def test_a_constraint_that_fails_anywhere_leaves_nothing_and_is_not_the_fence(
    store: SqlStore, at: int
) -> None:
    statements = [FENCE, put(1, "one"), put(2, "two"), put(3, "three")]
    statements[at] = put(9, None)
    with pytest.raises(ConstraintFailed):
        await store.batch(statements)
    assert await marker_of(store) == MARKER
    assert await names(store) == []


async def test_a_deferred_foreign_key_counts_at_the_commit_and_leaves_nothing(
    engine: Engine, store: SqlStore
) -> None:
    deferred = "REFERENCES app (id) DEFERRABLE INITIALLY DEFERRED"
    engine.run(store, f"CREATE TABLE child (app INTEGER {deferred})")
    child = Statement("INSERT INTO child VALUES (1)")
    await store.batch([FENCE, child, put(1, "one")])
    after = msgspec.structs.replace(MARKER, place=NEXT)
    orphan = Statement("INSERT INTO child VALUES (2)")
    fence = tables.fence(after, Place(HISTORY, 1, 2, "2" * 64), 0)
    with pytest.raises(ConstraintFailed):
        await store.batch([fence, orphan])
    assert await marker_of(store) == after


async def test_a_statement_that_is_none_leaves_nothing(store: SqlStore) -> None:
    with pytest.raises(EngineError) as failed:
        await store.batch([FENCE, put(1, "one"), Statement("INSERT INTO nowhere VALUES (1)")])
    assert not isinstance(failed.value, ConstraintFailed | FenceFailed)
    assert await names(store) == []
    await store.batch([FENCE, put(1, "one")])


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 4000])
async def test_many_rows_are_one_statement(store: SqlStore, count: int) -> None:
    rows = Rows("INSERT INTO app (id, name) VALUES {rows}", [(n, f"n{n}") for n in range(count)])
    await store.batch([FENCE, rows])
    assert await names(store) == [f"n{n}" for n in range(count)]


@pytest.mark.parametrize("count", [2, 255, 256, 257, 4000])
async def test_many_rows_of_which_the_last_is_refused_leave_nothing(
    store: SqlStore, count: int
) -> None:
    values = [(n, f"n{n}") for n in range(count)]
    values[-1] = (count, "n0")
    with pytest.raises(ConstraintFailed):
        await store.batch([FENCE, Rows("INSERT INTO app (id, name) VALUES {rows}", values)])
    assert await names(store) == []


async def test_no_rows_are_no_statement(store: SqlStore) -> None:
    await store.batch([FENCE, Rows("INSERT INTO app (id, name) VALUES {rows}", [])])
    assert await names(store) == []


async def test_reads_of_one_call_see_one_moment(engine: Engine, store: SqlStore) -> None:
    writer = engine.same_store()
    count = Statement("SELECT count(*) FROM app")
    # A cursor left open by the first statement would let the second see another moment.
    assert await store.read([count, count]) == [[(0,)], [(0,)]]
    await writer.batch([FENCE, put(1, "one")])
    assert await store.read([tables.READ_MARKER, count]) == [
        [(FORMAT, "main", "production", HISTORY, 1, 1, "1" * 64, 0)],
        [(1,)],
    ]
    await writer.close()


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 1000])
async def test_heads_come_back_as_they_were_put(store: SqlStore, count: int) -> None:
    heads = {
        f"case/{n:04}": EntityHead(
            f"case/{n:04}", n + 1, HISTORY, f"{n:064x}", n, "opened", None, f'{{"n":{n}}}'
        )
        for n in range(count)
    }
    await store.batch([FENCE, tables.upsert_heads(heads.values())])
    read = (await store.read([tables.read_heads([*heads, "case/unknown"])]))[0]
    assert tables.heads_of(read) == heads
    page = (await store.read([tables.page_of_heads("case/0000", 500)]))[0]
    assert list(tables.heads_of(page)) == sorted(heads)[1:501]


async def test_h12_texts_come_back_as_they_were_put(store: SqlStore) -> None:
    name = "case/\U0001f4c4 \u2028 'x\" \\ \ue000"
    data = '{"\U00010000":"\\u0000","q":"\\"","n":9007199254740991,"f":1.0,"e":[]}'
    head = EntityHead(name, 1, HISTORY, "a" * 64, 1, "s\u00e9", "v'1", data)
    await store.batch([FENCE, tables.upsert_heads([head])])
    rows = (await store.read([tables.read_heads([name])]))[0]
    assert tables.heads_of(rows) == {name: head}


async def test_a_head_that_is_put_again_is_replaced_whole(store: SqlStore) -> None:
    first = EntityHead("case/1", 1, HISTORY, "a" * 64, 1, "s", "1", "{}")
    second = EntityHead("case/1", 2, OTHER_HISTORY, "b" * 64, 2, "t", None, '{"a":1}')
    await store.batch([FENCE, tables.upsert_heads([first]), tables.upsert_heads([second])])
    rows = (await store.read([tables.read_heads(["case/1"])]))[0]
    assert tables.heads_of(rows) == {"case/1": second}


async def test_h11_decisions_keep_their_bytes_and_their_sub_seconds(store: SqlStore) -> None:
    moment = "2026-03-14T09:26:53.000001Z"
    entry = sealed(bytes(range(256)), sequence=1, at=moment, recorded=moment)
    await store.batch([FENCE, tables.insert_decisions([entry])])
    stored = tables.decisions_of((await store.read([tables.read_decisions(0, 10)]))[0])
    assert [(d.sequence, d.digest, d.text, d.body) for d in stored] == [
        (1, entry.digest, entry.text, entry.body)
    ]
    assert moment.encode() in stored[0].text
    assert tables.decisions_of((await store.read([tables.read_decisions(1, 10)]))[0]) == []
    down = tables.decisions_of((await store.read([tables.read_decisions_down(5, 1)]))[0])
    assert down == stored


async def test_a_sequence_is_taken_once(store: SqlStore) -> None:
    one, other = sealed(b"1", sequence=1), sealed(b"2", sequence=1)
    with pytest.raises(ConstraintFailed):
        await store.batch([FENCE, tables.insert_decisions([one, other])])
    assert await marker_of(store) == MARKER


async def test_a_batch_is_seen_by_others_only_when_it_is_whole(
    engine: Engine, store: SqlStore
) -> None:
    other = engine.same_store(read_only=True)
    with pytest.raises(ConstraintFailed):
        await store.batch([FENCE, put(1, "one"), put(1, "one")])
    assert await names(other) == []
    await store.batch([FENCE, put(1, "one")])
    assert await names(other) == ["one"]
    await other.close()


async def test_a_read_only_store_cannot_write(engine: Engine, store: SqlStore) -> None:
    reader = engine.same_store(read_only=True)
    with pytest.raises(Unreachable):
        await reader.batch([FENCE, put(1, "one")])
    with pytest.raises(EngineError):
        await reader.read([put(1, "one")])
    assert await names(reader) == []
    await reader.close()


async def test_p8_a_store_that_is_replaced_is_noticed_by_every_call(
    engine: Engine, store: SqlStore
) -> None:
    engine.replace_store()
    with pytest.raises(FileChanged):
        await store.read([tables.READ_MARKER])
    with pytest.raises(FileChanged):
        await store.batch([FENCE, put(1, "one")])
    other = engine.same_store()
    assert await marker_of(other) == MARKER
    await other.close()


async def test_a_store_that_is_not_there_is_unreachable(engine: Engine) -> None:
    for read_only in (False, True):
        with pytest.raises(Unreachable):
            engine.same_store(read_only=read_only)
