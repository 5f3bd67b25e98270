"""What every journal engine must do about entries that were abandoned.

After an abandonment an entity has entries of an ended history with higher revisions than its new
ones. They are evidence: in the orders, marked, and in nobody's history.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from journal.control import Abandoned
from journal.entry import Entry, Outcome
from journal.errors import Damaged, Invalid
from journal.log import DECISIONS, Append, JournalHead
from journal.log.engine import SqlLog
from tests.support.engines import FIRST_RELEASE, Engine
from tests.support.sealing import HISTORY, MOMENT, OTHER_HISTORY, Caller, predecessor_of, sealed

ENTITY = "case/2"


def chain(entity: str, count: int, sequence: int, history: str = HISTORY) -> list[Entry]:
    """``count`` decisions of an entity, every third of the tenant's order from ``sequence`` on."""
    made: list[Entry] = []
    for number in range(1, count + 1):
        made.append(
            sealed(
                b"%d" % number,
                entity=entity,
                operation=f"{entity}-{history[:2]}-{number}",
                revision=number,
                predecessor=predecessor_of(made[-1]) if made else None,
                sequence=sequence + 3 * (number - 1),
                history=history,
                outcome=Outcome(f"{number:064x}", f"state-{number}"),
            )
        )
    return made


def cut(entity: str, through: int, **fields: object) -> Abandoned:
    made = Abandoned(
        entity=entity,
        through=through,
        digest=None,
        history=None,
        position=99,
        dropped=(),
        reason="a test",
        evidence="none",
        since=MOMENT,
        ended=(HISTORY,),
    )
    return msgspec.structs.replace(made, **fields)


OLD = {name: chain(name, 6, at) for at, name in enumerate(("case/1", ENTITY, "case/3"), 1)}


def follow(before: Entry | None, revision: int, sequence: int) -> Entry:
    """A decision in the history that came after."""
    return sealed(
        b"new",
        entity=ENTITY,
        operation=f"new-{revision}",
        revision=revision,
        predecessor=None if before is None else predecessor_of(before),
        sequence=sequence,
        history=OTHER_HISTORY,
        outcome=Outcome(f"{revision:062x}ff", f"new-{revision}"),
    )


@pytest.fixture
async def log(engine: Engine) -> AsyncIterator[SqlLog]:
    """Three entities of six revisions each, in one order; nothing is dropped yet."""
    made = await engine.log()
    entries = sorted(
        (entry for each in OLD.values() for entry in each),
        key=lambda entry: entry.envelope.sequence or 0,
    )
    await made.append(Append([(DECISIONS, entry) for entry in entries]), await made.look())
    yield made
    await made.close()


async def drop(log: SqlLog, *cuts: Abandoned, anew: bool = False) -> None:
    await log.append(Append(drops=cuts, anew=anew), await log.look())


async def go_on(log: SqlLog, through: int, count: int = 2) -> list[Entry]:
    """New revisions above a cut, with revisions that dropped entries have too."""
    made: list[Entry] = []
    before = OLD[ENTITY][through - 1] if through else None
    for number in range(count):
        before = follow(before, through + 1 + number, 70_000 + number)
        made.append(before)
    await log.append(Append([(DECISIONS, entry) for entry in made]), await log.look())
    return made


def head(entry: Entry) -> JournalHead:
    envelope = entry.envelope
    return JournalHead(envelope.entity, envelope.revision, entry.digest, envelope.outcome.data)


async def heads(log: SqlLog, limit: int) -> list[JournalHead]:
    found: list[JournalHead] = []
    after: str | None = ""
    while after is not None:
        page = await log.heads(after, limit)
        found += page.heads
        after = page.end
    return found


@pytest.mark.parametrize("through", [0, 1, 3, 5])
@pytest.mark.parametrize("new", [0, 1, 2])
async def test_dropped_entries_are_in_no_history(log: SqlLog, through: int, new: int) -> None:
    old = OLD[ENTITY]
    await drop(log, cut(ENTITY, through))
    added = await go_on(log, through, new)
    kept = [*old[:through], *added]

    newest = await log.newest(ENTITY)
    assert (None if newest is None else newest.entry()) == (kept[-1] if kept else None)
    rows = await log.history(ENTITY, 1, 99, 99)
    assert [row.entry() for row in rows] == kept
    assert not any(row.dropped for row in rows)
    links = await log.links(ENTITY, 1, 99)
    assert [link.digest for link, _ in links] == [entry.digest for entry in kept]
    assert [row.entry() for row in await log.history(ENTITY, through + 1, through + 1, 9)] == (
        added[:1]
    )
    for limit in (1, 2, 3, 500):
        wanted = [OLD["case/1"][-1], *kept[-1:], OLD["case/3"][-1]]
        assert await heads(log, limit) == [head(entry) for entry in wanted]


@pytest.mark.parametrize("through", [0, 3])
async def test_dropped_entries_stay_in_every_order_and_are_marked(
    log: SqlLog, through: int
) -> None:
    before = await log.look()
    dropped = {entry.digest for entry in OLD[ENTITY][through:]}
    await drop(log, cut(ENTITY, through))
    added = await go_on(log, through)
    everything = {entry.digest for entries in OLD.values() for entry in entries}
    everything |= {entry.digest for entry in added}

    rows = await log.decisions(0, 99)
    assert {row.digest for row in rows} == everything
    assert {row.digest for row in rows if row.dropped} == dropped
    assert [row.sequence for row in rows] == sorted(row.sequence or 0 for row in rows)
    assert await log.count_decisions(99_999) == len(everything)
    assert {row.digest for row in await log.feed(0, 99) if row.dropped} == dropped
    assert {row.digest for row in await log.stream(DECISIONS, 0, 99) if row.dropped} == dropped
    names = [entry.envelope.operation for entry in OLD[ENTITY]]
    assert {row.digest for row in await log.operations(names) if row.dropped} == dropped
    for row in rows:
        found = await log.at(row.position)
        assert found == row
        place = await log.place(row.sequence or 0)
        assert place is not None
        assert place.digest == row.digest
    # Nor has the order got another end, or the journal another position.
    look = await log.look()
    assert look.position == before.position + len(added)
    assert look.last is not None
    assert look.last.digest == added[-1].digest


