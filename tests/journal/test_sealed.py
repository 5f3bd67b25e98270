"""Sealed entries: what callers that own their store append, in any order."""

from __future__ import annotations

import asyncio
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from journal import feed, reading
from journal.control import Stage
from journal.entry import Entry, Outcome
from journal.errors import (
    DiskFailed,
    Forked,
    HistoryChanged,
    Invalid,
    JournalUnavailable,
    OperationReused,
    Overloaded,
    Recovering,
    StaleGeneration,
    Unreachable,
    UnrewindError,
    WriterStopped,
)
from journal.gate import GO, HELD
from journal.history import Flaw
from journal.intake import MAX_ENTRIES, append_sealed
from journal.log import FIRST_FLAW, FlawRow
from journal.worker import drive
from tests.support.faults import fail_log
from tests.support.sealing import OTHER_HISTORY, Caller, predecessor_of, sealed
from tests.support.tenants import Tenant, make_settings, operation

ENTITY = "contract/c-1"


def gaps(tenant: Tenant, entity: str | None = None) -> list[FlawRow]:
    return drive(tenant.log.flaws(entity, FIRST_FLAW, 100))


def gate(tenant: Tenant, revision: int | None = None, entity: str = ENTITY) -> Any:
    return tenant.do(reading.read_gate, entity, revision)


def view(tenant: Tenant, entity: str = ENTITY) -> reading.EntityView:
    return tenant.do(reading.read_entity, entity, None)


def count(tenant: Tenant) -> int:
    number: int = tenant.journal_sql("SELECT count(*) FROM entries")[0][0]
    return number


def forked(tenant: Tenant, *entries: Entry) -> Forked:
    with pytest.raises(Forked) as refused:
        tenant.append(*entries)
    return refused.value


class Scene:
    """Revisions 1 to 40 in the journal; 41 (cancel) and 42 (confirm) sealed and on their way."""

    def __init__(self, tenant: Tenant) -> None:
        self.tenant = tenant
        caller = tenant.caller()
        self.caller = caller
        tenant.append(*caller.chain(ENTITY, 40))
        self.rival_41 = caller.draft(ENTITY, "amend", operation="another-41")
        self.cancel = caller.seal(ENTITY, "cancel", outcome=Outcome(None, "cancelled"))
        self.rival_42 = caller.draft(ENTITY, "reopen", operation="another-42")
        self.confirm = caller.seal(ENTITY, "confirm", outcome=Outcome(None, "cancelled"))


@pytest.fixture
def scene(tenant: Tenant) -> Scene:
    return Scene(tenant)


def test_p5_revision_42_before_41_is_kept_and_holds_the_entity(scene: Scene) -> None:
    tenant = scene.tenant
    assert gate(tenant).gate == GO
    (answer,) = tenant.append(scene.confirm)
    assert (answer.outcome, answer.revision, answer.digest) == (
        "accepted",
        42,
        scene.confirm.digest,
    )
    assert (answer.durable_through, answer.complete, answer.state) == (40, False, "signed")

    (gap,) = gaps(tenant)
    assert (gap.entity, gap.flaw, gap.first, gap.last) == (ENTITY, Flaw.GAP, 41, 41)
    assert (gap.durable_through, gap.holds) == (40, 1)
    assert gap.detail == f"{ENTITY}: revision 41 is missing"

    for revision in (40, 42, None):
        ruling = gate(tenant, revision)
        assert ruling.gate == HELD
        assert any(reason.startswith("incomplete") for reason in ruling.reasons)
        assert ruling.durable_through == 40
    assert (view(tenant).revision, view(tenant).complete, view(tenant).newest) == (40, False, 42)

    error = forked(tenant, scene.rival_41)
    assert error.members["expected"] == scene.cancel.digest
    assert error.members["offered"] == scene.rival_41.digest
    assert scene.cancel.digest in error.detail
    assert drive(tenant.log.rivals(ENTITY)) == []
    assert gaps(tenant) == [gap]

    (late,) = tenant.append(scene.cancel)
    assert (late.durable_through, late.complete, late.state) == (42, True, "cancelled")
    assert gaps(tenant) == []
    entity = view(tenant)
    assert (entity.revision, entity.state, entity.digest) == (42, "cancelled", scene.confirm.digest)
    ruling = gate(tenant, 42)
    assert (ruling.gate, len(ruling.reasons)) == (HELD, 1)
    assert ruling.reasons[0].startswith("cancelled")
    assert not (forked(tenant, scene.rival_41)).members.get("expected")


