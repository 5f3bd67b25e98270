"""Old data under new code, new data under old code, and what neither knows: no authority."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal import formats, migrating, reading, stopping
from journal.control import Stage
from journal.errors import (
    Held,
    NewerFormat,
    Recovering,
    Refused,
    SettingsInvalid,
    TransitionRefused,
)
from journal.gate import HELD
from journal.lifecycle import Action, Lifecycle, check_lifecycle
from journal.outcomes import CALLING
from journal.standing import append_control
from journal.worker import drive
from tests.support.earlier import load, write_as_format_1
from tests.support.releases import PAST, Yard, lane_settings
from tests.support.tenants import operation

ROOT = Path(__file__).resolve().parents[2]
NEWER = "needs unrewind of format 3"
ALIKE, OTHER = "ab" * 32, "cd" * 32


@pytest.fixture
def old(tmp_path: Path) -> Iterator[Yard]:
    """A tenant whose files the first format's code made, opened by this code."""
    settings = lane_settings(tmp_path)
    load(settings)
    made = Yard(settings)
    try:
        yield made
        made.finish()
    finally:
        made.close()


def of(yard: Yard, entity: str) -> Any:
    return yard.row(yard.stored_id(entity))


def need(yard: Yard, needs: int) -> None:
    """Say in the journal that the data needs this format, as its code does."""
    from journal import decrees

    def build(control: Any) -> Any:
        entry = decrees.format_entry(control, needs, "a test", f"need-{needs}", "now")
        return entry, control.authority

    known, formats.FORMAT = formats.FORMAT, needs
    try:
        drive(append_control(yard.record, build))
    finally:
        formats.FORMAT = known
        yard.record.control = None


# Expand: old data is opened as it is.


def test_data_of_format_1_is_opened_with_all_its_work_and_nothing_changes_its_meaning(
    old: Yard,
) -> None:
    before = old.journal_sql("SELECT count(*) FROM entries")
    found = old.do(migrating.read_format)
    assert (found.needs, found.contracted, found.statuses) == (1, False, ())
    # What was decided is answered, and what was approved is still that and no more.
    again = old.accept(operation("case/1", "opened", {"title": "a case"}, id="case-opened"))
    assert again.outcome == "duplicate"
    assert old.journal_sql("SELECT count(*) FROM entries") == before
    statuses = {
        row: old.status(old.stored_id(row))
        for row in (
            "letter/running",
            "letter/unknown",
            "letter/done",
            "letter/refused",
            "payment/retry",
            "transfer/pending",
            "payment/cancelled",
            "payment/ready",
        )
    }
    assert statuses == {
        "letter/running": "running",
        "letter/unknown": "unknown",
        "letter/done": "done",
        "letter/refused": "refused",
        "payment/retry": "retry",
        "transfer/pending": "pending",
        "payment/cancelled": "cancelled",
        "payment/ready": "ready",
    }
    assert old.claim("tidy").held == "lane tidy is paused: the old house"
    assert drive(reading.read_gate(old.record, "contract/1", 3)).durable_through == 1
    assert {"dropped"} <= {name for (name,) in old.journal_sql("SELECT name FROM sqlite_master")}
    assert {"unrewind_reconciled"} <= {
        name for (name,) in old.sql("SELECT name FROM sqlite_master")
    }


def test_old_work_goes_on_under_its_old_claims_and_ids(old: Yard) -> None:
    running = of(old, "letter/running")
    (permit,) = old.claim("post", id="claim-running", worker="w-old").permits
    assert (permit.id, permit.lease) == (running.id, running.lease)
    assert old.report(permit, "confirmed").status == "done"
    ready = old.stored_id("payment/ready")
    given = old.claim("pay", limit=5).permits
    assert ready in {permit.id for permit in given}
    assert next(permit for permit in given if permit.id == ready).digest == ALIKE
    # Permitted again, an old release is the same one.
    assert old.permit_again("payment/ready") == (ready,)
    # An old approval permits the version that it was for, and no other.
    with pytest.raises(TransitionRefused, match="holds for no other"):
        old.accept(operation("payment/approved", "release", version="2"))
    assert old.accept(operation("payment/approved", "release", version="1")).releases


