"""P4 after an accepted loss: what was permitted before it goes out again on evidence alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal import handling
from journal.control import Stage
from journal.errors import Refused
from reconstruct import healing, recovery
from tests.support import receivers
from tests.support.reconciled import DIGEST, Quay, courier, quay_settings
from tests.support.tenants import operation

LOOKED_AFTER = {"healed"}
"""A person has looked at tokens and stops, which a healing may have lost."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[receivers.Receiver]:
    with receivers.receiving(tmp_path / "receiver", contract="queryable") as running:
        yield running


@pytest.fixture
def quay(tmp_path: Path) -> Iterator[Quay]:
    """Nobody listens: a receiver is for tests that ask one."""
    made = Quay(quay_settings(tmp_path, courier(None)))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def asked(tmp_path: Path, server: receivers.Receiver) -> Iterator[Quay]:
    made = Quay(quay_settings(tmp_path, courier(server)))
    made.server = server
    try:
        yield made
    finally:
        made.close()


class Both:
    """Store and journal as of one moment."""

    def __init__(self, quay: Quay, folder: Path) -> None:
        quay.settle()
        quay.close()
        self.quay = quay
        self.files = [quay.settings.store_file, quay.settings.journal_file]
        folder.mkdir()
        self.kept = [folder / kind for kind in ("store", "journal")]
        for file, copy in zip(self.files, self.kept, strict=True):
            shutil.copyfile(file, copy)
        quay.open()

    def lost(self) -> None:
        """Everything since is gone from both; the loss is accepted by its name, and applied."""
        quay = self.quay
        quay.settle()
        quay.close()
        for file, copy in zip(self.files, self.kept, strict=True):
            shutil.copyfile(copy, file)
        quay.open()
        recovery.stop(quay.settings, "a test")
        with pytest.raises(Refused, match="not fenced"):
            quay.do(recovery.begin, "a test")
        loss = quay.do(healing.survey_healing).loss
        assert loss is not None
        quay.do(recovery.apply, accept_loss=loss.name)


def opened(quay: Quay) -> str:
    return quay.do(recovery.reopen, despite=LOOKED_AFTER).stage


def failed(quay: Quay, lane: str) -> None:
    """A first attempt at each release of a lane, which surely had no effect."""
    for permit in quay.claim(lane, limit=9).permits:
        quay.report(permit, "failed", evidence="connection refused")


def went_out(quay: Quay, identity: str, lane: str) -> None:
    """The next attempt at a release is made, and confirmed."""
    quay.let_come(identity)
    permit = quay.attempt(lane, worker="w2")
    assert permit.id == identity
    quay.report(permit, "confirmed", receipt="done for good")


def again(quay: Quay, identity: str, lane: str) -> list[str]:
    """What leaves a lane once everything in it is due."""
    if quay.status(identity) in {"ready", "retry"}:
        quay.let_come(identity)
    return [permit.id for permit in quay.claim(lane, limit=9).permits]


# Attempts that were lost.


@pytest.mark.parametrize(
    ("entity", "lane"), [("letter/1", "post"), ("payment/1", "pay"), ("hidden/1", "hidden")]
)
def test_p4_a_release_to_be_tried_again_is_held_after_a_loss_where_nobody_can_tell(
    quay: Quay, tmp_path: Path, entity: str, lane: str
) -> None:
    identity = quay.release(entity)
    failed(quay, lane)
    both = Both(quay, tmp_path / "both")
    went_out(quay, identity, lane)
    both.lost()
    assert quay.status(identity) == "retry"
    done = quay.reconcile()
    assert (done.complete, done.counts) == (True, {"held": 1})
    assert quay.status(identity) == "unknown"
    assert opened(quay) == "open"
    assert again(quay, identity, lane) == []
    quay.finish_off()


def test_p4_not_found_is_no_proof_about_an_attempt_that_was_lost(
    asked: Quay, tmp_path: Path
) -> None:
    """A worker of whom nothing is known any more may still be at its call."""
    identity = asked.release("transfer/1", digest=DIGEST)
    failed(asked, "bank")
    both = Both(asked, tmp_path / "both")
    asked.let_come(identity)
    asked.attempt(worker="remote")
    both.lost()
    assert asked.reconcile().counts == {"held": 1}
    row = asked.row(identity)
    assert (row.status, row.maybe, row.worker) == ("unknown", 1, "?")
    assert "lost" in asked.found(identity).evidence.why
    assert asked.reconcile().counts == {"held": 1}
    assert opened(asked) == "open"
    assert again(asked, identity, "bank") == []
    asked.finish_off()


