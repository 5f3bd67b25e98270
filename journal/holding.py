"""What may go now: the tenant's stage, what the stage *external* lets out, and stops.

Pure, and asked wherever something begins: before an operation is judged, before a commitment is
made, and again before its call. A known operation is answered and a report is taken all the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from journal.control import Control, Hold, Opening, Stage, hold_name
from journal.errors import Held, Recovering
from journal.lanes import Effect, Lane
from journal.lifecycle import Lifecycle
from journal.work import Work

OPENING = "opening"
"""The rate budget that everything let out in the stage *external* shares."""


class Limits(Struct, frozen=True):
    """What control allows now."""

    stage: Stage
    opening: Opening | None
    holds: Mapping[str, Hold]

    # Stops of a type or an action.

    def stop_of(self, entity: str | None, action: str | None) -> str | None:
        """What stops this action of an entity; None: nothing does.

        An action that nobody can tell (None) is stopped with any action of its type.
        """
        if not self.holds or entity is None:
            return None
        kind = entity.partition("/")[0]
        for hold in self.holds.values():
            if hold.kind == kind and (hold.action in {None, action} or action is None):
                return say(hold)
        return None

    def stops_actions(self, entity: str | None) -> bool:
        """Whether single actions of this entity's type are stopped."""
        kind = None if entity is None else entity.partition("/")[0]
        return any(hold.kind == kind and hold.action is not None for hold in self.holds.values())

    def check_action(self, entity: str, action: str) -> None:
        """Refuse an operation that a stop holds. Raises Held."""
        if not self.holds:
            return
        reason = self.stop_of(entity, action)
        if reason is not None:
            raise Held(f"{reason}; `unrewind stops` lists what is stopped", entity=entity)

    # The stage, and what it lets out.

    def among(self, lane: str) -> tuple[str, ...] | None:
        """The releases of an external lane that may leave now; None: all of them."""
        if self.stage is Stage.OPEN:
            return None
        if self.stage is not Stage.EXTERNAL or self.opening is None:
            return ()
        return None if lane in self.opening.lanes else self.opening.releases

    def of_lane(self, name: str, lane: Lane) -> str | None:
        """What keeps every release of a lane in the house; None: some may leave."""
        if not lane.external or self.among(name) != ():
            return None
        return self.keeps()

    def of_release(self, lane: str, identity: str) -> str | None:
        """What keeps one release in the house; None: nothing does."""
        among = self.among(lane)
        return None if among is None or identity in among else self.keeps()

    def keeps(self) -> str:
        """Why a release that is not let out stays, as a sentence."""
        if self.stage is Stage.EXTERNAL:
            return f"the stage is external and lets out {_names(self.opening)}"
        return f"the tenant's stage is {self.stage}, which allows no effects outside"

    def rate(self) -> float:
        """Releases a second over all lanes together; 0: as many as the lanes allow."""
        if self.stage is not Stage.EXTERNAL or self.opening is None:
            return 0.0
        return self.opening.rate

    # Both, for work.

    def of_work(self, row: Work, action: str | None) -> str | None:
        """What keeps this work from beginning, whatever its lane says. ``action`` asked for it."""
        if row.effect == Effect.EXTERNAL:
            return self.of_release(row.lane, row.id) or self.stop_of(row.entity, row.name)
        return self.stop_of(row.entity, action)

    def check_commitment(self, row: Work) -> None:
        """Refuse the commitment of a release that may not leave now. Raises Recovering or Held."""
        kept = self.of_release(row.lane, row.id)
        if kept is not None:
            raise Recovering(kept, stage=str(self.stage))
        stopped = self.stop_of(row.entity, row.name)
        if stopped is not None:
            raise Held(stopped, entity=row.entity)

    # The gate.

    def of_gate(self, entity: str, action: str | None, lifecycle: Lifecycle) -> tuple[str, ...]:
        """Why what ``action`` decided may have no effects now, whatever the entity's history says.

        The stage *external* lets it when each lane that the entity's type releases to is let out.
        """
        reasons: list[str] = []
        lanes = {lane for action in lifecycle.actions.values() for lane in action.releases}
        let_out = lanes and all(self.among(lane) is None for lane in lanes)
        if self.stage is not Stage.OPEN and not let_out:
            named = f"the tenant's stage is {self.stage}"
            reasons.append(f"stage: {self.keeps() if self.stage is Stage.EXTERNAL else named}")
        stopped = self.stop_of(entity, action)
        return (*reasons, f"held: {stopped}") if stopped is not None else tuple(reasons)


def limits_of(control: Control) -> Limits:
    """The limits that control sets now."""
    return Limits(control.authority.stage, control.opening, control.holds)


def say(hold: Hold) -> str:
    """A stop in a few words."""
    return f"{hold_name(hold.kind, hold.action)} is stopped: {hold.reason}"


def _names(opening: Opening | None) -> str:
    lanes = () if opening is None else opening.lanes
    count = 0 if opening is None else len(opening.releases)
    named = [f"lane {lane}" for lane in lanes]
    named += [f"{count} named release{'' if count == 1 else 's'}"] if count else []
    return f"{' and '.join(named)} alone" if named else "nothing"
