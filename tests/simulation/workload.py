"""The workload: everything that is to happen in a world, drawn from its seed before it begins.

A list of events, so that any part of it can be played again: that is how a failure is shortened.
"""

from __future__ import annotations

from random import Random
from typing import Any

from msgspec import Struct

from tests.simulation.tenant import INSIDE, PULLED, PUSHED

SECONDS = 300.0
"""How long things happen; then the world is left in peace, and has to come to rest."""

REWINDS = ("renamed", "renamed", "renamed", "over", "under", "emptied", "gone", "forward")
_PORTS = (
    "refused",
    "disk",
    "full",
    "unanswered",
    "disk-after",
    "kill",
    "kill-after",
    "freeze",
    "freeze-after",
)


class Event(Struct, frozen=True):
    """Something that happens at a time, in virtual seconds."""

    at: float
    kind: str
    facts: dict[str, Any] = {}

    def __str__(self) -> str:
        said = " ".join(f"{name}={value}" for name, value in self.facts.items())
        return f"{self.at:7.2f}  {self.kind:<10} {said}"


class Profile(Struct, frozen=True):
    """How a world is, as its seed has it."""

    services: int
    clumsy: float
    """How often a command of the operator's is killed."""
    rough: bool
    """Whether receivers lose, delay and garble; else every call goes well."""
    clocks: bool
    """Whether clocks jump. Then no call arrives late: nobody can tell how late by such clocks."""
    loose: bool
    """Whether the turn lock can be taken away from a process that stands still."""
    both: bool
    """Whether the journal may be rewound too."""


def profile_of(seed: int) -> Profile:
    """What kind of world a seed makes."""
    random = Random(f"{seed}/profile")
    services = 1 if random.random() < 0.65 else 2
    clocks = random.random() < 0.2
    return Profile(
        services=services,
        clumsy=random.choice((0.0, 0.1, 0.3)),
        rough=random.random() < 0.8,
        clocks=clocks,
        loose=services > 1 and random.random() < 0.5,
        both=random.random() < 0.15,
    )


def workload_of(seed: int) -> list[Event]:
    """The events of a seed, in their order."""
    random = Random(f"{seed}/workload")
    profile = profile_of(seed)
    clients = [_with_more(Random(f"{seed}/{n}"), e) for n, e in enumerate(_of_clients(random))]
    events = [*clients, *_of_workers(random), *_of_faults(random, profile)]
    events += _in_the_midst(Random(f"{seed}/midst"), events, table=not profile.both)
    return sorted(events, key=lambda event: event.at)


def _in_the_midst(random: Random, events: list[Event], *, table: bool) -> list[Event]:
    """A turn that stands still while the store is put back; a table of work put back alone."""
    more = []
    for event in events:
        if event.kind == "rewind" and random.random() < 0.3:
            fault = {"role": "store", "moment": "any", "left": random.randrange(8)}
            more.append(Event(round(event.at - 0.02, 2), "fault", {**fault, "kind": "freeze"}))
            wishes = [_wish(random, f"op-midst-{event.at}", f"order/{random.randrange(4)}")]
            more.append(Event(round(event.at - 0.01, 2), "send", {"wishes": wishes}))
    if random.random() < 0.25 and table:
        more.append(Event(_at(random), "table", {"depth": round(random.random(), 3)}))
    return more


def _with_more(random: Random, event: Event) -> Event:
    """The same event, perhaps with somebody who looks meanwhile, or an operation sent twice."""
    if event.kind != "send":
        return event
    facts = dict(event.facts)
    if random.random() < 0.3:
        facts["look"] = random.choice((0.0, 0.0, round(random.random() * 0.02, 5)))
    if random.random() < 0.05:
        facts["wishes"] = [facts["wishes"][0], *facts["wishes"]]
    return Event(event.at, event.kind, facts)


def _at(random: Random) -> float:
    return round(random.random() * SECONDS, 2)