async def test_what_was_dropped_is_shown_beside_what_took_its_place(log: SqlLog) -> None:
    await drop(log, cut(ENTITY, 3))
    added = await go_on(log, 3)
    rows = await log.history(ENTITY, 1, 99, 99, dropped=True)
    assert [(row.revision, row.dropped) for row in rows] == [
        (1, False),
        (2, False),
        (3, False),
        (4, True),
        (4, False),
        (5, True),
        (5, False),
        (6, True),
    ]
    assert [row.entry() for row in rows if row.revision > 3 and not row.dropped] == added
    assert not any(row.dropped for row in await log.history("case/1", 1, 99, 99, dropped=True))


async def test_one_cut_after_another_drops_what_either_does(log: SqlLog) -> None:
    await drop(log, cut(ENTITY, 4))
    added = await go_on(log, 4)
    again = cut(ENTITY, 2, ended=(HISTORY, OTHER_HISTORY))
    await drop(log, again)
    assert [row.entry() for row in await log.history(ENTITY, 1, 99, 99)] == OLD[ENTITY][:2]
    for digest in (OLD[ENTITY][3].digest, added[0].digest):
        rows = [row for row in await log.decisions(0, 99) if row.digest == digest]
        assert rows[0].dropped
    # Doing it again, or from nothing, is the same.
    before = log.dropped()
    await drop(log, again, cut(ENTITY, 4))
    assert log.dropped() == before
    await drop(log, cut(ENTITY, 4), again, anew=True)
    assert log.dropped() == before
    assert log.is_indexed([again, cut(ENTITY, 4)])
    assert not log.is_indexed([cut(ENTITY, 4)])
    await drop(log, anew=True)
    assert log.dropped() == []


async def test_an_entry_is_dropped_by_its_digest_wherever_it_stands(log: SqlLog) -> None:
    old = OLD[ENTITY]
    await drop(log, cut(ENTITY, 6, rivals=(old[1].digest,), unreadable=(old[4].digest,)))
    rows = await log.history(ENTITY, 1, 99, 99)
    assert [row.revision for row in rows] == [1, 3, 4, 6]
    # Of that entity alone.
    await drop(log, cut("case/1", 6, rivals=(old[0].digest,)))
    assert [row.revision for row in await log.history(ENTITY, 1, 9, 99)] == [1, 3, 4, 6]


async def test_two_entries_at_one_revision_are_a_fork_until_one_is_dropped(log: SqlLog) -> None:
    assert not await log.forks(ENTITY)
    added = await go_on(log, 3)
    assert await log.forks(ENTITY)
    await drop(log, cut(ENTITY, 6, rivals=(added[0].digest,)))
    assert await log.forks(ENTITY)
    await drop(log, cut(ENTITY, 3))
    assert not await log.forks(ENTITY)


async def test_links_of_a_history_do_not_stumble_over_damage_that_was_dropped(
    engine: Engine, log: SqlLog
) -> None:
    engine.unguard(log)
    damage = "UPDATE entries SET body = ? WHERE entity = ? AND revision = 5"
    engine.run(log, damage, b"x", ENTITY)
    with pytest.raises(Invalid):
        await log.links(ENTITY, 1, 99)
    await drop(log, cut(ENTITY, 4))
    assert len(await log.links(ENTITY, 1, 99)) == 4


async def test_callers_entries_are_dropped_like_any_other(log: SqlLog) -> None:
    caller = Caller()
    entries = caller.chain("contract/1", 5)
    await log.append(Append([("caller/contract", entry) for entry in entries]), await log.look())
    await drop(log, cut("contract/1", 2))
    assert [row.revision for row in await log.history("contract/1", 1, 9, 9)] == [1, 2]
    assert len(await log.links("contract/1", 1, 9)) == 2
    rows = await log.operations([entry.envelope.operation for entry in entries])
    assert sorted((row.revision, row.dropped) for row in rows) == [
        (1, False),
        (2, False),
        (3, True),
        (4, True),
        (5, True),
    ]


async def test_the_index_is_seen_by_every_connection_and_stays(engine: Engine, log: SqlLog) -> None:
    reader = engine.same_log(read_only=True)
    await drop(log, cut(ENTITY, 2))
    other = engine.same_log()
    for port in (reader, other):
        assert [row.revision for row in await port.history(ENTITY, 1, 9, 9)] == [1, 2]
        await port.close()


async def test_a_journal_of_the_release_before_gets_its_index_when_it_is_opened_for_writing(
    engine: Engine, log: SqlLog
) -> None:
    engine.drop_table(log, "dropped")
    if FIRST_RELEASE in engine.differences:
        with pytest.raises(Damaged):
            await log.history(ENTITY, 1, 9, 9)
        return
    reader = engine.same_log(read_only=True)
    assert len(await reader.history(ENTITY, 1, 9, 9)) == 6
    assert reader.dropped() == []
    newest = await reader.newest(ENTITY)
    assert newest is not None
    assert (newest.revision, newest.dropped) == (6, False)
    writer = engine.same_log()
    await drop(writer, cut(ENTITY, 2))
    # The reader that was there before sees it too.
    assert [row.revision for row in await reader.history(ENTITY, 1, 9, 9)] == [1, 2]
    await reader.close()
    await writer.close()