def test_code_of_format_1_goes_on_beside_this_one_until_it_is_contracted(old: Yard) -> None:
    old.accept(operation("case/2", "opened"))
    write_as_format_1(old.settings.store_file)
    old.accept(operation("case/2", "closed"))
    assert old.do(migrating.contract).contracted
    with pytest.raises(sqlite3.IntegrityError, match="needs unrewind of format 2"):
        write_as_format_1(old.settings.store_file)
    assert old.accept(operation("case/2", "opened again")).revision == 3
    sequence = old.control().sequence
    assert old.do(migrating.contract).contracted
    assert old.control().sequence == sequence


def test_a_store_that_is_put_back_refuses_code_of_format_1_again(old: Yard, tmp_path: Path) -> None:
    copy = old.snapshot(tmp_path / "kept")
    old.do(migrating.contract)
    old.close()
    old.rewind(copy)
    old.open()
    old.accept(operation("case/2", "opened"))
    with pytest.raises(sqlite3.IntegrityError):
        write_as_format_1(old.settings.store_file)


def test_what_code_of_format_1_would_not_heed_ends_it_first(old: Yard) -> None:
    old.do(stopping.stop_action, "payment", None, "a faulty limit")
    assert old.control().needs == formats.FORMAT
    assert isinstance(old.turn(operation("payment/9", "approve", version="1"))[0], Held)
    with pytest.raises(sqlite3.IntegrityError):
        write_as_format_1(old.settings.store_file)


def test_a_new_tenant_is_nothing_for_code_of_format_1(yard: Yard) -> None:
    assert yard.control().needs == formats.FORMAT
    yard.accept(operation("case/1", "opened"))
    with pytest.raises(sqlite3.IntegrityError):
        write_as_format_1(yard.settings.store_file)


# Data of a newer format.


def test_data_that_needs_newer_code_is_refused_in_the_middle_of_a_run(yard: Yard) -> None:
    release = yard.release("payment/1")
    yard.release("payment/2")
    permit = yard.permit("pay")
    need(yard, 3)
    marker = yard.sql("SELECT * FROM unrewind_marker")
    with pytest.raises(NewerFormat, match=NEWER):
        yard.accept(operation("case/1", "opened"))
    with pytest.raises(NewerFormat, match=NEWER):
        yard.claim("pay")
    with pytest.raises(NewerFormat):
        yard.beat(permit, CALLING)
    with pytest.raises(NewerFormat):
        yard.report(permit, "confirmed")
    with pytest.raises(NewerFormat):
        drive(reading.read_entity(yard.record, "payment/1", None))
    with pytest.raises(NewerFormat):
        yard.sweep()
    # Nothing is written, and whoever understands the data is not stopped by who does not.
    assert yard.sql("SELECT * FROM unrewind_marker") == marker
    assert yard.status(release) == "running"
    assert not yard.record.stop.stands()
    yard.damaged()
    yard.close()
    yard.open()
    with pytest.raises(NewerFormat, match=NEWER):
        yard.accept(operation("case/1", "opened"))


def test_tables_of_a_newer_format_are_refused_and_stay_as_they_are(yard: Yard) -> None:
    yard.accept(operation("case/1", "opened"))
    yard.sql("UPDATE unrewind_marker SET format = 3")
    with pytest.raises(NewerFormat, match=NEWER):
        yard.accept(operation("case/1", "closed"))
    yard.damaged()


def test_a_batch_fails_where_the_format_changed_under_it(yard: Yard) -> None:
    """The fence names the format that its code has seen, in the transaction itself."""
    from journal.errors import FenceFailed
    from journal.store import tables
    from journal.writepath import make_ready

    yard.accept(operation("case/1", "opened"))
    ready = yard.do(make_ready)
    yard.sql("UPDATE unrewind_marker SET format = 2")
    fence = tables.fence(ready.marker, ready.marker.place, ready.tip.sequence)
    with pytest.raises(FenceFailed):
        drive(yard.store.batch([fence]))
    yard.sql("UPDATE unrewind_marker SET format = 1")
    drive(yard.store.batch([fence]))


