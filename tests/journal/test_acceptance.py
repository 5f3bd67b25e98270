"""Acceptance: which operations become decisions, and which."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.acceptance import (
    ACCEPTED,
    DUPLICATE,
    Acceptance,
    Context,
    EntityHead,
    Judged,
    Operation,
    Place,
    View,
    beginning,
    check_operation,
    head_after,
    judge,
)
from journal.control import Stage
from journal.data import hash_of
from journal.entry import GENESIS, JSON_TYPE, Entry, check
from journal.errors import (
    HistoryIncomplete,
    Invalid,
    NotFound,
    OperationReused,
    Overloaded,
    Recovering,
    RevisionMismatch,
    TransitionRefused,
    UnrewindError,
)
from journal.history import examine
from journal.holding import Limits
from journal.lifecycle import DOCUMENT
from journal.release import REPORT_TYPE, Report, Rules, body_of
from journal.settings import Settings
from journal.work import Work
from tests.journal import independent
from tests.support.releases import row_of_work
from tests.support.sealing import HISTORY, MOMENT, OTHER_HISTORY, link
from tests.support.tenants import LIFECYCLES

RULES = {"document": DOCUMENT, **LIFECYCLES}
CONTEXT = Context(Rules("main", RULES, Settings().lanes), MOMENT)
START = beginning(HISTORY, 1)


def run(
    *operations: Operation,
    tip: Place = START,
    heads: dict[str, EntityHead] | None = None,
    known: dict[str, Entry | UnrewindError] | None = None,
    incomplete: dict[str, int] | None = None,
    work: Mapping[str, Mapping[str, Work]] | None = None,
) -> Judged:
    view = View(tip, heads or {}, known or {}, incomplete or {}, work or {})
    return judge(operations, view, CONTEXT)


def op(id: str, entity: str = "document/1", action: str = "submit", **fields: Any) -> Operation:
    return Operation(id, entity, action, **fields)


def refusal(judged: Judged, at: int = 0) -> UnrewindError:
    answer = judged.answers[at]
    assert isinstance(answer, UnrewindError)
    return answer


def receipt(judged: Judged, at: int = 0) -> Acceptance:
    answer = judged.answers[at]
    assert isinstance(answer, Acceptance)
    return answer


OPERATIONS = st.lists(
    st.builds(
        op,
        st.sampled_from([f"op-{n}" for n in range(12)]),
        st.sampled_from(["document/1", "document/2", "case/1", "account/1"]),
        st.sampled_from(["submit", "approve", "cancel", "revoke", "release"]),
        body=st.sampled_from([b"", b'{"a":1}', b'{"a":null,"b":{"c":2}}', b'{"a":1,"a":2}']),
        body_type=st.just(JSON_TYPE),
        version=st.sampled_from([None, "1"]),
        expected_revision=st.sampled_from([None, None, None, 0, 1, 2]),
    ),
    max_size=14,
)


@given(OPERATIONS, st.sampled_from([START, Place(OTHER_HISTORY, 3, 65_600, "a" * 64)]))
def test_decisions_continue_the_tip_and_each_entity_without_a_hole(
    operations: list[Operation], tip: Place
) -> None:
    judged = run(*operations, tip=tip)
    entries = [decision.entry for decision in judged.decisions]
    assert [entry.envelope.sequence for entry in entries] == list(
        range(tip.sequence + 1, tip.sequence + 1 + len(entries))
    )
    assert judged.tip.sequence == tip.sequence + len(entries)
    assert judged.tip.digest == (entries[-1].digest if entries else tip.digest)
    assert {(e.envelope.history, e.envelope.generation) for e in entries} <= {
        (tip.history, tip.generation)
    }
    for entity in {entry.envelope.entity for entry in entries}:
        chain = [entry for entry in entries if entry.envelope.entity == entity]
        found = examine(link(entry) for entry in chain)
        assert found.complete
        assert found.boundary.digest == chain[-1].digest
        assert independent.check_chain([(entry.text, entry.body) for entry in chain]) == []
    for decision in judged.decisions:
        check(decision.entry.envelope)
        assert decision.entry.envelope.outcome.data == hash_of(decision.data)


@given(OPERATIONS)
def test_every_operation_has_one_answer_and_accepted_ones_are_the_decisions(
    operations: list[Operation],
) -> None:
    judged = run(*operations)
    assert len(judged.answers) == len(operations)
    made = [a.digest for a in judged.answers if isinstance(a, Acceptance) and a.outcome == ACCEPTED]
    assert made == [decision.entry.digest for decision in judged.decisions]
    ids = [decision.entry.envelope.operation for decision in judged.decisions]
    assert len(set(ids)) == len(ids)


@given(OPERATIONS, st.integers(0, 14))
def test_a_batch_cut_in_two_is_decided_as_one(operations: list[Operation], cut: int) -> None:
    whole = run(*operations)
    first = run(*operations[:cut])
    heads = {d.entry.envelope.entity: head_after(d) for d in first.decisions}
    known: dict[str, Entry | UnrewindError] = {
        d.entry.envelope.operation: d.entry for d in first.decisions
    }
    work: dict[str, dict[str, Work]] = {}
    for row in first.work.values():
        work.setdefault(row.entity or "", {})[row.id] = row
    second = run(*operations[cut:], tip=first.tip, heads=heads, known=known, work=work)
    assert {**first.work, **second.work} == dict(whole.work)
    assert [*first.decisions, *second.decisions] == list(whole.decisions)
    assert [shape(a) for a in (*first.answers, *second.answers)] == [
        shape(a) for a in whole.answers
    ]


def shape(answer: Any) -> Any:
    return answer if isinstance(answer, Acceptance) else (type(answer), answer.detail)


def test_p6_h2_a_known_operation_is_answered_before_any_precondition() -> None:
    first = run(op("a"))
    entry = first.decisions[0].entry
    again = run(op("a", expected_revision=77), known={"a": entry}, incomplete={"document/1": 1})
    assert again.decisions == ()
    assert receipt(again) == msgspec.structs.replace(receipt(first), outcome=DUPLICATE)
    correct = run(op("a", expected_revision=0), known={"a": entry})
    assert correct.decisions == ()


DIFFERENCES: dict[str, dict[str, Any]] = {
    "entity": {"entity": "document/2"},
    "action": {"action": "approve"},
    "version": {"version": "2"},
    "actor": {"actor": "B"},
    "body": {"body": b'{"a":2}'},
    "at": {"at": "2026-03-14T09:26:54.000000Z"},
}
FIRST = op("a", body=b'{"a":1}', body_type=JSON_TYPE, actor="A", version="1", at=MOMENT)


@pytest.mark.parametrize("field", DIFFERENCES)
def test_h1_p6_a_reused_operation_id_is_refused_by_naming_what_differs(field: str) -> None:
    entry = run(FIRST).decisions[0].entry
    other = msgspec.structs.replace(FIRST, **DIFFERENCES[field])
    judged = run(other, known={"a": entry})
    assert judged.decisions == ()
    error = refusal(judged)
    assert isinstance(error, OperationReused)
    assert error.members == {"differing": [field], "entity": "document/1", "revision": 1}
    assert field in error.detail


def test_h1_a_body_of_another_type_is_another_body() -> None:
    entry = run(FIRST).decisions[0].entry
    other = msgspec.structs.replace(FIRST, body_type="text/plain")
    assert refusal(run(other, known={"a": entry})).members["differing"] == ["body"]


def test_a_repeat_may_leave_out_the_time_that_it_claimed() -> None:
    entry = run(FIRST).decisions[0].entry
    again = msgspec.structs.replace(FIRST, at=None)
    assert receipt(run(again, known={"a": entry})).outcome == DUPLICATE


def test_h7_an_operation_repeated_within_a_batch_is_a_repeat() -> None:
    judged = run(op("a"), op("a"), op("a", actor="B"), op("b", action="approve"))
    assert len(judged.decisions) == 2
    assert receipt(judged, 0).outcome == ACCEPTED
    assert receipt(judged, 1) == msgspec.structs.replace(receipt(judged, 0), outcome=DUPLICATE)
    assert isinstance(refusal(judged, 2), OperationReused)
    assert receipt(judged, 3).revision == 2


def test_h7_when_the_first_is_refused_the_second_is_judged() -> None:
    judged = run(op("a", action="approve"), op("a", action="submit"))
    assert isinstance(refusal(judged, 0), TransitionRefused)
    assert receipt(judged, 1).outcome == ACCEPTED


def test_each_operation_sees_the_ones_before_it() -> None:
    judged = run(
        op("a"),
        op("b", action="approve", expected_revision=1),
        op("c", action="approve", expected_revision=1),
        op("d", entity="document/2"),
        op("e", action="cancel", expected_revision=2),
    )
    assert [receipt(judged, at).state for at in (0, 1, 3, 4)] == [
        "submitted",
        "approved",
        "submitted",
        "cancelled",
    ]
    error = refusal(judged, 2)
    assert isinstance(error, RevisionMismatch)
    assert error.members == {"entity": "document/1", "expected": 1, "actual": 2}


def test_p5_an_incomplete_entity_takes_nothing_and_the_others_go_on() -> None:
    judged = run(op("a"), op("b", entity="document/2"), incomplete={"document/1": 0})
    assert isinstance(refusal(judged), HistoryIncomplete)
    assert receipt(judged, 1).sequence == 1


def test_p10_a_known_operation_whose_entry_is_damaged_is_answered_by_that() -> None:
    damage = HistoryIncomplete("damaged")
    judged = run(op("a"), op("b", entity="document/2"), known={"a": damage})
    assert judged.answers[0] is damage
    assert receipt(judged, 1).outcome == ACCEPTED


def test_a_body_that_cannot_be_merged_affects_its_own_operation_alone() -> None:
    wrong = op("a", body=b'{"a":1,"a":1}', body_type=JSON_TYPE)
    judged = run(wrong, op("b"))
    assert isinstance(refusal(judged), Invalid)
    assert receipt(judged, 1).revision == 1


def test_a_decision_follows_its_head_across_histories() -> None:
    head = EntityHead("document/1", 5, OTHER_HISTORY, "d" * 64, 9, "submitted", "1", '{"a":1}')
    judged = run(op("a", action="approve"), heads={"document/1": head})
    envelope = judged.decisions[0].entry.envelope
    assert envelope.revision == 6
    assert envelope.predecessor is not None
    assert envelope.predecessor.history == OTHER_HISTORY
    assert envelope.history == HISTORY
    assert judged.decisions[0].data == b'{"a":1}'


def test_a_beginning_stands_before_its_first_sequence() -> None:
    assert beginning(HISTORY, 2, 65_538) == Place(HISTORY, 2, 65_537, GENESIS)
    assert run(op("a"), tip=beginning(HISTORY, 2, 7)).tip.sequence == 7


UNFIT = {
    "an empty operation": op(""),
    "an operation too long": op("o" * 257),
    "an operation with a control character": op("a\n"),
    "half a surrogate pair": op("\ud800"),
    "no type": op("a", "document"),
    "no id": op("a", "document/"),
    "an undeclared type": op("a", "invoice/1"),
    "a type cut short by one": op("a", "documents"),
    "control": op("a", "control/tenant"),
    "a caller's type": op("a", "contract/1"),
    "an empty action": op("a", action=""),
    "an action too long": op("a", "case/1", "a" * 129),
    "an empty body type": op("a", body_type=""),
    "an actor too long": op("a", actor="a" * 1025),
    "half a surrogate pair as actor": op("a", actor="\udfff"),
    "a version too long": op("a", version="v" * 1025),
    "a principal too long": op("a", principal="p" * 1025),
    "a negative expectation": op("a", expected_revision=-1),
    "a time that is none": op("a", at="yesterday"),
    "a time with nanoseconds": op("a", at="2026-03-14T09:26:53.123456789Z"),
    "a time without a zone": op("a", at="2026-03-14T09:26:53.123456"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_what_could_never_be_a_decision_is_refused_at_the_door(what: str) -> None:
    with pytest.raises(Invalid):
        check_operation(UNFIT[what], RULES, 1 << 20)


def test_what_passes_the_door_is_sealed_within_the_format() -> None:
    widest = Operation(
        operation="o" * 256,
        entity="case/" + "é" * 256,
        action="a" * 128,
        body=b"\x00\xff",
        body_type="t" * 128,
        version="\U0001f4c4" * 256,
        actor="\x00" * 1024,
        principal="",
        at="2024-02-29T23:59:59.999999Z",
    )
    check_operation(widest, RULES, 1 << 20)
    entry = run(widest).decisions[0].entry
    assert independent.check(entry.text, entry.body) == entry.digest


# What a decision makes of work.


def released(entity: str = "document/1", version: str = "1") -> list[Operation]:
    return [
        op(f"{entity}-{action}-{version}", entity, action, version=version)
        for action in ("submit", "approve", "release")
    ]


def test_a_permission_is_in_the_envelope_and_makes_one_row() -> None:
    judged = run(*released())
    ((identity, row),) = judged.work.items()
    (release,) = judged.decisions[-1].entry.envelope.releases
    assert (release.id, release.lane, release.version) == (identity, "delivery", "1")
    assert (row.status, row.entity, row.revision) == ("ready", "document/1", 3)
    assert receipt(judged, 2).releases == (identity,)
    assert receipt(judged, 2).existing == ()
    again = run(*released(), op("again", action="release", version="1"))
    assert receipt(again, 3).existing == (identity,)
    assert len(again.work) == 1


def test_each_operation_sees_the_work_of_the_ones_before_it() -> None:
    judged = run(*released(), op("stop", action="revoke"))
    (row,) = judged.work.values()
    assert row.status == "cancelled"


def test_what_the_door_refuses_is_no_decision_and_leaves_no_trace() -> None:
    asked: list[int] = []

    def admit(rows: Sequence[Work]) -> None:
        asked.append(len(rows))
        raise Overloaded

    context = msgspec.structs.replace(CONTEXT, admit=admit)
    operations = [*released(), op("other", "case/1", "set")]
    judged = judge(operations, View(START, {}, {}), context)
    assert asked == [1]
    assert isinstance(refusal(judged, 2), Overloaded)
    assert judged.work == {}
    assert [d.entry.envelope.action for d in judged.decisions] == ["submit", "approve", "set"]
    assert receipt(judged, 3).sequence == 3


@pytest.mark.parametrize("stage", [Stage.INTERNAL, Stage.OPEN])
def test_p7_a_commitment_is_judged_by_the_stage_and_a_report_is_not(stage: Stage) -> None:
    permitted = run(*released())
    heads = {"document/1": head_after(permitted.decisions[-1])}
    (row,) = permitted.work.values()
    commit = told("release.committed", row, lease=7)
    confirm = told("release.confirmed", row, lease=7)
    commits = Limits(stage, None, {}).check_commitment
    context = msgspec.structs.replace(CONTEXT, commits=commits)
    view = View(permitted.tip, heads, {}, {}, {"document/1": {row.id: row}})
    judged = judge([commit, confirm], view, context)
    if not stage.effects:
        assert isinstance(refusal(judged, 0), Recovering)
        assert judged.decisions == ()
        return
    assert [d.entry.envelope.outcome.state for d in judged.decisions] == ["committed", "released"]
    # A report decides on no content: the version that was decided on before still stands.
    assert {d.entry.envelope.version for d in judged.decisions} == {"1"}
    assert judged.work[row.id].status == "done"


def told(action: str, row: Work, **fields: Any) -> Operation:
    """A report on a release, as unrewind makes an operation of it."""
    body = body_of(Report(row.id, **fields))
    return Operation(action, row.entity or "", action, body=body, body_type=REPORT_TYPE)


def test_a_report_on_an_entity_that_is_not_there_is_refused() -> None:
    row = row_of_work(entity="document/9")
    assert isinstance(refusal(run(told("release.confirmed", row))), NotFound)


def test_a_correction_corrects_a_release_of_its_own_entity() -> None:
    body = b'{"corrects":"rel_0"}'
    heads = {"document/1": EntityHead("document/1", 5, HISTORY, "d" * 64, 9, "released", "1", "{}")}
    recall = op("r", action="recall", version="1", body=body, body_type=JSON_TYPE)
    assert isinstance(refusal(run(recall, heads=heads)), Invalid)
    own = {"document/1": {"rel_0": row_of_work(id="rel_0", entity="document/1", status="done")}}
    judged = run(recall, heads=heads, work=own)
    (release,) = judged.decisions[0].entry.envelope.releases
    assert release.corrects == "rel_0"
    assert judged.work.keys() == {release.id}
