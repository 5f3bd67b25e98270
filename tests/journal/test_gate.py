"""The gate: go, or held with every reason."""

import pytest

from journal.gate import GO, HELD, Standing, rule
from journal.lifecycle import DOCUMENT

CLOSED = "stage: the tenant's stage is closed"


def standing(
    revision: int = 3,
    through: int = 3,
    state: str = "approved",
    flaws: tuple[str, ...] = (),
) -> Standing:
    return Standing("document/1", revision, through, state, not flaws, flaws)


def test_a_complete_and_durable_newest_revision_goes() -> None:
    for wanted in (3, None):
        ruling = rule(standing(), "document/1", wanted, DOCUMENT)
        assert (ruling.gate, ruling.reasons, ruling.revision) == (GO, (), 3)


CASES = {
    "closed": (standing(), 3, CLOSED, ["stage"]),
    "unknown": (None, 3, None, ["unknown"]),
    "p5 incomplete": (standing(5, 3, flaws=("4 is missing",)), 3, None, ["incomplete"]),
    "incomplete and not durable": (
        standing(5, 3, flaws=("4 is missing",)),
        5,
        None,
        ["incomplete", "not durable"],
    ),
    "every flaw is named": (
        standing(5, 3, flaws=("4 is missing", "3 is forked")),
        3,
        None,
        ["incomplete: 4 is missing", "incomplete: 3 is forked"],
    ),
    "not there yet": (standing(), 4, None, ["not durable"]),
    "superseded": (standing(), 2, None, ["superseded"]),
    "revision 0": (standing(), 0, None, ["superseded"]),
    "cancelled": (standing(state="cancelled"), 3, None, ["cancelled"]),
    "revoked": (standing(state="revoked"), None, None, ["revoked"]),
    "superseded by a cancellation": (
        standing(state="cancelled"),
        2,
        None,
        ["superseded", "cancelled"],
    ),
    "everything at once": (
        standing(6, 3, "cancelled", ("4 is missing",)),
        2,
        CLOSED,
        ["stage", "incomplete", "superseded", "cancelled"],
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_the_gate_holds_and_says_why(what: str) -> None:
    known, revision, stage, wanted = CASES[what]
    ruling = rule(known, "document/1", revision, DOCUMENT, () if stage is None else (stage,))
    assert ruling.gate == HELD
    assert len(ruling.reasons) == len(wanted)
    for reason, start in zip(ruling.reasons, wanted, strict=True):
        assert reason.startswith(start)
