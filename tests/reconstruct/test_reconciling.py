"""Reconciling with receivers: six rows of evidence, and what each of them leads to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reconstruct.test_variants import pile_up
from tests.support import receivers
from tests.support.reconciled import DIGEST, Quay, courier, quay_settings
from tests.support.tenants import operation


@pytest.fixture
def server(tmp_path: Path) -> Iterator[receivers.Receiver]:
    with receivers.receiving(tmp_path / "receiver", contract="queryable") as running:
        yield running


@pytest.fixture
def quay(tmp_path: Path, server: receivers.Receiver) -> Iterator[Quay]:
    made = Quay(quay_settings(tmp_path, courier(server)))
    made.server = server
    try:
        yield made
    finally:
        made.close()


# Row 1: the receiver confirms the same release and the same content.


def test_reconcile_row_1_a_receipt_that_nobody_heard_is_recorded_and_nothing_is_sent_again(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    permit = quay.ship("transfer/1")
    quay.rewound(tmp_path / "kept")
    assert quay.status(permit.id) == "running"
    done = quay.reconcile()
    assert (done.complete, done.counts, done.exceptions) == (True, {"confirmed": 1}, 0)
    row = quay.row(permit.id)
    assert (row.status, row.receipt, row.maybe) == ("done", "receipt-1", 0)
    assert quay.actions("transfer/1") == [
        "approve",
        "release",
        "release.committed",
        "release.confirmed",
    ]
    assert quay.opened() == "open"
    quay.sweep()
    assert quay.claim("bank").permits == []
    quay.again("transfer/1")
    assert quay.server.attempts() == 1
    quay.finish_off()


def test_reconcile_row_1_the_opening_case_a_rewind_to_before_a_confirmed_release(
    quay: Quay, tmp_path: Path
) -> None:
    quay.accept(operation("transfer/1", "approve", {"digest": DIGEST}, version="1"))
    quay.keep(tmp_path / "before")
    (release,) = quay.permit_again("transfer/1")
    permit = quay.attempt()
    body = receivers.body_of(release)
    receipt = quay.server.send(release, permit.attempt, body).json["receipt"]
    quay.report(permit, "confirmed", receipt=receipt, digest=DIGEST)
    applied = quay.rewound(tmp_path / "before")
    assert applied.replayed == 3
    done = quay.reconcile()
    assert (done.complete, done.restored, done.exceptions) == (True, 3, 0)
    row = quay.row(release)
    assert (row.status, row.receipt) == ("done", receipt)
    assert quay.actions("transfer/1")[-2:] == ["release.committed", "release.confirmed"]
    assert quay.opened() == "open"
    assert quay.claim("bank").permits == []
    assert (quay.server.attempts(), quay.server.executions()) == (1, 1)
    quay.finish_off()


def test_reconcile_row_1_a_receipt_without_a_digest_is_compared_by_its_id_and_says_so(
    quay: Quay, tmp_path: Path
) -> None:
    permit = quay.ship("transfer/1", digest=None)
    quay.stopped()
    quay.reconcile()
    assert quay.status(permit.id) == "done"
    assert "compared by its ID alone" in quay.found(permit.id).evidence.why
    quay.finish_off()


def test_reconcile_row_1_a_receipt_for_other_content_is_no_receipt(quay: Quay) -> None:
    permit = quay.ship("transfer/1")
    quay.server.tell("wrong-digest", on="lookup")
    quay.stopped()
    done = quay.reconcile()
    assert (done.complete, done.counts) == (True, {"held": 1})
    assert quay.status(permit.id) == "unknown"
    assert "digest of other content" in quay.found(permit.id).evidence.why
    assert quay.row(permit.id).receipt is None
    quay.finish_off()


def test_reconcile_row_1_a_declared_digest_that_is_missing_confirms_nothing(
    tmp_path: Path, server: receivers.Receiver
) -> None:
    quay = Quay(quay_settings(tmp_path, courier(server, returns_digest=True)))
    quay.server = server
    quay.release("transfer/1", digest=DIGEST)
    permit = quay.attempt()
    assert server.send(permit.id, 1, receivers.body_of(permit.id, digest=None)).status == 200
    quay.stopped()
    quay.reconcile()
    assert quay.kind(permit.id) == "held"
    assert "names no digest" in quay.found(permit.id).evidence.why
    quay.finish_off()


# Row 2: the receiver cannot tell.


def test_reconcile_row_2_what_a_receiver_cannot_tell_is_held_with_an_owner_and_a_deadline(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    permit = quay.ship("transfer/1")
    quay.server.tell("unknown", on="lookup")
    quay.rewound(tmp_path / "kept")
    done = quay.reconcile()
    assert (done.complete, done.counts) == (True, {"held": 1})
    (held,) = done.unresolved
    assert held.evidence.owner == "operator"
    assert (held.evidence.deadline or "") > quay.row(permit.id).created
    assert quay.actions("transfer/1")[-1] == "release.unknown"
    assert quay.opened() == "open"
    quay.sweep()
    assert quay.claim("bank").permits == []
    assert quay.status(permit.id) == "unknown"
    quay.finish_off()


def test_reconcile_row_2_r23_nothing_becomes_ready_where_nobody_can_be_asked(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    held = []
    for kind, lane in (("letter", "post"), ("hidden", "hidden"), ("payment", "pay")):
        for number in range(3):
            quay.release(f"{kind}/{number}")
            held.append(quay.attempt(lane).id)
    quay.rewound(tmp_path / "kept")
    done = quay.reconcile()
    assert (done.complete, done.counts) == (True, {"held": 9})
    assert {quay.status(identity) for identity in held} == {"unknown"}
    whys = {quay.found(identity).evidence.why.partition(";")[0] for identity in held}
    assert whys == {
        "workers carry it out, and nobody else can be asked",
        "receiver hidden is opaque",
    }
    assert quay.opened() == "open"
    quay.sweep()
    assert [quay.claim(lane).permits for lane in ("post", "hidden", "pay")] == [[], [], []]
    quay.finish_off()


def test_reconcile_row_2_an_unreachable_receiver_is_named_and_asked_again_alone(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    quay.release("letter/1")
    opaque = quay.attempt("post").id
    permit = quay.ship("transfer/1")
    quay.server.kill()
    quay.rewound(tmp_path / "kept")
    done = quay.reconcile()
    assert (done.complete, done.unreachable) == (False, {"bank": 1})
    assert done.counts == {"held": 1, "unreachable": 1}
    assert quay.control().reconciled is None
    assert quay.status(permit.id) == "unknown"
    assert quay.opened() != "open"
    decided = quay.actions("letter/1")
    quay.server.start()
    again = quay.reconcile()
    assert (again.complete, again.counts) == (True, {"confirmed": 1, "held": 1})
    assert (quay.status(permit.id), quay.status(opaque)) == ("done", "unknown")
    assert quay.actions("letter/1") == decided
    assert quay.server.attempts() == 1
    quay.finish_off()


# Row 3: an acceptance that the store lost, and the journal proves.


def test_reconcile_row_3_a_lost_acceptance_is_back_with_the_work_that_it_intended(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    release = quay.release("transfer/1", digest=DIGEST)
    before = quay.digest()
    quay.rewound(tmp_path / "kept")
    done = quay.reconcile()
    assert (done.restored, done.counts, done.exceptions) == (2, {"waiting": 1}, 0)
    assert quay.digest() == before
    assert quay.status(release) == "ready"
    assert quay.lookups() == 0  # P3: the journal holds no commitment, so nothing was ever sent
    assert quay.opened() == "open"
    assert quay.permit("bank").id == release
    quay.finish_off()


# Row 4: an approval that the restoration removed, or brought from nowhere.


def test_reconcile_row_4_a_recorded_approval_is_recovered_and_another_is_asked_for_anew(
    quay: Quay, tmp_path: Path
) -> None:
    quay.accept(operation("transfer/9", "approve", version="1"))
    quay.settle()
    quay.keep(tmp_path / "common")
    mine = operation("transfer/1", "approve", {"digest": DIGEST}, version="1")
    quay.local_only(mine)
    pile_up(quay, [operation("transfer/1", "release", version="1")])
    quay.keep(tmp_path / "local")
    quay.restore(tmp_path / "common")
    recorded = quay.release("transfer/2", digest=DIGEST)
    quay.rewound(tmp_path / "local")
    done = quay.reconcile()
    assert quay.status(recorded) == "ready"
    assert [(one.entity, one.action, one.version) for one in done.anew] == [
        ("transfer/1", "approve", "1"),
        ("transfer/1", "release", "1"),
    ]
    assert done.exceptions == 2
    assert quay.opened() == "open"
    assert quay.permit("bank").id == recorded
    assert quay.claim("bank").permits == []  # what only the store had permitted is gone
    quay.finish_off()


# Row 5: work for a version that was cancelled or superseded.


def test_reconcile_row_5_a_cancellation_stands_for_releases_and_stale_commands(
    quay: Quay, tmp_path: Path
) -> None:
    quay.accept(operation("parcel/1", "approve", version="1"))
    (release,) = quay.accept(operation("parcel/1", "ship", version="1")).releases
    quay.keep(tmp_path / "kept")
    quay.accept(operation("parcel/1", "cancel"))
    quay.accept(operation("parcel/1", "note"))
    index, _, apology = quay.commands("parcel/1")
    quay.rewound(tmp_path / "kept")
    done = quay.reconcile()
    assert done.counts == {"cancelled": 1}
    assert quay.status(release) == "cancelled"
    row = quay.row(index)
    assert (row.status, row.step) == ("cancelled", "cancelled: withdrawn: cancel at revision 3")
    assert quay.found(index).evidence.why == "withdrawn: cancel at revision 3"
    assert quay.status(apology) == "ready"  # what the cancellation itself asked for is not stale
    assert quay.opened() == "open"
    assert quay.claim("bank").permits == []
    assert quay.server.attempts() == 0
    quay.finish_off()


def test_reconcile_row_5_a_superseded_version_runs_no_more(quay: Quay, tmp_path: Path) -> None:
    quay.accept(operation("parcel/1", "approve", version="1"))
    quay.keep(tmp_path / "kept")
    quay.accept(operation("parcel/1", "approve", version="2"))
    first, second = quay.commands("parcel/1")
    quay.rewound(tmp_path / "kept")
    quay.reconcile()
    assert (quay.status(first), quay.status(second)) == ("cancelled", "ready")
    assert quay.row(first).step == "cancelled: superseded: version 2 at revision 2"
    quay.finish_off()


def test_reconcile_row_5_a_withdrawn_release_that_was_proven_undone_ends_as_cancelled(
    quay: Quay, tmp_path: Path
) -> None:
    quay.release("transfer/1", digest=DIGEST)
    permit = quay.attempt()
    quay.accept(operation("transfer/1", "revoke"))
    quay.server.tell("void", on="lookup")
    quay.stopped()
    assert quay.reconcile().counts == {"cancelled": 1}
    assert quay.status(permit.id) == "cancelled"
    assert quay.actions("transfer/1")[-1] == "release.cancelled"
    quay.finish_off()


# Row 6: derived work of a decision that the journal does not hold.


def test_reconcile_row_6_work_that_no_decision_asked_for_is_removed(
    quay: Quay, tmp_path: Path
) -> None:
    quay.accept(operation("parcel/1", "approve", version="1"))
    (index,) = quay.commands("parcel/1")
    release = quay.release("transfer/1")
    for identity, copy in ((index, "cmd_preview"), (release, "rel_preview")):
        columns = [name for (name,) in quay.sql("SELECT name FROM pragma_table_info(?)", WORK)]
        taken = ", ".join(
            {"id": "?", "operation": "'op-unknown'", "number": "NULL"}.get(name, name)
            for name in columns
        )
        quay.sql(f"INSERT INTO {WORK} SELECT {taken} FROM {WORK} WHERE id = ?", copy, identity)
    quay.stopped()
    done = quay.reconcile()
    assert done.counts == {"removed": 2, "waiting": 1}
    assert [one.id for one in done.strange] == ["cmd_preview", "rel_preview"]
    assert quay.sql(f"SELECT id FROM {WORK} WHERE id LIKE '%preview'") == []
    assert (quay.status(index), quay.status(release)) == ("ready", "ready")
    quay.finish_off()


WORK = "unrewind_work"
