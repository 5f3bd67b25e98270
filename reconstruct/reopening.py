"""Reopen: let the tenant go on, once it stands as the journal says."""

from __future__ import annotations

from msgspec import Struct

from journal.control import Stage
from journal.detection import Verdict
from journal.errors import Refused
from journal.record import Record
from journal.standing import change_control, compare_heads, examine
from journal.writepath import hand_off
from reconstruct.fencing import at_stage


class Reopened(Struct, frozen=True):
    """The tenant decides again."""

    stage: str
    history: str
    generation: int


async def reopen(record: Record, principal: str | None = None) -> Reopened:
    """Let the tenant decide again, once every head of the store is what the journal says.

    Raises Refused with what is missing.
    """
    with record.lock.held():
        finding, seen = await examine(record)
        if finding.verdict is Verdict.CRASHED:
            await hand_off(record, seen)
            finding, seen = await examine(record)
        control = record.control
        if control is None:
            raise Refused(f"control cannot be read: {finding.detail}")
        if control.begun is not None:
            raise Refused("a recovery has begun and was not applied: run `unrewind recover apply`")
        if finding.verdict is not Verdict.CLEAN:
            raise Refused(f"{finding.verdict}: {finding.detail}; run `unrewind recover begin`")
        finding = await compare_heads(record, finding)
        if finding.verdict is not Verdict.CLEAN:
            raise Refused(f"{finding.verdict}: {finding.detail}; run `unrewind recover begin`")
        control = await change_control(
            record,
            "reopen",
            lambda now: at_stage(now, now.authority.generation, Stage.OPEN),
            {"reason": "reopened", "verdict": str(finding.verdict)},
            principal=principal,
            unless=lambda now: now.authority.stage is Stage.OPEN,
        )
        record.stop.take_down()
    return Reopened(
        str(control.authority.stage), control.authority.history, control.authority.generation
    )