def _of_clients(random: Random) -> list[Event]:
    events = []
    names = [f"order/{n}" for n in range(4)] + ["case/1", "case/2", "account/1", "account/2"]
    for number in range(random.randrange(18, 34)):
        wishes = [
            _wish(random, f"op-{number}-{part}", random.choice(names))
            for part in range(1 if random.random() < 0.75 else random.randrange(2, 6))
        ]
        facts: dict[str, Any] = {"wishes": wishes}
        if random.random() < 0.08:
            facts["cancel"] = round(random.random() * 0.05, 4)
        events.append(Event(_at(random), "send", facts))
    for _ in range(random.randrange(4, 9)):
        events.append(Event(_at(random), "read", {"entity": random.choice(names)}))
        events.append(Event(_at(random), "repeat", {"which": round(random.random(), 4)}))
    events.extend(
        Event(_at(random), "reuse", {"which": round(random.random(), 4)}) for _ in range(2)
    )
    for _ in range(random.randrange(3)):
        facts = {"entity": f"contract/{len(events)}", "order": random.sample(range(3), 3)}
        events.append(Event(_at(random), "sealed", facts))
    return events


def _wish(random: Random, identity: str, entity: str) -> dict[str, Any]:
    kind = entity.partition("/")[0]
    body: dict[str, Any] = {"n": random.randrange(100), "recipient": f"to-{random.randrange(3)}"}
    wish: dict[str, Any] = {"id": identity, "entity": entity, "action": "note", "body": body}
    if kind == "account":
        body = {"balance": random.choice((1, 5, 9, -1))}
        wish |= {"action": random.choice(("deposit", "spend")), "body": body}
    elif kind == "order":
        lane = random.choice((*PUSHED, *PULLED))
        action = random.choice(("change", "cancel", "renew", "index", *[f"send-{lane}"] * 6))
        wish["action"] = action
        if action.startswith("send"):
            wish["version"] = f"v{random.randrange(6)}"
    if random.random() < 0.1:
        wish["expected"] = random.randrange(5)
    return wish


def _of_workers(random: Random) -> list[Event]:
    lanes = [*PULLED, *PULLED, INSIDE]
    return [
        Event(
            _at(random),
            "work",
            {
                "lane": random.choice(lanes),
                "worker": f"worker-{random.randrange(3)}",
                "limit": random.randrange(1, 4),
                "again": random.random() < 0.2,
            },
        )
        for _ in range(random.randrange(5, 12))
    ]


def _of_faults(random: Random, profile: Profile) -> list[Event]:
    events = [Event(_at(random), "copy", {"what": "store"}) for _ in range(random.randrange(2, 6))]
    for _ in range(random.choice((0, 1, 1, 2))):
        facts = {"how": random.choice(REWINDS), "depth": round(random.random(), 3)}
        events.append(Event(_at(random), "rewind", facts))
    for _ in range(random.randrange(4)):
        facts = {
            "role": random.choice(("store", "journal")),
            "moment": random.choice(("commit", "any")),
            "left": random.randrange(12),
            "kind": random.choice(_PORTS),
        }
        events.append(Event(_at(random), "fault", facts))
    if random.random() < 0.15:
        events.append(Event(_at(random), "restore", {}))
    if profile.loose:
        for _ in range(3):
            facts = {
                "role": random.choice(("store", "journal")),
                "moment": "any",
                "left": random.randrange(30),
                "kind": random.choice(("freeze", "freeze-after")),
            }
            events.append(Event(_at(random), "fault", facts))
    for kind, chance in (
        ("kill", 0.4),
        ("freeze", 0.3),
        ("restart", 0.2),
        ("away", 0.2),
        ("slow", 0.2),
        ("snapshot", 0.4),
        ("pause", 0.15),
        ("token", 0.15),
    ):
        if random.random() < chance and not (profile.both and kind == "token"):
            facts = {"seconds": round(random.random() * 25, 2), "number": random.randrange(2)}
            events.append(Event(_at(random), kind, facts))
    if profile.clocks:
        for _ in range(2):
            facts = {
                "whose": random.choice(("machine", "database")),
                "by": random.choice((-3600.0, -60.0, 60.0, 3600.0)),
            }
            events.append(Event(_at(random), "clock", facts))
    if profile.both:
        events.append(Event(_at(random), "copy", {"what": "journal"}))
        facts = {"depth": round(random.random(), 3), "store": random.random() < 0.5}
        events.append(Event(round(200 + random.random() * 90, 2), "lose", facts))
    return events
