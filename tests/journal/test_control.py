"""P9: control that is missing, damaged or another tenant's means closed."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from journal import control as controls
from journal import decrees
from journal.acceptance import Place
from journal.control import (
    Authority,
    Control,
    ControlUnreadable,
    Doubt,
    Role,
    Stage,
    Token,
    fold,
    tip_of,
)
from journal.entry import GENESIS, JSON_TYPE, Entry, Predecessor, body_of, seal
from tests.journal import independent
from tests.support.sealing import HISTORY, MOMENT, OTHER_HISTORY

TOKEN = Token("t1", Role.WRITER, "a" * 64, "press", MOMENT)


def founding() -> Entry:
    return decrees.founding("main", "production", "j" * 32, HISTORY, "control-1", MOMENT)


def orders() -> list[Entry]:
    """A founding, a token, its revocation, a new generation, a new history, an opening."""
    entries = [founding()]

    def control() -> Control:
        return fold(entries, "main")

    for number, action in enumerate(("create", "revoke"), 2):
        entries.append(decrees.token_entry(control(), action, TOKEN, f"control-{number}", MOMENT))
    before = control().authority
    begun = Authority(HISTORY, 2, Stage.CLOSED, before.first, before.digest)
    entries.append(decrees.change(control(), "begin", begun, {"reason": "r"}, "control-4", MOMENT))
    new = Authority(OTHER_HISTORY, 2, Stage.CLOSED, 65_540, "b" * 64)
    facts = {"first": 65_540, "digest": "b" * 64, "reason": "applied", "verdict": "rewound"}
    entries.append(decrees.change(control(), "history", new, facts, "control-5", MOMENT))
    opened = Authority(OTHER_HISTORY, 2, Stage.OPEN, 65_540, "b" * 64)
    entries.append(decrees.change(control(), "open", opened, {}, "control-6", MOMENT))
    return entries


def test_the_order_folds_into_one_state() -> None:
    control = fold(orders(), "main")
    assert control.authority == Authority(OTHER_HISTORY, 2, Stage.OPEN, 65_540, "b" * 64)
    assert [(h.history, h.parent, h.generation, h.first) for h in control.histories] == [
        (HISTORY, None, 1, 1),
        (OTHER_HISTORY, HISTORY, 2, 65_540),
    ]
    assert control.tokens == {"t1": msgspec.structs.replace(TOKEN, revoked=True)}
    assert (control.sequence, control.last, control.instance) == (6, "open", "production")
    assert control.begun is None


def test_a_loss_that_was_accepted_is_remembered_for_good() -> None:
    entries = orders()

    def tell(action: str, generation: int, facts: dict[str, Any]) -> None:
        control = fold(entries, "main")
        before = control.authority
        force = Authority(before.history, generation, Stage.CLOSED, before.first, before.digest)
        operation = f"control-{len(entries) + 1}"
        entries.append(decrees.change(control, action, force, facts, operation, MOMENT))

    tell("rebase", 3, {"loss": None, "highest": 7})
    assert fold(entries, "main").doubted is None
    tell("rebase", 4, {"loss": {"known": True}, "highest": 9})
    tell("reconciled", 4, {})
    tell("rebase", 5, {"loss": None, "highest": 12})
    assert fold(entries, "main").doubted == Doubt(9, 4, MOMENT)


def test_a_recovery_has_begun_while_its_generation_has_no_history() -> None:
    assert fold(orders()[:4], "main").begun == 2
    assert fold(orders()[:3], "main").begun is None


def test_control_entries_are_entries_like_any_other() -> None:
    for entry in orders():
        assert independent.check(entry.text, entry.body) == entry.digest
    tenant = [(e.text, e.body) for e in orders() if e.envelope.entity == controls.TENANT]
    assert independent.check_chain(tenant) == []


@pytest.mark.parametrize("lost", range(6))
def test_p9_control_with_a_gap_is_unreadable(lost: int) -> None:
    entries = orders()
    del entries[lost]
    if lost == 5:
        # Nothing in control itself shows that its last entry is gone; the authority row does.
        assert fold(entries, "main").authority.stage is Stage.CLOSED
        return
    with pytest.raises(ControlUnreadable):
        fold(entries, "main")


def test_p9_no_control_at_all_is_unreadable() -> None:
    with pytest.raises(ControlUnreadable):
        fold([], "main")


def test_r18_control_of_another_tenant_is_unreadable() -> None:
    with pytest.raises(ControlUnreadable, match=r"main.*other"):
        fold(orders(), "other")


def resealed(entry: Entry, body: bytes | None = None, **changes: Any) -> Entry:
    data = entry.body if body is None else body
    envelope = msgspec.structs.replace(entry.envelope, body=body_of(data, JSON_TYPE), **changes)
    return seal(envelope, data)


DAMAGE: dict[str, tuple[int, Callable[[Entry], Entry]]] = {
    "the founding is no founding": (0, lambda e: resealed(e, action="open")),
    "the founding is a token's": (0, lambda e: resealed(e, entity="control/token-t1")),
    "the founding names no instance": (0, lambda e: resealed(e, b'{"journal":"j"}')),
    "the founding's facts are no object": (0, lambda e: resealed(e, b"[]")),
    "the founding's facts are no JSON": (0, lambda e: resealed(e, b"{")),
    "an unknown stage": (
        0,
        lambda e: resealed(e, outcome=msgspec.structs.replace(e.envelope.outcome, state="ajar")),
    ),
    "a token with an unknown role": (
        1,
        lambda e: resealed(e, e.body.replace(b"writer", b"emperor")),
    ),
    "a revocation of nothing": (2, lambda e: resealed(e, entity="control/token-t2")),
    "an entry that follows another digest": (
        3,
        lambda e: resealed(e, predecessor=Predecessor("c" * 64, HISTORY, 1)),
    ),
    "a revision twice": (4, lambda e: resealed(e, revision=2)),
    "a generation that falls": (5, lambda e: resealed(e, generation=1)),
    "a history without its first sequence": (4, lambda e: resealed(e, b'{"digest":"b"}')),
    "a sequence twice": (4, lambda e: resealed(e, sequence=4)),
    "a sequence skipped": (4, lambda e: resealed(e, sequence=6)),
    "no sequence": (4, lambda e: resealed(e, sequence=None)),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_p9_damaged_control_is_unreadable(what: str) -> None:
    at, damage = DAMAGE[what]
    entries = orders()
    entries[at] = damage(entries[at])
    with pytest.raises(ControlUnreadable):
        fold(entries[: at + 1], "main")


STAGES = {
    Stage.CLOSED: (False, False, False),
    Stage.READING: (True, False, False),
    Stage.INTERNAL: (True, True, False),
    Stage.EXTERNAL: (True, True, True),
    Stage.OPEN: (True, True, True),
}


@pytest.mark.parametrize("stage", Stage)
def test_each_stage_allows_what_the_ones_before_it_do(stage: Stage) -> None:
    assert (stage.reads, stage.decides, stage.effects) == STAGES[stage]


@pytest.mark.parametrize("role", Role)
def test_operator_covers_writer_covers_reader_and_a_receiver_calls_back_and_no_more(
    role: Role,
) -> None:
    covered = {needed for needed in Role if role.covers(needed)}
    assert (
        covered
        == {
            Role.RECEIVER: {Role.RECEIVER},
            Role.READER: {Role.READER},
            Role.WRITER: {Role.READER, Role.WRITER},
            Role.OPERATOR: {Role.READER, Role.WRITER, Role.OPERATOR},
        }[role]
    )


def test_the_tip_is_the_last_decision_or_the_beginning_of_the_history_in_force() -> None:
    force = Authority(OTHER_HISTORY, 2, Stage.OPEN, 65_540, "b" * 64)
    beginning = Place(OTHER_HISTORY, 2, 65_539, "b" * 64)
    assert tip_of(force, None) == beginning
    assert tip_of(force, Place(HISTORY, 0, 3, "c" * 64)) == beginning
    last = Place(OTHER_HISTORY, 0, 65_541, "d" * 64)
    assert tip_of(force, last) == Place(OTHER_HISTORY, 2, 65_541, "d" * 64)
    assert decrees.founding("main", "i", "j", HISTORY, "o", MOMENT).digest != GENESIS
