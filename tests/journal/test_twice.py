"""P4: ways in which an effect could happen twice, each closed by one rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.asking import Question, take_answer, to_ask
from journal.errors import Refused
from journal.lanes import Contract, Lane, Receiver
from journal.observing import observe
from journal.outcomes import CALLING, Outcome, Reported, Told
from journal.store import work as works
from journal.work import after_seconds
from journal.worker import drive
from tests.support.releases import PAST, Yard, lane_settings, releasing


def answer(yard: Yard, told: Told, question: Question) -> None:
    said = Reported(question.id, Outcome.UNKNOWN)
    drive(take_answer(yard.record, told, said, None, question))


def ask(yard: Yard, lane: str = "bank") -> Question:
    (question,) = drive(to_ask(yard.record, lane, 9))
    return question


def now(yard: Yard) -> str:
    assert yard.record.store is not None
    moment: str = drive(yard.record.store.read([works.READ_NOW]))[0][0][0]
    return moment


def lose(yard: Yard, lane: str = "bank") -> None:
    """An attempt whose reply is lost."""
    permit = yard.permit(lane)
    yard.beat(permit, CALLING)
    yard.report(permit, "unknown")


def test_p4_an_answer_about_one_attempt_is_not_taken_for_the_next(yard: Yard) -> None:
    first = yard.release("transfer/1")
    lose(yard)
    held_up = ask(yard)
    yard.meddle(first, due=PAST)
    answer(yard, Told.VOID, ask(yard))
    lose(yard)
    answer(yard, Told.VOID, held_up)
    assert yard.status(first) == "unknown"


def test_p4_not_found_tells_of_the_time_when_it_was_asked(yard: Yard) -> None:
    first = yard.release("transfer/1")
    lose(yard)
    early = ask(yard)
    yard.meddle(first, started=after_seconds(early.asked, -1))
    later = after_seconds(early.asked, -72)
    yard.meddle(first, committed=later)
    held_up = Question(early.id, early.receiver, early.digest, early.attempt, early.asked)
    answer(yard, Told.NOT_FOUND, held_up)
    assert yard.status(first) == "unknown"
    yard.spoiled()


def test_p4_a_receiver_that_was_at_work_a_moment_ago_still_may_be(yard: Yard) -> None:
    first = yard.release("transfer/1")
    permit = yard.permit("bank")
    yard.beat(permit, CALLING)
    yard.report(permit, "pending")
    long_ago = after_seconds(now(yard), -72)
    yard.meddle(first, started=long_ago, committed=long_ago, due=PAST)
    answer(yard, Told.PENDING, ask(yard))
    yard.meddle(first, due=PAST)
    answer(yard, Told.NOT_FOUND, ask(yard))
    assert yard.status(first) == "pending"
    yard.spoiled()


def test_p4_a_call_is_not_begun_when_its_receivers_window_has_ended_meanwhile(
    tmp_path: Path,
) -> None:
    receiver = Receiver(
        url="http://127.0.0.1:9/", contract=Contract.IDEMPOTENT, window=60.0, timeout=5.0
    )
    yard = Yard(
        lane_settings(
            tmp_path,
            receiver={"courier": receiver},
            lane={"out": Lane(receiver="courier")},
            lifecycle={"parcel": releasing("out")},
        )
    )
    first = yard.release("parcel/1")
    lose(yard, "out")
    yard.let_come(first)
    permit = yard.permit("out")
    yard.meddle(first, committed=after_seconds(now(yard), -54))
    assert yard.beat(permit, CALLING) != []
    # Sent now it would arrive when the ID is forgotten.
    yard.meddle(first, committed=after_seconds(now(yard), -56))
    assert yard.beat(permit, CALLING) == []
    yard.spoiled()


def test_p4_a_recovery_does_not_forget_releases_of_a_type_that_is_declared_no_more(
    tmp_path: Path,
) -> None:
    declared = lane_settings(tmp_path, lifecycle={"parcel": releasing("post")})
    yard = Yard(declared)
    first = yard.release("parcel/1")
    permit = yard.permit("post")
    yard.beat(permit, CALLING)
    yard.report(permit, "confirmed", receipt="r-1")
    yard.close()
    declared.store_file.unlink()
    other = Yard(lane_settings(tmp_path))
    with pytest.raises(Refused, match="parcel"):
        other.recover()
    other.close()
    again = Yard(declared)
    again.recover()
    assert again.status(first) == "done"
    assert again.permit_again("parcel/1") == (first,)
    assert again.claim("post").permits == []
    again.finish()


def test_p3_what_is_said_before_a_commitment_settles_nothing(yard: Yard) -> None:
    first = yard.release("payment/1")
    drive(observe(yard.record, Reported(first, Outcome.CONFIRMED, 1, receipt="r-0"), "too early"))
    permit = yard.permit("pay")
    assert yard.sweep().moved == []
    assert yard.status(first) == "running"
    yard.report(permit, "confirmed", receipt="r-1")
    assert yard.row(first).receipt == "r-1"


def test_p4_a_file_put_back_to_before_a_step_is_not_taken_for_the_newest(tmp_path: Path) -> None:
    yard = Yard(
        lane_settings(
            tmp_path,
            receiver={"silent": Receiver(url="http://127.0.0.1:9/")},
            lane={"out": Lane(receiver="silent")},
            lifecycle={"parcel": releasing("out")},
        )
    )
    first = yard.release("parcel/1")
    permit = yard.permit("out")
    copy = tmp_path / "copy.db"
    assert yard.record.store is not None
    yard.record.store.copy_to(copy)
    yard.beat(permit, CALLING)
    yard.close()
    path = yard.settings.store_file
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    copy.rename(path)
    again = Yard(yard.settings)
    again.let_expire(first)
    again.sweep()
    assert again.status(first) == "unknown"
    again.finish()
