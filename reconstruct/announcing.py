"""Announcing: what a recovery undoes is journalled before the first of it is.

Once undone, nothing but the evidence would remember it; with the announcement an apply that was
killed in between still knows, and so do reconciliation and the report.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct

from journal.control import TENANT, Control
from journal.record import Record
from journal.standing import change_control
from reconstruct.fencing import at_stage
from reconstruct.planning import LocalOnly, Plan, Survey

ANNOUNCED = "apply"
MAX_NAMED = 10_000
"""Undone decisions that an announcement names; the evidence keeps them all."""


class Announced(Struct, frozen=True):
    """What this recovery's applies have announced so far; ``common`` None: nothing yet.

    ``common`` is the last sequence at which store and journal agreed before the first of them
    began. ``undone`` are in the order of their sequences, those that permitted or approved
    something first where there were too many to name.
    """

    common: int | None = None
    undo: int = 0
    undone: tuple[LocalOnly, ...] = ()
    plans: frozenset[str] = frozenset()

    def covers(self, plan: Plan) -> bool:
        """Whether nothing of a plan is news."""
        if self.common is None or self.common > plan.common:
            return False
        known = {(item.sequence, item.digest) for item in self.undone}
        return plan.plan in self.plans or all(
            (item.sequence, item.digest) in known for item in plan.local_only
        )


class _Facts(Struct):
    plan: str
    common: int
    undo: int
    undone: list[LocalOnly]


async def announced(record: Record, generation: int) -> Announced:
    """What the recovery of a generation has announced. Raises JournalUnavailable."""
    common: int | None = None
    undo = 0
    plans: set[str] = set()
    undone: dict[tuple[int, str], LocalOnly] = {}
    for row in await record.journal().control():
        envelope = row.entry().envelope
        if (envelope.entity, envelope.action) != (TENANT, ANNOUNCED):
            continue
        if envelope.generation != generation:
            continue
        facts = msgspec.json.decode(row.body, type=_Facts)
        named = {(item.sequence, item.digest): item for item in facts.undone}
        common = facts.common if common is None else min(common, facts.common)
        undo += facts.undo - len(named.keys() & undone.keys())
        undone.update(named)
        plans.add(facts.plan)
    ordered = tuple(undone[key] for key in sorted(undone))
    return Announced(common, undo, ordered, frozenset(plans))


async def announce(record: Record, found: Survey, principal: str | None) -> Announced:
    """Journal what is about to happen, unless an interrupted apply already did; all of it so far.

    Raises what ``journal.standing.change_control`` does.
    """
    plan = found.plan
    before = await announced(record, plan.generation)
    if not plan.begun or before.covers(plan):
        return before
    weighty = sorted(plan.local_only, key=lambda item: (not item.permits, item.sequence))
    await change_control(
        record,
        ANNOUNCED,
        lambda now: at_stage(now, now.authority.generation, now.authority.stage),
        {
            "plan": plan.plan,
            "reason": _reason(record.control),
            "verdict": plan.verdict,
            "common": plan.common,
            "through": plan.through,
            "missing": plan.missing,
            "undo": len(plan.local_only),
            "undone": msgspec.to_builtins(weighty[:MAX_NAMED]),
        },
        principal=principal,
    )
    return await announced(record, plan.generation)


def _reason(control: Control | None) -> str:
    return "" if control is None else control.reason
