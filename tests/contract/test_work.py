"""What every store engine must do with work: rows, counters, claiming and sweeping."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from journal.acceptance import Place
from journal.entry import GENESIS
from journal.errors import ConstraintFailed, FenceFailed, HistoryIncomplete
from journal.sql import Rows, Statement
from journal.store import tables
from journal.store import work as works
from journal.store.engine import SqlStore
from journal.store.tables import FORMAT, Marker
from journal.work import Status, Work, after_seconds, finish
from tests.support.engines import TYPED, Engine
from tests.support.releases import FUTURE, PAST, row_of_work
from tests.support.sealing import HISTORY

MARKER = Marker(FORMAT, "main", "production", Place(HISTORY, 1, 0, GENESIS), 0)


@pytest.fixture
async def store(engine: Engine) -> AsyncIterator[SqlStore]:
    made = engine.store(MARKER)
    yield made
    await made.close()


async def write(store: SqlStore, *statements: Statement | Rows) -> None:
    marker = tables.marker_of((await store.read([tables.READ_MARKER]))[0])
    assert marker is not None
    await store.batch([tables.fence(marker, marker.place, 0), *statements])


async def put(store: SqlStore, *rows: Work) -> None:
    await write(store, works.write_work(rows))


async def read(store: SqlStore, statement: Statement) -> list[Work]:
    return works.rows_of((await store.read([statement]))[0])


async def ids(store: SqlStore, statement: Statement) -> list[str]:
    return [row.id for row in await read(store, statement)]


def ready(number: int, **changes: Any) -> Work:
    return row_of_work(
        **{"id": f"rel_{number}", "status": "ready", "due": PAST, "sequence": number, **changes}
    )


def running(number: int, **changes: Any) -> Work:
    return ready(number, **{"status": "running", "due": None, "lease": number, **changes})


FULL = row_of_work(
    entity="payment/\U0001f4c4",
    data='{"größe":"\U0001f9ed","n":[1,2.5,null]}',
    weight=2.5,
    started=PAST,
    finished=FUTURE,
    heartbeat=PAST,
    execution="run-1",
    failures=3,
    expired=2,
    maybe=1,
    step="half way",
    last_error="it said: \"no\" 'really'",
    receipt="r-1",
    owner="ops",
    cancel_requested=1,
    incident="twice",
    corrects="rel_0",
    digest="a" * 64,
    recipient="ada",
)
BARE = row_of_work(
    id="item_1",
    entity=None,
    revision=None,
    operation=None,
    version=None,
    receiver=None,
    committed=None,
    claimed=None,
    sweep_at=None,
    claim=None,
    worker=None,
)


@pytest.mark.parametrize("row", [FULL, BARE])
async def test_h11_h12_a_row_comes_back_as_it_was_put(store: SqlStore, row: Work) -> None:
    await put(store, row)
    assert await read(store, works.read_work([row.id])) == [row]
    page = works.page_of((await store.read([works.read_page(row.lane, None, None, 0, 5)]))[0])
    assert page == [(1, row)]


async def test_a_row_that_is_put_again_is_replaced_whole_and_keeps_its_number(
    store: SqlStore,
) -> None:
    await put(store, ready(1), ready(2))
    again = msgspec.structs.replace(FULL, id="rel_1", status="done")
    await put(store, again)
    page = works.page_of((await store.read([works.read_page("pay", None, None, 0, 5)]))[0])
    assert page == [(1, again), (2, ready(2))]


async def test_an_older_file_gets_the_tables_that_it_lacks(engine: Engine, store: SqlStore) -> None:
    for table in ("unrewind_work", "unrewind_counts"):
        engine.drop_table(store, table)
    store.create_tables()
    await put(store, ready(1))
    assert await counts(store) == {("pay", "ready"): (1, 1.0)}
    store.create_tables()
    assert await ids(store, works.read_work(["rel_1"])) == ["rel_1"]


# Counters.


async def counts(store: SqlStore) -> dict[tuple[str, str], tuple[int, float]]:
    found = works.counts_of((await store.read([works.READ_COUNTS]))[0])
    return {(count.lane, count.status): (count.items, count.weight) for count in found}


async def test_l9_counters_follow_every_way_in_which_a_row_is_made_moved_or_dropped(
    engine: Engine, store: SqlStore
) -> None:
    await put(
        store,
        ready(1, weight=2.0),
        ready(2, weight=0.5),
        ready(3, lane="post", effect="best-effort"),
    )
    assert await counts(store) == {("pay", "ready"): (2, 2.5), ("post", "ready"): (1, 1.0)}
    # By an upsert, a conditional update, and statements over many rows.
    await put(store, running(1, weight=2.0), ready(4))
    before = running(1, weight=2.0)
    after = finish(before, Status.DONE, FUTURE)
    await write(store, works.put_while(before, after))
    await write(store, works.put_while(before, ready(1, weight=2.0)))
    await write(store, works.discard_waiting("post"), works.park("rel_4", "why", 1, 1.0))
    assert await counts(store) == {
        ("pay", "done"): (1, 2.0),
        ("pay", "ready"): (1, 0.5),
        ("pay", "dead"): (1, 1.0),
        ("post", "discarded"): (1, 1.0),
    }
    await write(store, works.delete_derived(["payment/1"], 0))
    assert await counts(store) == {}
    assert engine.run(store, "SELECT sum(items), sum(weight) FROM unrewind_counts") == [(0, 0.0)]


async def test_l9_a_batch_that_fails_counts_nothing(store: SqlStore) -> None:
    await put(store, ready(1))
    with pytest.raises(ConstraintFailed):
        await put(store, ready(2), ready(3, data=None))
    assert await counts(store) == {("pay", "ready"): (1, 1.0)}


async def test_flow_has_what_came_and_what_left_by_weight(store: SqlStore) -> None:
    await put(store, ready(1, weight=3.0), ready(2, weight=4.0), ready(3, lane="post"))
    await put(store, finish(ready(1, weight=3.0), Status.DONE, FUTURE))
    # What is unknown has not left.
    await put(store, running(2, weight=4.0, status="unknown"))
    (flow,) = await store.read([works.read_flow(60)])
    found = {lane: (arrived, left) for lane, arrived, left, _ in flow}
    assert found == {"pay": (7.0, 3.0), "post": (1.0, 0.0)}
    assert all(10 <= seconds <= 70 for *_, seconds in flow)


# Claiming and sweeping.


async def claimable(store: SqlStore, limit: int = 10, lane: str = "pay") -> list[str]:
    now: str = (await store.read([works.READ_NOW]))[0][0][0]
    return await ids(store, works.read_claimable(lane, limit, now))


async def test_l7_what_is_due_may_be_claimed_oldest_first(store: SqlStore) -> None:
    older = "2000-01-01T00:00:00.000000Z"
    await put(
        store,
        ready(1, due=FUTURE),
        ready(2),
        ready(3, status="retry", due=older),
        ready(4, due=None),
        running(5),
        ready(6, lane="post"),
        *[ready(7 + n, status=str(status)) for n, status in enumerate(set(Status) - CLAIMABLE)],
    )
    assert await claimable(store) == ["rel_3", "rel_2"]
    assert await claimable(store, limit=1) == ["rel_3"]


async def test_l7_only_commands_are_taken_before_they_are_due(store: SqlStore) -> None:
    command = ready(1, id="cmd_1", effect="internal", due=FUTURE)
    await put(store, command, ready(2, due=FUTURE), ready(3, effect="internal"))
    wanted = works.read_claimable("pay", 10, PAST, ["cmd_1", "rel_2"])
    assert await ids(store, wanted) == ["cmd_1"]


CLAIMABLE = {Status.READY, Status.RETRY}


async def test_commands_of_one_decision_wait_for_those_before_them(store: SqlStore) -> None:
    def command(sequence: int, place: int, **changes: Any) -> Work:
        identity = f"cmd_{sequence}{place}"
        return ready(sequence, id=identity, effect="internal", place=place, **changes)

    first, second, other = command(1, 0), command(1, 1, lane="mail"), command(2, 1)
    await put(store, first, second, other)
    assert await claimable(store) == ["cmd_10", "cmd_21"]
    assert await claimable(store, lane="mail") == []
    for status, free in (("running", False), ("dead", False), ("done", True), ("drained", True)):
        ended = FUTURE if free else None
        await put(store, msgspec.structs.replace(first, status=status, finished=ended))
        assert await claimable(store, lane="mail") == (["cmd_11"] if free else [])


async def test_items_wait_for_nobody(store: SqlStore) -> None:
    items = [ready(0, id=f"item_{n}", effect="internal", place=0) for n in range(3)]
    await put(store, *items)
    assert len(await claimable(store)) == 3


async def test_l2_a_row_is_put_only_while_it_has_its_status_and_its_claim(
    store: SqlStore,
) -> None:
    await put(store, running(1))
    for before in (running(1, lease=2), ready(1, lease=1)):
        await write(store, works.put_while(before, finish(before, Status.DONE, FUTURE)))
        assert await read(store, works.read_work(["rel_1"])) == [running(1)]
    done = finish(running(1), Status.DONE, FUTURE)
    await write(store, works.put_while(running(1), done))
    assert await read(store, works.read_work(["rel_1"])) == [done]


async def test_l5_a_sign_of_life_reaches_the_newest_claims_alone(store: SqlStore) -> None:
    await put(store, running(1), running(2), ready(3, lease=3))
    claims = [("rel_1", 1), ("rel_2", 1), ("rel_3", 3), ("rel_4", 4)]
    await write(store, works.beat(claims, 60.0), works.set_step(claims, "calling"))
    assert await ids(store, works.read_claims(claims)) == ["rel_1"]
    rows = await read(store, works.read_work(["rel_1", "rel_2"]))
    alive, other = sorted(rows, key=lambda row: row.id)
    assert other == running(2)
    assert (alive.step, alive.started) == ("calling", alive.heartbeat)
    assert alive.heartbeat is not None
    assert alive.sweep_at is not None
    assert after_seconds(alive.heartbeat, 59.9) <= alive.sweep_at
    assert await ids(store, works.read_expired(10)) == ["rel_2"]
    # The first step that was written says since when it is at work.
    await write(store, works.set_step([("rel_1", 1)], "half way"))
    (later,) = await read(store, works.read_work(["rel_1"]))
    assert later.started == alive.started


async def test_what_is_beyond_its_time_is_found_oldest_first(store: SqlStore) -> None:
    times = ["2001-01-03", "2001-01-01", "2001-01-02"]
    rows = [running(n, sweep_at=f"{day}T00:00:00.000000Z") for n, day in enumerate(times)]
    await put(store, *rows, running(9, sweep_at=FUTURE), ready(10, sweep_at=PAST))
    assert await ids(store, works.read_expired(10)) == ["rel_1", "rel_2", "rel_0"]
    assert await ids(store, works.read_expired(2)) == ["rel_1", "rel_2"]


async def test_those_about_which_to_ask_are_asked_when_due(store: SqlStore) -> None:
    rows = [
        ready(n, status=status, due=due)
        for n, (status, due) in enumerate(
            [
                ("unknown", PAST),
                ("pending", PAST),
                ("unknown", None),
                ("pending", FUTURE),
                ("ready", PAST),
            ]
        )
    ]
    await put(store, *rows)
    assert sorted(await ids(store, works.read_askable("pay", 10))) == ["rel_0", "rel_1"]
    await write(store, works.wake(["rel_2", "rel_3", "rel_4"]))
    assert len(await ids(store, works.read_askable("pay", 10))) == 4
    (waiting,) = await read(store, works.read_work(["rel_4"]))
    assert waiting.due == PAST


async def test_a_claim_is_found_while_any_of_it_runs(store: SqlStore) -> None:
    await put(store, running(1), running(2, claim="c-2"), finish(running(3), Status.DONE, PAST))
    assert await ids(store, works.read_claim("c-1")) == ["rel_1"]


# What is forgotten.


async def test_l8_only_what_ended_well_and_long_ago_is_forgotten(store: SqlStore) -> None:
    def ended(number: int, status: str, **changes: Any) -> Work:
        fields = {"effect": "internal", "status": status, "finished": PAST, "due": None}
        return ready(number, **{**fields, **changes})

    await put(
        store,
        ended(1, "done"),
        ended(2, "discarded"),
        ended(3, "done", finished=FUTURE),
        ended(4, "dead", finished=None),
        ended(5, "drained"),
        ended(6, "done", effect="external"),
        ended(7, "refused", effect="external"),
        ended(8, "cancelled", effect="external"),
        ready(9, effect="internal"),
    )
    await write(store, *works.forget(60.0, 1))
    left = await ids(store, works.read_work([f"rel_{n}" for n in range(10)]))
    assert len(left) == 8
    await write(store, *works.forget(60.0, 100))
    left = await ids(store, works.read_work([f"rel_{n}" for n in range(10)]))
    assert left == [f"rel_{n}" for n in (3, 4, 5, 6, 7, 8, 9)]


async def test_l15_a_callbacks_id_is_remembered_and_refused(
    engine: Engine, store: SqlStore
) -> None:
    await write(store, works.remember_callback("bank", "msg_1"))
    await write(store, works.remember_callback("post", "msg_1"))
    with pytest.raises(ConstraintFailed):
        await write(store, works.remember_callback("bank", "msg_1"))
    # Longer than the 300 s for which its timestamp is taken.
    engine.run(store, "UPDATE unrewind_callbacks SET seen = ? WHERE receiver = 'bank'", PAST)
    await write(store, *works.forget(60.0, 10))
    await write(store, works.remember_callback("bank", "msg_1"))
    with pytest.raises(ConstraintFailed):
        await write(store, works.remember_callback("post", "msg_1"))


async def test_a_rebuild_drops_releases_and_keeps_the_commands_of_decisions_that_stand(
    store: SqlStore,
) -> None:
    def command(sequence: int) -> Work:
        return ready(sequence, id=f"cmd_{sequence}", effect="internal", status="done")

    await put(store, ready(1), ready(9, entity="payment/2"), command(5), command(6), BARE)
    await write(store, works.delete_derived(["payment/1"], 5))
    kept = await ids(store, works.read_work(["rel_1", "rel_9", "cmd_5", "cmd_6", "item_1"]))
    assert sorted(kept) == ["cmd_5", "item_1", "rel_9"]


# What cannot be read.


@pytest.mark.parametrize("column", ["weight", "attempts", "data"])
async def test_l14_one_row_that_cannot_be_read_is_told_apart_from_the_others(
    engine: Engine, store: SqlStore, column: str
) -> None:
    await put(store, ready(1), ready(2), ready(3))
    wrong: bytes | str = b"\x00\xff" if column == "data" else "many"
    spoil = f"UPDATE unrewind_work SET {column} = ? WHERE id = 'rel_2'"
    if TYPED in engine.differences:
        with pytest.raises(Exception, match=r"invalid|incorrect|insufficient"):
            engine.run(store, spoil, wrong)
        assert len(await read(store, works.read_claimable("pay", 10, FUTURE))) == 3
        return
    engine.run(store, spoil, wrong)
    statement = works.read_claimable("pay", 10, FUTURE)
    found, spoiled = works.readable_of((await store.read([statement]))[0])
    assert [row.id for row in found] == ["rel_1", "rel_3"]
    assert spoiled.keys() == {"rel_2"}
    with pytest.raises(HistoryIncomplete):
        await read(store, statement)
    page = works.page_of((await store.read([works.read_page("pay", None, None, 0, 5)]))[0])
    assert [row.id for _, row in page] == ["rel_1", "rel_2", "rel_3"]


async def test_work_is_read_by_its_entity_and_by_what_a_decision_names(store: SqlStore) -> None:
    def of(number: int, entity: str, version: str, *, over: bool) -> Work:
        row = ready(number, entity=entity, version=version)
        return finish(row, Status.DONE, PAST) if over else row

    await put(
        store,
        of(1, "payment/1", "1", over=False),
        of(2, "payment/1", "2", over=True),
        of(3, "payment/1", "3", over=True),
        of(4, "payment/2", "2", over=True),
        of(5, "payment/2", "2", over=False),
    )
    wanted = works.read_of_entities(["payment/1"], [("payment/1", "2")])
    assert sorted(await ids(store, wanted)) == ["rel_1", "rel_2"]
    assert sorted(await ids(store, works.read_all_of(["payment/1"]))) == ["rel_1", "rel_2", "rel_3"]


async def test_p8_writes_of_work_need_the_fence_too(store: SqlStore) -> None:
    elsewhere = msgspec.structs.replace(MARKER, place=Place(HISTORY, 1, 1, "1" * 64))
    with pytest.raises(FenceFailed):
        await store.batch(
            [tables.fence(elsewhere, elsewhere.place, 0), works.write_work([ready(1)])]
        )
    assert await counts(store) == {}