def test_p4_what_a_receiver_says_for_good_answers_for_an_attempt_that_was_lost(
    asked: Quay, tmp_path: Path
) -> None:
    done, void = (asked.release(f"transfer/{number}", digest=DIGEST) for number in (1, 2))
    failed(asked, "bank")
    both = Both(asked, tmp_path / "both")
    assert asked.server.send(done, 2).status == 200
    asked.server.tell("void", on="lookup", release=void)
    asked.put("case/1", "lost")
    both.lost()
    assert asked.reconcile().counts == {"confirmed": 1, "waiting": 1}
    assert opened(asked) == "open"
    assert again(asked, void, "bank") == [void]
    assert asked.row(done).receipt == "receipt-1"
    asked.finish_off()


def test_p4_a_release_that_waited_for_its_owner_is_not_let_go_by_what_was_lost(
    asked: Quay, tmp_path: Path
) -> None:
    """Unknown before the loss, with its worker ended: that proves nothing of a later attempt."""
    identity = asked.release("transfer/1", digest=DIGEST)
    permit = asked.attempt()
    asked.report(permit, "unknown")
    assert asked.row(identity).worker is None
    both = Both(asked, tmp_path / "both")
    asked.put("case/1", "lost")
    both.lost()
    asked.meddle(identity, started="2020-01-01T00:00:00.000000Z")
    assert asked.reconcile().counts == {"held": 1}
    assert asked.row(identity).worker == "?"
    assert asked.actions("transfer/1").count("release.unknown") == 2
    assert opened(asked) == "open"
    asked.finish_off()


def test_p4_a_refusal_of_the_attempt_that_is_known_is_none_of_one_that_was_lost(
    quay: Quay, tmp_path: Path
) -> None:
    identity = quay.release("letter/1")
    permit = quay.permit("post")
    quay.report(permit, "failed", evidence="connection refused")
    both = Both(quay, tmp_path / "both")
    went_out(quay, identity, "post")
    both.lost()
    quay.observe(permit, "refused", evidence="a late answer")
    quay.do(recovery.reopen, to=Stage.INTERNAL)
    quay.sweep()
    assert quay.status(identity) == "retry"
    assert quay.reconcile().counts == {"held": 1}
    assert opened(quay) == "open"
    assert again(quay, identity, "post") == []
    quay.finish_off()


# The doubt is about each release until that one is answered for.


def test_p4_a_loss_is_not_forgotten_for_an_entity_that_was_incomplete(
    quay: Quay, tmp_path: Path
) -> None:
    identity = quay.release("letter/1")
    both = Both(quay, tmp_path / "both")
    went_out(quay, identity, "post")
    both.lost()
    quay.flaw("letter/1")
    assert quay.reconcile().counts == {"incomplete": 1}
    assert quay.status(identity) == "ready"
    assert opened(quay) == "open"
    quay.flaw("letter/1", mend=True)
    claimed = quay.claim("post")
    assert claimed.permits == []
    assert "recover reconcile" in quay.row(identity).step
    assert quay.reconcile().counts == {"held": 1}
    assert quay.status(identity) == "unknown"
    quay.finish_off()


def test_p4_a_loss_is_not_forgotten_by_the_recovery_after_it(quay: Quay, tmp_path: Path) -> None:
    identity = quay.release("letter/1")
    both = Both(quay, tmp_path / "both")
    went_out(quay, identity, "post")
    both.lost()
    quay.flaw("letter/1")
    assert quay.reconcile().complete
    quay.stopped()
    assert quay.reconcile().counts == {"held": 1}
    assert opened(quay) == "open"
    assert again(quay, identity, "post") == []
    quay.finish_off()


