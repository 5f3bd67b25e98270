"""What every journal engine must do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec
import pytest

from journal.acceptance import Place
from journal.control import Authority, Stage
from journal.entry import Entry, Outcome
from journal.errors import ConstraintFailed, EngineError, FileChanged, Invalid, Unreachable
from journal.history import Flaw, Head
from journal.log import (
    CONTROL,
    DECISIONS,
    FIRST_FLAW,
    OBSERVATIONS,
    Append,
    EntityChain,
    FlawRow,
    JournalHead,
    Look,
    Moved,
    Rival,
)
from journal.log.engine import SqlLog
from tests.support.engines import BYTES, Engine
from tests.support.sealing import HISTORY, MOMENT, OTHER_HISTORY, Caller, sealed

FORCE = Authority(HISTORY, 1, Stage.OPEN, 1, "0" * 64)


@pytest.fixture
async def log(engine: Engine) -> AsyncIterator[SqlLog]:
    made = await engine.log()
    yield made
    await made.close()


def decisions(count: int, start: int = 1, entity: str = "case") -> list[Entry]:
    """First decisions of ``count`` entities, in the tenant's one order."""
    return [
        sealed(
            b"%d" % n,
            entity=f"{entity}/{n:05}",
            operation=f"op-{n}",
            sequence=n,
            outcome=Outcome(f"{n:064x}", "opened"),
        )
        for n in range(start, start + count)
    ]


def as_decisions(entries: Sequence[Entry]) -> list[tuple[str, Entry]]:
    return [(DECISIONS, entry) for entry in entries]


async def add(log: SqlLog, *entries: Entry, stream: str = DECISIONS) -> None:
    await log.append(Append(entries=[(stream, entry) for entry in entries]), await log.look())


async def positions(log: SqlLog) -> list[int]:
    return [row.position for row in await log.feed(0, 10_000)]


async def test_a_new_log_stands_at_its_founding(log: SqlLog) -> None:
    assert await log.look() == Look(1, FORCE, None, 1, flawed=False)
    assert [row.stream for row in await log.control()] == [CONTROL]


@pytest.mark.parametrize("count", [1, 2, 255, 256, 257, 4000])
async def test_an_append_adds_many_entries_in_order(
    engine: Engine, log: SqlLog, count: int
) -> None:
    entries = decisions(count)
    await log.append(Append(entries=as_decisions(entries)), await log.look())
    last = Place(HISTORY, 0, count, entries[-1].digest)
    assert await log.look() == Look(count + 1, FORCE, last, 1, flawed=False)
    other = engine.same_log(read_only=True)
    rows = await other.decisions(0, 10_000)
    assert [row.entry() for row in rows] == entries
    assert await positions(other) == list(range(1, count + 2))
    await other.close()


async def look_away(log: SqlLog) -> dict[str, Look]:
    """Looks that differ from the log's own in one part each."""
    found = await log.look()
    assert found.authority is not None
    assert found.last is not None
    change = msgspec.structs.replace
    force, last = found.authority, found.last
    return {
        "position below": change(found, position=found.position - 1),
        "position above": change(found, position=found.position + 1),
        "history": change(found, authority=change(force, history=OTHER_HISTORY)),
        "generation": change(found, authority=change(force, generation=2)),
        "stage": change(found, authority=change(force, stage=Stage.CLOSED)),
        "first": change(found, authority=change(force, first=2)),
        "base": change(found, authority=change(force, digest="e" * 64)),
        "no authority": change(found, authority=None),
        "tip's history": change(found, last=change(last, history=OTHER_HISTORY)),
        "tip's sequence": change(found, last=change(last, sequence=7)),
        "tip's digest": change(found, last=change(last, digest="e" * 64)),
        "no tip": change(found, last=None),
        "control": change(found, control=2),
        "flawed": change(found, flawed=True),
    }


PARTS = (
    "position below",
    "position above",
    "history",
    "generation",
    "stage",
    "first",
    "base",
    "no authority",
    "tip's history",
    "tip's sequence",
    "tip's digest",
    "no tip",
    "control",
    "flawed",
)