def test_p5_a_rival_of_42_is_kept_and_reported_and_displaces_nothing(scene: Scene) -> None:
    tenant = scene.tenant
    tenant.append(scene.cancel, scene.confirm)
    before = count(tenant)
    error = forked(tenant, scene.rival_42)
    assert (error.members["stored"], error.members["rival"]) == (
        scene.confirm.digest,
        scene.rival_42.digest,
    )
    (fork,) = gaps(tenant)
    assert (fork.flaw, fork.first, fork.last, fork.durable_through) == (Flaw.FORK, 42, 42, 42)
    assert fork.digests == tuple(sorted((scene.confirm.digest, scene.rival_42.digest)))
    assert all(digest in fork.detail for digest in fork.digests)
    (rival,) = drive(tenant.log.rivals(ENTITY))
    assert (rival.entry, rival.stored) == (scene.rival_42, scene.confirm.digest)
    assert count(tenant) == before

    entity = view(tenant)
    assert (entity.revision, entity.digest, entity.complete) == (42, scene.confirm.digest, False)
    ruling = gate(tenant, 42)
    assert ruling.gate == HELD
    assert any("rivals" in reason for reason in ruling.reasons)

    forked(tenant, scene.rival_42)
    assert len(drive(tenant.log.rivals(ENTITY))) == 1
    assert gaps(tenant) == [fork]
    (again,) = tenant.append(scene.confirm)
    assert (again.outcome, again.durable_through, again.complete) == ("duplicate", 42, False)
    (later,) = tenant.append(scene.caller.seal(ENTITY, "archive"))
    assert (later.outcome, later.durable_through, later.complete) == ("accepted", 42, False)
    assert (view(tenant).revision, view(tenant).newest) == (42, 43)
    assert not view(tenant).complete


def test_p5_a_rival_of_42_while_41_is_missing(scene: Scene) -> None:
    tenant = scene.tenant
    tenant.append(scene.confirm)
    error = forked(tenant, scene.rival_42)
    assert error.members["stored"] == scene.confirm.digest
    assert [(gap.flaw, gap.first) for gap in gaps(tenant)] == [(Flaw.GAP, 41), (Flaw.FORK, 42)]
    tenant.append(scene.cancel)
    assert view(tenant).revision == 41
    assert [gap.flaw for gap in gaps(tenant)] == [Flaw.FORK]


def test_p5_other_entities_go_on_beside_an_incomplete_one(scene: Scene) -> None:
    tenant = scene.tenant
    tenant.append(scene.confirm)
    tenant.append(*scene.caller.chain("contract/c-2", 2))
    assert gate(tenant, entity="contract/c-2").gate == GO
    assert tenant.decide("document/7", "submit")[0].sequence == 1
    assert [gap.entity for gap in gaps(tenant)] == [ENTITY]
    assert gaps(tenant, "contract/c-2") == []


def test_an_entry_below_the_boundary_with_other_bytes_is_a_rival(scene: Scene) -> None:
    first = sealed(
        b"",
        entity=ENTITY,
        operation="another-1",
        history=scene.caller.history,
        outcome=Outcome(None, "x"),
    )
    error = forked(scene.tenant, first)
    assert error.members["rival"] == first.digest
    assert view(scene.tenant).revision == 40
    assert [(gap.flaw, gap.first) for gap in gaps(scene.tenant)] == [(Flaw.FORK, 1)]


def test_since_a_gap_stands_is_kept_while_it_stands(scene: Scene) -> None:
    tenant = scene.tenant
    tenant.append(scene.confirm)
    since = gaps(tenant)[0].since
    later = scene.caller.seal(ENTITY, "archive")
    tenant.append(later)
    (gap,) = gaps(tenant)
    assert (gap.since, gap.holds) == (since, 2)


