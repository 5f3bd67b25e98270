"""The log port: the journal's engine, an ordered and append-only record outside the store.

``look`` says where the log stands; ``append`` adds entries only while it still stands there. That
one comparison, made in the append's own transaction, covers the tip that a decision follows, the
history, generation and stage in force, and every other writer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Protocol

from msgspec import Struct, json

from journal.acceptance import Place
from journal.control import Abandoned, Authority
from journal.entry import Entry, check_body, read_envelope
from journal.errors import EngineError, Invalid
from journal.history import Flaw, Head, Link

DECISIONS = "decisions"
CONTROL = "control"
OBSERVATIONS = "observations"
CALLER = "caller/"

PAGE_BYTES = 16 * 1024 * 1024
"""A page of rows ends early, after the row that brings it to this many bytes of evidence.

Whoever pages goes on until a page is empty, never until it is short.
"""

FlawKey = tuple[str, int, str, str]
FIRST_FLAW: FlawKey = ("", 0, "", "")


class Moved(EngineError):
    """The log no longer stands where this append expected it."""


class Look(Struct, frozen=True):
    """Where the log stands: its last position, what is in force, and the last decision's place.

    ``authority`` is None in a log without control. ``flawed`` says whether any history is
    incomplete.
    """

    position: int
    authority: Authority | None
    last: Place | None
    control: int
    flawed: bool


class Row(Struct, frozen=True, gc=False):
    """A stored entry with the indexed columns that must repeat its envelope.

    One that is ``dropped`` was abandoned: it is evidence, and no decision any more.
    """

    position: int
    stream: str
    sequence: int | None
    history: str
    entity: str
    revision: int
    operation: str
    digest: str
    text: bytes
    body: bytes
    dropped: bool = False

    def entry(self) -> Entry:
        """The entry, checked against digest, columns and body. Raises Invalid on a mismatch."""
        text, body = self.text, self.body
        envelope = read_envelope(text)
        if sha256(b"\0" + text).hexdigest() != self.digest:  # digest_of, without another call
            raise Invalid("the envelope does not hash to the stored digest")
        if (
            self.sequence != envelope.sequence
            or self.history != envelope.history
            or self.entity != envelope.entity
            or self.revision != envelope.revision
            or self.operation != envelope.operation
        ):
            raise Invalid("the indexed columns do not repeat the envelope")
        check_body(envelope, body)
        return Entry(envelope, text, body, self.digest)

    def head(self) -> JournalHead:
        """The entry as a head. Raises Invalid on a mismatch."""
        outcome = self.entry().envelope.outcome
        return JournalHead(self.entity, self.revision, self.digest, outcome.data)


class JournalHead(Struct, frozen=True):
    """The journal's newest entry of a managed or embedded entity."""

    entity: str
    revision: int
    digest: str
    data: str | None


class HeadPage(Struct, frozen=True):
    """Heads in the order of their names; ``end`` is the last name looked at, None at the end."""

    heads: list[JournalHead]
    end: str | None


class EntityChain(Struct, frozen=True):
    """A caller-owned entity's durable boundary and newest revision, with the boundary's state."""

    entity: str
    boundary: Head
    state: str
    newest: int


class FlawRow(Struct, frozen=True):
    """One reason why an entity's history is incomplete."""

    entity: str
    flaw: Flaw
    first: int
    last: int
    digests: tuple[str, ...]
    durable_through: int
    holds: int
    since: str
    detail: str

    @property
    def key(self) -> FlawKey:
        """Where this flaw stands in the order of ``Log.flaws``."""
        return (self.entity, self.first, str(self.flaw), json.encode(self.digests).decode())


class Rival(Struct, frozen=True):
    """An entry that contradicts a stored one; evidence, kept apart."""

    entry: Entry
    stored: str
    seen: str