@pytest.mark.parametrize("part", PARTS)
async def test_p7_r8_an_append_that_expects_another_standing_leaves_nothing(
    log: SqlLog, part: str
) -> None:
    await add(log, *decisions(1))
    before = await log.look()
    looks = await look_away(log)
    assert tuple(looks) == PARTS
    with pytest.raises(Moved):
        await log.append(whole_append(), looks[part])
    assert await log.look() == before
    assert await positions(log) == [1, 2]
    assert await log.chain("contract/1") is None
    assert await log.rivals("contract/1") == []
    await log.append(whole_append(), before)
    assert (await log.look()).flawed


def whole_append() -> Append:
    """An append of every part."""
    entry = Caller().seal("contract/1")
    flaw = FlawRow("contract/1", Flaw.FORK, 1, 1, ("a",), 1, 0, MOMENT, "forked")
    return Append(
        entries=[("caller/contract", entry)],
        becomes=msgspec.structs.replace(FORCE, stage=Stage.READING),
        rivals=[Rival(sealed(b"rival"), entry.digest, MOMENT)],
        chains=[EntityChain("contract/1", Head(1, HISTORY, entry.digest), "signed", 1)],
        settled=["contract/1"],
        flaws=[flaw],
    )


async def test_r8_of_two_appends_that_expect_the_same_standing_one_is_refused(
    engine: Engine, log: SqlLog
) -> None:
    other = engine.same_log()
    look = await log.look()
    await log.append(Append(entries=as_decisions(decisions(1))), look)
    with pytest.raises(Moved):
        await other.append(Append(entries=as_decisions(decisions(1, start=2))), look)
    assert await positions(other) == [1, 2]
    await other.close()


async def test_p7_an_append_puts_its_authority_in_force(engine: Engine, log: SqlLog) -> None:
    look = await log.look()
    begun = Authority(HISTORY, 2, Stage.CLOSED, 1, "0" * 64)
    await log.append(Append(becomes=begun), look)
    found = await log.look()
    assert found.authority == begun
    assert found.position == look.position
    with pytest.raises(Moved):
        await log.append(Append(entries=as_decisions(decisions(1))), look)


A, B = decisions(2)
CLASHES: dict[str, tuple[str, Entry]] = {
    "operation": (
        DECISIONS,
        sealed(b"x", entity="case/9", operation=A.envelope.operation, sequence=9),
    ),
    "operation in another order": (
        "caller/contract",
        sealed(b"x", entity="contract/9", operation=A.envelope.operation),
    ),
    "(history, sequence)": (
        DECISIONS,
        sealed(b"x", entity="case/9", operation="op-9", sequence=A.envelope.sequence),
    ),
    "(history, entity, revision)": (
        DECISIONS,
        sealed(b"x", entity=A.envelope.entity, operation="op-9", sequence=9),
    ),
}


@pytest.mark.parametrize("what", CLASHES)
@pytest.mark.parametrize("together", [True, False], ids=["in one append", "in a later append"])
async def test_p6_r9_a_place_is_taken_once(log: SqlLog, what: str, together: bool) -> None:
    clash = CLASHES[what]
    before = await log.look()
    if together:
        with pytest.raises(ConstraintFailed):
            await log.append(Append(entries=[(DECISIONS, A), (DECISIONS, B), clash]), before)
        assert await log.look() == before
        return
    await add(log, A, B)
    before = await log.look()
    fine = (DECISIONS, decisions(1, start=3)[0])
    with pytest.raises(ConstraintFailed):
        await log.append(Append(entries=[fine, clash]), before)
    assert await log.look() == before
    assert [row.entry() for row in await log.decisions(0, 9)] == [A, B]


