"""Completeness: proof that a recovery brought back every kind of decision, revocations included.

Replaying counts what it did. This counts what is there: it walks the journal once more and asks the
store itself for each decision, so that a replay that left one kind out does not vouch for itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from journal.acceptance import EntityHead
from journal.errors import Refused
from journal.log import Row
from journal.record import Record
from journal.store import tables

PAGE = 4000
_NAMED = 5


class Proof(Struct, frozen=True):
    """Of one kind of action: what the journal holds is in the store, or held in a named gap.

    ``dropped`` are those that were abandoned.
    """

    journalled: int
    applied: int
    held: int
    dropped: int = 0


class _Named(Struct):
    action: str = "unreadable"


class _Tally(Struct):
    journalled: int = 0
    applied: int = 0
    held: int = 0
    dropped: int = 0


async def prove(record: Record, after: int) -> dict[str, Proof]:
    """Of each action, that every decision the journal holds above a sequence is accounted for.

    Applied is a decision whose bytes the store keeps and whose entity stands at it or beyond; held
    is one behind the durable boundary of a history that `gaps` names. Raises Refused, naming them,
    when there is one that is neither.
    """
    through = await record.journal().flawed()
    tallies: dict[str, _Tally] = {}
    lacking: dict[str, list[str]] = {}
    while rows := await record.journal().decisions(after, PAGE):
        heads, kept = await _stored(record, rows, after)
        for row in rows:
            action = _action_of(row)
            tally = tallies.setdefault(action, _Tally())
            tally.journalled += 1
            if row.dropped:
                tally.dropped += 1
            elif kept.get(row.sequence or 0) == row.digest and _stands(heads.get(row.entity), row):
                tally.applied += 1
            elif row.entity in through and row.revision > through[row.entity]:
                tally.held += 1
            elif len(named := lacking.setdefault(action, [])) < _NAMED:
                named.append(f"{row.entity} revision {row.revision} (sequence {row.sequence})")
        after = rows[-1].sequence or after
    if lacking:
        raise Refused(_complaint(tallies, lacking))
    return {
        action: Proof(tally.journalled, tally.applied, tally.held, tally.dropped)
        for action, tally in sorted(tallies.items())
    }


async def _stored(
    record: Record, rows: list[Row], after: int
) -> tuple[Mapping[str, EntityHead], Mapping[int, str]]:
    """The heads of the rows' entities, and the digests that the store keeps at their places."""
    if record.store is None:
        raise Refused("the store went away during the recovery")
    heads, digests = await record.store.read(
        [
            tables.read_heads({row.entity for row in rows}),
            tables.read_digests(after, rows[-1].sequence or after),
        ]
    )
    return tables.heads_of(heads), dict(digests)


def _action_of(row: Row) -> str:
    try:
        return msgspec.json.decode(row.text, type=_Named).action
    except msgspec.MsgspecError:
        return _Named().action


def _stands(head: EntityHead | None, row: Row) -> bool:
    """Whether the entity is at the decision or beyond: beyond is a later row of the same walk."""
    if head is None or head.revision < row.revision:
        return False
    return head.revision > row.revision or head.digest == row.digest


def _complaint(tallies: Mapping[str, _Tally], lacking: Mapping[str, list[str]]) -> str:
    parts = []
    for action, named in sorted(lacking.items()):
        tally = tallies[action]
        left = tally.journalled - tally.applied - tally.held - tally.dropped
        more = "" if left <= len(named) else f" and {left - len(named)} more"
        parts.append(f"{left} of {tally.journalled} {action} ({', '.join(named)}{more})")
    return (
        f"the store lacks decisions that no gap holds: {'; '.join(parts)}. Nothing is reopened: "
        "run `unrewind recover apply` again, and if it says the same, keep both files as they are"
    )