class Append(Struct, frozen=True):
    """What one append writes, all or nothing.

    ``chains`` and ``flaws`` replace what stood for the entities in ``settled``. ``drops`` puts the
    entries that were abandoned into the index of what is dropped; ``anew`` empties it first.
    """

    entries: Sequence[tuple[str, Entry]] = ()
    becomes: Authority | None = None
    rivals: Sequence[Rival] = ()
    chains: Sequence[EntityChain] = ()
    settled: Sequence[str] = ()
    flaws: Sequence[FlawRow] = ()
    drops: Sequence[Abandoned] = ()
    anew: bool = False


class Log(Protocol):
    """A journal engine.

    Dropped entries are in the orders that they were appended to, marked, and in no entity's history
    unless they are asked for.
    """

    async def look(self) -> Look:
        """Where the log stands now."""

    async def append(self, append: Append, expects: Look) -> None:
        """Add entries while the log still stands at ``expects``.

        MUST be durable when it returns, MUST leave nothing behind otherwise. Raises Moved when the
        log stands elsewhere, DiskFailed when it is unknown what was committed.
        """

    async def control(self) -> list[Row]:
        """Every control entry in order."""

    async def operations(self, ids: Sequence[str]) -> list[Row]:
        """The entries of these operation IDs, those that exist."""

    async def decisions(self, after: int, limit: int) -> list[Row]:
        """Managed and embedded decisions above a sequence, in order."""

    async def count_decisions(self, through: int) -> int:
        """How many managed and embedded decisions stand at or below a sequence."""

    async def place(self, sequence: int) -> Place | None:
        """What stands at a sequence of the one order."""

    async def history(
        self, entity: str, first: int, last: int, limit: int, *, dropped: bool = False
    ) -> list[Row]:
        """An entity's entries from revision ``first`` through ``last``, in order.

        With ``dropped`` also those that were abandoned, beside those that took their place.
        """

    async def histories(self, firsts: Mapping[str, int], limit: int) -> list[Row]:
        """Entries of entities, each from the revision given, by entity and in order; one page.

        Without those that were abandoned. An entity of which nothing is left has none.
        """

    async def links(self, entity: str, first: int, last: int) -> list[tuple[Link, str]]:
        """Links and states of an entity's entries, every one checked; without their bodies.

        Raises Invalid for an entry that is damaged.
        """

    async def forks(self, entity: str) -> bool:
        """Whether two of an entity's entries stand at one revision."""

    async def newest(self, entity: str) -> Row | None:
        """An entity's entry with the highest revision."""

    async def heads(self, after: str, limit: int) -> HeadPage:
        """Heads of managed and embedded entities whose name is above ``after``, in order."""

    async def chain(self, entity: str) -> EntityChain | None:
        """A caller-owned entity's chain."""

    async def chains(self, kind: str | None, after: str, limit: int) -> list[EntityChain]:
        """Caller-owned chains whose entity is above ``after``, in order; of one type or all."""

    async def flaws(self, entity: str | None, after: FlawKey, limit: int) -> list[FlawRow]:
        """Reasons for incompleteness after a key, in the order of their keys."""

    async def count_flaws(self) -> int:
        """How many reasons for incompleteness there are."""

    async def flawed(self) -> dict[str, int]:
        """The entities whose history is incomplete, with their durable boundaries."""

    async def rivals(self, entity: str) -> list[Rival]:
        """Entries that contradict stored ones of this entity."""

    async def feed(self, after: int, limit: int) -> list[Row]:
        """Entries of every order above a position."""

    async def at(self, position: int) -> Row | None:
        """The entry at a position."""

    async def place_in(self, stream: str, history: str, sequence: int) -> str | None:
        """The digest at a place of a caller's own order."""

    async def stream(self, stream: str, after: int, limit: int) -> list[Row]:
        """Entries of one order above a sequence of it, in order."""

    async def last_in(self, stream: str) -> int:
        """The last sequence of a stream; 0 when it has none."""

    async def close(self) -> None:
        """Let go of the log."""
