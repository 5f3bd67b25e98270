"""Reconciling: what proves that nothing happened, authority apart from delivery, and repairs."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from journal import handling, stopping
from journal.asking import worker_name
from journal.control import Authority, Stage
from journal.errors import Invalid, Refused, SettingsInvalid
from journal.observing import observe
from journal.outcomes import Outcome, Reported
from journal.record import Record
from journal.standing import change_control
from journal.worker import drive
from reconstruct import recovery
from tests.reconstruct.scenes import Killed, fused
from tests.support import receivers
from tests.support.reconciled import DIGEST, Quay, courier, quay_settings
from tests.support.releases import PAST
from tests.support.tenants import operation

SECONDS = 30


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


def dead_worker() -> str:
    """The name of a worker whose process has ended."""
    child = subprocess.Popen(["true"])
    child.wait()
    return worker_name("push").rpartition(":")[0] + f":{child.pid}"


# What proves that nothing happened.


def test_r3_not_found_proves_nothing_while_the_attempt_may_be_under_way(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    quay.release("transfer/1", digest=DIGEST)
    permit = quay.attempt(worker="a worker on another machine")
    quay.rewound(tmp_path / "kept")
    done = quay.reconcile()
    assert (done.complete, done.counts) == (True, {"held": 1})
    assert "proves nothing yet" in quay.found(permit.id).evidence.why
    assert quay.status(permit.id) == "unknown"
    # However long ago that was: a worker elsewhere is never proven dead.
    quay.meddle(permit.id, started=PAST)
    assert quay.reconcile().counts == {"held": 1}
    quay.finish_off()


def test_r3_not_found_lets_it_go_on_once_the_attempt_is_dead_and_its_time_is_over(
    quay: Quay, tmp_path: Path
) -> None:
    bank = msgspec.structs.replace(quay.settings.receiver["bank"], timeout=0.1, works=0.1)
    quay.settings.receiver["bank"] = bank
    quay.keep(tmp_path / "kept")
    quay.release("transfer/1", digest=DIGEST)
    permit = quay.attempt(worker=dead_worker())
    quay.rewound(tmp_path / "kept")
    assert quay.reconcile().counts == {"held": 1}
    until = time.monotonic() + SECONDS
    while quay.reconcile().counts != {"undone": 1}:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert quay.status(permit.id) == "retry"
    assert quay.opened() == "open"
    assert quay.permit("bank").attempt == 2
    quay.finish_off()


def test_r3_not_found_after_the_window_proves_nothing(quay: Quay) -> None:
    quay.release("transfer/1", digest=DIGEST)
    permit = quay.attempt(worker=dead_worker())
    bank = msgspec.structs.replace(quay.settings.receiver["bank"], window=0.001)
    quay.settings.receiver["bank"] = bank
    quay.stopped()
    assert quay.reconcile().counts == {"held": 1}
    assert "its window is over" in quay.found(permit.id).evidence.why
    assert quay.row(permit.id).due is None
    quay.finish_off()


def test_a_tombstone_lets_it_go_on_at_once_and_a_refusal_ends_it(quay: Quay) -> None:
    quay.release("transfer/1", digest=DIGEST)
    undone = quay.attempt().id
    quay.release("transfer/2", digest=DIGEST)
    refused = quay.attempt().id
    quay.server.tell("void", on="lookup", release=undone)
    quay.server.tell("refuse", release=refused)
    assert quay.server.send(refused, 1).status == 400
    quay.stopped()
    assert quay.reconcile().counts == {"refused": 1, "undone": 1}
    assert (quay.status(undone), quay.status(refused)) == ("retry", "refused")
    quay.finish_off()


def test_work_that_takes_time_stays_with_its_receiver(quay: Quay) -> None:
    quay.release("transfer/1", digest=DIGEST)
    permit = quay.attempt()
    quay.server.tell("pending", release=permit.id, callback=None)
    assert quay.server.send(permit.id, 1).status == 202
    quay.stopped()
    done = quay.reconcile()
    assert (done.complete, done.counts) == (True, {"pending": 1})
    assert quay.status(permit.id) == "pending"
    quay.server.finish(permit.id)
    assert quay.reconcile().counts == {"confirmed": 1}
    quay.finish_off()


def test_an_observed_receipt_counts_where_the_receiver_cannot_tell(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    quay.release("letter/1")
    permit = quay.attempt("post")
    quay.rewound(tmp_path / "kept")
    quay.observe(permit, "confirmed", receipt="franked")
    assert quay.reconcile().counts == {"confirmed": 1}
    assert quay.row(permit.id).receipt == "franked"
    quay.finish_off()


def test_a_dead_letter_is_confirmed_but_never_sent_again_by_a_reconciliation(quay: Quay) -> None:
    quay.release("transfer/1", digest=DIGEST)
    first = quay.ship("transfer/2").id
    second = quay.attempt().id
    for identity in (first, second):
        quay.meddle(identity, status="dead", sweep_at=None, maybe=0)
    quay.server.tell("void", on="lookup", release=second)
    quay.stopped()
    assert quay.reconcile().counts == {"confirmed": 1, "held": 1}
    assert (quay.status(first), quay.status(second)) == ("done", "dead")


# Repeatable, and interrupted anywhere.


def test_p11_a_reconciliation_goes_on_where_it_was_and_asks_nobody_twice(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    shipped = [quay.ship(f"transfer/{number}").id for number in range(5)]
    quay.rewound(tmp_path / "kept")
    first = quay.reconcile(limit=2)
    assert (first.complete, first.left, quay.lookups()) == (False, 3, 2)
    assert quay.control().reconciled is None
    assert quay.reconcile(limit=2).left == 1
    last = quay.reconcile()
    assert (last.complete, last.left, quay.lookups()) == (True, 0, 5)
    assert quay.control().reconciled == quay.control().authority.generation
    assert [quay.server.attempts(identity) for identity in shipped] == [1] * 5
    entries = len(quay.facts("reconciled"))
    again = quay.reconcile()
    assert (again.digest, quay.lookups()) == (last.digest, 5)
    assert len(quay.facts("reconciled")) == entries == 1
    assert quay.facts("reconciled")[0]["counts"] == {"confirmed": 5}
    quay.finish_off()


def test_p11_what_is_held_is_asked_about_again_only_by_a_new_reconciliation(quay: Quay) -> None:
    for number in range(3):
        quay.ship(f"transfer/{number}")
    quay.server.tell("unknown", on="lookup")
    quay.stopped()
    assert [quay.reconcile(limit=2).left, quay.reconcile(limit=2).left] == [1, 0]
    assert (quay.lookups(), quay.control().reconciled) == (3, 2)
    quay.server.clear()
    assert quay.reconcile().counts == {"confirmed": 3}
    assert quay.lookups() == 6
    quay.finish_off()


def test_p11_killed_anywhere_and_run_again_a_reconciliation_ends_the_same(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    shipped = [quay.ship(f"transfer/{number}").id for number in range(2)]
    quay.release("letter/1")
    held = quay.attempt("post").id
    quay.rewound(tmp_path / "kept")
    for at in range(1, 40):
        with fused(at, after=bool(at % 2)) as fuse:
            try:
                done = quay.reconcile()
            except Killed:
                quay.record.recovering = False
                quay.crash()
                quay.open()
                continue
        if not fuse.blown:
            break
    assert (done.complete, done.counts) == (True, {"confirmed": 2, "held": 1})
    assert [quay.status(identity) for identity in (*shipped, held)] == ["done", "done", "unknown"]
    assert quay.actions("letter/1").count("release.unknown") == 1
    for number in range(2):
        assert quay.actions(f"transfer/{number}").count("release.confirmed") == 1
    assert quay.server.attempts() == 2
    quay.finish_off()


def test_a_reconciliation_waits_for_apply_and_takes_sensible_numbers(quay: Quay) -> None:
    quay.ship("transfer/1")
    recovery.stop(quay.settings, "a test")
    quay.do(recovery.begin, "a test")
    with pytest.raises(Refused, match="recover apply"):
        quay.reconcile()
    quay.do(recovery.apply)
    for wrong in ({"limit": 0}, {"rate": -1.0}, {"rate": float("nan")}):
        with pytest.raises(Invalid):
            quay.reconcile(**wrong)
    bank = msgspec.structs.replace(quay.settings.receiver["bank"], token_env="NOBODY_SET_THIS")
    quay.settings.receiver["bank"] = bank
    with pytest.raises(SettingsInvalid, match="NOBODY_SET_THIS"):
        quay.reconcile()
    assert quay.lookups() == 0
    quay.finish_off()


def test_p5_what_is_said_of_an_incomplete_entity_is_kept_as_an_observation(quay: Quay) -> None:
    permit = quay.ship("transfer/1")
    quay.stopped()
    quay.flaw("transfer/1")
    done = quay.reconcile()
    assert (done.complete, done.counts) == (True, {"incomplete": 1})
    assert quay.actions(f"observation/{permit.id}") == ["observed.confirmed"]
    assert quay.status(permit.id) == "running"
    quay.flaw("transfer/1", mend=True)
    assert quay.reconcile().counts == {"confirmed": 1}
    assert quay.row(permit.id).receipt == "receipt-1"
    quay.finish_off()


def test_r22_data_under_another_name_asks_no_receiver(quay: Quay) -> None:
    from journal.errors import Recovering

    quay.ship("transfer/1")
    quay.stopped()
    quay.close()
    quay.settings = msgspec.structs.replace(quay.settings, instance="staging")
    quay.open()
    with pytest.raises(Recovering):
        quay.reconcile()
    assert quay.lookups() == 0


# Authority, apart from delivery.


def test_wrongful_releases_are_listed_and_recorded_as_incidents_only_when_asked(
    quay: Quay,
) -> None:
    shipped = quay.ship("transfer/1")
    quay.report(shipped, "confirmed", receipt="receipt-1", digest=DIGEST)
    open_one = quay.ship("transfer/2")
    waiting = quay.release("transfer/3", digest=DIGEST)
    other = quay.release("letter/1")
    quay.stopped()
    quay.do(stopping.stop_action, "transfer", "release", "approvals were checked by a faulty rule")
    done = quay.reconcile()
    assert {one.id for one in done.authority} == {shipped.id, open_one.id, waiting}
    assert (quay.kind(shipped.id), quay.kind(open_one.id)) == ("delivered", "confirmed")
    assert quay.found(other).authority is None
    assert "transfer/release is stopped" in (quay.found(waiting).authority or "")
    assert quay.row(shipped.id).incident is None
    again = quay.reconcile(incidents=True)
    assert again.incidents == 2
    assert "faulty rule" in (quay.row(shipped.id).incident or "")
    assert quay.row(open_one.id).status == "done"
    assert quay.row(waiting).incident is None  # nothing happened, so it is no incident
    assert quay.reconcile(incidents=True).incidents == 0
    quay.finish_off()


def test_a_release_committed_after_its_entity_was_withdrawn_is_wrongful(
    tmp_path: Path, server: receivers.Receiver
) -> None:
    plain = quay_settings(tmp_path, courier(server))
    lenient = msgspec.structs.replace(plain.lifecycles["transfer"], withdrawn=("nothing",))
    types = {**plain.lifecycle, "transfer": lenient}
    quay = Quay(msgspec.structs.replace(plain, lifecycle=types))
    quay.server = server
    quay.release("transfer/1", digest=DIGEST)
    quay.accept(operation("transfer/1", "revoke"))
    permit = quay.attempt()
    server.send(permit.id, 1)
    quay.close()
    quay.settings = plain
    quay.open()
    quay.stopped()
    quay.reconcile()
    assert "committed at revision 4" in (quay.found(permit.id).authority or "")
    quay.finish_off()


# Observations that fit nothing.


def test_orphan_receipts_and_contradictions_are_listed(quay: Quay) -> None:
    cancelled = quay.release("transfer/1", digest=DIGEST)
    quay.do(handling.cancel, cancelled, "not wanted")
    for identity in (cancelled, "rel_of_nobody"):
        said = Reported(identity, Outcome.CONFIRMED, 1, receipt="r-1")
        quay.do(observe, said, "its claim has ended", "a test")
    quay.stopped()
    done = quay.reconcile()
    assert [(one.id, one.found) for one in done.strange] == [
        ("rel_of_nobody", "orphan"),
        (cancelled, "contradicted"),
    ]
    assert done.exceptions == 2
    assert done.complete
    quay.finish_off()


# A loss that was accepted.


LOSS = {"loss": {"known": True}, "reason": "r"}


def lost(quay: Quay) -> None:
    """Control says that a loss of the journal was accepted."""

    last = drive(quay.log.look()).last
    highest = 0 if last is None else last.sequence

    async def rebase(record: Record) -> None:
        def becomes(control: object) -> Authority:
            force = quay.control().authority
            return Authority(
                force.history, force.generation, Stage.CLOSED, force.first, force.digest
            )

        await change_control(record, "rebase", becomes, {**LOSS, "highest": highest})

    quay.do(rebase)


def test_after_an_accepted_loss_even_what_waits_is_asked_about_and_held_where_nobody_can_tell(
    quay: Quay,
) -> None:
    sent = quay.release("transfer/1", digest=DIGEST)
    unknown = quay.release("transfer/2", digest=DIGEST)
    undone = quay.release("transfer/3", digest=DIGEST)
    refused = quay.release("transfer/4", digest=DIGEST)
    mute = quay.release("letter/1")
    # These calls were made under commitments that the journal has lost.
    assert quay.server.send(sent).status == 200
    quay.server.tell("refuse", release=refused)
    assert quay.server.send(refused).status == 400
    quay.server.tell("void", on="lookup", release=undone)
    recovery.stop(quay.settings, "a test")
    quay.do(recovery.begin, "a test")
    lost(quay)
    quay.do(recovery.apply)
    done = quay.reconcile()
    assert done.counts == {"confirmed": 1, "held": 2, "refused": 1, "waiting": 1}
    statuses = [quay.status(identity) for identity in (sent, unknown, undone, refused, mute)]
    assert statuses == ["done", "unknown", "ready", "refused", "unknown"]
    assert quay.do(recovery.reopen, despite={"healed"}).stage == "open"
    assert [permit.id for permit in quay.claim("bank", limit=9).permits] == [undone]
    assert quay.claim("post").permits == []
    assert quay.reconcile().counts["held"] == 2
    quay.finish_off()


def test_without_a_loss_what_the_journal_never_committed_is_asked_of_nobody(quay: Quay) -> None:
    release = quay.release("transfer/1", digest=DIGEST)
    quay.stopped()
    assert quay.reconcile().counts == {"waiting": 1}
    assert (quay.lookups(), quay.status(release)) == (0, "ready")
    quay.finish_off()


# The way out of what is held.


def test_r23_what_is_held_is_replayed_by_name_only_where_a_repeat_is_suppressed(
    quay: Quay, tmp_path: Path
) -> None:
    quay.keep(tmp_path / "kept")
    quay.release("payment/1")
    repeatable = quay.attempt("pay").id
    quay.release("letter/1")
    opaque = quay.attempt("post").id
    quay.rewound(tmp_path / "kept")
    quay.reconcile()
    assert "suppresses a repeat" in quay.found(repeatable).evidence.why
    assert quay.opened() == "open"
    done = quay.do(handling.replay, [repeatable, opaque], "the bank keeps IDs for a day")
    assert done.done == [repeatable]
    assert "settle it on evidence" in done.left[opaque]
    assert quay.permit("pay").id == repeatable
    quay.finish_off()


def test_work_of_a_decision_that_cannot_be_read_is_kept(quay: Quay) -> None:
    """Row 6 removes what the journal never asked for, not what a gap or damage hides."""
    release = quay.release("transfer/1", digest=DIGEST)
    quay.sql("UPDATE unrewind_work SET operation = 'op-in-the-gap' WHERE id = ?", release)
    quay.stopped()
    quay.flaw("transfer/1")
    assert quay.reconcile().counts == {"incomplete": 1}
    assert quay.status(release) == "ready"
