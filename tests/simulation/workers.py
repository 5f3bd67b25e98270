"""Workers that pull: they claim, act in the world, and report well, late, twice, or never."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from api.served import Served
from journal.errors import UnrewindError
from journal.outcomes import Outcome, Reported
from journal.permits import Asked, Permit
from journal.reports import Beating
from tests.simulation import machine
from tests.simulation.promises import Broken
from tests.simulation.tenant import INSIDE, WINDOW

if TYPE_CHECKING:
    from tests.simulation.world import World

_FATES = {
    "fine": 50,
    "late": 8,
    "silent": 8,
    "absent": 8,
    "twice": 8,
    "stranger": 4,
    "failed": 6,
    "refused": 4,
    "unsure": 4,
}


class Workers:
    """All of them. ``effects`` is the truth about what they did in the world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.effects: Counter[str] = Counter()
        self.seen: dict[str, float] = {}
        self.ran: Counter[str] = Counter()

    def pull(self, lane: str, worker: str, limit: int, *, again: bool) -> None:
        """Claim some work of a lane and do it; ``again``: the claim is sent a second time."""
        asked = Asked(lane, worker, f"claim-{self.world.fresh()}", limit)
        permits = self._claim(asked)
        if again:
            permits = self._claim(asked) or permits
        for permit in permits:
            self._do(permit, worker)

    def _claim(self, asked: Asked) -> list[Permit]:
        async def claim(served: Served) -> Any:
            return await served.journal.lanes.claim(asked)

        def check(claimed: Any) -> None:
            for permit in claimed.permits:
                if permit.effect == "external":
                    self.world.mirror.permitted(permit.id, permit.lease, permit.commitment)
                self.world.count("permits")

        try:
            claimed = self.world.service().ask(claim, check)
        except UnrewindError as error:
            self.world.note("claim", lane=asked.lane, error=repr(error)[:200])
            return []
        found: list[Permit] = claimed.permits
        self.world.note("claim", lane=asked.lane, got=[one.id[:12] for one in found])
        return found

    def _do(self, permit: Permit, worker: str) -> None:
        world = self.world
        fate = world.choose(_FATES)
        if fate != "fine":
            world.count(f"worker:{fate}")
        world.note("work", id=permit.id[:12], lease=permit.lease, fate=fate)
        outcome = Outcome.CONFIRMED
        if fate == "absent":
            return
        if not self._begin(permit):
            return
        if fate in {"failed", "refused"}:
            outcome = Outcome.FAILED if fate == "failed" else Outcome.REFUSED
        else:
            self._act(permit)
        if fate == "late":
            machine.hub().sleep(world.delay(150.0))
        if fate == "unsure":
            outcome = Outcome.UNKNOWN
        if fate == "silent":
            return
        if fate == "stranger":
            self._report(permit, Outcome.CONFIRMED, permit.lease + 1, "somebody-else")
        for _ in range(2 if fate == "twice" else 1):
            self._report(permit, outcome, permit.lease, worker)

    def _begin(self, permit: Permit) -> bool:
        """Write the step before a risky act; whether the claim still holds."""
        beating = Beating(permit.lane, [(permit.id, permit.lease)], "calling")

        async def beat(served: Served) -> Any:
            return await served.journal.lanes.beat(beating)

        try:
            return (permit.id, permit.lease) in self.world.service().ask(beat)
        except UnrewindError:
            return False

    def _act(self, permit: Permit) -> None:
        if permit.lane == INSIDE:
            self.ran[permit.id] += 1
            return
        now = machine.hub().now
        known = self.seen.setdefault(permit.id, now)
        if permit.lane == "till" and permit.id in self.effects and now - known < WINDOW:
            return
        self.effects[permit.id] += 1
        self.world.count("effects")
        if self.effects[permit.id] > 1 and permit.id not in self.world.mirror.excused:
            raise Broken("P4", f"{permit.id} has its effect a second time in lane {permit.lane}")

    def _report(self, permit: Permit, outcome: Outcome, lease: int, worker: str) -> None:
        receipt = f"w-{permit.id[4:12]}" if outcome is Outcome.CONFIRMED else None
        said = Reported(permit.id, outcome, lease, "seen", receipt, worker=worker)

        async def report(served: Served) -> Any:
            return await served.journal.lanes.report(said, worker)

        for _ in range(3):
            try:
                answer = self.world.service().ask(report)
            except UnrewindError as error:
                self.world.note("report", id=permit.id[:12], error=repr(error)[:200])
                machine.hub().sleep(3.0)
                continue
            self.world.note("report", id=permit.id[:12], status=answer.status)
            if answer.observed:
                self.world.count("observed")
            return
