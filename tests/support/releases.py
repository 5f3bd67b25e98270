"""Releases to test with: a lane for each contract, and what workers and operators do in them."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from journal import Settings, permits, reports, sweeping
from journal.history import Flaw
from journal.lanes import Contract, Effect, Lane, Receiver
from journal.lifecycle import Action, Command, Lifecycle
from journal.log import Append, FlawRow
from journal.observing import observe
from journal.outcomes import Outcome, Reported
from journal.permits import Asked, Claimed, Permit
from journal.record import Record
from journal.reports import Beating, Reception
from journal.store import work as works
from journal.sweeping import Swept
from journal.work import Work
from journal.worker import drive
from reconstruct import recovery
from reconstruct.recovery import Applied
from tests.support.tenants import LIFECYCLES, Tenant, make_settings, operation

PAST = "2001-02-03T04:05:06.000000Z"
FUTURE = "2999-12-31T23:59:59.000000Z"
DAY = 86_400.0

_claims = count(1)


def releasing(*lanes: str) -> Lifecycle:
    """A type that is approved, released to these lanes, corrected and revoked."""
    return Lifecycle(
        initial="new",
        actions={
            "approve": Action(("new", "approved", "revoked"), "approved"),
            "revoke": Action(("approved",), "revoked"),
            "release": Action(
                ("approved",), "approved", needs_version=True, same_version=True, releases=lanes
            ),
            "correct": Action(
                ("approved",), "approved", needs_version=True, releases=lanes, corrects=True
            ),
        },
    )


TASK = Lifecycle(
    initial="new",
    actions={
        "start": Action(
            ("new", "started"),
            "started",
            commands=(
                Command("first", "mail"),
                Command("second", "tidy"),
                Command("third", "mail"),
            ),
        )
    },
)
"""A type whose one action asks for three commands, in two lanes, in this order."""

LANES = {
    "pay": Lane(contract=Contract.IDEMPOTENT, window=DAY),
    "post": Lane(),
    "bank": Lane(receiver="bank"),
    "mail": Lane(effect=Effect.INTERNAL, attempts=3),
    "tidy": Lane(effect=Effect.INTERNAL),
    "preview": Lane(effect=Effect.BEST_EFFORT),
}
"""An idempotent, an opaque and a queryable lane, two internal ones, and one that may lose work."""

BANK = Receiver(
    url="http://127.0.0.1:9/",
    status_url="http://127.0.0.1:9/{release}",
    contract=Contract.QUERYABLE,
    window=DAY,
)

TYPES = {
    **LIFECYCLES,
    "payment": releasing("pay"),
    "letter": releasing("post"),
    "transfer": releasing("bank"),
    "bundle": releasing("pay", "post"),
    "task": TASK,
}
"""A type for each of these lanes, beside those that all tests have."""


def lane_settings(folder: Path, **changes: Any) -> Settings:
    """Settings with all of these; ``lane`` and ``lifecycle`` add to them."""
    lanes = {**LANES, **changes.pop("lane", {})}
    types = {**TYPES, **changes.pop("lifecycle", {})}
    receivers = {"bank": BANK, **changes.pop("receiver", {})}
    return make_settings(folder, lane=lanes, lifecycle=types, receiver=receivers, **changes)


_ROW = Work(
    id="rel_1",
    lane="pay",
    effect="external",
    name="release",
    status="running",
    entity="payment/1",
    revision=2,
    sequence=2,
    place=0,
    operation="op-1",
    version="1",
    receiver="bank",
    recipient=None,
    digest=None,
    corrects=None,
    data="{}",
    weight=1.0,
    due=None,
    created=PAST,
    committed=PAST,
    claimed=PAST,
    sweep_at=PAST,
    lease=1,
    claim="c-1",
    worker="w1",
    attempts=1,
)


def row_of_work(**changes: Any) -> Work:
    """A release in progress under its first claim, and ``changes`` over it."""
    return msgspec.structs.replace(_ROW, **changes)


class Yard(Tenant):
    """A tenant with lanes, and workers that claim in its name. ``by`` names another record."""

    # Deciding.

    def release(self, entity: str, version: str = "1", **data: Any) -> str:
        """Approve a version and permit its release; the release's ID."""
        self.accept(operation(entity, "approve", data or None, version=version))
        return self.permit_again(entity, version)[0]

    def permit_again(self, entity: str, version: str = "1") -> tuple[str, ...]:
        """Permit the release of an approved version; the IDs."""
        return self.accept(operation(entity, "release", version=version)).releases

    # Working.

    def claim(
        self,
        lane: str,
        *,
        id: str | None = None,
        worker: str = "w1",
        limit: int = 1,
        by: Record | None = None,
    ) -> Claimed:
        asked = Asked(lane, worker, id or f"claim-{next(_claims)}", limit)
        return drive(permits.claim(by or self.record, asked))

    def permit(self, lane: str, **fields: Any) -> Permit:
        """The one permit that a claim gives."""
        permits_given = self.claim(lane, **fields).permits
        assert len(permits_given) == 1
        return permits_given[0]

    def beat(
        self, permit: Permit, step: str | None = None, by: Record | None = None
    ) -> list[tuple[str, int]]:
        claims = [(permit.id, permit.lease)]
        return drive(reports.beat(by or self.record, Beating(permit.lane, claims, step)))

    def report(
        self, permit: Permit, outcome: str, *, by: Record | None = None, **fields: Any
    ) -> Reception:
        said = self.said(permit, outcome, **fields)
        return drive(reports.report(by or self.record, said))

    def observe(self, permit: Permit, outcome: str, **fields: Any) -> str:
        """Keep a report as the observation that it becomes when it can be no decision."""
        return self.do(observe, self.said(permit, outcome, **fields), "a test")

    def said(self, permit: Permit, outcome: str, **fields: Any) -> Reported:
        return Reported(permit.id, Outcome(outcome), permit.lease, **fields)

    def sweep(self, by: Record | None = None) -> Swept:
        return drive(sweeping.sweep(by or self.record))

    # Looking and meddling.

    def row(self, identity: str) -> Work:
        found = drive(self.store.read([works.read_work([identity])]))[0]
        return works.rows_of(found)[0]

    def status(self, identity: str) -> str:
        return self.row(identity).status

    def actions(self, entity: str) -> list[str]:
        """What the journal holds of an entity, in order."""
        rows = drive(self.log.history(entity, 1, 1 << 60, 1000))
        return [row.entry().envelope.action for row in rows]

    def first_commitment(self, entity: str) -> str:
        """When the journal took the first commitment of an entity's release."""
        rows = drive(self.log.history(entity, 1, 1 << 60, 1000))
        envelopes = [row.entry().envelope for row in rows]
        return next(e.recorded for e in envelopes if e.action == "release.committed")

    def commands(self, entity: str) -> list[str]:
        """The IDs of an entity's commands, in the order of their lists."""
        sql = "SELECT id FROM unrewind_work WHERE entity = ? ORDER BY sequence, place"
        return [identity for (identity,) in self.sql(sql, entity)]

    def stored_id(self, entity: str) -> str:
        """The ID of an entity's newest release."""
        sql = "SELECT id FROM unrewind_work WHERE entity = ? ORDER BY number DESC LIMIT 1"
        identity: str = self.sql(sql, entity)[0][0]
        return identity

    def meddle(self, identity: str, **columns: Any) -> None:
        """Change columns of a row behind unrewind's back."""
        names = ", ".join(f"{name} = ?" for name in columns)
        self.sql(f"UPDATE unrewind_work SET {names} WHERE id = ?", *columns.values(), identity)

    def let_expire(self, identity: str) -> None:
        """Let the time of a row's claim be over."""
        self.meddle(identity, sweep_at=PAST)

    def let_come(self, identity: str) -> None:
        """Let the time come for which a row waits."""
        self.meddle(identity, due=PAST)

    # Recovering.

    def recover(self) -> Applied:
        """Every step of a recovery, as the command line takes them; raises the generation."""
        recovery.stop(self.settings, "a test")
        self.do(recovery.begin, "a test")
        applied = self.do(recovery.apply)
        self.do(recovery.reopen, despite={"reconciled"})
        return applied

    def flaw(self, entity: str, *, mend: bool = False) -> None:
        """Make an entity's history incomplete, as a replay that found a fault does, or whole."""
        found = FlawRow(entity, Flaw.DIVERGENT, 2, 2, (), 1, 1, self.record.clock.now(), "a test")
        append = Append(settled=[entity], flaws=[] if mend else [found])
        drive(self.log.append(append, drive(self.log.look())))
