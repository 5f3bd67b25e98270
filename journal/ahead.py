"""What a turn will ask of store and journal, sent to both before either is waited for.

On servers each question would be a round trip of its own, one after the other. A turn knows all of
them when it begins: where the journal stands, what it holds of these operation IDs, where the store
stands, the heads and the work of these entities. So they are sent together, while the turn lock is
on its way as well. An engine that answers at once is asked when the turn gets there, or here where
something else has to be waited for.

The order of the looks keeps its meaning:

- *Journal first, store second* is what tells a rewound store from a writer who came between: the
  store commits first, so a store that is looked at later is never behind. Sent together, they may
  be looked at the other way round. So only *clean* is believed of them, which is the same both
  ways: both stood at one place, and neither goes back by itself. Any other verdict is found anew,
  in order, before it closes anything (``Record.examine``).
- *Operation IDs after the journal's look*, on the same connection, one after the other. So what the
  look counts is among them: none of it is taken for new, and decided twice.
- *Heads after the marker*, likewise. Whoever commits in between has moved the marker, or written
  its row, and the fence of this turn's batch fails.
- *The lock.* Answers may be of a moment at which another process still had it. Where it had to be
  waited for they are thrown away; where they are old in spite of that, the fence refuses the batch
  and the next attempt asks in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from journal.acceptance import Operation
from journal.concerning import work_wanted
from journal.detection import Finding, Verdict
from journal.sql import Statement
from journal.store import tables

if TYPE_CHECKING:
    from journal.record import Record


class Asked(Struct):
    """What a turn asked ahead. ``open``: what it says of store and journal was not compared yet."""

    operations: Sequence[Operation]
    statements: Sequence[Statement]
    open: bool = True


def ask(record: Record, operations: Sequence[Operation]) -> None:
    """Send what a turn over these operations will ask. Where that fails the turn finds it out."""
    if record.store is None or record.log is None or record.guarded or record.doubtful:
        return
    statements = questions(record, operations)
    idle = record.log.ask_ahead([operation.operation for operation in operations])
    record.store.ask_ahead([tables.READ_MARKER, *statements], idle=idle)
    record.asked = Asked(operations, statements)


def forget(record: Record) -> None:
    """Want no answer any more: they are of a moment that is over."""
    record.asked = None
    if record.store is not None:
        record.store.forget()
    if record.log is not None:
        record.log.forget()


def is_doubted(record: Record, finding: Finding) -> bool:
    """Whether a finding has to be found anew, in order: once, where it was asked ahead."""
    asked = record.asked
    if asked is None or not asked.open:
        return False
    asked.open = False
    if finding.verdict is Verdict.CLEAN:
        return False
    forget(record)
    return True


def questions(record: Record, operations: Sequence[Operation]) -> Sequence[Statement]:
    """What the store is asked about operations, after its marker: their entities' heads, work."""
    asked = record.asked
    if asked is not None and asked.operations is operations:
        return asked.statements
    heads = tables.read_heads({operation.entity for operation in operations})
    return [heads, *work_wanted(record.lifecycles, operations)]
