"""Entries as a caller that owns its store seals them, and envelopes for tests of the rules."""

from __future__ import annotations

from typing import Any

import msgspec

from journal.entry import (
    JSON_TYPE,
    NO_BODY_TYPE,
    Entry,
    Envelope,
    Outcome,
    Predecessor,
    body_of,
    seal,
)
from journal.history import Link, link_of

HISTORY = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"
OTHER_HISTORY = "00112233445566778899aabbccddeeff"
MOMENT = "2026-03-14T09:26:53.000000Z"

Item = tuple[bytes, bytes]


def envelope_of(**changes: Any) -> Envelope:
    """Revision 1 of a contract with the empty body, and ``changes`` over it."""
    base = Envelope(
        action="sign",
        actor=None,
        at=MOMENT,
        body=body_of(b"", NO_BODY_TYPE),
        entity="contract/1",
        generation=1,
        history=HISTORY,
        lifecycle="1",
        operation="op-1",
        outcome=Outcome(None, "signed"),
        predecessor=None,
        principal=None,
        recorded=MOMENT,
        releases=(),
        revision=1,
        sequence=None,
        tenant="main",
        v=1,
        version=None,
    )
    return msgspec.structs.replace(base, **changes)


def sealed(body: bytes = b"", **changes: Any) -> Entry:
    """A sealed entry; ``body`` is described in the envelope."""
    kind = JSON_TYPE if body else NO_BODY_TYPE
    return seal(envelope_of(body=body_of(body, kind), **changes), body)


def predecessor_of(entry: Entry) -> Predecessor:
    """How a successor names ``entry``."""
    return Predecessor(entry.digest, entry.envelope.history, entry.envelope.revision)


def link(entry: Entry) -> Link:
    """The entry's link."""
    return link_of(entry.envelope, entry.digest)


def items(*entries: Entry) -> list[Item]:
    """What `append_sealed` takes."""
    return [(entry.text, entry.body) for entry in entries]


class Caller:
    """An application that keeps its own store: it seals each entity's next decision."""

    def __init__(
        self, history: str = HISTORY, generation: int = 1, *, sequenced: bool = False
    ) -> None:
        self.history = history
        self.generation = generation
        self.heads: dict[str, Entry] = {}
        self.sequence = 0 if sequenced else None

    def seal(self, entity: str, action: str = "sign", **changes: Any) -> Entry:
        """The entity's next decision, in the caller's own order when it keeps one."""
        entry = self.draft(entity, action, **changes)
        self.heads[entity] = entry
        self.sequence = entry.envelope.sequence if self.sequence is not None else None
        return entry

    def draft(self, entity: str, action: str = "sign", body: bytes = b"", **changes: Any) -> Entry:
        """What ``seal`` would make, without moving on."""
        before = self.heads.get(entity)
        revision = 1 if before is None else before.envelope.revision + 1
        fields = {
            "action": action,
            "entity": entity,
            "generation": self.generation,
            "history": self.history,
            "operation": f"{entity}-{action}-{revision}-{self.history[:4]}",
            "outcome": Outcome(None, f"{action}ed"),
            "predecessor": None if before is None else predecessor_of(before),
            "revision": revision,
            "sequence": None if self.sequence is None else self.sequence + 1,
            **changes,
        }
        return sealed(body, **fields)

    def chain(self, entity: str, count: int, action: str = "sign") -> list[Entry]:
        """The entity's next ``count`` decisions."""
        return [self.seal(entity, action) for _ in range(count)]