def test_r9_the_same_bytes_again_are_a_success(scene: Scene) -> None:
    tenant = scene.tenant
    tenant.append(scene.cancel, scene.confirm)
    before = count(tenant)
    answers = tenant.append(scene.confirm, scene.cancel, scene.confirm)
    assert {answer.outcome for answer in answers} == {"duplicate"}
    assert {answer.durable_through for answer in answers} == {42}
    assert count(tenant) == before


def test_p6_an_operation_id_names_one_entry_of_whatever_owner(tenant: Tenant) -> None:
    managed = tenant.decide("document/7", "submit")[0].operation
    caller = tenant.caller()
    first = caller.seal(ENTITY)
    tenant.append(first)
    for taken in (managed, first.envelope.operation):
        with pytest.raises(OperationReused):
            tenant.append(caller.draft("contract/c-9", operation=taken))
    with pytest.raises(OperationReused):
        tenant.accept(operation("case/1", "x", id=first.envelope.operation))


# All or nothing.


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_request_with_one_rival_takes_nothing_but_the_evidence(scene: Scene, at: int) -> None:
    tenant = scene.tenant
    tenant.append(scene.cancel, scene.confirm)
    fresh = Caller(scene.caller.history).chain("contract/c-2", 2)
    entries = list(fresh)
    entries.insert(at, scene.rival_42)
    before = count(tenant)
    forked(tenant, *entries)
    assert count(tenant) == before
    assert drive(tenant.log.chain("contract/c-2")) is None
    assert len(drive(tenant.log.rivals(ENTITY))) == 1


@pytest.mark.parametrize("swapped", [False, True])
def test_a_request_that_contradicts_itself_takes_nothing_and_leaves_no_evidence(
    tenant: Tenant, swapped: bool
) -> None:
    caller = tenant.caller()
    one, other = caller.draft(ENTITY, "sign"), caller.draft(ENTITY, "amend")
    before = count(tenant)
    error = forked(tenant, *((other, one) if swapped else (one, other)))
    assert error.members["revision"] == 1
    assert count(tenant) == before
    assert drive(tenant.log.chain(ENTITY)) is None
    assert drive(tenant.log.rivals(ENTITY)) == []
    assert gaps(tenant) == []
    assert tenant.append(one)[0].complete


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_request_with_one_wrong_entry_takes_nothing(scene: Scene, at: int) -> None:
    tenant = scene.tenant
    fresh = Caller(scene.caller.history).chain("contract/c-2", 2)
    wrong = msgspec.structs.replace(scene.cancel, text=scene.cancel.text + b" ")
    entries = list(fresh)
    entries.insert(at, wrong)
    before = count(tenant)
    with pytest.raises(Invalid) as refused:
        tenant.append(*entries)
    assert refused.value.members["item"] == at
    assert count(tenant) == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tenant": "other"}, "tenant"),
        ({"entity": "document/7"}, "entity"),
        ({"entity": "account/7"}, "entity"),
        ({"entity": "control/tenant"}, "entity"),
        ({"entity": "invoice/7"}, "entity"),
        ({"v": 2}, "v"),
        ({"revision": 3}, "predecessor"),
    ],
)
def test_an_entry_that_no_caller_may_append_is_refused(
    tenant: Tenant, changes: dict[str, Any], named: str
) -> None:
    before = count(tenant)
    with pytest.raises(Invalid) as refused:
        tenant.append(sealed(b"", history=tenant.caller().history, **changes))
    assert refused.value.members["field"] == named
    assert count(tenant) == before


def test_a_request_has_a_limit(tenant: Tenant) -> None:
    for wrong in ([], Caller().chain(ENTITY, MAX_ENTRIES + 1)):
        with pytest.raises(Invalid):
            tenant.append(*wrong)


