"""Releases of entities whose history was cut off, as a replay comes to the cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from journal.abandonment import dropping, settle_releases
from journal.control import Abandoned
from journal.entry import MAX_INTEGER, Entry
from journal.errors import Invalid
from journal.record import Record
from journal.reports import asks
from journal.work import Work

_PAGE = 1000


async def dropped_by(record: Record, cut: Abandoned) -> list[Entry]:
    """The entries that an abandonment dropped and that can be read, as they arrived."""
    log = record.journal()
    found: dict[int, Entry] = {}
    first = 1
    while page := await log.history(cut.entity, first, MAX_INTEGER, _PAGE, dropped=True):
        last = page[-1].revision
        page = [row for row in page if row.revision < last]
        page += await log.history(cut.entity, last, last, _PAGE, dropped=True)
        for row in page:
            if dropping([cut], row.revision, row.history, row.digest) is not None:
                try:
                    found[row.position] = row.entry()
                except Invalid:
                    continue
        first = last + 1
    return [found[position] for position in sorted(found)]


async def cuts_at(record: Record) -> dict[str, Abandoned]:
    """The abandonments that change releases, by the digest that their entity goes on from."""
    control = await record.current_control(await record.look())
    return {
        cut.digest: cut
        for cuts in control.abandoned.values()
        for cut in cuts
        if cut.digest is not None and (cut.doubtful or cut.withdrawn)
    }


def settled(
    record: Record, rows: Mapping[str, Work], cut: Abandoned, dropped: Sequence[Entry]
) -> dict[str, Work]:
    """The rows that an abandonment changes or makes of its entity's rows at the cut."""
    return settle_releases(rows, cut, dropped, record.rules, partial(asks, record))
