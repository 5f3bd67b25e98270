"""What is on its way before it is waited for: it counts when it should, and never otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from journal import Settings, ahead
from journal.acceptance import ACCEPTED, DUPLICATE, Acceptance, Operation
from journal.control import Stage
from journal.errors import FenceFailed, JournalUnavailable, Recovering
from journal.log import DECISIONS, Append, Look, Moved
from journal.log.postgres import PostgresLog
from journal.postgres.wire import Failed, Sent, Wire
from journal.record import Record
from journal.store import tables
from journal.store.postgres import PostgresStore
from journal.worker import drive
from journal.writepath import settle, turn
from reconstruct.verification import verify
from tests.support.engines import Postgres
from tests.support.postgres import PostgresServer
from tests.support.sealing import sealed
from tests.support.sessions import FENCE, MARKER, cut, marker_of, until
from tests.support.tenants import make_settings, operation

pytestmark = pytest.mark.engines


@pytest.fixture
def engine(postgres_stores: PostgresServer) -> Postgres:
    return Postgres(postgres_stores)


@pytest.fixture
def log(engine: Postgres) -> Iterator[PostgresLog]:
    made = drive(engine.log())
    assert isinstance(made, PostgresLog)
    yield made
    made.database.close()


@pytest.fixture
def store(engine: Postgres) -> Iterator[PostgresStore]:
    made = engine.store(MARKER)
    assert isinstance(made, PostgresStore)
    yield made
    made.database.close()


def entry(number: int = 1, operation: str = "op-1") -> Append:
    made = sealed(b"x", entity=f"case/{number}", operation=operation, sequence=number)
    return Append(entries=[(DECISIONS, made)])


def prepared(log: PostgresLog, append: Append) -> Look:
    """Where the log stood when this was prepared in it."""
    look = drive(log.look())
    log.prepare(append, look)
    return look


def seen(engine: Postgres) -> int:
    """How many entries another connection sees."""
    other = engine.same_log()
    try:
        return drive(other.look()).position
    finally:
        other.database.close()


# An append that is prepared.


def test_p2_what_is_prepared_counts_only_when_it_is_appended(
    engine: Postgres, log: PostgresLog
) -> None:
    before = seen(engine)
    look = prepared(log, entry())
    assert seen(engine) == before
    drive(log.append(entry(), look))
    assert seen(engine) == before + 1
    assert [row.operation for row in drive(log.operations(["op-1"]))] == ["op-1"]


@pytest.mark.parametrize(
    "other",
    [
        PostgresLog.forget,
        lambda log: drive(log.look()),
        lambda log: drive(log.operations(["op-9"])),
        lambda log: log.ask_ahead(["op-9"]),
        lambda log: log.database.close(),
    ],
)
def test_p2_whatever_else_is_asked_undoes_what_is_prepared(
    engine: Postgres, log: PostgresLog, other: Callable[[PostgresLog], Any]
) -> None:
    before = seen(engine)
    prepared(log, entry())
    other(log)
    again = engine.same_log()
    drive(again.append(entry(operation="op-2"), drive(again.look())))
    again.database.close()
    assert seen(engine) == before + 1


def test_r8_another_append_than_was_prepared_is_made_as_ever(
    engine: Postgres, log: PostgresLog
) -> None:
    look = prepared(log, entry())
    drive(log.append(entry(operation="op-2"), look))
    assert drive(log.operations(["op-1"])) == []
    assert len(drive(log.operations(["op-2"]))) == 1
    assert seen(engine) == look.position + 1


def test_r8_what_is_prepared_where_the_journal_has_moved_is_moved(
    engine: Postgres, log: PostgresLog
) -> None:
    look = drive(log.look())
    other = engine.same_log()
    drive(other.append(entry(), look))
    log.prepare(entry(operation="op-2"), look)
    with pytest.raises(Moved):
        drive(log.append(entry(operation="op-2"), look))
    drive(log.append(entry(2, "op-2"), drive(log.look())))
    other.database.close()


def test_a_process_that_stands_still_in_what_it_prepared_loses_nothing(
    engine: Postgres, log: PostgresLog
) -> None:
    log.database.ask("SET idle_in_transaction_session_timeout = '50ms'")
    look = prepared(log, entry())
    other = engine.same_log()
    until("its session is ended", lambda: not _open_transactions(engine))
    drive(log.append(entry(), look))
    assert [row.operation for row in drive(other.operations(["op-1"]))] == ["op-1"]
    other.database.close()


def test_others_wait_for_what_stands_still_no_longer_than_it_may(
    engine: Postgres, log: PostgresLog
) -> None:
    look = prepared(log, entry())
    other = engine.same_log()
    drive(other.append(entry(operation="op-2"), look))
    with pytest.raises(Moved):
        drive(log.append(entry(), look))
    other.database.close()


def _open_transactions(engine: Postgres) -> list[Any]:
    return engine.server.query(
        "SELECT pid FROM pg_stat_activity WHERE state LIKE %s AND application_name = %s",
        "idle in transaction%",
        f"unrewind {engine.tenant}",
    )


# Questions that are asked ahead.


def test_answers_that_were_asked_ahead_are_given_once(
    engine: Postgres, store: PostgresStore
) -> None:
    heads = tables.read_heads(["case/1"])
    store.ask_ahead([tables.READ_MARKER, heads], idle=False)
    assert marker_of(store) == MARKER
    assert drive(store.read([heads])) == [[("[]",)]]
    other = engine.same_store()
    drive(other.batch([FENCE]))
    other.database.close()
    found = marker_of(store)
    assert found is not None
    assert found.place.sequence == 1


def test_p8_a_batch_after_an_old_answer_fails_at_its_fence(
    engine: Postgres, store: PostgresStore
) -> None:
    store.ask_ahead([tables.READ_MARKER], idle=False)
    other = engine.same_store()
    # The same place again: nothing but the row's own writer tells that it was written since.
    drive(other.batch([tables.fence(MARKER, MARKER.place, 0)]))
    other.database.close()
    assert marker_of(store) == MARKER
    with pytest.raises(FenceFailed):
        drive(store.batch([FENCE]))


def test_other_questions_than_were_asked_ahead_are_asked_anew(
    engine: Postgres, store: PostgresStore
) -> None:
    store.ask_ahead([tables.READ_MARKER], idle=False)
    assert drive(store.read([tables.COUNT_ENTITIES])) == [[(0,)]]
    other = engine.same_store()
    drive(other.batch([FENCE]))
    other.database.close()
    found = marker_of(store)
    assert found is not None
    assert found.place.sequence == 1


def test_a_connection_that_breaks_under_a_question_is_made_anew(
    engine: Postgres, store: PostgresStore, log: PostgresLog
) -> None:
    cut(engine)
    store.ask_ahead([tables.READ_MARKER], idle=False)
    log.ask_ahead(["op-1"])
    assert marker_of(store) == MARKER
    assert drive(log.look()).position == seen(engine)


def test_what_fails_among_dropped_statements_is_prepared_again(engine: Postgres) -> None:
    wire = Wire(engine.server.create_database(), "here")
    broken = Sent("SELECT 1 FROM pg_class WHERE 1 / $1 = 1", (0,))
    wire.start([broken, Sent("SELECT $1::int", (7,))])
    assert wire.send([Sent("SELECT $1::int", (7,))]) == [[(7,)]]
    with pytest.raises(Failed):
        wire.send([broken])
    wire.close()


# Turns.


@pytest.fixture
def settings(tmp_path: Path, store_url: str, journal_url: str) -> Iterator[Settings]:
    made = make_settings(tmp_path, store=store_url, journal=journal_url)
    yield made
    record = Record(made)
    drive(record.open())
    try:
        drive(settle(record))
    finally:
        drive(record.close())
    report = verify(made)
    assert (report.verdict, report.findings) == ("clean", [])


@pytest.fixture
def record(settings: Settings) -> Iterator[Record]:
    yield from opened(settings)


@pytest.fixture
def other(settings: Settings, record: Record) -> Iterator[Record]:
    """The same tenant in another process, as far as the servers can tell."""
    yield from opened(settings)


def opened(settings: Settings) -> Iterator[Record]:
    made = Record(settings)
    drive(made.open())
    drive(turn(made, [case(0)]))  # what is doubted of a store is looked at in a first turn
    try:
        yield made
    finally:
        drive(made.close())


def case(number: int) -> Operation:
    return operation(f"case/{number}", "open", {"n": number}, id=f"case-{number}")


def outcomes(answers: list[Any]) -> list[str]:
    assert all(isinstance(answer, Acceptance) for answer in answers), answers
    return [answer.outcome for answer in answers]


def test_a_turn_waits_for_each_server_twice(
    record: Record, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the lock and for both answers, asked at once; for batch and append, sent at once; for the
    append's commit."""
    waits: list[str] = []
    for name in ("send", "finish"):
        real = getattr(Wire, name)

        def counted(wire: Wire, *args: Any, name: str = name, real: Any = real) -> Any:
            waits.append(name)
            return real(wire, *args)

        monkeypatch.setattr(Wire, name, counted)
    assert outcomes(drive(turn(record, [case(1), case(2)]))) == [ACCEPTED, ACCEPTED]
    assert waits == ["send", "finish", "finish", "send", "finish", "send"]


