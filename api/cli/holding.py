"""What holds work back, and what leads on from where it stands: as commands say it."""

from __future__ import annotations

from msgspec import Struct

from journal.control import ControlUnreadable, Running
from journal.errors import JournalUnavailable
from journal.holding import Limits, limits_of
from journal.inquiry import WorkView
from journal.lanes import Effect
from journal.record import Record
from journal.settings import Settings
from journal.work import ASKABLE, CLAIMABLE, Status

_HELD = "held"
_FINDINGS = frozenset({Status.UNKNOWN, Status.DEAD})


class Holds(Struct, frozen=True):
    """Why work is not picked up: lanes by name, all external ones at once, and what control limits.

    ``limits`` None: control cannot be read, or the tenant is closed.
    """

    lanes: dict[str, str] = {}
    effects: str | None = None
    limits: Limits | None = None

    def reason(self, view: WorkView) -> str | None:
        """What keeps waiting work from being picked up; None: nothing does."""
        if view.status not in CLAIMABLE:
            return None
        if view.step.startswith(_HELD):
            return view.step
        reason = self.lanes.get(view.lane)
        external = view.effect == Effect.EXTERNAL
        if reason is None and external:
            reason = self.effects
        if reason is None and self.limits is not None:
            # Which action asked for a command its step says, once it was set aside.
            action = view.kind if external else ""
            reason = self.limits.stop_of(view.entity, action)
            if reason is None and external:
                reason = self.limits.of_release(view.lane, view.id)
        return None if reason is None else f"{_HELD}: {reason}"

    def finds(self, view: WorkView) -> bool:
        """Whether somebody should look at this work."""
        return view.status in _FINDINGS or self.reason(view) is not None


async def read_holds(record: Record) -> Holds:
    """What holds lanes back as things stand."""
    try:
        control = await record.current_control(await record.look())
    except (ControlUnreadable, JournalUnavailable) as error:
        return Holds({}, f"the tenant is closed: {error.detail}")
    lanes = {
        name: f"lane {name} is {state.running}: {state.reason}"
        for name, state in control.lanes.items()
        if state.running is not Running.ON
    }
    stage = control.authority.stage
    if record.stop.stands():
        reason = record.stop.facts().get("reason", "it was stopped by an operator")
        return Holds(lanes, f"the tenant is closed: {reason}")
    effects = None if stage.effects else f"the tenant's stage is {stage}"
    return Holds(lanes, effects, limits_of(control))


def next_step(view: WorkView, holds: Holds, settings: Settings) -> str:
    """What happens to this work next, or what a person has to do."""
    held = holds.reason(view)
    if held is not None:
        return _release(view, held)
    if view.status in CLAIMABLE:
        return _picked_up(view, settings)
    if view.status in ASKABLE and view.due is not None:
        return f"its receiver is asked at {view.due}"
    match view.status:
        case Status.RUNNING:
            return (
                f"claimed by {view.worker or 'a worker'}, last heard of at "
                f"{view.heartbeat or view.claimed}; if it is never heard of again, "
                "`unrewind sweep` moves it on"
            )
        case Status.UNKNOWN | Status.PENDING:
            return (
                f"it may have happened and nobody can be asked: {view.owner or 'its owner'} finds "
                f"out, then says `unrewind releases settle {view.id} --happened` or "
                "`--did-not-happen`, with the evidence"
            )
        case Status.DEAD:
            return (
                f"its budget is spent: `unrewind dead-letters replay --id {view.id}` or "
                f"`unrewind dead-letters drain --id {view.id}`, with a reason"
            )
        case Status.REFUSED:
            return "the receiver refused it for good: correct what it was about and decide anew"
        case _:
            return "nothing is left to do"


def _release(view: WorkView, held: str) -> str:
    if held.startswith(f"{_HELD}: lane {view.lane} is "):
        return f"{held}; `unrewind lanes resume {view.lane}` lets it go on"
    stopped, found, _ = held.partition(" is stopped: ")
    if found:
        name = stopped.removeprefix(f"{_HELD}: ")
        return f"{held}; `unrewind resume {name}` lets it go on"
    return held


def _picked_up(view: WorkView, settings: Settings) -> str:
    lane = settings.lanes.get(view.lane)
    if lane is None:
        return f"lane {view.lane} is not declared here: declare it, or nobody picks this up"
    who = "a worker claims it" if lane.pulled else "`unrewind serve` or `dispatch` picks it up"
    return f"{who}, from {view.due}"
