"""Import: a decision log as CSV or JSON lines, row by row into decisions.

Rows are read as a stream and decided in batches, each a turn of its own. Operation IDs are stable,
so an import that was interrupted is run again: what is known already is found as a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from api.rows import Row
from journal.acceptance import DUPLICATE, Acceptance, Operation, check_operation
from journal.errors import (
    Invalid,
    JournalUnavailable,
    LockHeld,
    Recovering,
    StaleGeneration,
    UnrewindError,
)
from journal.record import Record
from journal.worker import drive
from journal.writepath import turn

BATCH_ROWS = 4000
"""Rows a turn. Measured: at 1,000 commits cost a tenth more, above 4,000 nothing is gained."""

BATCH_BYTES = 16 * 1024 * 1024
MAX_ERRORS = 20

_TENANT_WIDE = (Recovering, JournalUnavailable, LockHeld, StaleGeneration)


class Fault(Struct, frozen=True):
    """A row that became no decision: the line of the file where it begins, and why."""

    line: int
    detail: str


class Tally(Struct):
    """What became of the rows. ``errors`` holds the first 20 faults."""

    accepted: int = 0
    duplicate: int = 0
    refused: int = 0
    rows: int = 0
    errors: list[Fault] = []


class Importer:
    """Decides rows over a writing record; ``tally`` is true at any time.

    With ``strict`` the first row that is refused ends the import before any later row is decided;
    rows are then decided one by one.
    """

    def __init__(
        self, record: Record, principal: str, *, strict: bool = False, stopped: Callable[[], bool]
    ) -> None:
        self.tally = Tally()
        self._record = record
        self._principal = principal
        self._strict = strict
        self._stopped = stopped
        self._limit = 1 if strict else BATCH_ROWS
        self._operations: list[Operation] = []
        self._lines: list[int] = []
        self._size = 0

    def run(self, rows: Iterator[Row], after_batch: Callable[[Tally], None]) -> Tally:
        """Decide every row.

        Raises Recovering, JournalUnavailable, WriterStopped or LockHeld when no more can be decided;
        the rows of the tally are decided all the same.
        """
        tally = self.tally
        limit = self._limit
        body_limit = self._record.settings.max_body
        operations, lines = self._operations, self._lines
        for line, made in rows:
            tally.rows += 1
            if isinstance(made, Operation) and len(made.body) <= body_limit:
                operations.append(made)
                lines.append(line)
                self._size += len(made.body)
                if len(operations) < limit and self._size < BATCH_BYTES:
                    continue
            elif isinstance(made, Operation):
                self._refuse(line, f"the body has {len(made.body)} bytes, {body_limit} are allowed")
            else:
                self._refuse(line, made.detail)
            if len(operations) >= limit or self._size >= BATCH_BYTES or self._strict:
                self._decide()
                after_batch(tally)
                if self._stopped() or (self._strict and tally.refused):
                    return tally
        self._decide()
        return tally

    def _refuse(self, line: int, detail: str) -> None:
        self.tally.refused += 1
        if len(self.tally.errors) < MAX_ERRORS:
            self.tally.errors.append(Fault(line, " ".join(detail.split())))

    def _decide(self) -> None:
        operations, lines = self._fit(self._operations, self._lines)
        self._operations.clear()
        self._lines.clear()
        self._size = 0
        if not operations:
            return
        tally = self.tally
        stopped: UnrewindError | None = None
        for line, answer in zip(lines, drive(turn(self._record, operations)), strict=True):
            if isinstance(answer, Acceptance):
                if answer.outcome == DUPLICATE:
                    tally.duplicate += 1
                else:
                    tally.accepted += 1
            elif isinstance(answer, _TENANT_WIDE):
                tally.rows -= 1
                stopped = answer
            else:
                self._refuse(line, answer.detail)
        if stopped is not None:
            raise stopped

    def _fit(
        self, operations: Sequence[Operation], lines: Sequence[int]
    ) -> tuple[list[Operation], list[int]]:
        """Those that could become decisions; the others are refused here, as at any other door."""
        lifecycles = self._record.lifecycles
        fit: list[Operation] = []
        where: list[int] = []
        for line, operation in zip(lines, operations, strict=True):
            try:
                check_operation(operation, lifecycles)
            except Invalid as error:
                self._refuse(line, error.detail)
            except UnicodeError:
                self._refuse(line, "it is not text in UTF-8")
            else:
                fit.append(operation)
                where.append(line)
        return fit, where
