"""A tenant whose receivers are processes: released to, rewound, recovered and reconciled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from api.reconciling import reconcile
from journal.lanes import Contract, Lane, Receiver
from journal.lifecycle import Action, Command, Lifecycle
from journal.outcomes import CALLING
from journal.permits import Permit
from journal.settings import Settings
from journal.store import reconciled
from journal.store.reconciled import Found
from journal.worker import drive
from reconstruct import recovery
from reconstruct.auditing import Reconciled
from tests.reconstruct.towns import Town
from tests.support import receivers
from tests.support.releases import DAY, lane_settings, releasing
from tests.support.tenants import operation
from tests.support.whole import verify_files

DIGEST = receivers.DIGEST
NOBODY = "http://127.0.0.1:9"


def courier(server: receivers.Receiver | None, contract: str = "queryable", **changes: Any) -> Any:
    """A receiver's declaration; one that nobody is without a ``server``."""
    base = NOBODY if server is None else server.base
    given = {
        "url": f"{base}/releases",
        "status_url": f"{base}/status/{{release}}",
        "contract": Contract(contract),
        "window": 0.0 if contract == "opaque" else DAY,
        "timeout": 5.0,
        "works": 0.2,
        "poll": 0.05,
        **changes,
    }
    return Receiver(**given)


PARCEL = Lifecycle(
    initial="draft",
    actions={
        "approve": Action(("draft", "approved"), "approved", commands=(Command("index", "tidy"),)),
        "ship": Action(("approved",), "approved", needs_version=True, releases=("bank",)),
        "cancel": Action(("approved",), "cancelled", commands=(Command("apologise", "mail"),)),
        "note": Action(("cancelled",), "cancelled"),
    },
)
"""A type whose approval asks for a command, and whose cancellation does too."""


def quay_settings(folder: Path, bank: Receiver, **changes: Any) -> Settings:
    """Lanes as every test of releases has them, with ``bank`` behind the lane of that name."""
    types = {"parcel": PARCEL, "hidden": releasing("hidden"), **changes.pop("lifecycle", {})}
    lanes = {
        "bank": Lane(receiver="bank", concurrency=64),
        "hidden": Lane(receiver="hidden"),
        **changes.pop("lane", {}),
    }
    hidden = courier(None, "opaque")
    given = {"bank": bank, "hidden": hidden, **changes.pop("receiver", {})}
    return lane_settings(folder, lane=lanes, lifecycle=types, receiver=given, **changes)


class Quay(Town):
    """Releases to a real receiver, and every step of a recovery with reconciliation."""

    server: receivers.Receiver

    # Effects.

    def attempt(self, lane: str = "bank", worker: str = "w1") -> Permit:
        """Claim, write the step, and call: what is known of the end is left to the test."""
        permit = self.permit(lane, worker=worker)
        self.beat(permit, CALLING)
        return permit

    def ship(self, entity: str, worker: str = "w1", digest: str | None = DIGEST) -> Permit:
        """A release that went out; nobody heard what became of it."""
        self.release(entity, **({} if digest is None else {"digest": digest}))
        permit = self.attempt(worker=worker)
        body = receivers.body_of(permit.id, digest=digest)
        assert self.server.send(permit.id, permit.attempt, body).status == 200
        return permit

    # Recovery.

    def stopped(self) -> recovery.Applied:
        """Stop, begin and apply: what comes before a reconciliation."""
        recovery.stop(self.settings, "a test")
        self.do(recovery.begin, "a test")
        return self.do(recovery.apply)

    def rewound(self, folder: Path) -> recovery.Applied:
        """Put a snapshot back, then ``stopped``."""
        self.settle()
        self.restore(folder)
        return self.stopped()

    async def run(self, function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return drive(function(self.record, *args))

    def reconcile(self, **given: Any) -> Reconciled:
        found: Reconciled = asyncio.run(reconcile(self.run, self.settings, environment={}, **given))
        assert not self.record.recovering
        return found

    def opened(self) -> str:
        return self.do(recovery.reopen).stage

    def finish_off(self) -> None:
        """Reopen where that was not done; everything is whole then."""
        if self.record.stop.stands():
            self.do(recovery.reopen, despite={"reconciled"})
        self.settle()
        self.close()
        found = verify_files(self.settings)
        assert found == [], found

    # Looking.

    def found(self, identity: str) -> Found:
        """The finding about a release in the generation in force."""
        generation = self.control().authority.generation
        rows = drive(self.store.read([reconciled.read_found(generation, None, "", 1000)]))[0]
        (found,) = [one for one in reconciled.found_of(rows) if one.id == identity]
        return found

    def kind(self, identity: str) -> str:
        return self.found(identity).found

    def lookups(self, identity: str | None = None) -> int:
        """How often the receiver was asked."""
        return len(self.server.lines("lookup", identity))

    def facts(self, action: str) -> list[dict[str, Any]]:
        """What control's entries of an action say."""
        rows = drive(self.log.control())
        entries = [row.entry() for row in rows]
        return [
            msgspec.json.decode(entry.body) for entry in entries if entry.envelope.action == action
        ]

    def again(self, entity: str, kind: str = "release") -> None:
        """Permitting again after all of it makes no second release."""
        answer = self.accept(operation(entity, kind, version="1"))
        assert answer.existing == answer.releases