async def test_a_place_may_be_taken_again_in_another_history_or_order(log: SqlLog) -> None:
    await add(log, A)
    elsewhere = sealed(
        b"x", entity=A.envelope.entity, operation="op-9", sequence=1, history=OTHER_HISTORY
    )
    await add(log, elsewhere)
    signed = sealed(b"y", operation="op-7", sequence=1)
    await add(log, signed, stream="caller/contract")
    await add(
        log, sealed(b"z", entity="bond/1", operation="op-8", sequence=1), stream="caller/bond"
    )
    for number in (5, 6):
        entry = sealed(b"", entity=f"contract/{number}", operation=f"op-{number}")
        await add(log, entry, stream="caller/contract")
    assert len(await positions(log)) == 7


@pytest.mark.parametrize("table", ["entries", "rivals"])
async def test_p10_evidence_is_never_changed(engine: Engine, log: SqlLog, table: str) -> None:
    await log.append(whole_append(), await log.look())
    before = engine.run(log, f"SELECT * FROM {table}")
    assert before != []
    key = {"entries": "position", "rivals": "number"}[table]
    other = engine.same_log()
    for change in engine.changes.values():
        for port in (log, other):
            statement = change.format(table=table, key=key, schema="{schema}")
            with pytest.raises(Exception, match=r"never changed|never deleted"):
                engine.run(port, statement)
            assert engine.run(port, f"SELECT * FROM {table}") == before
    await other.close()


async def test_a_rival_is_kept_once(log: SqlLog) -> None:
    rival = Rival(sealed(b"rival"), "a" * 64, MOMENT)
    for _ in range(2):
        await log.append(Append(rivals=[rival]), await log.look())
    assert await log.rivals("contract/1") == [rival]
    assert await log.rivals("contract/2") == []


async def test_h11_sub_seconds_come_back_intact(log: SqlLog) -> None:
    moment = "2026-03-14T09:26:53.000001Z"
    entry = sealed(bytes(range(256)), sequence=1, at=moment, recorded=moment)
    await add(log, entry)
    row = (await log.decisions(0, 1))[0]
    assert row.entry() == entry
    assert (row.text, row.body) == (entry.text, entry.body)
    assert row.entry().envelope.recorded == moment
    flaw = FlawRow("contract/1", Flaw.GAP, 2, 2, (), 1, 1, moment, "d")
    await log.append(Append(flaws=[flaw]), await log.look())
    assert (await log.flaws(None, FIRST_FLAW, 1))[0].since == moment


@pytest.mark.parametrize(
    "name", ["case/\U0001f4c4 \u2028", "case/it's", 'case/"q"\\', "case/\ue000", "case/%_*"]
)
async def test_h12_names_come_back_intact(log: SqlLog, name: str) -> None:
    entry = sealed(b"", entity=name, operation=name, sequence=1, actor="\x00\x1f\U0010ffff")
    await add(log, entry)
    assert [row.entry() for row in await log.operations([name, "nothing"])] == [entry]
    newest = await log.newest(name)
    assert newest is not None
    assert newest.entry() == entry


async def test_operations_are_found_by_the_thousand(log: SqlLog) -> None:
    entries = decisions(1200)
    await log.append(Append(entries=as_decisions(entries)), await log.look())
    found = await log.operations([f"op-{n}" for n in range(1, 2400)])
    assert sorted(row.digest for row in found) == sorted(entry.digest for entry in entries)
    assert await log.operations([]) == []


async def test_the_main_order_excludes_the_others(log: SqlLog) -> None:
    await add(log, A, B)
    elsewhere = sealed(b"", operation="op-99", sequence=99)
    await add(log, elsewhere, stream="caller/contract")
    look = await log.look()
    assert look.last == Place(HISTORY, 0, 2, B.digest)
    assert await log.place(2) == look.last
    assert await log.place(99) is None
    assert await log.place(3) is None
    assert await log.place_in("caller/contract", HISTORY, 99) == elsewhere.digest
    assert await log.place_in("caller/contract", OTHER_HISTORY, 99) is None
    assert await log.place_in("caller/bond", HISTORY, 99) is None
    assert [row.sequence for row in await log.decisions(1, 9)] == [2]


