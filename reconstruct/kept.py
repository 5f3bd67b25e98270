"""Kept: decisions that the store still holds and the journal has lost from among its own.

Whatever is rebuilt from such a journal would be rebuilt without them, and nothing would tell. Their
entities are held before the first one that is missing.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from journal.abandonment import Cuts, dropping
from journal.history import Flaw
from journal.log import Log
from journal.store import tables
from journal.store.engine import SqlStore
from reconstruct.replay import Lineage, Stop

_DOWN = 500
_PAGE = 4000


class _Named(Struct):
    entity: str
    revision: int
    history: str


async def find_kept(store: SqlStore, log: Log, cuts: Cuts, common: int) -> list[Lineage]:
    """What is followed of each entity that lost a decision at or below a common sequence.

    Costs a count over an index where the journal's order has no hole, a second one over the store's
    decisions where it has, and a walk over those where something is missing. What was abandoned is
    not missed.
    """
    held = await log.count_decisions(common)
    if held >= common:
        return []
    counted: int = (await store.read([tables.count_decisions(common)]))[0][0][0]
    missing = counted - held
    first: dict[str, tuple[int, int]] = {}
    sequence = common
    while missing > 0:
        page = (await store.read([tables.read_envelopes_down(sequence, _DOWN)]))[0]
        if not page:
            break
        for at, digest, envelope in page:
            if await log.place(at) is not None:
                continue
            missing -= 1
            for named in _named(bytes(envelope)):
                cut = cuts.get(named.entity, ())
                lowest = first.get(named.entity, (named.revision, at))[0]
                dropped = dropping(cut, named.revision, named.history, digest) is not None
                if not dropped and named.revision <= lowest:
                    first[named.entity] = named.revision, at
        sequence = page[-1][0] - 1
    return [
        await _before(log, entity, revision, at) for entity, (revision, at) in sorted(first.items())
    ]


def _named(envelope: bytes) -> Iterator[_Named]:
    """Whose decision it was; nothing where that cannot be read."""
    try:
        yield msgspec.json.decode(envelope, type=_Named)
    except msgspec.MsgspecError:
        return


async def _before(log: Log, entity: str, revision: int, sequence: int) -> Lineage:
    digests: set[str] = set()
    first = 1
    while rows := await log.history(entity, first, revision - 1, _PAGE):
        digests |= {row.digest for row in rows}
        first = rows[-1].revision + 1
    detail = (
        f"{entity} revision {revision} (sequence {sequence}) is missing in the journal, and the "
        "store still holds it: put a copy of the journal back that has it, or abandon from there"
    )
    return Lineage(frozenset(digests), Stop(entity, Flaw.GAP, revision, revision - 1, detail))
