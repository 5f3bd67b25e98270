"""Work: one row of a lane.

Releases, commands and best-effort items are rows of one table, with one way to claim, lease and
sweep them. Times are RFC 3339 in UTC, in the entry format's form.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec
from msgspec import Struct

from journal.entry import time_of

MAX_NOTE = 300


class Status(StrEnum):
    """Where a row of work stands. An open list: a reader takes a new one for *not finished*."""

    READY = "ready"
    """Permitted, and claimed by nobody."""
    RUNNING = "running"
    """Claimed under a lease; for a release the commitment is journalled."""
    RETRY = "retry"
    """To be attempted again when due."""
    PENDING = "pending"
    """The receiver has it and is still at work; it is asked when due."""
    UNKNOWN = "unknown"
    """It may have happened. Asked when due; without a due time it waits for its owner."""
    DEAD = "dead"
    """Its budget is spent: a dead letter."""
    DONE = "done"
    """It happened: confirmed by a receipt, or by the worker that did it."""
    REFUSED = "refused"
    """The receiver would not have it; nothing happened."""
    CANCELLED = "cancelled"
    """Withdrawn before it was committed."""
    DRAINED = "drained"
    """A dead letter that was looked at and put aside."""
    DISCARDED = "discarded"
    """Best-effort work of a lane that is switched off."""


CLAIMABLE = frozenset({Status.READY, Status.RETRY})
ASKABLE = frozenset({Status.PENDING, Status.UNKNOWN})
COMMITTED = frozenset({Status.RUNNING, Status.RETRY, Status.PENDING, Status.UNKNOWN, Status.DEAD})
"""Statuses of a release whose commitment is journalled and whose outcome is not known."""

FINISHED = frozenset(
    {Status.DONE, Status.REFUSED, Status.CANCELLED, Status.DRAINED, Status.DISCARDED}
)


class Work(Struct, frozen=True, array_like=True, gc=False):
    """One row of `unrewind_work`, its fields in the order of the table's columns.

    Times are RFC 3339 in UTC. ``lease`` is the number of the newest claim and only rises;
    ``maybe`` says that some attempt may have had its effect without our knowing.
    """

    id: str
    lane: str
    effect: str
    name: str
    status: str
    entity: str | None
    revision: int | None
    sequence: int
    place: int
    operation: str | None
    version: str | None
    receiver: str | None
    recipient: str | None
    digest: str | None
    corrects: str | None
    data: str
    weight: float
    due: str | None
    created: str
    committed: str | None = None
    claimed: str | None = None
    started: str | None = None
    finished: str | None = None
    heartbeat: str | None = None
    sweep_at: str | None = None
    lease: int = 0
    claim: str | None = None
    worker: str | None = None
    execution: str | None = None
    attempts: int = 0
    failures: int = 0
    expired: int = 0
    maybe: int = 0
    step: str = ""
    last_error: str | None = None
    receipt: str | None = None
    owner: str | None = None
    cancel_requested: int = 0
    incident: str | None = None

    @property
    def over(self) -> bool:
        """Whether nothing is left to do or to find out about it."""
        return self.status in FINISHED


NOBODY = "?"
"""The worker of an attempt that the journal may have lost: it is never proven to have ended."""


def note(text: str) -> str:
    """Evidence as it is kept: one printable line of bounded length."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_NOTE else line[: MAX_NOTE - 1] + "…"


def seconds_since(then: str | None, now: str) -> float:
    """Seconds from one moment to another; infinite when the first never was."""
    if then is None:
        return float("inf")
    return (datetime.fromisoformat(now) - datetime.fromisoformat(then)).total_seconds()


def after_seconds(now: str, seconds: float) -> str:
    """The moment that many seconds later."""
    return time_of(datetime.fromisoformat(now) + timedelta(seconds=seconds))


def finish(row: Work, status: Status, now: str, why: str | None = None) -> Work:
    """The row at its end."""
    return msgspec.structs.replace(
        row,
        status=str(status),
        finished=now,
        due=None,
        sweep_at=None,
        step=f"{status}" if why is None else note(f"{status}: {why}"),
    )