async def test_each_order_is_read_alone_above_a_sequence_of_its_own(log: SqlLog) -> None:
    assert await log.last_in(OBSERVATIONS) == 0
    seen = [
        sealed(entity=f"observation/{n}", operation=f"seen-{n}", sequence=n, revision=1)
        for n in (1, 2, 3)
    ]
    await add(log, *decisions(5))
    await add(log, *seen[:2], stream=OBSERVATIONS)
    await add(log, seen[2], stream=OBSERVATIONS)
    assert await log.last_in(OBSERVATIONS) == 3
    assert await log.last_in(DECISIONS) == 5
    found = await log.stream(OBSERVATIONS, 1, 10)
    assert [(row.sequence, row.digest) for row in found] == [
        (2, seen[1].digest),
        (3, seen[2].digest),
    ]
    assert [row.sequence for row in await log.stream(OBSERVATIONS, 0, 1)] == [1]
    assert await log.stream(OBSERVATIONS, 3, 10) == []
    # None of them is the tenant's last decision.
    last = (await log.look()).last
    assert last is not None
    assert last.sequence == 5


async def test_a_history_is_read_by_revision_whatever_the_order_of_arrival(log: SqlLog) -> None:
    chain = Caller().chain("contract/1", 6)
    for at in (5, 0, 3, 1):
        await add(log, chain[at], stream="caller/contract")
    rows = await log.history("contract/1", 1, 9, 9)
    assert [row.revision for row in rows] == [1, 2, 4, 6]
    assert [row.revision for row in await log.history("contract/1", 2, 4, 9)] == [2, 4]
    assert [row.revision for row in await log.history("contract/1", 1, 9, 2)] == [1, 2]
    newest = await log.newest("contract/1")
    assert newest is not None
    assert newest.revision == 6
    assert await log.newest("contract/2") is None
    found = await log.at(rows[0].position)
    assert found == rows[0]
    assert await log.at(99) is None


@pytest.mark.parametrize("limit", [1, 2, 3, 500])
async def test_heads_are_paged_in_the_order_of_their_names_without_callers(
    log: SqlLog, limit: int
) -> None:
    entries = decisions(5)
    await add(log, *entries)
    await add(log, sealed(b"", entity="case/00003x", operation="c"), stream="caller/contract")
    found: list[JournalHead] = []
    after: str | None = ""
    for _ in range(20):
        page = await log.heads(after or "", limit)
        found += page.heads
        after = page.end
        if after is None:
            break
    assert found == [
        JournalHead(e.envelope.entity, 1, e.digest, e.envelope.outcome.data) for e in entries
    ]


async def test_chains_and_flaws_are_replaced_for_settled_entities_alone(log: SqlLog) -> None:
    def chain(entity: str, revision: int) -> EntityChain:
        return EntityChain(entity, Head(revision, HISTORY, f"{revision:064x}"), "s", revision + 2)

    def flaw(entity: str, first: int) -> FlawRow:
        return FlawRow(entity, Flaw.GAP, first, first, ("d1", "d2"), first - 1, 1, MOMENT, "gap")

    names = ("contract/1", "contract/2", "bond/1")
    await log.append(
        Append(chains=[chain(n, 1) for n in names], flaws=[flaw(n, 2) for n in names]),
        await log.look(),
    )
    assert (await log.look()).flawed
    assert set(await log.flawed()) == set(names)
    settle = Append(chains=[chain("contract/1", 5)], settled=["contract/1"])
    await log.append(settle, await log.look())
    assert await log.chain("contract/1") == chain("contract/1", 5)
    assert set(await log.flawed()) == {"contract/2", "bond/1"}
    assert await log.flaws("contract/2", FIRST_FLAW, 9) == [flaw("contract/2", 2)]
    assert await log.flaws("contract/1", FIRST_FLAW, 9) == []
    assert [c.entity for c in await log.chains("contract", "", 9)] == ["contract/1", "contract/2"]
    assert [c.entity for c in await log.chains(None, "bond/1", 1)] == ["contract/1"]
    first = (await log.flaws(None, FIRST_FLAW, 1))[0]
    assert first == flaw("bond/1", 2)
    assert await log.flaws(None, first.key, 9) == [flaw("contract/2", 2)]


