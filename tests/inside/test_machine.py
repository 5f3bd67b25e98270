"""Transactions of any shape, beside a service and with deaths: rows and decisions never come apart.

Each rule does what an application may do. What must hold after every one of them: the committed
rows are what the committed decisions say, nothing is journalled that was not committed, and
whatever was confirmed is in the journal.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from hypothesis import settings as limits
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from journal.driving import drive
from journal.errors import JournalUnavailable, NotCommitted, Refusal
from journal.inside import Inside, Tentative
from journal.record import Record
from journal.writepath import turn
from tests.inside.apps import TABLES, Plain, operation, put, rows_of
from tests.inside.conftest import finish, found, settings_of

PAYOUTS = st.sampled_from(["1", "2"])
ACTIONS = st.sampled_from(["request", "approve", "reject"])


class Transactions(RuleBasedStateMachine):
    """One application's transaction at a time, a service beside, and deaths."""

    @initialize()
    def begin_anew(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.settings = settings_of(Path(self.folder.name), lock_timeout=0.5)
        found(self.settings)
        self.app = Plain(self.settings)
        with self.app.transaction():
            for ddl in TABLES:
                self.app.run(ddl)
        self.inside = Inside(self.settings)
        self.inside.open()
        self.open = False
        self.depth = 0
        self.inner: list[list[Tentative]] = []
        self.numbers = 0
        self.committed: list[Tentative] = []
        self.confirmed: set[str] = set()

    @rule(payout=PAYOUTS, action=ACTIONS, repeat=st.booleans())
    def decide(self, payout: str, action: str, repeat: bool) -> None:
        if not self.open:
            self.app.run("BEGIN IMMEDIATE")
            self.open, self.inner = True, [[]]
        self.numbers += 1
        wanted = operation(action, payout, operation=f"op-{self.numbers}")
        with suppress(Refusal):
            decision = self.inside.decide_in(self.app.connection, wanted)
            put(self.app, payout, decision.state, decision.revision)
            self.inner[-1].append(decision)
            if repeat:
                again = self.inside.decide_in(self.app.connection, wanted)
                assert (again.outcome, again.digest) == ("duplicate", decision.digest)

    @precondition(lambda self: self.open and len(self.inner) < 4)
    @rule()
    def savepoint(self) -> None:
        self.app.run(f"SAVEPOINT s{len(self.inner)}")
        self.inner.append([])

    @precondition(lambda self: self.open and len(self.inner) > 1)
    @rule(keep=st.booleans())
    def leave_savepoint(self, keep: bool) -> None:
        made = self.inner.pop()
        if keep:
            self.inner[-1] += made
        else:
            self.app.run(f"ROLLBACK TO s{len(self.inner)}")
        self.app.run(f"RELEASE s{len(self.inner)}")

    @precondition(lambda self: self.open)
    @rule(keep=st.booleans())
    def end(self, keep: bool) -> None:
        if keep:
            self.app.connection.commit()
            self.committed += [one for made in self.inner for one in made]
        else:
            self.app.connection.rollback()
            for one in self.inner[0]:
                try:
                    self.inside.confirmed(one, within=0.2)
                except NotCommitted:
                    continue
                raise AssertionError(f"{one.operation} was rolled back")
        self.open = False

    @precondition(lambda self: self.committed)
    @rule(number=st.integers(0, 50))
    def confirm(self, number: int) -> None:
        one = self.committed[number % len(self.committed)]
        assert self.inside.confirmed(one).digest == one.digest
        self.confirmed.add(one.digest)

    @precondition(lambda self: not self.open)
    @rule(payout=PAYOUTS, action=ACTIONS)
    def serve(self, payout: str, action: str) -> None:
        """The service beside decides too, and writes the application's row by no means."""
        record = Record(self.settings)
        try:
            drive(record.open())
            self.numbers += 1
            with suppress(JournalUnavailable):
                drive(turn(record, [operation(action, "served", operation=f"op-{self.numbers}")]))
        finally:
            drive(record.close())

    @rule()
    def die(self) -> None:
        """The application's process ends wherever it is; another one begins."""
        self.app.close()
        self.inside.close()
        self.open = False
        self.app, self.inside = Plain(self.settings), Inside(self.settings)

    @invariant()
    def rows_and_decisions_agree(self) -> None:
        if not hasattr(self, "settings"):
            return
        sql = (
            "SELECT substr(entity, 8), state, revision FROM unrewind_entities"
            " WHERE entity <> 'payout/served'"
        )
        assert rows_of(self.settings) == rows_of(self.settings, sql)
        with closing(sqlite3.connect(self.settings.journal_file)) as base:
            stored = base.execute(
                "SELECT lower(hex(digest)) FROM entries WHERE stream = 'decisions'"
                " AND entity <> 'payout/served'"
            )
            journalled = {digest for (digest,) in stored}
        assert self.confirmed <= journalled <= {one.digest for one in self.committed}

    def teardown(self) -> None:
        if hasattr(self, "settings"):
            self.app.close()
            self.inside.close()
            finish(self.settings)
            self.folder.cleanup()


TestTransactions = Transactions.TestCase
TestTransactions.settings = limits(max_examples=6, stateful_step_count=20)
