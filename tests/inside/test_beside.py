"""A decision inside a transaction beside all else: closed tenants, rewinds, other writers."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

import journal
from journal.control import Stage
from journal.driving import drive
from journal.errors import (
    JournalUnavailable,
    NotCommitted,
    OutcomeUnknown,
    Recovering,
    Refused,
    RevisionMismatch,
    TransitionRefused,
    UnrewindError,
)
from journal.inside import Inside, Tentative
from journal.record import Record
from journal.settings import Settings
from journal.standing import change_control
from journal.writepath import turn
from reconstruct import recovery
from tests.inside.apps import Plain, operation, put, rows_of

SECONDS = 30


def decide(app: Plain, inside: Inside, action: str, payout: str = "7", **fields: Any) -> Tentative:
    decision = inside.decide_in(app.connection, operation(action, payout, **fields))
    put(app, payout, decision.state, decision.revision)
    return decision


def journalled(settings: Settings) -> list[str]:
    """The operations that the journal holds, in order."""
    with closing(sqlite3.connect(settings.journal_file)) as base:
        sql = "SELECT operation FROM entries WHERE stream = 'decisions' ORDER BY sequence"
        return [name for (name,) in base.execute(sql)]


@contextmanager
def opened(settings: Settings) -> Iterator[Record]:
    """The tenant as another process has it."""
    record = Record(settings)
    try:
        drive(record.open())
        yield record
    finally:
        drive(record.close())


# The journal follows the commit.


def test_p1_the_journal_gets_a_decision_only_after_its_commit(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    with opened(settings) as other:
        with plain.transaction():
            decision = decide(plain, inside, "request")
            assert journalled(settings) == []
            with pytest.raises(OutcomeUnknown, match="same operation ID"):
                inside.confirmed(decision, within=0.1)
        assert journalled(settings) == []
        # Whoever has committed may die: the next turn of any process hands it off.
        drive(turn(other, [operation("request", "8")]))
        assert journalled(settings) == ["7-request", "8-request"]
    assert inside.confirmed(decision).sequence == 1


def test_p1_a_refusal_rests_on_journalled_decisions(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    with plain.transaction():
        decide(plain, inside, "request")
    with plain.transaction(), pytest.raises(TransitionRefused):
        inside.decide_in(plain.connection, operation("request", operation="again"))
    assert journalled(settings) == ["7-request"]


async def test_confirmed_can_be_awaited(plain: Plain, inside: Inside) -> None:
    with plain.transaction():
        decision = decide(plain, inside, "request")
    assert (await inside.confirmed_async(decision)).revision == 1


def test_the_module_works_on_the_tenant_that_was_named(plain: Plain, settings: Settings) -> None:
    journal.inside.use(settings)
    try:
        with plain.transaction():
            decision = journal.decide_in(plain.connection, operation("request"))
        assert journal.confirmed(decision).revision == 1
    finally:
        journal.inside.close()


# What a turn compares is compared here.


def test_p9_nothing_is_decided_while_the_tenant_is_stopped(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    inside.open()
    with plain.transaction():
        decision = decide(plain, inside, "request")
    stop = settings.beside("stop")
    stop.touch()
    with plain.transaction(), pytest.raises(Recovering):
        inside.decide_in(plain.connection, operation("approve"))
    with pytest.raises(Recovering):
        inside.confirmed(decision, within=0)
    stop.unlink()
    assert inside.confirmed(decision).revision == 1


def test_p7_nothing_is_decided_in_a_stage_that_only_reads(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    def at(stage: Stage) -> None:
        def becomes(control: Any) -> Any:
            before = control.authority
            return type(before)(
                before.history, before.generation, stage, before.first, before.digest
            )

        with opened(settings) as record:
            drive(change_control(record, "stage", becomes, {"reason": "a test"}))

    inside.open()
    at(Stage.READING)
    with plain.transaction(), pytest.raises(Recovering, match="reading"):
        inside.decide_in(plain.connection, operation("request"))
    at(Stage.OPEN)
    with plain.transaction():
        decision = decide(plain, inside, "request")
    inside.confirmed(decision)


def test_a_journal_that_is_away_is_told_at_the_door(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    inside.open()
    moved = settings.journal_file.with_suffix(".away")
    settings.journal_file.rename(moved)
    try:
        with plain.transaction(), pytest.raises(UnrewindError) as told:
            inside.decide_in(plain.connection, operation("request"))
        assert isinstance(told.value, JournalUnavailable | Recovering)
    finally:
        moved.rename(settings.journal_file)
        settings.beside("stop").unlink(missing_ok=True)
    with plain.transaction():
        decision = decide(plain, inside, "request")
    assert inside.confirmed(decision).sequence == 1


@pytest.mark.parametrize("engine", ["sqlite"])
def test_p8_a_rewound_file_is_noticed_before_another_decision(
    settings: Settings, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    with opened(settings) as record:
        assert record.store is not None
        record.store.copy_to(copy)
    app, inside = Plain(settings), Inside(settings)
    with app.transaction():
        decision = decide(app, inside, "request")
    inside.confirmed(decision)
    app.close()
    inside.close()
    for suffix in ("-wal", "-shm"):
        settings.store_file.with_name(f"main.db{suffix}").unlink(missing_ok=True)
    shutil.copyfile(copy, settings.store_file)
    app, inside = Plain(settings), Inside(settings)
    with app.transaction(), pytest.raises(Recovering, match="the store ends at sequence 0"):
        inside.decide_in(app.connection, operation("request", "8"))
    assert settings.beside("stop").exists()
    app.close()
    inside.close()
    with opened(settings) as record:
        drive(recovery.begin(record, "a test"))
        drive(recovery.apply(record, drive(recovery.plan(record)).plan))
        drive(recovery.reopen(record))


@pytest.mark.parametrize("engine", ["sqlite"])
def test_p8_a_connection_to_a_file_that_was_replaced_is_refused(
    plain: Plain, inside: Inside, settings: Settings, tmp_path: Path
) -> None:
    with plain.transaction():
        decision = decide(plain, inside, "request")
    inside.confirmed(decision)
    copy = tmp_path / "same.db"
    with opened(settings) as record:
        assert record.store is not None
        record.store.copy_to(copy)
    with (
        closing(sqlite3.connect(copy)) as elsewhere,
        pytest.raises(Refused, match="not the tenant's store"),
    ):
        inside.decide_in(elsewhere, operation("approve"))
    for suffix in ("-wal", "-shm"):
        settings.store_file.with_name(f"main.db{suffix}").unlink(missing_ok=True)
    copy.replace(settings.store_file)
    # The old connection goes on in a file that nobody will see again.
    with plain.transaction():
        lost = decide(plain, inside, "approve")
    with pytest.raises(NotCommitted):
        inside.confirmed(lost)
    with plain.transaction(), pytest.raises(Refused, match="connect anew"):
        inside.decide_in(plain.connection, operation("reject"))
    plain.close()
    again = Plain(settings)
    with again.transaction():
        decision = decide(again, inside, "approve")
    assert inside.confirmed(decision).revision == 2
    again.close()


# Other writers.


def test_of_two_first_decisions_one_is_revision_1(inside: Inside, settings: Settings) -> None:
    inside.open()
    start = threading.Barrier(2)
    outcomes: dict[str, object] = {}

    def first(name: str) -> None:
        app = Plain(settings)
        try:
            start.wait(SECONDS)
            while True:
                try:
                    with app.transaction():
                        wanted = operation("request", operation=name, expected_revision=0)
                        decision = inside.decide_in(app.connection, wanted)
                        put(app, "7", decision.state, decision.revision)
                    outcomes[name] = inside.confirmed(decision).revision
                    return
                except JournalUnavailable:
                    continue  # told to run it again, with the same operation ID
                except RevisionMismatch as refused:
                    outcomes[name] = refused
                    return
        finally:
            app.close()

    racing = [threading.Thread(target=first, args=(name,)) for name in ("ada", "ben")]
    for each in racing:
        each.start()
    for each in racing:
        each.join(SECONDS)
    assert sorted(str(type(each).__name__) for each in outcomes.values()) == [
        "RevisionMismatch",
        "int",
    ]
    assert rows_of(settings) == [("7", "requested", 1)]


def test_many_threads_decide_and_every_row_has_its_decision(
    inside: Inside, settings: Settings
) -> None:
    inside.open()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        app = Plain(settings)
        try:
            for action in ("request", "approve"):
                while True:
                    try:
                        with app.transaction():
                            decision = decide(app, inside, action, str(number))
                        break
                    except JournalUnavailable:
                        continue
                inside.confirmed(decision)
        except BaseException as error:  # noqa: BLE001 - told to the test's own thread
            failures.append(error)
        finally:
            app.close()

    working = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for each in working:
        each.start()
    for each in working:
        each.join(SECONDS)
    assert failures == []
    assert rows_of(settings) == [(str(number), "approved", 2) for number in range(4)]
    assert len(journalled(settings)) == 8


def test_a_service_beside_a_long_transaction_waits_for_a_time_and_stays_open(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    if settings.store:
        store = f"{settings.store}?options=-c%20lock_timeout%3D500"
        beside = Settings(
            **{**{n: getattr(settings, n) for n in settings.__struct_fields__}, "store": store}
        )
    else:
        beside = settings
    with opened(beside) as service:
        drive(turn(service, [operation("request", "1")]))
        if not settings.store:
            assert service.store is not None
            service.store.database.connection.execute("PRAGMA busy_timeout=300")  # type: ignore[attr-defined]
        with plain.transaction():
            decision = decide(plain, inside, "request")
            with pytest.raises(JournalUnavailable):
                drive(turn(service, [operation("request", "2")]))
            # The transaction itself is not held up by the service.
            second = decide(plain, inside, "approve")
        assert inside.confirmed_all([decision, second])[1].revision == 2
        assert not settings.beside("stop").exists()
        answer = drive(turn(service, [operation("request", "2")]))[0]
        assert not isinstance(answer, UnrewindError)


def test_another_decision_inside_waits_for_a_time_only(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    inside.open()
    other = Plain(settings)
    if not settings.store:
        other.connection.execute("PRAGMA busy_timeout=200")
    with plain.transaction():
        decision = decide(plain, inside, "request")
        with pytest.raises(JournalUnavailable, match="same operation ID"), other.transaction():
            inside.decide_in(other.connection, operation("request", "8"))
    inside.confirmed(decision)
    with other.transaction():
        late = decide(other, inside, "request", "8")
    assert inside.confirmed(late).sequence == 2
    other.close()


# The application's connection stays as it is.


def test_nothing_of_the_connection_is_changed(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    connection = plain.connection
    if settings.store:
        connection.row_factory = dict_row
        connection.execute("SET search_path = nowhere, public")
        connection.execute("SET bytea_output = 'escape'")
        connection.execute("SET timezone = 'Asia/Kathmandu'")
        connection.execute("SET datestyle = 'german, dmy'")
        connection.commit()
        asked = "SELECT name, setting FROM pg_settings WHERE name NOT LIKE '%.%' ORDER BY name"
        before = connection.execute(asked).fetchall()
        connection.commit()
    with plain.transaction():
        decision = decide(
            plain, inside, "request", body=b'{"a":"\\\\x00 \xc3\xa9"}', body_type="application/json"
        )
    inside.confirmed(decision)
    with plain.transaction():
        row = connection.execute("SELECT state FROM payouts").fetchone()
        again = inside.decide_in(
            connection,
            operation("request", body=b'{"a":"\\\\x00 \xc3\xa9"}', body_type="application/json"),
        )
    assert again.outcome == "duplicate"
    if settings.store:
        assert row == {"state": "requested"}
        after = connection.execute(asked).fetchall()
        assert after == before
        assert connection.prepare_threshold == 5
    else:
        assert row["state"] == b"requested"
        assert connection.row_factory is sqlite3.Row


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["postgres"])
def test_in_stricter_isolation_a_loser_is_told_to_run_it_again(
    plain: Plain, inside: Inside, settings: Settings
) -> None:
    other = Plain(settings)
    other.connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    other.run("SELECT 1 FROM payouts")  # its snapshot is of now
    with plain.transaction():
        decision = decide(plain, inside, "request")
    with pytest.raises(JournalUnavailable, match="run the transaction again"):
        decide(other, inside, "request", "8")
    other.connection.rollback()
    inside.confirmed(decision)
    with other.transaction():
        late = decide(other, inside, "request", "8")
    assert inside.confirmed(late).sequence == 2
    other.close()


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["postgres"])
def test_a_session_that_does_not_wait_for_the_disk_is_refused(plain: Plain, inside: Inside) -> None:
    with plain.transaction():
        plain.run("SET LOCAL synchronous_commit = off")
        with pytest.raises(Refused, match="postgres-async-commit"):
            inside.decide_in(plain.connection, operation("request"))


@pytest.mark.engines
@pytest.mark.parametrize("engine", ["postgres"])
def test_a_failed_transaction_is_refused_before_anything_else(plain: Plain, inside: Inside) -> None:
    with pytest.raises(psycopg.Error):
        plain.run("SELECT nothing")
    with pytest.raises(Refused, match="failed before"):
        inside.decide_in(plain.connection, operation("request"))
    plain.connection.rollback()


# Processes.


def test_a_forked_process_opens_the_tenant_itself(inside: Inside, settings: Settings) -> None:
    inside.open()
    child = os.fork()
    if not child:
        code = 1
        try:
            app = Plain(settings)
            with app.transaction():
                decision = decide(app, inside, "request")
            code = 0 if inside.confirmed(decision).revision == 1 else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    app = Plain(settings)
    with app.transaction():
        decision = decide(app, inside, "approve")
    assert inside.confirmed(decision).revision == 2
    app.close()


KILLED = """
import os, signal, sys
import msgspec
from journal.inside import Inside
from journal.settings import Settings
from tests.inside.apps import Plain
from tests.inside.test_beside import decide
settings = msgspec.json.decode(sys.stdin.buffer.read(), type=Settings)
inside, app = Inside(settings), Plain(settings)
class Before(BaseException): pass
try:
    with app.transaction():
        decide(app, inside, "request")
        if sys.argv[1] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
finally:
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_p1_an_application_killed_around_its_commit_loses_both_or_neither(
    inside: Inside, settings: Settings, when: str
) -> None:
    import msgspec

    done = subprocess.run(
        [sys.executable, "-c", KILLED, when],
        input=msgspec.json.encode(settings),
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            revision = inside.confirmed("7-request").revision
        except NotCommitted:
            revision = 0
        except OutcomeUnknown:
            # The server has not noticed yet that its client is gone.
            assert time.monotonic() < deadline
            continue
        break
    assert revision == (1 if when == "after" else 0)
    assert len(rows_of(settings)) == revision