def test_p4_a_release_that_was_cancelled_and_permitted_anew_is_the_same_release(
    quay: Quay, tmp_path: Path
) -> None:
    identity = quay.release("letter/1")
    both = Both(quay, tmp_path / "both")
    went_out(quay, identity, "post")
    both.lost()
    quay.do(recovery.reopen, to=Stage.INTERNAL)
    quay.do(handling.cancel, identity, "not wanted")
    assert quay.reconcile().complete
    assert opened(quay) == "open"
    assert quay.permit_again("letter/1") == (identity,)
    assert quay.status(identity) == "ready"
    assert again(quay, identity, "post") == []
    assert quay.reconcile().counts == {"held": 1}
    quay.finish_off()


def test_p4_what_is_permitted_after_a_loss_goes_out(quay: Quay, tmp_path: Path) -> None:
    quay.accept(operation("letter/2", "approve", version="1"))
    both = Both(quay, tmp_path / "both")
    quay.put("case/1", "lost")
    both.lost()
    assert quay.reconcile().counts == {}
    assert opened(quay) == "open"
    fresh = [quay.release("letter/1"), *quay.permit_again("letter/2")]
    assert [permit.id for permit in quay.claim("post", limit=9).permits] == fresh
    quay.finish_off()


def test_p4_nobody_can_waive_the_reconciliation_after_a_loss(quay: Quay, tmp_path: Path) -> None:
    identity = quay.release("letter/1")
    both = Both(quay, tmp_path / "both")
    went_out(quay, identity, "post")
    both.lost()
    done = quay.do(recovery.reopen, despite={"reconciled", *LOOKED_AFTER})
    assert done.stage == "internal"
    assert [line.partition(":")[0] for line in done.missing] == ["doubted"]
    assert quay.reconcile().complete
    assert opened(quay) == "open"
    assert again(quay, identity, "post") == []
    quay.finish_off()


# A receipt that is kept.


def test_p4_a_release_of_which_a_receipt_was_kept_is_not_committed_for_the_first_time(
    quay: Quay, tmp_path: Path
) -> None:
    """Its decisions are lost, its caller repeats them, and the worker's receipt came between."""
    both = Both(quay, tmp_path / "both")
    steps = [operation("letter/1", kind, version="1", id=kind) for kind in ("approve", "release")]
    quay.accept(steps[0])
    (identity,) = quay.accept(steps[1]).releases
    permit = quay.attempt("post")
    both.lost()
    quay.observe(permit, "confirmed", receipt="posted")
    assert quay.reconcile().counts == {"orphan": 1}
    assert opened(quay) == "open"
    quay.accept(steps[0])
    assert quay.accept(steps[1]).releases == (identity,)
    quay.sweep()
    assert quay.claim("post").permits == []
    row = quay.row(identity)
    assert (row.status, row.maybe) == ("unknown", 1)
    assert "receipt" in (row.last_error or "")
    quay.do(handling.settle, identity, happened=True, receipt="posted", evidence="their ledger")
    assert quay.status(identity) == "done"
    quay.finish_off()


# Rows that contradict what was permitted.


def test_a_release_that_contradicts_its_permission_is_made_anew_from_it(quay: Quay) -> None:
    identity = quay.release("letter/1", digest="a" * 64)
    before = quay.row(identity)
    quay.stopped()
    quay.meddle(identity, version="2", digest="b" * 64, data='{"smuggled": true}')
    done = quay.reconcile()
    assert (done.counts, done.wrong) == ({"waiting": 1}, 1)
    assert quay.opened() == "open"
    assert quay.row(identity) == before
    assert [permit.digest for permit in quay.claim("post").permits] == ["a" * 64]
    quay.finish_off()


def test_a_release_that_was_tried_and_contradicts_its_permission_is_held(quay: Quay) -> None:
    identity = quay.release("letter/1", digest="a" * 64)
    failed(quay, "post")
    quay.stopped()
    quay.meddle(identity, recipient="somebody else")
    done = quay.reconcile()
    assert (done.counts, done.wrong) == ({"held": 1}, 1)
    assert "it was permitted for recipient None" in quay.found(identity).evidence.why
    assert quay.opened() == "open"
    assert again(quay, identity, "post") == []
    quay.meddle(identity, recipient=None)
    quay.finish_off()