def between(
    monkeypatch: pytest.MonkeyPatch, does: Callable[[], None], *, store_first: bool
) -> None:
    """Let the other process decide between the two looks of a turn's first attempt."""
    once = [does]

    def ask(record: Record, operations: Any) -> None:
        if not once:
            real(record, operations)
            return
        now = once.pop()
        store, log = record.store, record.log
        assert isinstance(store, PostgresStore)
        assert isinstance(log, PostgresLog)
        statements = ahead.questions(record, operations)

        def ask_store() -> None:
            store.ask_ahead([tables.READ_MARKER, *statements], idle=True)
            until("the store has answered", lambda: _has_answered(store))

        def ask_log() -> None:
            log.ask_ahead([each.operation for each in operations])
            until("the journal has answered", lambda: _has_answered(log))

        first, second = (ask_store, ask_log) if store_first else (ask_log, ask_store)
        first()
        now()
        second()
        record.asked = ahead.Asked(operations, statements)

    real = ahead.ask
    monkeypatch.setattr(ahead, "ask", ask)


@pytest.mark.parametrize("store_first", [True, False])
def test_r8_a_decision_between_the_looks_closes_nothing_and_is_not_made_twice(
    record: Record, other: Record, monkeypatch: pytest.MonkeyPatch, store_first: bool
) -> None:
    given = [case(1), case(2)]

    def decide() -> None:
        assert outcomes(drive(turn(other, given[:1]))) == [ACCEPTED]

    between(monkeypatch, decide, store_first=store_first)
    assert outcomes(drive(turn(record, given))) == [DUPLICATE, ACCEPTED]
    assert record.control is not None
    assert record.control.authority.stage is Stage.OPEN
    assert not record.stop.stands()


