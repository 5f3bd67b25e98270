"""Import: a decision log as CSV or JSON lines, row by row into decisions.

Rows are read as a stream and decided in batches, each a turn of its own. Operation IDs are stable,
so an import that was interrupted is run again: what is known already is found as a duplicate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext

from msgspec import Struct

from api.output import one_line
from api.rows import Row, Unreadable
from journal.acceptance import DUPLICATE, Acceptance, Operation, check_operation
from journal.driving import drive
from journal.errors import (
    Invalid,
    JournalUnavailable,
    LockHeld,
    Recovering,
    StaleGeneration,
    UnrewindError,
)
from journal.record import Record
from journal.writepath import Answer, turn

BATCH_ROWS = 8000
"""Rows a turn. Measured in CPU a row: 34 µs at 2,000, 31 at 4,000, 28 at 8,000 and at 16,000. A
server beside this one waits for a whole turn, which takes about 0.25 s."""

BATCH_BYTES = 16 * 1024 * 1024
MAX_ERRORS = 20
_PLAIN = 128
"""Bytes of all names together; every limit of the entry format is at least this."""

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

    ``shield`` is entered around each turn, to keep an interruption from tearing one apart. With
    ``strict`` the first row that is refused ends the import before any later row is decided;
    rows are then decided one by one.
    """

    def __init__(
        self,
        record: Record,
        *,
        strict: bool = False,
        shield: AbstractContextManager[None] | None = None,
        after_batch: Callable[[Tally], None] = lambda _: None,
    ) -> None:
        self.tally = Tally()
        self._record = record
        self._strict = strict
        self._limit = 1 if strict else BATCH_ROWS
        self._shield = shield or nullcontext()
        self._after_batch = after_batch

    def run(self, rows: Iterator[Row]) -> Tally:
        """Decide every row.

        Raises Unreadable when the file breaks off, once the rows before that are decided; raises
        Recovering, JournalUnavailable, WriterStopped or LockHeld when no more can be decided. What
        the tally counts is decided all the same.
        """
        batch: list[Row] = []
        size = 0
        try:
            for row in rows:
                batch.append(row)
                made = row[1]
                if isinstance(made, Operation):
                    size += len(made.body)
                if len(batch) >= self._limit or size >= BATCH_BYTES:
                    self._decide(batch)
                    batch, size = [], 0
                    if self._strict and self.tally.refused:
                        break
        except Unreadable:
            self._decide(batch)
            raise
        self._decide(batch)
        return self.tally

    def _decide(self, batch: Sequence[Row]) -> None:
        with self._shield:
            self._count(batch)
        self._after_batch(self.tally)

    def _count(self, batch: Sequence[Row]) -> None:
        judged = self._answers([self._checked(made) for _, made in batch])
        tally = self.tally
        halted: UnrewindError | None = None
        for (line, _), answer in zip(batch, judged, strict=True):
            if isinstance(answer, Acceptance):
                if answer.outcome == DUPLICATE:
                    tally.duplicate += 1
                else:
                    tally.accepted += 1
            elif isinstance(answer, _TENANT_WIDE):
                halted = answer
                continue
            else:
                tally.refused += 1
                if len(tally.errors) < MAX_ERRORS:
                    tally.errors.append(Fault(line, one_line(answer.detail)))
            tally.rows += 1
        if halted is not None:
            raise halted

    def _checked(self, made: Operation | Invalid) -> Operation | UnrewindError:
        """The operation, if it could become a decision; else what every other door would say."""
        if isinstance(made, Invalid):
            return made
        limit = self._record.settings.max_body
        if len(made.body) <= limit and _is_plain(made):
            return made
        if len(made.body) > limit:
            return Invalid(f"the body has {len(made.body)} bytes, {limit} are allowed")
        try:
            check_operation(made, self._record.lifecycles, self._record.settings.max_body)
        except Invalid as error:
            return error
        except UnicodeError:
            return Invalid("it is not text in UTF-8")
        return made

    def _answers(self, checked: Sequence[Operation | UnrewindError]) -> Iterator[Answer]:
        fit = [made for made in checked if isinstance(made, Operation)]
        answers = iter(drive(turn(self._record, fit)) if fit else ())
        for made in checked:
            yield next(answers) if isinstance(made, Operation) else made


def _is_plain(made: Operation) -> bool:
    """Whether the names are so short and plain that no rule of ``check_operation`` can refuse them.

    The entity's type was checked before the first row. This halves what a common row costs here.
    """
    operation, entity, action = made.operation, made.entity, made.action
    names = f"{operation}{entity}{action}{made.version or ''}{made.actor or ''}"
    return (
        len(names) <= _PLAIN
        and names.isascii()
        and names.isprintable()
        and operation != ""
        and action != ""
        and "." not in action
        and entity[-1:] != "/"
    )
