"""The application's tables, and the projection that writes the rows of payouts.

`accounts` is the application's alone: what was paid in. What is left of it follows from `payouts`,
whose rows are written by decisions and come back with them after a rewind.
"""

from __future__ import annotations

from collections.abc import Sequence

from journal import Decided, Statement

ACCOUNTS = """
CREATE TABLE IF NOT EXISTS accounts (
  id      VARCHAR(40) PRIMARY KEY,
  paid_in INTEGER NOT NULL
)
"""

PAYOUTS = """
CREATE TABLE IF NOT EXISTS payouts (
  id       VARCHAR(40) PRIMARY KEY,
  account  VARCHAR(40) NOT NULL,
  amount   INTEGER NOT NULL CHECK (amount > 0),
  state    VARCHAR(40) NOT NULL,
  revision INTEGER NOT NULL
)
"""

LEFT = """
SELECT paid_in - coalesce((SELECT sum(amount) FROM payouts
    WHERE payouts.account = accounts.id AND state <> 'rejected'), 0)
  FROM accounts WHERE id = '{account}'
"""


class Payouts:
    """`payouts`: how each stands now."""

    tables: Sequence[str] = (PAYOUTS,)

    def apply(self, decision: Decided) -> Sequence[Statement]:
        """The payout's row, where the decision leads."""
        return [
            Statement(
                "INSERT INTO payouts (id, account, amount, state, revision) VALUES (?,?,?,?,?)"
                " ON CONFLICT (id) DO UPDATE SET account = excluded.account,"
                " amount = excluded.amount, state = excluded.state, revision = excluded.revision",
                (
                    name_of(decision.entity),
                    decision.data.get("account"),
                    decision.data.get("amount"),
                    decision.state,
                    decision.revision,
                ),
            )
        ]

    def clear(self, entity: str) -> Sequence[Statement]:
        """Remove the payout's row; a rebuild writes it anew."""
        return [Statement("DELETE FROM payouts WHERE id = ?", (name_of(entity),))]


def name_of(entity: str) -> str:
    """The application's own ID: `payout/p-1` is `p-1` in its table."""
    return entity.partition("/")[2]