async def test_the_feed_gives_every_order_by_position(log: SqlLog) -> None:
    await add(log, A, B)
    await add(log, sealed(b"", operation="op-9"), stream="caller/contract")
    assert [row.stream for row in await log.feed(0, 9)] == [
        CONTROL,
        DECISIONS,
        DECISIONS,
        "caller/contract",
    ]
    assert [row.position for row in await log.feed(2, 1)] == [3]
    assert await log.feed(4, 9) == []


DAMAGES = {
    "the envelope": ("envelope", lambda row: row.text.decode().replace("opened", "closed")),
    "the envelope, into bytes that are no text": (
        "envelope",
        lambda row: row.text.replace(b"opened", b"op\xffned"),
    ),
    "the envelope, cut short": ("envelope", lambda row: row.text.decode()[:40]),
    "the body": ("body", lambda _: b"2"),
    "the digest": ("digest", lambda _: b"\x00" * 32),
    "the sequence": ("sequence", lambda _: 9),
    "the history": ("history", lambda _: bytes.fromhex(OTHER_HISTORY)),
    "the entity": ("entity", lambda _: "case/2"),
    "the revision": ("revision", lambda _: 2),
    "the operation": ("operation", lambda _: "op-x"),
}


@pytest.mark.parametrize("what", DAMAGES)
async def test_p10_changed_bytes_are_found_in_the_row_that_holds_them(
    engine: Engine, log: SqlLog, what: str
) -> None:
    """A bit flipped on the disk, as SQL that no trigger of this log would let pass."""
    column, damage = DAMAGES[what]
    await add(log, *decisions(2))
    row = (await log.decisions(0, 1))[0]
    value: Any = damage(row)
    if what.endswith("no text") and BYTES not in engine.differences:
        _flip(engine, log, "CAST(? AS TEXT)", column, value)
    else:
        _flip(engine, log, "?", column, value)
    rows = await log.feed(1, 9)
    with pytest.raises(Invalid):
        rows[0].entry()
    assert rows[1].entry() == decisions(1, start=2)[0]


def _flip(engine: Engine, log: SqlLog, placeholder: str, column: str, value: Any) -> None:
    engine.unguard(log)
    engine.run(log, f"UPDATE entries SET {column} = {placeholder} WHERE position = 2", value)


async def test_a_read_only_log_cannot_write(engine: Engine, log: SqlLog) -> None:
    reader = engine.same_log(read_only=True)
    before = await reader.look()
    with pytest.raises(Unreachable):
        await reader.append(Append(entries=as_decisions(decisions(1))), before)
    with pytest.raises(Exception, match=r"readonly|read-only"):
        engine.run(reader, "DELETE FROM flaws")
    assert await reader.look() == before == await log.look()
    await reader.close()


async def test_p8_a_log_that_is_replaced_is_noticed_by_every_call(
    engine: Engine, log: SqlLog
) -> None:
    look = await log.look()
    engine.replace_log()
    for call in (
        log.look(),
        log.append(Append(entries=as_decisions(decisions(1))), look),
        log.control(),
        log.operations(["a"]),
        log.decisions(0, 1),
        log.place(1),
        log.history("case/1", 1, 1, 1),
        log.newest("case/1"),
        log.heads("", 1),
        log.chain("case/1"),
        log.chains(None, "", 1),
        log.flaws(None, FIRST_FLAW, 1),
        log.flawed(),
        log.rivals("case/1"),
        log.feed(0, 1),
        log.at(1),
        log.place_in("decisions", HISTORY, 1),
    ):
        with pytest.raises(FileChanged):
            await call


async def test_a_log_that_is_not_there_is_unreachable(engine: Engine) -> None:
    for read_only in (False, True):
        with pytest.raises(Unreachable):
            engine.same_log(read_only=read_only)


async def test_an_entry_that_cannot_be_stored_leaves_nothing(log: SqlLog) -> None:
    before = await log.look()
    half = Append(entries=[(DECISIONS, A)], becomes=msgspec.structs.replace(FORCE, generation=None))
    with pytest.raises(EngineError):
        await log.append(half, before)
    assert await log.look() == before
