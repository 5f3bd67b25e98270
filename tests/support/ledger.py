"""An application's own table, kept in step with the decisions of the embedded type `account`."""

from __future__ import annotations

from collections.abc import Sequence

from journal import Decided, Statement


class Ledger:
    """One row an account; the table's own constraint refuses a negative balance."""

    tables: Sequence[str] = (
        (
            "CREATE TABLE IF NOT EXISTS ledger (entity TEXT PRIMARY KEY, state TEXT NOT NULL,"
            " revision INTEGER NOT NULL, balance INTEGER NOT NULL CHECK (balance >= 0))"
        ),
    )

    def apply(self, decision: Decided) -> Sequence[Statement]:
        row = (
            decision.entity,
            decision.state,
            decision.revision,
            decision.data.get("balance", 0),
        )
        return [
            Statement(
                "INSERT INTO ledger (entity, state, revision, balance) VALUES (?,?,?,?)"
                " ON CONFLICT (entity) DO UPDATE SET state = excluded.state,"
                " revision = excluded.revision, balance = excluded.balance",
                row,
            )
        ]

    def clear(self, entity: str) -> Sequence[Statement]:
        return [Statement("DELETE FROM ledger WHERE entity = ?", (entity,))]


class Closed:
    """No rows; it refuses to commit to a release of an entity that is called *closed*."""

    tables: Sequence[str] = ()

    def apply(self, decision: Decided) -> Sequence[Statement]:
        if decision.action == "release.committed" and decision.entity.endswith("/closed"):
            raise ValueError("this account is closed")
        return []

    def clear(self, _: str) -> Sequence[Statement]:
        return []
