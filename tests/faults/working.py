"""A tenant at work in a process of its own, whose every write is recorded by strace.

What was acknowledged, sent and known is written to a file of marks, line by line, so that it stands
in the same record, between the writes that came before and those that came after.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import msgspec

import journal
from journal import Acceptance, Operation, Settings, sqlite
from journal.control import Role
from journal.entry import JSON_TYPE
from journal.outcomes import CALLING, Outcome, Reported
from journal.permits import Asked, Permit
from journal.reports import Beating
from tests.support.releases import lane_settings

SEED = 20
DECISIONS = 500
"""Acceptances to ask for, those of releases among them."""
LANES = {"payment": "pay", "letter": "post"}
"""An idempotent lane and an opaque one."""
_LIVES = 3
_PAGES = 48
_TOGETHER = 5
_ENTITIES = 12


def settings_at(folder: Path) -> Settings:
    """What it works with, and what its files are opened with again."""
    return lane_settings(folder, witness_every=0.02, handoff_every=3600.0)


class Marks:
    """What happened, in order; each line is written at once."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def set(self, kind: str, name: str, **facts: Any) -> None:
        os.write(self._handle, json.dumps([kind, name, facts]).encode() + b"\n")


class Work:
    """One life of the process: from opening the tenant to closing it."""

    def __init__(self, tenant: journal.Journal, marks: Marks, dice: random.Random) -> None:
        self.tenant, self.marks, self.dice = tenant, marks, dice

    async def decide(self, operation: Operation) -> None:
        """Accept an operation, and say so when it is acknowledged."""
        name = operation.operation
        body = operation.body.decode()
        fields = {"version": operation.version, "body": body, "body_type": operation.body_type}
        self.marks.set("asked", name, entity=operation.entity, action=operation.action, **fields)
        accepted = await self.tenant.accept(operation)
        assert isinstance(accepted, Acceptance)
        self.marks.set("told", name, digest=accepted.digest)

    async def release(self, number: int) -> None:
        """Approve something, and permit its release."""
        kind = self.dice.choice([*LANES])
        for action in ("approve", "release"):
            name = f"op-{number}-{action}"
            await self.decide(Operation(name, f"{kind}/{number}", action, version="1"))

    async def note(self, number: int) -> None:
        """A decision that releases nothing."""
        body = msgspec.json.encode({"n": number, "text": "x" * self.dice.randrange(900)})
        entity = f"case/{self.dice.randrange(_ENTITIES)}"
        await self.decide(Operation(f"op-{number}", entity, "note", body=body, body_type=JSON_TYPE))

    async def carry_out(self, lane: str, claim: str) -> None:
        """Claim work, and have its effect as a worker does: step, act, report."""
        claimed = await self.tenant.lanes.claim(Asked(lane, "worker", claim, 2))
        for permit in claimed.permits:
            self.marks.set("permitted", permit.id, digest=permit.commitment)
            if self.dice.random() < 0.1:
                continue  # a worker that is not heard of again
            beating = Beating(lane, [(permit.id, permit.lease)], CALLING)
            if await self.tenant.lanes.beat(beating):
                self.marks.set("sent", permit.id, lane=lane)
                await self.report(permit)

    async def report(self, permit: Permit) -> None:
        """Say what became of it; sometimes nobody does."""
        chance = self.dice.random()
        if chance < 0.1:
            return
        outcome = Outcome.UNKNOWN if chance < 0.2 else Outcome.CONFIRMED
        said = Reported(permit.id, outcome, permit.lease, receipt=f"r-{permit.lease}")
        await self.tenant.lanes.report(said)
        self.marks.set("known" if outcome is Outcome.CONFIRMED else "unknown", permit.id)


async def live(settings: Settings, marks: Marks, dice: random.Random, numbers: range) -> None:
    """Open the tenant, work, and close it as a stop does."""
    async with journal.open(settings) as tenant:
        marks.set("opened", f"{numbers.start}")
        work = Work(tenant, marks, dice)
        left = [*numbers]
        while left:
            now = [left.pop(0) for _ in range(min(len(left), dice.randint(1, _TOGETHER)))]
            await asyncio.gather(
                *(
                    work.release(number) if dice.random() < 0.25 else work.note(number)
                    for number in now
                )
            )
            if dice.random() < 0.3:
                for lane in LANES.values():
                    await work.carry_out(lane, f"claim-{lane}-{now[0]}")
            if dice.random() < 0.05:
                await tenant.settle()
            if dice.random() < 0.03:
                await tenant.create_token(Role.READER, f"token-{now[0]}")
        marks.set("closing", f"{numbers.stop}")


def main() -> None:
    folder = Path(sys.argv[1])
    decisions = int(sys.argv[2])
    # Checkpoints come after thousands of pages; here there have to be many.
    pragmas = [*sqlite._PRAGMAS, f"PRAGMA wal_autocheckpoint={_PAGES}"]
    setattr(sqlite, "_PRAGMAS", pragmas)  # noqa: B010 - it has as many as it has
    marks, dice = Marks(folder / "marks"), random.Random(SEED)
    settings = settings_at(folder)
    span = decisions * 4 // 5 // _LIVES  # a release is two decisions
    for life in range(_LIVES):
        asyncio.run(live(settings, marks, dice, range(life * span, (life + 1) * span)))


if __name__ == "__main__":
    main()
