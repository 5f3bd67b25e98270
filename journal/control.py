"""Control: stage, generation, histories and tokens, as entries of the journal.

Control entries are decisions of the entity type `control`, written by unrewind alone, in an order
of their own. ``fold`` reads the whole order into one state; anything missing or unreadable in it
means *closed* (P9). ``Authority`` is the part that every append is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from journal.acceptance import Place
from journal.entry import GENESIS, MAX_INTEGER, Entry, Envelope
from journal.errors import UnrewindError
from journal.formats import FIRST, FORMAT_ENTITY, check_needs
from journal.history import Head, follows, link_of

TENANT = "control/tenant"
TOKEN = "control/token-"  # noqa: S105 - a prefix of entity names
LANE = "control/lane-"
HOLD = "control/hold-"
ABANDONED = "control/abandoned-"
HEAL = "heal"
REBASE = "rebase"
RECONCILED = "reconciled"
RELEASED = "released"
MOVE = "move"
ARRIVE = "arrive"


class ControlUnreadable(UnrewindError):
    """The journal's control entries are missing, damaged or have a gap: the tenant is closed."""


class TenantMoved(ControlUnreadable):
    """The tenant moved: this is where it was, kept and closed for good."""


class Stage(StrEnum):
    """What is allowed; each stage allows what the ones before it do."""

    CLOSED = "closed"
    READING = "reading"
    INTERNAL = "internal"
    EXTERNAL = "external"
    OPEN = "open"

    @property
    def reads(self) -> bool:
        """Whether entities may be read."""
        return self is not Stage.CLOSED

    @property
    def decides(self) -> bool:
        """Whether decisions are taken."""
        return self in {Stage.INTERNAL, Stage.EXTERNAL, Stage.OPEN}

    @property
    def effects(self) -> bool:
        """Whether effects outside may happen."""
        return self in {Stage.EXTERNAL, Stage.OPEN}


class Role(StrEnum):
    """What a token may do; operator ⊃ writer ⊃ reader. A receiver may call back, and no more."""

    RECEIVER = "receiver"
    READER = "reader"
    WRITER = "writer"
    OPERATOR = "operator"

    def covers(self, needed: Role) -> bool:
        """Whether this role includes ``needed``."""
        if Role.RECEIVER in {self, needed}:
            return self is needed
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Running(StrEnum):
    """Whether a lane gives out its work. *off* is for best-effort lanes: it discards."""

    ON = "on"
    PAUSED = "paused"
    OFF = "off"


class LaneState(Struct, frozen=True):
    """What an operator said about a lane last."""

    running: Running
    reason: str
    since: str


class Hold(Struct, frozen=True):
    """A stop of one entity type, or of one of its actions, alone (``action`` None: of the type)."""

    kind: str
    action: str | None
    reason: str
    since: str
    principal: str | None = None


class Opening(Struct, frozen=True):
    """What the stage *external* lets out: releases of these lanes, or these alone, at a rate.

    ``rate`` is releases a second over all lanes; 0 is no limit beyond the lanes' own.
    """

    lanes: tuple[str, ...] = ()
    releases: tuple[str, ...] = ()
    rate: float = 0.0


class Missing(Struct, frozen=True):
    """Revisions that nobody has: how many, and the places in the journal that are empty for it.

    ``positions`` and ``sequences`` say between which two numbers of an order how many are; None:
    none is.
    """

    count: int
    positions: tuple[int, int, int] | None = None
    sequences: tuple[int, int, int] | None = None


class Abandoned(Struct, frozen=True):
    """A history that an operator cut off: the entity goes on from revision ``through``.

    Entries of the entity above ``through`` that belong to a history in ``ended`` are dropped:
    evidence, and no decisions any more; so are the rivals in ``rivals``, by digest. ``position`` is
    where the journal stood. ``digest`` and ``history`` are those of the revision that it goes on
    from (None at 0); ``dropped`` names the operations that were acknowledged or may have been.
    ``unreadable`` are stored digests of dropped entries that were damaged then, ``missing`` the
    revisions that nobody has. ``doubtful`` are releases that may have been committed in what was
    dropped, ``withdrawn`` those that were surely not, and were taken back in it.
    """

    entity: str
    through: int
    digest: str | None
    history: str | None
    position: int
    dropped: tuple[str, ...]
    reason: str
    evidence: str
    since: str
    principal: str | None = None
    ended: tuple[str, ...] = ()
    rivals: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    doubtful: tuple[str, ...] = ()
    withdrawn: tuple[str, ...] = ()


class Authority(Struct, frozen=True):
    """History, generation and stage in force.

    ``first`` is the first sequence of the history, ``digest`` the digest that its first decision
    follows (``GENESIS`` at the founding).
    """

    history: str
    generation: int
    stage: Stage
    first: int
    digest: str


class Doubt(Struct, frozen=True):
    """A loss of the journal that was accepted: attempts that it held may be unknown by now.

    Of every release that was permitted at ``sequence`` or before. ``generation`` is the one that
    the loss began; what is found out in it, or later, is found out after the loss.
    """

    sequence: int
    generation: int
    since: str