OLDER = """
import sys
from journal import formats
formats.FORMAT = 1
from journal.errors import UnrewindError
from journal.record import Record
from journal.worker import drive
from journal.writepath import turn
from tests.support.releases import lane_settings
from tests.support.tenants import operation
from pathlib import Path

record = Record(lane_settings(Path(sys.argv[1])))
drive(record.open(create=False))
print("open", flush=True)
for line in sys.stdin:
    try:
        answer = drive(turn(record, [operation(line.strip(), "opened", id=line.strip())]))[0]
    except UnrewindError as error:
        answer = error
    print(type(answer).__name__, str(answer)[:60].replace("\\n", " "), flush=True)
"""
"""A process of an earlier format that knows how to tell what needs a newer one."""


def test_two_formats_side_by_side_until_the_newer_one_says_what_the_other_would_not_heed(
    tmp_path: Path,
) -> None:
    settings = lane_settings(tmp_path)
    load(settings)
    new = Yard(settings)
    child = subprocess.Popen(
        [sys.executable, "-c", OLDER, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None

    def ask(entity: str) -> str:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(f"{entity}\n")
        child.stdin.flush()
        return child.stdout.readline()

    try:
        assert child.stdout.readline() == "open\n"
        for number in range(3):
            new.accept(operation(f"case/new-{number}", "opened"))
            assert ask(f"case/old-{number}").startswith("Acceptance")
        new.do(stopping.stop_action, "payment", None, "a faulty limit")
        sequence = new.accept(operation("case/new-3", "opened")).sequence
        assert ask("case/old-3").startswith("NewerFormat the data needs unrewind of format 2")
        assert new.accept(operation("case/new-4", "opened")).sequence == (sequence or 0) + 1
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    new.finish()


def test_contracting_waits_until_every_process_has_left(tmp_path: Path) -> None:
    settings = lane_settings(tmp_path)
    load(settings)
    made = Yard(settings)
    with pytest.raises(Refused, match="stop every one"):
        migrating.check_alone(settings)
    made.close()
    migrating.check_alone(settings)
    made.open()
    assert made.do(migrating.contract).contracted
    made.finish()


# What this code does not know has no authority.


def test_work_of_an_unknown_status_is_claimed_asked_about_and_moved_by_nobody(yard: Yard) -> None:
    release = yard.release("payment/1")
    yard.meddle(release, status="parked-by-the-bank", due=PAST, sweep_at=PAST)
    assert yard.claim("pay").permits == []
    assert yard.sweep().count == 0
    assert not yard.row(release).over
    # Permitted again, it is the same release and not made anew.
    assert yard.permit_again("payment/1") == (release,)
    assert yard.status(release) == "parked-by-the-bank"
    found = yard.do(migrating.read_format)
    assert found.statuses == ("parked-by-the-bank",)
    yard.spoiled()


def test_an_unknown_stage_is_a_closed_one(yard: Yard) -> None:
    yard.release("payment/1")
    permit = yard.permit("pay")
    yard.journal_sql("UPDATE authority SET stage = 'review'")
    yard.record.control = None
    for function in (
        lambda: yard.accept(operation("case/1", "opened")),
        lambda: yard.claim("pay"),
        lambda: yard.beat(permit, CALLING),
    ):
        with pytest.raises(Recovering):
            function()
    yard.damaged()


SPLIT = Lifecycle(
    version="2",
    initial="new",
    earlier=("approved",),
    actions={
        "approve": Action(("new",), "approved_for_internal_review"),
        "clear": Action(
            ("approved", "approved_for_internal_review"), "approved_for_external_release"
        ),
        "revoke": Action(
            ("approved", "approved_for_internal_review", "approved_for_external_release"),
            "revoked",
        ),
        "release": Action(
            ("approved_for_external_release",),
            "approved_for_external_release",
            needs_version=True,
            same_version=True,
            releases=("pay",),
        ),
    },
)
"""A later version of a lifecycle, which parts one state in two."""


def test_a_state_of_an_earlier_lifecycle_gives_no_permission_until_it_was_taken_on(
    yard: Yard,
) -> None:
    release = yard.release("payment/1", digest=ALIKE)
    yard.accept(operation("payment/2", "approve", {"digest": OTHER}, version="1"))
    yard.close()
    types = {**yard.settings.lifecycle, "payment": SPLIT}
    yard.settings = lane_settings(yard.settings.home.parent, lifecycle=types)
    yard.open()
    # What was permitted waits; what was approved permits nothing by itself.
    assert yard.claim("pay").permits == []
    assert yard.row(release).step.startswith("held: payment/1 is in state approved, to which")
    with pytest.raises(TransitionRefused, match="not allowed in state approved"):
        yard.accept(operation("payment/2", "release", version="1"))
    ruling = drive(reading.read_gate(yard.record, "payment/1", None))
    assert ruling.gate == HELD
    assert ruling.reasons[0].startswith("unknown: state approved")
    strange = yard.do(migrating.read_format).states
    assert [(each.type, each.state, each.entities) for each in strange] == [
        ("payment", "approved", 2)
    ]
    # Taken on by a decision of its own, the old permission is the same release.
    yard.accept(operation("payment/1", "clear", version="1"))
    yard.let_come(release)
    assert yard.permit("pay").id == release
    assert yard.do(migrating.read_format).states[0].entities == 1


def test_an_earlier_state_is_one_to_which_nothing_leads(tmp_path: Path) -> None:
    from msgspec.structs import replace

    check_lifecycle("payment", SPLIT)
    with pytest.raises(SettingsInvalid, match="an action leads"):
        check_lifecycle("payment", replace(SPLIT, earlier=("approved", "revoked")))
    with pytest.raises(SettingsInvalid, match="goes into `earlier`"):
        check_lifecycle("payment", replace(SPLIT, earlier=()))


# An approval stays with what was approved.


def approved(yard: Yard, entity: str = "payment/1", version: str = "1") -> None:
    yard.accept(operation(entity, "approve", {"digest": ALIKE}, version=version))


@pytest.mark.parametrize("digest", [OTHER, None])
def test_a_release_smuggles_in_no_other_content_than_was_approved(
    yard: Yard, digest: str | None
) -> None:
    approved(yard)
    with pytest.raises(TransitionRefused, match="other content is another version"):
        yard.accept(operation("payment/1", "release", {"digest": digest}, version="1"))
    (release,) = yard.permit_again("payment/1")
    assert yard.row(release).digest == ALIKE


def test_a_release_brings_no_content_that_nobody_approved(yard: Yard) -> None:
    yard.accept(operation("payment/1", "approve", version="1"))
    with pytest.raises(TransitionRefused, match="that may be released with none"):
        yard.accept(operation("payment/1", "release", {"digest": OTHER}, version="1"))
    assert yard.permit_again("payment/1")


def test_another_processors_output_needs_a_version_and_an_approval_of_its_own(yard: Yard) -> None:
    approved(yard)
    with pytest.raises(TransitionRefused, match="needs an approval of its own"):
        yard.accept(operation("payment/1", "approve", {"digest": OTHER}, version="1"))
    yard.accept(operation("payment/1", "approve", {"digest": OTHER}, version="2"))
    with pytest.raises(TransitionRefused, match="holds for no other"):
        yard.accept(operation("payment/1", "release", version="1"))
    (release,) = yard.permit_again("payment/1", "2")
    assert (yard.row(release).version, yard.row(release).digest) == ("2", OTHER)


def test_other_fields_of_an_approved_version_may_change(yard: Yard) -> None:
    approved(yard)
    yard.accept(operation("payment/1", "release", {"recipient": "ada"}, version="1"))
    yard.accept(operation("payment/1", "revoke"))
    # Nothing stands approved any more, so the same name may stand for new content again.
    yard.accept(operation("payment/1", "approve", {"digest": OTHER}, version="1"))


def test_a_restored_approval_is_the_one_that_was_given_and_no_newer_one(
    yard: Yard, tmp_path: Path
) -> None:
    copy = yard.snapshot(tmp_path / "kept")
    approved(yard)
    yard.close()
    yard.rewind(copy)
    yard.open()
    yard.recover()
    assert yard.control().authority.stage is Stage.OPEN
    with pytest.raises(TransitionRefused):
        yard.accept(operation("payment/1", "release", {"digest": OTHER}, version="1"))
    (release,) = yard.permit_again("payment/1")
    assert yard.row(release).digest == ALIKE
