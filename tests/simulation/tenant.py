"""The tenant that is simulated: every kind of entity type, lane and receiver, with short times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from journal import Settings
from journal.lanes import Contract, Effect, Lane, Receiver
from journal.lifecycle import Action, Command, Kind, Lifecycle, Owner

WINDOW = 1800.0
"""Seconds for which a receiver knows a release ID."""

_ALIVE = ("draft", "open")
_TIMES: dict[str, Any] = {
    "lease": 40.0,
    "sweep_after": 60.0,
    "cap": 240.0,
    "timeout": 10.0,
    "backoff": 2.0,
}
PUSHED = ("same", "asked", "blind")
PULLED = ("hands", "till")
INSIDE = "inside"


def _order() -> Lifecycle:
    """An order: changed, cancelled, and sent in each of the lanes."""
    actions = {
        "change": Action(_ALIVE, "open"),
        "cancel": Action(_ALIVE, "cancelled"),
        "renew": Action(("cancelled",), "open"),
        "index": Action(_ALIVE, "open", commands=(Command("index", INSIDE),)),
    }
    for lane in (*PUSHED, *PULLED):
        actions[f"send-{lane}"] = Action(_ALIVE, "open", needs_version=True, releases=(lane,))
    return Lifecycle(initial="draft", actions=actions, withdrawn=("cancelled",))


def settings_in(folder: Path) -> Settings:
    """The settings of a world's tenant under ``folder``."""
    receivers = {
        name: Receiver(
            f"http://{name}.example/hook",
            status_url=None if name == "blind" else f"http://{name}.example/status/{{release}}",
            contract=contract,
            window=0.0 if contract is Contract.OPAQUE else WINDOW,
            timeout=10.0,
            works=20.0,
            poll=15.0,
        )
        for name, contract in (
            ("same", Contract.IDEMPOTENT),
            ("asked", Contract.QUERYABLE),
            ("blind", Contract.OPAQUE),
        )
    }
    lanes = {name: Lane(receiver=name, concurrency=2, **_TIMES) for name in PUSHED}
    lanes["hands"] = Lane(concurrency=3, **_TIMES)
    lanes["till"] = Lane(contract=Contract.IDEMPOTENT, window=WINDOW, concurrency=3, **_TIMES)
    lanes[INSIDE] = Lane(effect=Effect.INTERNAL, concurrency=3, **_TIMES)
    return Settings(
        data=str(folder / "data"),
        lifecycle={
            "order": _order(),
            "case": Lifecycle(kind=Kind.FREE),
            "contract": Lifecycle(kind=Kind.FREE, owner=Owner.CALLER),
            "account": Lifecycle(
                kind=Kind.FREE, owner=Owner.EMBEDDED, projection="tests.support.ledger:Ledger"
            ),
        },
        lane=lanes,
        receiver=receivers,
        lock_timeout=4.0,
        handoff_every=20.0,
        detect_every=60.0,
        witness_every=7.0,
        dispatch_every=30.0,
        sweep_every=45.0,
        max_undo=10_000,
    )
