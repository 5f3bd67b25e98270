"""Together: reports on a list of commands or items that were run as one, in one commit."""

from __future__ import annotations

from collections.abc import Sequence

from journal.lanes import Effect
from journal.outcomes import Put, Reported
from journal.record import Record
from journal.reports import change_after, check_generation, write_ready
from journal.sql import Rows, Statement
from journal.store import work as works
from journal.work import Status, Work
from journal.writepath import make_ready


async def report_together(record: Record, said: Sequence[Reported]) -> list[Reported]:
    """Take these reports in one commit; those that it does not fit, to be reported one by one.

    It fits work that stays in the house and is in progress under the claim that the report names.
    Raises StaleGeneration, Recovering or JournalUnavailable with none of them taken.
    """
    left: list[Reported] = []
    statements: list[Statement | Rows] = []
    with record.lock.held():
        ready = await make_ready(record)
        wanted = works.read_work([one.id for one in said])
        found, now = await ready.store.read([wanted, works.READ_NOW])
        rows = {row.id: row for row in works.rows_of(found)}
        for one in said:
            row = rows.get(one.id)
            if row is None or not _fits(row, one):
                left.append(one)
                continue
            check_generation(one, ready.control.authority)
            change = change_after(record, row, one, now[0][0])
            if isinstance(change, Put):
                statements.append(works.put_while(row, change.row))
        if statements:
            await write_ready(record, ready, statements)
    return left


def _fits(row: Work, said: Reported) -> bool:
    claimed = row.status == Status.RUNNING and row.lease == said.lease
    return claimed and row.effect != Effect.EXTERNAL
