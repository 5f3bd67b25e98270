"""The write path: store, then journal, then the answer; real files, failures put in between."""

from __future__ import annotations

import sqlite3
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

import journal
from journal import reading
from journal.control import Stage
from journal.detection import Verdict
from journal.entry import seal
from journal.errors import (
    ConstraintFailed,
    DiskFailed,
    EngineError,
    FenceFailed,
    JournalUnavailable,
    NotFound,
    OperationReused,
    Recovering,
    Refusal,
    RevisionMismatch,
    TransitionRefused,
    Unreachable,
    UnrewindError,
    WriterStopped,
)
from journal.log import DECISIONS, Append, Moved
from journal.record import Record
from journal.standing import detect, examine
from journal.status import status
from journal.store import tables
from journal.store.sqlite import SqliteStore
from journal.worker import drive
from journal.writepath import settle, turn
from tests.support.faults import fail_log, fail_store
from tests.support.sealing import OTHER_HISTORY, sealed
from tests.support.tenants import Tenant, accepted, operation

ENTITY = "document/7"
BUSY = Unreachable("busy")
FULL = DiskFailed("no space left (SQLITE_FULL)")


def journalled(tenant: Tenant) -> list[str]:
    return [row.operation for row in drive(tenant.log.decisions(0, 10_000))]


def stored(tenant: Tenant) -> list[int]:
    return [n for (n,) in tenant.sql("SELECT sequence FROM unrewind_decisions ORDER BY sequence")]


# P1: an acknowledgement rests on the journal.


def test_p1_h10_a_failed_append_gives_no_acknowledgement_until_it_is_handed_off(
    tenant: Tenant,
) -> None:
    tenant.decide(ENTITY, "submit")
    wanted = operation(ENTITY, "approve")
    fail_log(tenant.record, before=[BUSY] * 4)
    with pytest.raises(JournalUnavailable, match="committed but not yet in the journal"):
        tenant.turn(wanted)
    assert stored(tenant) == [1, 2]
    for _ in range(2):
        with pytest.raises(JournalUnavailable):
            tenant.turn(wanted)
    with pytest.raises(JournalUnavailable):
        tenant.turn(operation("document/8"))
    assert len(journalled(tenant)) == 1
    assert stored(tenant) == [1, 2]
    again = tenant.accept(wanted)
    assert (again.outcome, again.sequence, again.state) == ("duplicate", 2, "approved")
    assert journalled(tenant)[1:] == [wanted.operation]


