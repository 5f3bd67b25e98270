"""The application: accounts, payouts, and a decision in the transaction of each.

    python -m examples.payouts.app story

Only ``Application`` knows which database it is. What it does there is the same on both.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

import journal
from examples.payouts.rows import ACCOUNTS, LEFT, PAYOUTS
from journal.entry import JSON_TYPE
from journal.errors import JournalUnavailable, UnrewindError
from journal.inside import Inside

CONFIG = Path(__file__).with_name("unrewind.toml")
_TIMES = 20


class Insufficient(Exception):
    """The account does not hold so much."""


def settings_for(data: Path, store: str | None = None) -> journal.Settings:
    """The example's settings; the application's database is a file in ``data``, or at a URL."""
    return journal.load_settings(CONFIG, {"data": str(data), "store": store})


class Application:
    """Pays money out of accounts. A connection for each transaction, as small applications do."""

    def __init__(self, settings: journal.Settings) -> None:
        self.settings = settings
        self.inside = Inside(settings)

    def found(self) -> None:
        """The application's tables, in unrewind's store, or unrewind's in the application's."""
        self.inside.open()
        with self.transaction() as connection:
            for ddl in (ACCOUNTS, PAYOUTS):
                connection.execute(ddl)

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A connection with a transaction that commits at the end, or rolls back."""
        if self.settings.store:
            import psycopg  # noqa: PLC0415 - the driver of this database alone

            with psycopg.connect(self.settings.store) as server:
                yield server
            return
        with closing(sqlite3.connect(self.settings.store_file, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            try:
                yield file
                file.execute("COMMIT")
            finally:
                if file.in_transaction:
                    file.execute("ROLLBACK")

    def pay_in(self, account: str, amount: int) -> None:
        """Open an account; what is paid in is no decision."""
        with self.transaction() as connection:
            connection.execute(f"INSERT INTO accounts (id, paid_in) VALUES ('{account}', {amount})")

    def request(self, payout: str, account: str, amount: int) -> journal.Acceptance:
        """Ask for a payout, unless the account does not hold so much."""
        body = msgspec.json.encode({"account": account, "amount": amount})
        return self._decide(payout, "request", body=body, body_type=JSON_TYPE, account=account)

    def approve(self, payout: str) -> journal.Acceptance:
        """Let somebody approve it."""
        return self._decide(payout, "approve", actor="eve")

    def pay(self, payout: str) -> journal.Acceptance:
        """Permit the payment. The worker makes it, once the journal holds the permission."""
        return self._decide(payout, "pay")

    def _decide(
        self, payout: str, action: str, account: str | None = None, **fields: Any
    ) -> journal.Acceptance:
        """One transaction with its decision; acknowledged when this returns.

        The operation ID is made once, before the first try: however often the transaction is run,
        there is one decision.
        """
        operation = journal.Operation(
            f"{payout}-{action}", f"payout/{payout}", action, version="v1", **fields
        )
        for last in (*[False] * _TIMES, True):
            try:
                with self.transaction() as connection:
                    decision = self.inside.decide_in(connection, operation)
                    if account is not None and _left(connection, account) < 0:
                        raise Insufficient(f"{account} does not hold enough for {payout}")
                return self.inside.confirmed(decision)
            except JournalUnavailable:
                if last:
                    raise
        raise AssertionError  # the loop returns or raises

    def payouts(self) -> list[tuple[str, str, int, str, int]]:
        """Every payout, as its row stands."""
        with self.transaction() as connection:
            sql = "SELECT id, account, amount, state, revision FROM payouts ORDER BY id"
            return [tuple(row) for row in connection.execute(sql).fetchall()]

    def close(self) -> None:
        """Let go of unrewind's files."""
        self.inside.close()


def _left(connection: Any, account: str) -> int:
    left: int = connection.execute(LEFT.format(account=account)).fetchone()[0]
    return left


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the story; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.payouts.app")
    parser.add_argument("command", choices=["story"])
    parser.add_argument("--data", type=Path, metavar="DIR", help="default: one of its own")
    given = parser.parse_args(arguments)
    from examples.payouts.story import FileBackups, tell  # noqa: PLC0415 - it imports this module

    try:
        if given.data is not None:
            return tell(given.data, FileBackups(given.data))
        with tempfile.TemporaryDirectory(prefix="unrewind-payouts-") as folder:
            return tell(Path(folder), FileBackups(Path(folder)))
    except UnrewindError as error:
        print(f"{type(error).__name__}: {error.detail}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