def test_too_many_that_wait_for_a_missing_revision_are_refused(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal.sealed.MAX_AHEAD", 3)
    chain = tenant.caller().chain(ENTITY, 9)
    tenant.append(*chain[2:5])
    for wrong in (chain[5], chain[1]):
        with pytest.raises(Overloaded, match="wait for revision 1 already"):
            tenant.append(wrong)
    # What is waited for is always taken, and in one request with what it lets in.
    answers = tenant.append(chain[0], chain[1], *chain[5:])
    assert {answer.durable_through for answer in answers} == {9}


# History and generation in force.


def test_p7_entries_of_another_history_or_generation_are_refused(tenant: Tenant) -> None:
    force = tenant.control().authority
    before = count(tenant)
    for caller in (Caller(OTHER_HISTORY), Caller(force.history, 2)):
        with pytest.raises(StaleGeneration) as refused:
            tenant.append(caller.seal(ENTITY))
        assert refused.value.members == {"generation": 1, "history": force.history}
    assert count(tenant) == before


def test_a_sealed_history_takes_only_what_a_successor_names(scene: Scene) -> None:
    tenant = scene.tenant
    tenant.append(scene.confirm)
    unnamed = Caller(scene.caller.history).seal("contract/c-2")
    tenant.start_history(OTHER_HISTORY)
    rebuild_store(tenant)
    with pytest.raises(StaleGeneration) as refused:
        tenant.append(unnamed)
    assert refused.value.members["history"] == OTHER_HISTORY
    with pytest.raises(StaleGeneration):
        tenant.append(scene.caller.seal(ENTITY, "archive"))
    (late,) = tenant.append(scene.cancel)
    assert (late.durable_through, late.complete) == (42, True)
    renewed = Caller(OTHER_HISTORY, 2)
    renewed.heads[ENTITY] = scene.confirm
    (new,) = tenant.append(renewed.seal(ENTITY, "archive"))
    assert (new.durable_through, new.complete) == (43, True)
    renewed.heads.pop(ENTITY)
    sealed_anew = renewed.seal("contract/c-2", operation=unnamed.envelope.operation)
    assert tenant.append(sealed_anew)[0].durable_through == 1


def rebuild_store(tenant: Tenant) -> None:
    """The store as a recovery leaves it, at the beginning of the history in force."""
    force = tenant.control().authority
    tenant.sql(
        "UPDATE unrewind_marker SET history = ?, generation = ?, sequence = ?, digest = ?,"
        " journalled = ?",
        force.history,
        force.generation,
        force.first - 1,
        force.digest,
        force.first - 1,
    )


def test_r1_a_feed_cursor_of_an_ended_history_is_refused_and_resumed(scene: Scene) -> None:
    tenant = scene.tenant
    page = tenant.do(feed.read_feed, None, 7)
    assert [item.position for item in page.entries] == list(range(1, 8))
    following = tenant.do(feed.read_feed, page.next, 1000)
    assert [item.position for item in following.entries] == list(range(8, 42))
    tenant.start_history(OTHER_HISTORY)
    rebuild_store(tenant)
    renewed = Caller(OTHER_HISTORY, 2)
    for grown in (0, 60):
        # Also after the new history has grown past the cursor's position.
        if grown:
            tenant.append(*renewed.chain("contract/c-2", grown))
        with pytest.raises(HistoryChanged) as refused:
            tenant.do(feed.read_feed, page.next, 10)
        assert refused.value.members["history"] == OTHER_HISTORY
        resumed = tenant.do(feed.read_feed, refused.value.members["resume"], 1000)
        assert resumed.entries[0].position == 8


def test_r10_a_feed_cursor_beyond_a_rewound_journal_is_refused_without_resuming(
    tenant: Tenant,
) -> None:
    tenant.append(*tenant.caller().chain(ENTITY, 3))
    force = tenant.control().authority
    for position, digest in ((99, "a" * 64), (2, "a" * 64)):
        cursor = feed.encode_cursor(force.history, position, digest)
        with pytest.raises(HistoryChanged) as refused:
            tenant.do(feed.read_feed, cursor, 10)
        assert refused.value.members["resume"] is None


@pytest.mark.parametrize("cursor", ["", "x", "WzFd", "é", feed.encode_cursor("a", "b", "c")])
def test_a_cursor_of_nobodys_is_invalid(tenant: Tenant, cursor: str) -> None:
    with pytest.raises(Invalid):
        tenant.do(feed.read_feed, cursor, 10)


def test_the_feed_leaves_tokens_out(tenant: Tenant) -> None:
    from journal.control import Role
    from journal.tokens import create_token

    tenant.do(create_token, Role.READER, "press")
    tenant.append(tenant.caller().seal(ENTITY))
    page = tenant.do(feed.read_feed, None, 10)
    assert [item.position for item in page.entries] == [1, 3]
    assert tenant.do(feed.read_feed, page.next, 10).entries == []


@pytest.mark.parametrize("stage", [Stage.CLOSED, Stage.READING])
def test_p7_nothing_is_appended_against_the_stage_in_force(tenant: Tenant, stage: Stage) -> None:
    entry = tenant.caller().seal(ENTITY)
    tenant.put_in_force(stage=stage)
    with pytest.raises(Recovering):
        tenant.append(entry)
    tenant.put_in_force(stage=Stage.OPEN)
    assert tenant.append(entry)[0].durable_through == 1


# Sequences of the caller's own.


def test_a_rewound_caller_with_a_sequence_is_noticed_by_its_next_append(tenant: Tenant) -> None:
    caller = tenant.caller(sequenced=True)
    tenant.append(caller.seal(ENTITY), caller.seal("contract/c-2"), caller.seal("contract/c-3"))
    rewound = tenant.caller(sequenced=True)
    rewound.sequence = 1
    late = rewound.seal("contract/c-9")
    before = count(tenant)
    error = forked(tenant, late)
    assert error.members["sequence"] == 2
    assert error.members["offered"] == late.digest
    assert error.members["stored"] == caller.heads["contract/c-2"].digest
    assert count(tenant) == before
    assert tenant.append(caller.seal("contract/c-9"))[0].complete


def test_a_rewound_caller_without_a_sequence_is_noticed_per_entity(tenant: Tenant) -> None:
    caller = tenant.caller()
    chain = caller.chain(ENTITY, 3)
    tenant.append(*chain)
    rewound = tenant.caller()
    rewound.heads[ENTITY] = chain[0]
    forked(tenant, rewound.seal(ENTITY, "amend"))
    other = rewound.seal("contract/c-2")
    assert tenant.append(other)[0].complete


def test_sequences_of_a_caller_may_arrive_in_any_order_and_within_one_request(
    tenant: Tenant,
) -> None:
    caller = tenant.caller(sequenced=True)
    entries = [caller.seal(f"contract/c-{n % 2}") for n in range(6)]
    tenant.append(*reversed(entries[3:]))
    tenant.append(*entries[:3])
    assert gaps(tenant) == []
    twice = msgspec.structs.replace(entries[5].envelope, operation="twice")
    copy = sealed(b"", **{**fields(twice), "entity": "contract/c-7", "revision": 1})
    assert forked(tenant, copy).members["sequence"] == 6


def fields(envelope: Any) -> dict[str, Any]:
    found = {name: getattr(envelope, name) for name in envelope.__struct_fields__}
    del found["body"], found["predecessor"]
    return found


def test_a_successor_of_what_is_not_its_predecessor_is_refused(scene: Scene) -> None:
    before = scene.caller.heads[ENTITY]
    scene.tenant.append(scene.cancel, scene.confirm)
    wrong = msgspec.structs.replace(predecessor_of(before), digest="e" * 64)
    entry = scene.caller.draft(ENTITY, "archive", predecessor=wrong)
    error = forked(scene.tenant, entry)
    assert error.members["expected"] == scene.confirm.digest
    assert drive(scene.tenant.log.rivals(ENTITY)) == []


# Failures.


def test_p1_an_append_that_fails_takes_nothing_and_the_repeat_takes_all(tenant: Tenant) -> None:
    chain = tenant.caller().chain(ENTITY, 3)
    fail_log(tenant.record, before=[Unreachable("busy")])
    with pytest.raises(JournalUnavailable):
        tenant.append(*chain)
    assert drive(tenant.log.chain(ENTITY)) is None
    fail_log(tenant.record, after=[Unreachable("busy")])
    with pytest.raises(JournalUnavailable):
        tenant.append(*chain)
    assert {answer.outcome for answer in tenant.append(*chain)} == {"duplicate"}
    assert view(tenant).revision == 3


def test_r15_a_disk_that_fails_stops_the_writer(tenant: Tenant) -> None:
    entry = tenant.caller().seal(ENTITY)
    fail_log(tenant.record, after=[DiskFailed("EIO")])
    with pytest.raises(WriterStopped):
        tenant.append(entry)
    with pytest.raises(WriterStopped):
        tenant.append(entry)
    with pytest.raises(WriterStopped):
        tenant.turn(operation("document/7"))
    tenant.reopen()
    assert tenant.append(entry)[0].outcome == "duplicate"


def test_p10_damage_around_the_new_entry_is_told_and_nothing_is_taken(tenant: Tenant) -> None:
    chain = tenant.caller().chain(ENTITY, 4)
    tenant.append(*chain[:2], chain[3])
    tenant.journal_sql("DROP TRIGGER entries_no_update")
    tenant.journal_sql("UPDATE entries SET body = x'00' WHERE entity = ? AND revision = 4", ENTITY)
    before = count(tenant)
    with pytest.raises(UnrewindError, match="damaged"):
        tenant.append(chain[2])
    assert count(tenant) == before
    tenant.append(Caller(tenant.control().authority.history).seal("contract/c-2"))
    tenant.damaged()


# Any order.


@hypothesis_settings(max_examples=25)
@given(st.data())
def test_any_order_of_arrival_ends_in_the_same_boundary_and_no_gaps(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 9))
    order = data.draw(st.permutations(range(length)))
    cuts = data.draw(st.lists(st.integers(1, length), max_size=4))
    repeats = data.draw(st.lists(st.sampled_from(range(length)), max_size=3))
    with tempfile.TemporaryDirectory() as folder:
        tenant = Tenant(make_settings(Path(folder)))
        try:
            chain = tenant.caller(sequenced=data.draw(st.booleans())).chain(ENTITY, length)
            arriving = [chain[number] for number in [*order, *repeats]]
            bounds = sorted({0, len(arriving), *cuts})
            for start, stop in pairwise(bounds):
                answers = tenant.append(*arriving[start:stop])
                held = {entry.envelope.revision for entry in arriving[:stop]}
                through = min(set(range(1, length + 2)) - held) - 1
                assert {answer.durable_through for answer in answers} == {through}
                missing = set(range(1, max(held))) - held
                listed = {
                    revision for gap in gaps(tenant) for revision in range(gap.first, gap.last + 1)
                }
                assert listed == missing
                assert (gate(tenant).gate == GO) == (not missing)
            chained = drive(tenant.log.chain(ENTITY))
            assert chained is not None
            assert (chained.boundary.revision, chained.boundary.digest) == (
                length,
                chain[-1].digest,
            )
            tenant.finish()
        finally:
            tenant.close()


async def test_entries_and_decisions_are_taken_side_by_side(service: Any) -> None:
    force = (await service.status()).history
    chains = [Caller(force).chain(f"contract/c-{n}", 5) for n in range(4)]
    await asyncio.gather(
        *(service.append_entries([(e.text, e.body)]) for chain in chains for e in reversed(chain)),
        *(service.accept(operation(f"case/{n}", "opened")) for n in range(20)),
    )
    assert (await service.gaps()).items == []
    assert (await service.status()).sequence == 20
    for n in range(4):
        assert (await service.entity(f"contract/c-{n}")).revision == 5


def test_a_turn_and_an_append_by_two_processes_take_turns(tenant: Tenant) -> None:
    other = tenant.companion()
    chain = tenant.caller().chain(ENTITY, 6)
    for number, entry in enumerate(chain):
        drive(append_sealed(other if number % 2 else tenant.record, [(entry.text, entry.body)]))
        tenant.decide("document/7", "submit")
    assert view(tenant).revision == 6