def test_p1_a_batch_that_the_store_refuses_leaves_nothing_in_the_journal(
    record: Record, other: Record
) -> None:
    def decide() -> None:
        with other_lock(other):
            assert outcomes(drive(turn(other, [case(1)]))) == [ACCEPTED]

    before_the_batch(record, decide)
    assert outcomes(drive(turn(record, [case(2)]))) == [ACCEPTED]
    rows = drive(record.journal().operations(["case-1", "case-2"]))
    assert [row.sequence for row in rows] == [2, 3]


class other_lock:  # noqa: N801 - reads as what it does
    """The other process goes on without the turn lock, as one that has lost it does."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def __enter__(self) -> None:
        lock: Any = self._record.lock
        self._taken, lock._take = lock._take, lambda: None

    def __exit__(self, *_: object) -> None:
        lock: Any = self._record.lock
        lock._take = self._taken


def test_a_turn_that_ends_at_the_door_leaves_no_answers_behind(
    record: Record, other: Record
) -> None:
    record.stop.put_up("by hand", record.clock.now())
    with pytest.raises(Recovering):
        drive(turn(record, [case(1)]))
    assert record.asked is None
    record.stop.take_down(record.stop.standing())
    drive(turn(other, [case(1)]))
    found = drive(record.look()).last
    assert found is not None
    assert found.sequence == 2


def test_p2_a_turn_whose_store_ends_its_session_leaves_nothing_in_the_journal(
    record: Record, other: Record
) -> None:
    assert record.store is not None
    before_the_batch(record, lambda: _end_session(record.store))
    with pytest.raises(JournalUnavailable):
        drive(turn(record, [case(1)]))
    assert drive(other.journal().operations(["case-1"])) == []
    assert outcomes(drive(turn(other, [case(1)]))) == [ACCEPTED]


def test_p2_a_turn_whose_journal_ends_its_session_before_the_commit_appends_anew(
    record: Record, other: Record
) -> None:
    before_the_batch(record, lambda: _end_session(record.journal()))
    assert outcomes(drive(turn(record, [case(1)]))) == [ACCEPTED]
    assert outcomes(drive(turn(other, [case(1)]))) == [DUPLICATE]


def before_the_batch(record: Record, does: Callable[[], None]) -> None:
    """Do this once when the next batch is about to be sent to the store, its append prepared."""
    store = record.store
    assert store is not None
    real = store.batch

    async def batch(statements: Any) -> None:
        store.batch = real  # type: ignore[method-assign]
        does()
        await real(statements)

    store.batch = batch  # type: ignore[method-assign]


def _end_session(port: Any) -> None:
    pid = port.database._wire.connection.info.backend_pid
    with psycopg.connect(port.database.where.conninfo, autocommit=True) as client:
        client.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))


def _has_answered(port: Any) -> bool:
    return bool(port.database._wire._poll.poll(0))