class HistoryRecord(Struct, frozen=True):
    """One history: its parent (None for the first), where it began and since when."""

    history: str
    parent: str | None
    generation: int
    first: int
    digest: str
    started: str


class Token(Struct, frozen=True):
    """A bearer token's record: the SHA-256 of its secret, never the secret."""

    id: str
    role: Role
    sha256: str
    name: str
    created: str
    revoked: bool = False


class Control(Struct, frozen=True):
    """The state that the control entries fold into.

    ``needs`` is the oldest format whose code may work on the tenant. ``holds`` are by `type` or
    `type/action`. ``opening`` is set in the stage *external* alone. ``rebased`` is the control
    sequence of the entry that last gave the journal a new beginning for the witness (0: none),
    ``replaced`` the digest of the witness that it put an end to, ``highest`` the highest sequence
    that anybody knew of then, ``renewed`` the generation that it put in force, ``reconciled`` the
    generation whose releases were reconciled last, ``doubted`` the last loss that was accepted: it
    is never over, releases are answered for one by one. ``moved`` says where the tenant went (None:
    it is here), ``arrived`` the generation that it came here in (0: it was always here).
    """

    tenant: str
    instance: str
    journal: str
    authority: Authority
    histories: tuple[HistoryRecord, ...]
    tokens: dict[str, Token]
    heads: dict[str, Head]
    sequence: int
    last: str
    reason: str
    verdict: str | None
    since: str
    lanes: dict[str, LaneState] = {}
    holds: dict[str, Hold] = {}
    opening: Opening | None = None
    abandoned: dict[str, tuple[Abandoned, ...]] = {}
    rebased: int = 0
    replaced: str | None = None
    highest: int = 0
    renewed: int = 0
    needs: int = FIRST
    reconciled: int | None = None
    doubted: Doubt | None = None
    moved: str | None = None
    arrived: int = 0

    @property
    def begun(self) -> int | None:
        """The generation of a recovery that has begun and not yet started its history."""
        generation = self.authority.generation
        started = max(self.histories[-1].generation, self.arrived)
        return generation if generation > started else None


def tip_of(authority: Authority, last: Place | None) -> Place:
    """Where the next decision goes: after the last one, or at the start of a new history."""
    if last is None or last.history != authority.history:
        return Place(authority.history, authority.generation, authority.first - 1, authority.digest)
    return Place(last.history, authority.generation, last.sequence, last.digest)


def fold(entries: Sequence[Entry], tenant: str, *, moved: bool = False) -> Control:
    """Read the control order into its state.

    Raises ControlUnreadable or NewerFormat, and TenantMoved where the tenant went to another place:
    nothing is read or written here any more. With ``moved`` that is no error: it is being moved.
    """
    if not entries:
        raise ControlUnreadable("the journal has no control entries")
    control: Control | None = None
    for number, entry in enumerate(entries, 1):
        envelope = entry.envelope
        if envelope.sequence != number:
            raise ControlUnreadable(f"control entry {number} is missing")
        if envelope.tenant != tenant:
            raise ControlUnreadable(f"the journal is tenant {envelope.tenant}'s, not {tenant}'s")
        try:
            facts = msgspec.json.decode(entry.body)
            control = _begin(entry, facts) if control is None else _apply(control, entry, facts)
        except (msgspec.MsgspecError, RecursionError, KeyError, TypeError, ValueError) as error:
            raise ControlUnreadable(f"control entry {number}: {error}") from None
        check_needs(control.needs)
    if control is None:
        raise ControlUnreadable
    if control.moved is not None and not moved:
        raise TenantMoved(
            f"the tenant moved to {control.moved} at {control.since}; what is here is kept, and "
            "closed: open it there",
            moved=True,
        )
    return control


def _begin(entry: Entry, facts: dict[str, Any]) -> Control:
    envelope = entry.envelope
    if envelope.entity != TENANT or envelope.action != "found" or envelope.revision != 1:
        raise ValueError("the first control entry does not found the tenant")
    authority = Authority(
        envelope.history, envelope.generation, Stage(envelope.outcome.state), 1, GENESIS
    )
    record = HistoryRecord(
        envelope.history, None, envelope.generation, 1, GENESIS, envelope.recorded
    )
    return Control(
        tenant=envelope.tenant,
        instance=facts["instance"],
        journal=facts["journal"],
        authority=authority,
        histories=(record,),
        tokens={},
        heads={TENANT: _head(entry)},
        sequence=1,
        last="found",
        reason=facts.get("reason", ""),
        verdict=None,
        since=envelope.recorded,
        needs=int(facts.get("needs", FIRST)),
    )


