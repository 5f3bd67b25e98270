"""Decrees: the control entries that unrewind writes. ``journal.control`` reads them.

Each builder takes the control in force and gives the entry that follows it, sealed.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec

from journal.control import (
    ABANDONED,
    HOLD,
    LANE,
    RELEASED,
    TENANT,
    TOKEN,
    Abandoned,
    Authority,
    Control,
    Running,
    Stage,
    Token,
    hold_name,
)
from journal.entry import JSON_TYPE, Entry, Envelope, Outcome, Predecessor, body_of, seal
from journal.formats import FORMAT, FORMAT_ENTITY
from journal.history import Head

_LIFECYCLE_VERSION = "1"


def founding(
    tenant: str, instance: str, journal: str, history: str, operation: str, now: str
) -> Entry:
    """The first entry of a journal: generation 1, an open tenant."""
    facts = {
        "instance": instance,
        "journal": journal,
        "needs": FORMAT,
        "reason": "first start",
    }
    return _control_entry(
        tenant, TENANT, "found", Head(), 1, history, 1, str(Stage.OPEN), facts, operation, now, None
    )


def change(
    control: Control,
    action: str,
    authority: Authority,
    facts: dict[str, Any],
    operation: str,
    now: str,
    principal: str | None = None,
) -> Entry:
    """The control entry that puts ``authority`` in force."""
    return _control_entry(
        control.tenant,
        TENANT,
        action,
        control.heads[TENANT],
        control.sequence + 1,
        authority.history,
        authority.generation,
        str(authority.stage),
        facts,
        operation,
        now,
        principal,
    )


def token_entry(
    control: Control,
    action: str,
    token: Token,
    operation: str,
    now: str,
    principal: str | None = None,
) -> Entry:
    """The control entry that creates (`create`) or revokes (`revoke`) a token."""
    entity = TOKEN + token.id
    state = "revoked" if action == "revoke" else str(token.role)
    facts = {"role": str(token.role), "sha256": token.sha256, "name": token.name}
    return _control_entry(
        control.tenant,
        entity,
        action,
        control.heads.get(entity, Head()),
        control.sequence + 1,
        control.authority.history,
        control.authority.generation,
        state,
        facts,
        operation,
        now,
        principal,
    )


def format_entry(
    control: Control,
    needs: int,
    reason: str,
    operation: str,
    now: str,
    principal: str | None = None,
) -> Entry:
    """The control entry that keeps code of earlier formats than ``needs`` from the tenant."""
    return _control_entry(
        control.tenant,
        FORMAT_ENTITY,
        "migrate",
        control.heads.get(FORMAT_ENTITY, Head()),
        control.sequence + 1,
        control.authority.history,
        control.authority.generation,
        str(needs),
        {"needs": needs, "reason": reason},
        operation,
        now,
        principal,
    )


def hold_entry(
    control: Control,
    kind: str,
    action: str | None,
    reason: str,
    operation: str,
    now: str,
    principal: str | None = None,
    *,
    held: bool = True,
) -> Entry:
    """The control entry that stops an entity type or one of its actions alone, or lets it go on."""
    entity = HOLD + _short(hold_name(kind, action))
    return _control_entry(
        control.tenant,
        entity,
        "hold" if held else "release",
        control.heads.get(entity, Head()),
        control.sequence + 1,
        control.authority.history,
        control.authority.generation,
        "held" if held else RELEASED,
        {"type": kind, "action": action, "reason": reason},
        operation,
        now,
        principal,
    )


def abandon_entry(
    control: Control, abandoned: Abandoned, operation: str, now: str, principal: str | None = None
) -> Entry:
    """The control entry under which an entity goes on from its last continuous revision."""
    entity = ABANDONED + _short(abandoned.entity)
    facts = msgspec.to_builtins(abandoned)
    facts = {name: facts[name] for name in facts if name not in {"since", "principal", "ended"}}
    return _control_entry(
        control.tenant,
        entity,
        "abandon",
        control.heads.get(entity, Head()),
        control.sequence + 1,
        control.authority.history,
        control.authority.generation,
        "abandoned",
        facts,
        operation,
        now,
        principal,
    )


def _short(name: str) -> str:
    """A name of any characters as part of an entity's ID."""
    return sha256(name.encode()).hexdigest()[:32]


def lane_entry(
    control: Control,
    lane: str,
    running: Running,
    reason: str,
    operation: str,
    now: str,
    principal: str | None = None,
) -> Entry:
    """The control entry that pauses a lane, resumes it or switches it off."""
    return _control_entry(
        control.tenant,
        LANE + lane,
        str(running),
        control.heads.get(LANE + lane, Head()),
        control.sequence + 1,
        control.authority.history,
        control.authority.generation,
        str(running),
        {"reason": reason},
        operation,
        now,
        principal,
    )


def _control_entry(
    tenant: str,
    entity: str,
    action: str,
    head: Head,
    sequence: int,
    history: str,
    generation: int,
    state: str,
    facts: dict[str, Any],
    operation: str,
    now: str,
    principal: str | None,
) -> Entry:
    body = msgspec.json.encode(facts)
    envelope = Envelope(
        action=action,
        actor="unrewind",
        at=now,
        body=body_of(body, JSON_TYPE),
        entity=entity,
        generation=generation,
        history=history,
        lifecycle=_LIFECYCLE_VERSION,
        operation=operation,
        outcome=Outcome(None, state),
        predecessor=(
            Predecessor(head.digest, head.history, head.revision) if head.revision else None
        ),
        principal=principal,
        recorded=now,
        releases=(),
        revision=head.revision + 1,
        sequence=sequence,
        tenant=tenant,
        v=1,
        version=None,
    )
    return seal(envelope, body)