def test_p1_a_commit_whose_answer_was_lost_is_answered_by_the_same_decision(
    tenant: Tenant,
) -> None:
    wanted = operation(ENTITY)
    fail_log(tenant.record, after=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    again = tenant.accept(wanted)
    assert (again.outcome, again.revision) == ("duplicate", 1)
    assert journalled(tenant) == [wanted.operation]


def test_p1_every_answer_of_a_turn_waits_for_the_append(tenant: Tenant) -> None:
    """Refusals and repeats rest on decisions of their batch too."""
    first = tenant.decide(ENTITY, "submit")[0]
    fail_log(tenant.record, before=[BUSY])
    known = operation(ENTITY, id=first.operation)
    with pytest.raises(JournalUnavailable):
        tenant.turn(operation(ENTITY, "approve"), known, operation(ENTITY, "submit"))


def test_p1_a_refusal_rests_on_what_is_handed_off_first(tenant: Tenant) -> None:
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(operation(ENTITY))
    refusal = tenant.turn(operation(ENTITY, "release", version="1"))[0]
    assert isinstance(refusal, TransitionRefused)
    assert refusal.members["state"] == "submitted"
    assert len(journalled(tenant)) == 1


def test_p1_decisions_left_by_a_killed_process_are_handed_off_by_the_next(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(settings)
    wanted = [operation(f"case/{n}", "opened") for n in range(1100)]
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(*wanted)
    tenant.reopen()
    assert drive(detect(tenant.record, deep=False)).verdict is Verdict.CRASHED
    assert drive(status(tenant.record)).pending == 1100
    before = tenant.sql("SELECT hex(digest) FROM unrewind_decisions ORDER BY sequence")
    answer = tenant.accept(wanted[700])
    assert (answer.outcome, answer.sequence) == ("duplicate", 701)
    assert journalled(tenant) == [item.operation for item in wanted]
    assert before == tenant.journal_sql(
        "SELECT hex(digest) FROM entries WHERE stream = 'decisions' ORDER BY sequence"
    )
    tenant.finish()


def test_p1_a_handoff_that_fails_half_way_goes_on_where_it_stopped(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(settings)
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(*(operation(f"case/{n}", "opened") for n in range(1100)))
    log = fail_log(tenant.record, after=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(operation(ENTITY))
    assert 0 < len(journalled(tenant)) < 1100
    log.before = [BUSY]
    with pytest.raises(JournalUnavailable):
        tenant.turn(operation(ENTITY))
    assert tenant.decide(ENTITY, "submit")[0].sequence == 1101
    tenant.finish()


@pytest.mark.parametrize(
    "damage",
    [
        (
            "UPDATE unrewind_decisions SET envelope = replace(envelope, 'opened', 'closed')"
            " WHERE sequence = 2"
        ),
        "UPDATE unrewind_decisions SET body = x'00' WHERE sequence = 2",
        "UPDATE unrewind_decisions SET digest = x'00' WHERE sequence = 2",
        "UPDATE unrewind_decisions SET envelope = CAST(x'ff' AS TEXT) WHERE sequence = 2",
        "DELETE FROM unrewind_decisions WHERE sequence = 2",
    ],
    ids=["envelope", "body", "digest", "no text", "missing"],
)
def test_p10_a_pending_decision_whose_bytes_changed_is_never_journalled(
    settings: journal.Settings, damage: str
) -> None:
    tenant = Tenant(settings)
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(*(operation(f"case/{n}", "opened") for n in range(3)))
    tenant.sql(damage)
    for _ in range(2):
        with pytest.raises(Recovering):
            tenant.turn(operation(ENTITY))
    assert "case/1" not in {row.entity for row in drive(tenant.log.decisions(0, 9))}
    assert tenant.record.stop.stands()
    tenant.diverged()
    tenant.finish()


def test_p1_a_read_waits_for_the_journal_where_the_store_is_ahead(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    tenant.decide("document/8", "submit")
    fail_log(tenant.record, before=[BUSY])
    wanted = operation(ENTITY, "approve")
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    reader = Record(tenant.settings, read_only=True)
    drive(reader.open())
    with pytest.raises(reading.Pending):
        drive(reading.read_entity(reader, ENTITY, None))
    with pytest.raises(reading.Pending):
        drive(reading.read_entities(reader, None, None, None))
    assert drive(reading.read_entity(reader, "document/8", None)).revision == 1
    assert drive(reading.read_entity(reader, ENTITY, "1")).state == "submitted"
    with pytest.raises(NotFound):
        drive(reading.read_operation(reader, wanted.operation))
    assert drive(reading.read_gate(reader, ENTITY, 2)).gate == "held"
    tenant.accept(wanted)
    assert drive(reading.read_entity(reader, ENTITY, None)).state == "approved"
    assert drive(reading.read_gate(reader, ENTITY, 2)).gate == "go"
    drive(reader.close())


# P6: one operation, one decision.


def test_p6_h1_h2_an_operation_makes_one_decision_across_restarts(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(settings)
    wanted = operation(ENTITY, "submit", {"a": 1}, expected_revision=0)
    first = tenant.accept(wanted)
    tenant.decide(ENTITY, "approve", "revoke")
    for _ in range(2):
        tenant.reopen()
        again = tenant.accept(wanted)
        assert again == msgspec.structs.replace(first, outcome="duplicate")
        other = msgspec.structs.replace(wanted, body=b'{"a":2}')
        with pytest.raises(OperationReused) as refused:
            tenant.accept(other)
        assert refused.value.members["differing"] == ["body"]
    bodies = tenant.journal_sql("SELECT body FROM entries WHERE operation = ?", wanted.operation)
    assert bodies == [(b'{"a":1}',)]
    tenant.finish()


class Calendar:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.year = 2026
        self._fresh = count(1)

    def now(self) -> str:
        return f"{self.year}-03-14T09:26:53.000001Z"

    def fresh(self) -> str:
        return f"{next(self._fresh):032x}"


def test_p6_h8_a_repeat_years_later_is_a_duplicate(settings: journal.Settings) -> None:
    clock = Calendar()
    tenant = Tenant(settings, clock)
    wanted = operation(ENTITY)
    first = tenant.accept(wanted)
    tenant.turn(*(operation(f"case/{n}", "opened") for n in range(2000)))
    clock.year = 2199
    tenant.reopen()
    assert tenant.accept(wanted) == msgspec.structs.replace(first, outcome="duplicate")
    recorded = tenant.decide(ENTITY, "approve")[0]
    row = drive(tenant.log.operations([recorded.operation]))[0]
    assert row.entry().envelope.recorded == "2199-03-14T09:26:53.000001Z"
    tenant.finish()


def test_h7_a_repeat_in_the_same_batch_has_the_first_ones_answer(tenant: Tenant) -> None:
    wanted = operation(ENTITY, "submit", {"a": 1})
    first, second, third = tenant.turn(wanted, wanted, msgspec.structs.replace(wanted, body=b"{}"))
    assert accepted(first).outcome == "accepted"
    assert accepted(second) == msgspec.structs.replace(accepted(first), outcome="duplicate")
    assert isinstance(third, OperationReused)
    assert len(journalled(tenant)) == 1


def test_a_refusal_is_not_remembered(tenant: Tenant) -> None:
    wanted = operation(ENTITY, "approve")
    with pytest.raises(TransitionRefused):
        tenant.accept(wanted)
    tenant.decide(ENTITY, "submit")
    assert tenant.accept(wanted).outcome == "accepted"
    with pytest.raises(RevisionMismatch):
        tenant.accept(operation(ENTITY, "revoke", expected_revision=1))


# P7: an older generation, history or stage.


def test_p7_an_append_of_an_older_generation_is_refused(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    look = drive(tenant.log.look())
    assert look.authority is not None
    entry = sealed(b"", entity="case/1", operation="late", sequence=2)
    tenant.put_in_force("begin", generation=2, stage=Stage.CLOSED)
    with pytest.raises(Moved):
        drive(tenant.log.append(Append(entries=[(DECISIONS, entry)]), look))
    assert journalled(tenant) != ["late"]
    tenant.diverged()


def test_p7_a_record_that_knows_the_older_generation_decides_nothing(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    other = tenant.companion()
    assert accepted(drive(turn(other, [operation(ENTITY, "approve")]))[0]).revision == 2
    tenant.put_in_force("begin", generation=2)
    with pytest.raises(Recovering):
        drive(turn(other, [operation(ENTITY, "revoke")]))
    assert len(journalled(tenant)) == 2
    tenant.diverged()


def test_p7_pending_decisions_of_an_ended_generation_are_never_acknowledged(
    tenant: Tenant,
) -> None:
    tenant.decide(ENTITY, "submit")
    wanted = operation(ENTITY, "approve")
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    tenant.put_in_force("begin", generation=2)
    with pytest.raises(Recovering):
        tenant.turn(wanted)
    assert journalled(tenant) != [wanted.operation]
    assert len(journalled(tenant)) == 1
    tenant.diverged()


def test_p7_pending_decisions_of_an_ended_history_are_never_acknowledged(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    wanted = operation(ENTITY, "approve")
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    tenant.start_history(OTHER_HISTORY)
    with pytest.raises(Recovering):
        tenant.turn(wanted)
    assert len(journalled(tenant)) == 1
    tenant.diverged()


@pytest.mark.parametrize("stage", [Stage.CLOSED, Stage.READING])
def test_p7_no_decision_is_made_against_the_stage_in_force(tenant: Tenant, stage: Stage) -> None:
    other = tenant.companion()
    tenant.decide(ENTITY, "submit")
    tenant.put_in_force(stage=stage)
    for record in (tenant.record, other):
        with pytest.raises(Recovering) as refused:
            drive(turn(record, [operation(ENTITY)]))
        assert refused.value.members["stage"] == stage
    assert stored(tenant) == [1]
    tenant.put_in_force(stage=Stage.OPEN)
    assert tenant.decide(ENTITY, "submit")[0].revision == 2


@pytest.mark.parametrize("stage", [Stage.INTERNAL, Stage.EXTERNAL])
def test_decisions_are_made_from_the_internal_stage_on(tenant: Tenant, stage: Stage) -> None:
    tenant.put_in_force(stage=stage)
    assert tenant.decide(ENTITY, "submit")[0].revision == 1


def test_p9_a_stop_file_is_looked_at_before_every_turn(tenant: Tenant) -> None:
    other = tenant.companion()
    tenant.decide(ENTITY, "submit")
    other.stop.put_up("an operator", "now", verdict=None)
    for record in (tenant.record, other):
        with pytest.raises(Recovering, match="an operator"):
            drive(turn(record, [operation(ENTITY)]))
    other.stop.put_up("another reason", "later")
    assert tenant.record.stop.facts()["reason"] == "an operator"
    other.stop.take_down()
    assert tenant.decide(ENTITY, "submit")[0].revision == 2


# R9, H3: by digest at a place.


def test_r9_h3_another_decision_at_the_journals_place_is_a_fork_before_any_acknowledgement(
    tenant: Tenant,
) -> None:
    """The journal's position is far enough, and still nothing is acknowledged by that."""
    tenant.decide(ENTITY, "submit")
    wanted = operation(ENTITY, "approve")
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    pending = tables.decisions_of(drive(tenant.store.read([tables.read_decisions(1, 1)]))[0])[0]
    from journal.entry import admit

    mine = admit(pending.text, pending.body)
    rival = seal(msgspec.structs.replace(mine.envelope, operation="rival", actor="B"), mine.body)
    drive(tenant.log.append(Append(entries=[(DECISIONS, rival)]), drive(tenant.log.look())))
    for _ in range(2):
        with pytest.raises(Recovering):
            tenant.turn(wanted)
    assert tenant.record.stop.facts()["verdict"] == Verdict.FORKED
    assert journalled(tenant)[1:] == ["rival"]
    tenant.diverged()


def test_r9_the_same_bytes_again_succeed(settings: journal.Settings) -> None:
    """A second process hands off what a first one already has: nothing is doubled."""
    tenant = Tenant(settings)
    wanted = operation(ENTITY)
    fail_log(tenant.record, after=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    other = tenant.companion()
    assert accepted(drive(turn(other, [wanted]))[0]).outcome == "duplicate"
    assert tenant.accept(wanted).outcome == "duplicate"
    assert len(journalled(tenant)) == 1
    tenant.finish()


def test_r9_an_append_that_the_journal_refuses_as_taken_closes_the_tenant(tenant: Tenant) -> None:
    fail_log(tenant.record, before=[ConstraintFailed("UNIQUE constraint failed: entries.x")])
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))
    assert tenant.record.stop.facts()["verdict"] == Verdict.FORKED
    tenant.diverged()


# H4, and the fence.


@pytest.mark.parametrize(
    "error", [BUSY, ConstraintFailed("CHECK constraint failed"), FenceFailed("moved")]
)
def test_h4_a_batch_that_rolls_back_leaves_no_gap(tenant: Tenant, error: EngineError) -> None:
    tenant.decide("account/1", "open")
    fail_store(tenant.record, before=[error])
    try:
        tenant.turn(operation("account/2", "open"))
    except UnrewindError as refused:
        assert not isinstance(refused, Recovering)  # noqa: PT017 - some of them are answers
    answers = tenant.turn(operation("account/3", "open"), operation("account/1", "close"))
    last = accepted(answers[1])
    assert last.sequence == len(journalled(tenant)) == len(stored(tenant))
    assert (last.revision, stored(tenant)) == (2, list(range(1, last.sequence + 1)))


def test_p8_a_fence_that_fails_is_judged_again_from_what_is_there(tenant: Tenant) -> None:
    """Somebody who does not keep to the turn lock decides between the read and the commit."""
    tenant.decide(ENTITY, "submit")
    other = tenant.companion()
    own, other.lock = other.lock, tenant.record.lock
    store = fail_store(tenant.record)
    store.meanwhile.append(lambda: drive(turn(other, [operation(ENTITY, "approve")])))
    try:
        answer = tenant.turn(operation(ENTITY, "submit"), operation(ENTITY, "revoke"))
    finally:
        other.lock = own
    assert isinstance(answer[0], TransitionRefused)
    assert answer[0].members["state"] == "approved"
    assert (accepted(answer[1]).revision, accepted(answer[1]).sequence) == (3, 3)


def test_a_store_that_keeps_moving_is_given_up_after_a_few_tries(tenant: Tenant) -> None:
    fail_store(tenant.record, before=[FenceFailed("moved")] * 3)
    with pytest.raises(JournalUnavailable, match="again and again"):
        tenant.turn(operation(ENTITY))
    assert tenant.decide(ENTITY, "submit")[0].sequence == 1


@pytest.mark.parametrize("nth", [1, 2])
def test_a_store_that_cannot_be_read_now_is_unavailable_and_not_closed(
    tenant: Tenant, nth: int
) -> None:
    """The first read of a turn is the marker's, the second the heads'."""
    tenant.decide(ENTITY, "submit")
    store = fail_store(tenant.record)
    store.reads = [None] * (nth - 1) + [BUSY]
    wanted = operation(ENTITY, "approve")
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    assert store.reads == []
    assert not tenant.record.stop.stands()
    assert tenant.accept(wanted).outcome == "accepted"


def test_a_row_too_long_for_sqlite_is_no_damage(tenant: Tenant) -> None:
    """Heads are read as one value: a batch of long ones may pass SQLite's limit for it."""
    tenant.decide("case/long", "opened", body={"x": "x" * 5000})
    connection = tenant.store.database.connection
    before = connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 4000)
    with pytest.raises(JournalUnavailable):
        tenant.turn(operation("case/long", "closed"))
    assert not tenant.record.stop.stands()
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, before)
    assert tenant.decide("case/long", "closed")[0].revision == 2


@pytest.mark.parametrize("column", ["data", "state", "entity"])
def test_p10_a_store_row_that_is_no_text_any_more_closes_the_tenant(
    tenant: Tenant, column: str
) -> None:
    tenant.decide(ENTITY, "submit", body={"a": 1})
    tenant.sql(f"UPDATE unrewind_entities SET {column} = CAST({column} || x'ff' AS TEXT)")
    if column == "entity":
        # Nothing asks for a row under that name; only the comparison of all heads finds it.
        assert not drive(detect(tenant.record, deep=True)).verdict.sound
    with pytest.raises(Recovering):
        tenant.turn(operation(ENTITY))
    assert tenant.record.stop.facts()["verdict"] in {Verdict.REPLACED, Verdict.REWOUND}
    tenant.diverged()


# R15: the disk.


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("side", [fail_store, fail_log], ids=["store", "journal"])
def test_r15_a_disk_that_fails_at_a_commit_stops_the_writer_for_good(
    settings: journal.Settings, side: Any, moment: str
) -> None:
    tenant = Tenant(settings)
    tenant.decide(ENTITY, "submit")
    wanted = operation(ENTITY, "approve")
    side(tenant.record, **{moment: [FULL]})
    with pytest.raises(WriterStopped):
        tenant.turn(wanted)
    for _ in range(2):
        with pytest.raises(WriterStopped):
            tenant.turn(wanted)
        with pytest.raises(WriterStopped):
            drive(settle(tenant.record))
    tenant.reopen()
    again = tenant.accept(wanted)
    assert (again.revision, again.state) == (2, "approved")
    assert journalled(tenant)[1:] == [wanted.operation]
    tenant.finish()


def test_r15_a_disk_that_fails_at_an_idle_settle_stops_the_writer(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    fail_store(tenant.record, after=[FULL])
    with pytest.raises(WriterStopped):
        drive(settle(tenant.record))
    with pytest.raises(WriterStopped):
        tenant.turn(operation(ENTITY))
    tenant.reopen()


def test_r15_a_disk_that_fails_under_control_stops_the_writer(tenant: Tenant) -> None:
    fail_log(tenant.record, after=[FULL])
    with pytest.raises(WriterStopped):
        tenant.put_in_force(stage=Stage.READING)
    with pytest.raises(WriterStopped):
        tenant.turn(operation(ENTITY))
    tenant.reopen()
    tenant.put_in_force(stage=Stage.OPEN)


def test_r15_a_store_that_is_really_full_acknowledges_nothing(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    used = tenant.sql("PRAGMA page_count")[0][0]
    tenant.sql(f"PRAGMA max_page_count = {used + 1}")
    wanted = operation("case/1", "opened", {"x": "x" * 100_000})
    with pytest.raises(WriterStopped):
        tenant.turn(wanted)
    assert len(journalled(tenant)) == 1
    tenant.reopen()
    assert tenant.accept(wanted).outcome == "accepted"


# Several records on one pair of files.


def test_two_processes_take_turns_on_one_store(tenant: Tenant) -> None:
    records = [tenant.record, tenant.companion(), tenant.companion()]
    for number in range(24):
        record = records[number % 3]
        answers = drive(
            turn(
                record, [operation(ENTITY), operation(f"account/{number}", "open", {"balance": 1})]
            )
        )
        first = accepted(answers[0])
        assert (first.revision, first.sequence) == (number + 1, 2 * number + 1)
        if number % 5 == 0:
            drive(settle(record))
        if number % 7 == 0:
            assert isinstance(record.store, SqliteStore)
            record.store.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            record.saw()


def test_a_second_process_hands_off_what_the_first_left(tenant: Tenant) -> None:
    other = tenant.companion()
    wanted = operation(ENTITY)
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    assert accepted(drive(turn(other, [operation(ENTITY, "approve")]))[0]).revision == 2
    assert tenant.accept(wanted).outcome == "duplicate"
    assert journalled(tenant)[0] == wanted.operation


def test_a_checkpoint_by_a_companion_is_no_foreign_touch(tenant: Tenant) -> None:
    other = tenant.companion()
    tenant.decide(ENTITY, "submit")
    assert isinstance(other.store, SqliteStore)
    drive(turn(other, [operation(ENTITY)]))
    other.store.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    other.saw()
    assert not tenant.record.touched()


# What is settled between batches.


def test_settling_moves_the_watermark_and_copies_control(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit", "approve")
    tenant.put_in_force()
    drive(settle(tenant.record))
    marker = drive(tenant.record.marker())
    assert marker is not None
    assert marker.journalled == marker.place.sequence == 2
    copies = tenant.sql("SELECT envelope FROM unrewind_control ORDER BY sequence")
    assert copies == tenant.journal_sql(
        "SELECT envelope FROM entries WHERE stream = 'control' ORDER BY sequence"
    )
    before = tenant.store.stamp()
    drive(settle(tenant.record))
    assert tenant.store.stamp() == before


def test_the_watermark_never_covers_what_is_not_journalled(tenant: Tenant) -> None:
    tenant.decide(ENTITY, "submit")
    fail_log(tenant.record, before=[BUSY])
    with pytest.raises(JournalUnavailable):
        tenant.turn(operation(ENTITY))
    marker = drive(tenant.record.marker())
    assert marker is not None
    assert (marker.journalled, marker.place.sequence) == (1, 2)


def test_no_operation_is_no_batch(tenant: Tenant) -> None:
    assert tenant.turn() == []
    assert stored(tenant) == []


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 1024])
def test_a_batch_of_any_size_is_one_turn(tenant: Tenant, size: int) -> None:
    answers = tenant.turn(*(operation(f"case/{n % 300}", f"a{n}") for n in range(size)))
    assert [accepted(answer).sequence for answer in answers] == list(range(1, size + 1))


def test_a_refused_operation_in_a_batch_spares_its_mates(tenant: Tenant) -> None:
    first, refused, last = tenant.turn(
        operation(ENTITY), operation(ENTITY, "release", version="1"), operation(ENTITY, "approve")
    )
    assert isinstance(refused, Refusal)
    assert (accepted(first).sequence, accepted(last).sequence) == (1, 2)


def test_a_record_without_its_journal_is_unavailable(tenant: Tenant, tmp_path: Path) -> None:
    record = Record(msgspec.structs.replace(tenant.settings, data=str(tmp_path / "nowhere")))
    with pytest.raises(JournalUnavailable):
        drive(record.look())
    assert drive(examine(record))[0].verdict is Verdict.CLOSED
    drive(record.close())
