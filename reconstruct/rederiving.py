"""Deriving a release anew: its row, as the journal's decisions alone lead to it."""

from __future__ import annotations

from journal.data import EMPTY, after_again
from journal.errors import Invalid
from journal.folding import fold
from journal.record import Record
from journal.work import Status, Work

_ENTRIES = 1000
_UNLIMITED = 1 << 60


async def derived(record: Record, row: Work) -> Work | None:
    """A release that waits for its first commitment, as its entity's decisions lead to it.

    None where they lead to no such release, or cannot be read.
    """
    entity = row.entity or ""
    control = await record.current_control(await record.look())
    if entity in control.abandoned:
        return None  # what was cut off says more of its releases than is left
    rows: dict[str, Work] = {}
    data, first = EMPTY, 1
    while page := await record.journal().history(entity, first, _UNLIMITED, _ENTRIES):
        for found in page:
            try:
                entry = found.entry()
                data = after_again(data, entry.body, entry.envelope.body.type)
            except Invalid:
                return None
            rows.update(fold(rows, entry, data, record.rules))
        first = page[-1].revision + 1
    anew = rows.get(row.id)
    return anew if anew is not None and anew.status == Status.READY else None
