"""Reopen: let the tenant go on in stages, each once its tests hold."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from msgspec import Struct

from journal.control import Control, Opening, Stage
from journal.detection import Finding, Verdict
from journal.errors import FileChanged, Invalid, JournalUnavailable, Refused
from journal.handoff import hand_off
from journal.locks import Standing
from journal.record import Record
from journal.standing import change_control, compare_heads, examine
from reconstruct.completion import WAIVABLE, Lacking, lacking
from reconstruct.fencing import alone, at_stage

_ORDER = (Stage.CLOSED, Stage.READING, Stage.INTERNAL, Stage.EXTERNAL, Stage.OPEN)
_ATTEMPTS = 3


class Reopened(Struct, frozen=True):
    """Where the tenant stands now.

    ``passed`` are the stages whose tests held this time, ``missing`` what keeps it from the next
    one, ``despite`` the tests that did not hold and were waived by name. ``soon`` says that what is
    missing may come by itself in a while.
    """

    stage: str
    history: str
    generation: int
    passed: list[str] = []
    missing: list[str] = []
    despite: list[str] = []
    soon: bool = False


async def reopen(
    record: Record,
    principal: str | None = None,
    *,
    to: Stage | None = None,
    opening: Opening | None = None,
    despite: Collection[str] = (),
    reason: str = "reopened",
) -> Reopened:
    """Let the tenant do more, as far as its tests hold: read, decide, have effects.

    Without ``to`` every stage is passed whose tests hold, and what is missing for the next one is
    told. With it that stage is reached, or the call is refused with what is missing and nothing
    changes. ``opening`` says what the stage external lets out, and asks for that stage when ``to``
    is None. ``despite`` waives tests by their keys (``completion.WAIVABLE``); it is journalled with
    the reason. A tenant is never brought back to a stage that allows less. A stop that is put up
    meanwhile stays up: then the stage told is closed.

    Raises Refused with what is missing, Invalid for a request that contradicts itself.
    """
    if opening is not None and to is None:
        to = Stage.EXTERNAL
    _check(record, to, opening, despite)
    stop = record.stop.standing()
    with alone(record.settings):
        for _ in range(_ATTEMPTS):
            try:
                return await _reopen(record, principal, to, opening, despite, reason, stop)
            except FileChanged:
                await _open_again(record)
    raise JournalUnavailable("store or journal is being replaced again and again")


async def _open_again(record: Record) -> None:
    with record.lock.held():
        await record.open_files()


def _check(
    record: Record, to: Stage | None, opening: Opening | None, despite: Collection[str]
) -> None:
    unknown = sorted(set(despite) - set(WAIVABLE))
    if unknown:
        raise Invalid(
            f"there is no test {', '.join(unknown)} to waive; these can be: {', '.join(WAIVABLE)}",
            field="despite",
        )
    if to is Stage.CLOSED:
        raise Invalid("a tenant is closed by `unrewind recover begin`, not reopened to it")
    if (to is Stage.EXTERNAL) != (opening is not None):
        raise Invalid(
            "the stage external, and it alone, says what it lets out: name lanes or releases",
            field="to",
        )
    if opening is None:
        return
    if not (opening.lanes or opening.releases):
        raise Invalid("the stage external lets out nothing: name lanes or releases", field="lanes")
    if not 0 <= opening.rate < float("inf"):
        raise Invalid("the rate must be 0, which is no limit, or above", field="rate")
    known = {name for name, lane in record.settings.lanes.items() if lane.external}
    strange = sorted(set(opening.lanes) - known)
    if strange:
        raise Invalid(
            f"there is no external lane {', '.join(strange)}; declared: "
            f"{', '.join(sorted(known)) or 'none'}",
            field="lanes",
        )


async def _reopen(
    record: Record,
    principal: str | None,
    to: Stage | None,
    opening: Opening | None,
    despite: Collection[str],
    reason: str,
    stop: Standing | None,
) -> Reopened:
    with record.lock.held():
        finding = await _compared(record)
        control = await record.current_control(await record.look())
        at = Stage.CLOSED if record.stop.stands() else control.authority.stage
        if to is not None and _ORDER.index(to) < _ORDER.index(at):
            raise Refused(
                f"the tenant is at stage {at}, which allows more than {to}; "
                "`unrewind recover begin` stops it"
            )
        walk = _Walk(at)
        await walk.on(record, control, to or Stage.OPEN, opening, despite)
        if to is not None and walk.at is not to:
            missing = "; ".join(item.sentence for item in walk.missing)
            raise Refused(
                f"stage {to} is not reached, and nothing has changed: {missing}",
                stage=str(at),
                missing=[item.sentence for item in walk.missing],
                soon=walk.soon,
            )
        if walk.at is not Stage.CLOSED:
            control = await _put_in_force(
                record, finding, walk, opening, reason=reason, principal=principal
            )
            # Whatever control says holds at once; the stop file was stricter until here.
            if stop is not None:
                record.stop.take_down(stop)
            if record.stop.stands():
                walk.stop_again(record.stop.facts())
    return Reopened(
        str(walk.at),
        control.authority.history,
        control.authority.generation,
        passed=[str(stage) for stage in walk.passed],
        missing=[item.sentence for item in walk.missing],
        despite=[item.sentence for item in walk.waived],
        soon=walk.soon,
    )


class _Walk:
    """From stage to stage, as far as the tests hold."""

    def __init__(self, at: Stage) -> None:
        self.at = at
        self.passed: list[Stage] = []
        self.missing: list[Lacking] = []
        self.waived: list[Lacking] = []

    def stop_again(self, facts: Mapping[str, Any]) -> None:
        """Whatever control says, the tenant is closed: somebody stopped it meanwhile."""
        reason = facts.get("reason", "by an operator")
        sentence = (
            f"the tenant was stopped again while it was reopened ({reason}): if that is over, run "
            "`unrewind recover reopen` again"
        )
        self.at, self.passed = Stage.CLOSED, []
        self.missing = [Lacking("stopped", sentence)]

    @property
    def soon(self) -> bool:
        """Whether waiting may bring all that is missing."""
        return bool(self.missing) and all(item.soon for item in self.missing)

    async def on(
        self,
        record: Record,
        control: Control,
        through: Stage,
        opening: Opening | None,
        despite: Collection[str],
    ) -> None:
        """Go on through a stage. External is rested at only with an opening: it lets out that."""
        passing: list[Stage] = []
        for stage in _ORDER[_ORDER.index(self.at) + 1 : _ORDER.index(through) + 1]:
            found = await lacking(record, control, stage)
            self.missing = [item for item in found if item.key not in despite]
            if self.missing:
                return
            self.waived += [item for item in found if item.key in despite]
            passing.append(stage)
            if stage is not Stage.EXTERNAL or opening is not None:
                self.at = stage
                self.passed += passing
                passing = []


async def _compared(record: Record) -> Finding:
    """Store and journal agree, down to every head where nobody has looked since the recovery."""
    finding, seen = await examine(record)
    if finding.verdict is Verdict.CRASHED:
        await hand_off(record, seen)
        finding, seen = await examine(record)
    control = record.control
    if control is None:
        raise Refused(f"control cannot be read: {finding.detail}")
    if control.begun is not None:
        raise Refused("a recovery has begun and was not applied: run `unrewind recover apply`")
    if finding.verdict is Verdict.CLEAN and (
        record.stop.stands() or control.authority.stage is Stage.CLOSED or record.touched()
    ):
        finding = await compare_heads(record, finding)
    if finding.verdict is not Verdict.CLEAN:
        raise Refused(f"{finding.verdict}: {finding.detail}; run `unrewind recover begin`")
    return finding


async def _put_in_force(
    record: Record,
    finding: Finding,
    walk: _Walk,
    opening: Opening | None,
    *,
    reason: str,
    principal: str | None,
) -> Control:
    """The control entry of the stage that is reached; none where it is in force as asked."""
    facts: dict[str, Any] = {
        "reason": reason,
        "verdict": str(finding.verdict),
        "passed": [str(stage) for stage in walk.passed],
    }
    if walk.waived:
        facts["despite"] = [item.sentence for item in walk.waived]
    if walk.missing:
        facts["missing"] = [item.sentence for item in walk.missing]
    if opening is not None:
        facts["opening"] = msgspec.to_builtins(opening)

    def stands(control: Control) -> bool:
        return control.authority.stage is walk.at and (
            opening is None or control.opening == opening
        )

    return await change_control(
        record,
        "reopen",
        lambda now: at_stage(now, now.authority.generation, walk.at),
        facts,
        principal=principal,
        unless=stands,
    )
