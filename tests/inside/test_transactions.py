"""A decision commits and rolls back with the application's rows, in every framework."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from typing import Any

import psycopg
import pytest
import sqlalchemy.exc
from django.db import IntegrityError

from journal.errors import (
    Invalid,
    NotCommitted,
    OperationReused,
    Refused,
    RevisionMismatch,
    TransitionRefused,
)
from journal.inside import Inside
from journal.settings import Settings
from tests.inside.apps import App, Plain, operation, put, rows_of

CLASHES = (
    sqlite3.IntegrityError,
    psycopg.IntegrityError,
    sqlalchemy.exc.IntegrityError,
    IntegrityError,
)


class Later(Exception):
    """What makes an application roll back."""


def decide(app: App, inside: Inside, action: str, payout: str = "7", **fields: Any) -> Any:
    """Decide and write the application's row, as an application does."""
    decision = inside.decide_in(app.connection, operation(action, payout, **fields))
    put(app, payout, decision.state, decision.revision)
    return decision


def test_p1_decision_and_rows_commit_together(app: App, inside: Inside, settings: Settings) -> None:
    with app.transaction():
        decision = decide(app, inside, "request")
    assert rows_of(settings) == [("7", "requested", 1)]
    answer = inside.confirmed(decision)
    assert (answer.outcome, answer.digest, answer.durable_through) == (
        "accepted",
        decision.digest,
        1,
    )
    assert inside.confirmed("7-request").digest == decision.digest
    assert inside.confirmed(operation("request")).digest == decision.digest


def test_a_rolled_back_decision_is_gone_with_its_rows(
    app: App, inside: Inside, settings: Settings
) -> None:
    with suppress(Later), app.transaction():
        gone = decide(app, inside, "request")
        raise Later
    assert rows_of(settings) == []
    with pytest.raises(NotCommitted, match="7-request"):
        inside.confirmed(gone)
    with app.transaction():
        again = decide(app, inside, "request")
    assert again.revision == 1
    assert inside.confirmed(again).digest == again.digest
    # The digest of what was rolled back settles nothing: there is one decision of this ID.
    assert inside.confirmed(gone).digest == again.digest


def test_two_decisions_in_one_transaction_follow_each_other(
    app: App, inside: Inside, settings: Settings
) -> None:
    with app.transaction():
        first = decide(app, inside, "request")
        second = decide(app, inside, "approve", expected_revision=1)
    assert second.predecessor is not None
    assert second.predecessor.digest == first.digest
    assert (first.sequence, second.sequence) == (1, 2)
    assert [each.revision for each in inside.confirmed_all([first, second])] == [1, 2]
    assert rows_of(settings) == [("7", "approved", 2)]


def test_a_savepoint_that_is_rolled_back_takes_its_decision_along(
    app: App, inside: Inside, settings: Settings
) -> None:
    with app.transaction():
        first = decide(app, inside, "request")
        with suppress(Later), app.nested():
            gone = decide(app, inside, "approve")
            raise Later
        with app.nested():
            third = decide(app, inside, "reject")
    assert third.revision == 2
    assert inside.confirmed_all([first, third])[1].state == "rejected"
    with pytest.raises(NotCommitted):
        inside.confirmed(gone, within=1)
    assert rows_of(settings) == [("7", "rejected", 2)]


def test_a_commit_that_fails_leaves_neither(app: App, inside: Inside, settings: Settings) -> None:
    clashed = False
    try:
        with app.transaction():
            gone = decide(app, inside, "request")
            app.run("INSERT INTO notes (id, payout) VALUES (1, 'nobody')")
    except CLASHES:
        clashed = True
    assert clashed
    _rolled_back(app)
    assert rows_of(settings) == []
    with pytest.raises(NotCommitted):
        inside.confirmed(gone)


def _rolled_back(app: App) -> None:
    """sqlite3 leaves a transaction open whose commit failed."""
    if isinstance(app, Plain) and isinstance(app.connection, sqlite3.Connection):
        app.connection.rollback()


def test_a_refusal_leaves_the_transaction_as_it_was(
    app: App, inside: Inside, settings: Settings
) -> None:
    with app.transaction():
        decide(app, inside, "request")
        with pytest.raises(TransitionRefused, match="not allowed in state requested"):
            inside.decide_in(app.connection, operation("request", operation="other"))
        with pytest.raises(RevisionMismatch):
            inside.decide_in(app.connection, operation("approve", expected_revision=5))
        with pytest.raises(Invalid):
            inside.decide_in(app.connection, operation("approve", body="no bytes"))
        last = decide(app, inside, "approve")
    assert inside.confirmed(last).revision == 2
    assert rows_of(settings) == [("7", "approved", 2)]


def test_p6_a_repeat_gives_the_first_answer(app: App, inside: Inside, settings: Settings) -> None:
    with app.transaction():
        first = decide(app, inside, "request")
        again = inside.decide_in(app.connection, operation("request"))
    assert (again.outcome, again.digest) == ("duplicate", first.digest)
    with app.transaction():
        # Committed and not confirmed yet: it is handed off before it is told again.
        later = inside.decide_in(app.connection, operation("request"))
        with pytest.raises(OperationReused, match="differs in: action"):
            inside.decide_in(app.connection, operation("approve", operation="7-request"))
    assert (later.outcome, later.digest) == ("duplicate", first.digest)
    assert inside.confirmed(later).outcome == "duplicate"
    with pytest.raises(OperationReused):
        inside.confirmed(operation("approve", operation="7-request"))
    assert rows_of(settings) == [("7", "requested", 1)]


def test_of_several_operations_all_are_decided_or_none(
    app: App, inside: Inside, settings: Settings
) -> None:
    with app.transaction():
        with pytest.raises(TransitionRefused):
            inside.decide_in(app.connection, [operation("request", "1"), operation("approve", "2")])
        both = inside.decide_in(
            app.connection, [operation("request", "1"), operation("request", "2")]
        )
    assert [each.sequence for each in both] == [1, 2]
    assert len(inside.confirmed_all(both)) == 2


def test_without_a_transaction_nothing_is_decided(settings: Settings, inside: Inside) -> None:
    with pytest.raises(Refused, match="takes a sqlite3 or psycopg connection"):
        inside.decide_in(object(), operation("request"))
    if settings.store:
        with (
            psycopg.connect(settings.store, autocommit=True) as found,
            pytest.raises(Refused, match="no transaction is open"),
        ):
            inside.decide_in(found, operation("request"))
        return
    base = sqlite3.connect(settings.store_file, isolation_level=None)
    with pytest.raises(Refused, match="no transaction is open"):
        inside.decide_in(base, operation("request"))
    base.execute("PRAGMA synchronous=NORMAL")
    base.execute("BEGIN IMMEDIATE")
    with pytest.raises(Refused, match="synchronous=FULL"):
        inside.decide_in(base, operation("request"))
    base.close()
