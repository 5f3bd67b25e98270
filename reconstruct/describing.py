"""A plan in sentences, most important first; long lists are cut here, never in the plan itself."""

from __future__ import annotations

from collections.abc import Sequence

from reconstruct.planning import JOURNAL, Plan
from reconstruct.remains import HealingSurvey, told, unknown

MOST = 20
"""Items of one list that are told one by one."""


def describe(plan: Plan) -> list[str]:
    """What ``apply`` will do, and every kind of exception."""
    if plan.direction == JOURNAL and plan.healing is not None:
        return _heal(plan.healing)
    kinds = ", ".join(f"{count} {action}" for action, count in plan.actions.items())
    lines = [
        f"{plan.missing} decisions to replay, sequence {plan.common} to {plan.through}"
        + (f": {kinds}" if kinds else "")
    ]
    if plan.fresh_store:
        lines.insert(0, "the store is missing or damaged: a new one is built from the journal")
    if plan.undo:
        lines.append(f"{plan.undo} decisions to undo: only the store has them")
    lines += _cut(
        [
            f"ask anew: {item.action} of {item.entity}, version {item.version}, by {item.operation}"
            + (f", with {len(item.releases)} releases" if item.releases else "")
            for item in plan.undone_approvals
        ]
    )
    lines += _cut(
        [
            f"undo {item.operation} of {item.entity} (sequence {item.sequence}): "
            "only the store has it"
            for item in plan.local_only
        ]
    )
    lines += _cut([f"rebuild {entity} from its first revision" for entity in plan.rebuild])
    lines += _cut(
        [
            f"incomplete: {item.detail}; durable through revision {item.durable_through}"
            for item in plan.incomplete
        ]
    )
    lines += _cut([f"gap: {hole.finding().detail} in the journal" for hole in plan.lost])
    return lines


def _heal(healing: HealingSurvey) -> list[str]:
    lines = [
        "the journal was rewound: a new one is built from it and from what the store keeps",
        f"{healing.decisions} decisions and {healing.control} control entries to bring back"
        + (f", sequence {healing.first} to {healing.last}" if healing.decisions else ""),
    ]
    lines += told(healing)
    lines += _cut(
        [
            f"{item.flaw}: {item.entity} revision {item.revision} (sequence {item.sequence})"
            for item in healing.broken
        ]
    )
    if healing.loss is None:
        lines.append(unknown(healing))
    return lines


def _cut(lines: Sequence[str]) -> list[str]:
    """The first of them, and how many more --json has."""
    if len(lines) <= MOST:
        return [*lines]
    return [*lines[:MOST], f"and {len(lines) - MOST} more like the last: see --json"]