def _apply(control: Control, entry: Entry, facts: dict[str, Any]) -> Control:
    envelope = entry.envelope
    flaw = follows(control.heads.get(envelope.entity, Head()), link_of(envelope, entry.digest))
    if flaw is not None:
        raise ValueError(f"{envelope.entity} revision {envelope.revision}: {flaw}")
    control = msgspec.structs.replace(
        control,
        heads={**control.heads, envelope.entity: _head(entry)},
        sequence=envelope.sequence,
    )
    if envelope.entity.startswith(TOKEN):
        return _apply_token(control, envelope, facts)
    if envelope.entity.startswith(LANE):
        state = LaneState(
            Running(envelope.outcome.state), str(facts.get("reason", "")), envelope.recorded
        )
        name = envelope.entity.removeprefix(LANE)
        return msgspec.structs.replace(control, lanes={**control.lanes, name: state})
    if envelope.entity == FORMAT_ENTITY:
        return msgspec.structs.replace(control, needs=max(control.needs, int(facts["needs"])))
    if envelope.entity.startswith(HOLD):
        return _apply_hold(control, envelope, facts)
    if envelope.entity.startswith(ABANDONED):
        return _apply_abandoned(control, envelope, facts)
    if envelope.entity != TENANT:
        return control
    return _apply_tenant(control, envelope, facts)


def _apply_hold(control: Control, envelope: Envelope, facts: dict[str, Any]) -> Control:
    hold = Hold(
        str(facts["type"]),
        facts["action"],
        str(facts["reason"]),
        envelope.recorded,
        envelope.principal,
    )
    name = hold_name(hold.kind, hold.action)
    holds = {key: value for key, value in control.holds.items() if key != name}
    if envelope.outcome.state != RELEASED:
        holds[name] = hold
    return msgspec.structs.replace(control, holds=holds)


def hold_name(kind: str, action: str | None) -> str:
    """`type`, or `type/action`: what a hold is known by."""
    return kind if action is None else f"{kind}/{action}"


def _apply_abandoned(control: Control, envelope: Envelope, facts: dict[str, Any]) -> Control:
    ended = [record.history for record in control.histories[:-1]]
    facts = {**facts, "since": envelope.recorded, "principal": envelope.principal, "ended": ended}
    done = msgspec.convert(facts, Abandoned)
    before = control.abandoned.get(done.entity, ())
    return msgspec.structs.replace(
        control, abandoned={**control.abandoned, done.entity: (*before, done)}
    )


def _apply_token(control: Control, envelope: Envelope, facts: dict[str, Any]) -> Control:
    identity = envelope.entity.removeprefix(TOKEN)
    if envelope.action == "revoke":
        token = msgspec.structs.replace(control.tokens[identity], revoked=True)
    else:
        token = Token(
            identity, Role(facts["role"]), facts["sha256"], facts["name"], envelope.recorded
        )
    return msgspec.structs.replace(control, tokens={**control.tokens, identity: token})


def _apply_tenant(control: Control, envelope: Envelope, facts: dict[str, Any]) -> Control:
    before = control.authority
    if envelope.generation < before.generation:
        raise ValueError(f"generation fell from {before.generation} to {envelope.generation}")
    histories = control.histories
    first, digest = before.first, before.digest
    if envelope.history != before.history:
        first, digest = int(facts["first"]), str(facts["digest"])
        record = HistoryRecord(
            envelope.history,
            before.history,
            envelope.generation,
            first,
            digest,
            envelope.recorded,
        )
        histories = (*histories, record)
    authority = Authority(
        envelope.history, envelope.generation, Stage(envelope.outcome.state), first, digest
    )
    opening = facts.get("opening", control.opening)
    return msgspec.structs.replace(
        control,
        authority=authority,
        histories=histories,
        opening=(
            None
            if opening is None or authority.stage is not Stage.EXTERNAL
            else msgspec.convert(opening, Opening, from_attributes=True)
        ),
        rebased=envelope.sequence if envelope.action == REBASE else control.rebased,
        replaced=(
            (facts.get("witness") or {}).get("digest")
            if envelope.action == REBASE
            else control.replaced
        ),
        highest=int(facts.get("highest", 0)) if envelope.action == REBASE else control.highest,
        renewed=envelope.generation if envelope.action == REBASE else control.renewed,
        reconciled=(
            envelope.generation
            if envelope.action == RECONCILED
            or (envelope.action == ARRIVE and facts.get("reconciled"))
            else control.reconciled
        ),
        moved=str(facts["to"]) if envelope.action == MOVE else None,
        arrived=envelope.generation if envelope.action == ARRIVE else control.arrived,
        doubted=_doubt_of(envelope, facts) or control.doubted,
        last=envelope.action,
        reason=str(facts.get("reason", "")),
        verdict=facts.get("verdict"),
        since=envelope.recorded,
    )


def _doubt_of(envelope: Envelope, facts: dict[str, Any]) -> Doubt | None:
    loss = facts.get("loss")
    if envelope.action != REBASE or not loss or not loss.get("known", True):
        return None
    return Doubt(int(facts.get("highest", MAX_INTEGER)), envelope.generation, envelope.recorded)


def _head(entry: Entry) -> Head:
    return Head(entry.envelope.revision, entry.envelope.history, entry.digest)
