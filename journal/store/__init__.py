"""The store port: the database that can be rewound, in the shape of Cloudflare D1.

Two calls, each one hop: ``read`` runs queries in one transaction, ``batch`` runs statements in one
transaction that cannot branch. The batch's first statement is the fence.
"""

from __future__ import annotations

from typing import Protocol

from journal.sql import Batch, Result


class Store(Protocol):
    """A store engine. Every call checks that the file or server is the one that was opened."""

    async def read(self, statements: Batch) -> list[Result]:
        """Run queries in one transaction; one list of rows each."""

    async def batch(self, statements: Batch) -> None:
        """Commit all statements or none; the first one is the fence.

        MUST be durable when it returns. Raises FenceFailed when the marker was not where the fence
        expects it, ConstraintFailed when another statement was refused, DiskFailed when it is
        unknown what was committed.
        """

    async def close(self) -> None:
        """Let go of the database."""
