"""Reports on a release: which are taken, and what its row is after each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.errors import Invalid, LeaseLost, NotFound, TransitionRefused
from journal.folding import after_report
from journal.outcomes import (
    CALLING,
    PICKED_UP,
    may_have_called,
)
from journal.release import Report, body_of, check_report, is_report, report_of
from journal.work import COMMITTED, FINISHED, Status, Work, note
from tests.support.releases import row_of_work

NOW = "2026-03-14T12:00:00.000000Z"
INSIDE = "2026-03-14T11:00:00.000000Z"
OUTSIDE = "2026-03-13T11:59:59.000000Z"
LEASE = (1 << 32) + 7
SENT = "a" * 64


def row(**changes: Any) -> Work:
    return row_of_work(
        **{"lease": LEASE, "step": CALLING, "committed": INSIDE, "claimed": INSIDE, **changes}
    )


ROWS = st.builds(
    row,
    maybe=st.sampled_from([0, 1]),
    committed=st.sampled_from([INSIDE, OUTSIDE, None]),
    cancel_requested=st.sampled_from([0, 1]),
    failures=st.integers(0, 5),
    expired=st.integers(0, 5),
    attempts=st.integers(1, 9),
    digest=st.sampled_from([None, SENT]),
    step=st.sampled_from([CALLING, f"{PICKED_UP} by w1", "permit given to w1", "half way"]),
    started=st.sampled_from([None, INSIDE]),
)


# Which reports are taken at all.

NAMES = [
    "committed",
    "confirmed",
    "refused",
    "unknown",
    "cancelled",
    "replayed",
    "drained",
    "cancel-requested",
    "incident",
]


@pytest.mark.parametrize("status", Status)
@pytest.mark.parametrize("what", NAMES)
def test_a_report_leads_only_where_the_release_can_go(status: Status, what: str) -> None:
    work = row(status=str(status))
    lease = None if what in {"replayed", "drained", "incident", "cancel-requested"} else LEASE
    heard = Report("rel_1", lease)
    try:
        check_report(f"release.{what}", heard, work, withdrawn=False)
    except TransitionRefused:
        taken = False
    else:
        taken = True
    if status in FINISHED:
        # P4: what has ended stays as it ended; an incident is only noted on it.
        assert taken == (what == "incident")
    if taken and what == "committed":
        assert status in {Status.READY, Status.RETRY}
    if taken and what in {"confirmed", "refused", "drained", "cancel-requested"}:
        assert status in COMMITTED
    if status == Status.READY:
        # Unknown: its commitment may have been in what a recovery accepted as lost.
        assert taken == (what in {"committed", "unknown", "cancelled", "incident"})


@pytest.mark.parametrize("what", ["confirmed", "refused", "unknown", "cancelled"])
def test_l11_a_report_under_another_claim_than_the_newest_is_refused(what: str) -> None:
    with pytest.raises(LeaseLost):
        check_report(f"release.{what}", Report("rel_1", LEASE - 1), row(), withdrawn=False)
    check_report(f"release.{what}", Report("rel_1", None), row(), withdrawn=False)


@pytest.mark.parametrize("changes", [{"cancel_requested": 1}, {}])
def test_nothing_is_committed_to_that_is_withdrawn(changes: dict[str, int]) -> None:
    work = row(status="ready", **changes)
    with pytest.raises(TransitionRefused):
        check_report("release.committed", Report("rel_1", LEASE), work, withdrawn=not changes)


def test_what_may_have_happened_cannot_be_cancelled() -> None:
    with pytest.raises(TransitionRefused):
        check_report(
            "release.cancelled", Report("rel_1", LEASE, maybe=True), row(), withdrawn=False
        )


def test_a_report_on_what_is_no_release_is_refused() -> None:
    heard = Report("rel_1", LEASE)
    for work in (None, row(effect="internal")):
        with pytest.raises(NotFound):
            check_report("release.confirmed", heard, work, withdrawn=False)
    with pytest.raises(Invalid):
        check_report("release.forgotten", heard, row(), withdrawn=False)


@given(
    st.builds(
        Report,
        release=st.text(max_size=60),
        lease=st.one_of(st.none(), st.integers(0, 2**53 - 1)),
        worker=st.one_of(st.none(), st.text(max_size=20)),
        evidence=st.one_of(st.none(), st.text(max_size=20)),
        dead=st.booleans(),
        maybe=st.booleans(),
        ask=st.booleans(),
        ended=st.booleans(),
    )
)
def test_a_report_is_read_back_as_it_was_written(heard: Report) -> None:
    assert report_of(body_of(heard)) == heard


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"release":7}', b'{"release":"r","x":1}'])
def test_a_body_that_is_no_report_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        report_of(body)
    assert not is_report("release.confirmed", "application/json")


# Folding.


@given(ROWS, st.sampled_from(NAMES), st.booleans(), st.booleans())
def test_folding_a_report_keeps_what_was_known(
    work: Work, what: str, maybe: bool, dead: bool
) -> None:
    heard = Report("rel_1", LEASE, "w1", None, "seen", "r-1", maybe=maybe, dead=dead)
    after = after_report(work, f"release.{what}", heard, NOW)
    assert after.receipt == "r-1"
    assert after.lease == work.lease
    assert (after.finished is not None) == (after.status in FINISHED)
    if work.committed is not None:
        assert after.committed == work.committed
    if what == "committed":
        # A replay must assume that the attempt was made, and sweeps it at once.
        assert (after.status, after.maybe, after.sweep_at) == ("running", 1, NOW)
        assert (after.started, after.claim) == (None, None)
        assert may_have_called(after)


def test_folding_bodies_without_a_receipt_keeps_the_one_that_is_known() -> None:
    work = row(receipt="r-1")
    assert after_report(work, "release.unknown", Report("rel_1"), NOW).receipt == "r-1"


@given(st.text(max_size=700))
def test_evidence_is_kept_as_one_printable_line_of_bounded_length(text: str) -> None:
    line = note(text)
    assert len(line) <= 300
    assert line.isprintable()
    assert note(line) == line
