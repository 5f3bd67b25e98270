"""Lifecycles: the declared states and actions of an entity type, and who owns its tables.

Pure: a lifecycle, a state and an action in, the next state out. A *declared* lifecycle allows the
transitions it lists; a *free* one takes any action and its state is the last action's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NoReturn

from msgspec import Struct

from journal.entry import MAX_ACTION, check_entity, check_name, check_type
from journal.errors import Invalid, SettingsInvalid, TransitionRefused

CONTROL = "control"


class Owner(StrEnum):
    """Where an entity type's tables live."""

    MANAGED = "managed"
    EMBEDDED = "embedded"
    CALLER = "caller"


class Kind(StrEnum):
    """Whether a lifecycle lists its transitions."""

    DECLARED = "declared"
    FREE = "free"


class Action(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """One action: the states it may start from, the one it leads to, what it must carry."""

    source: tuple[str, ...]
    to: str
    needs_version: bool = False


class Lifecycle(Struct, frozen=True, forbid_unknown_fields=True):
    """An entity type's rules. ``withdrawn`` names the states in which the gate holds everything."""

    kind: Kind = Kind.DECLARED
    owner: Owner = Owner.MANAGED
    version: str = "1"
    initial: str = "draft"
    actions: dict[str, Action] = {}
    withdrawn: tuple[str, ...] = ("cancelled", "revoked")
    projection: str | None = None


DOCUMENT = Lifecycle(
    version="1",
    initial="draft",
    actions={
        "submit": Action(("draft", "submitted", "revoked"), "submitted"),
        "approve": Action(("submitted", "revoked"), "approved"),
        "cancel": Action(("submitted", "approved", "revoked"), "cancelled"),
        "revoke": Action(("approved",), "revoked"),
        "release": Action(("approved",), "committed", needs_version=True),
        "release.confirmed": Action(("committed",), "released"),
    },
)
"""The lifecycle that is shipped: a document is submitted, approved, and released or taken back."""


def check_lifecycle(name: str, lifecycle: Lifecycle) -> None:
    """Refuse a declaration that contradicts itself. Raises SettingsInvalid."""
    try:
        check_type(name)
        check_name("version", lifecycle.version, MAX_ACTION)
        for label, action in lifecycle.actions.items():
            check_name("an action's name", label, MAX_ACTION)
            check_name(f"actions.{label}.to", action.to, MAX_ACTION)
    except Invalid as error:
        raise SettingsInvalid(f"[lifecycle.{name}]: {error.detail}") from None
    if name == CONTROL:
        raise SettingsInvalid("[lifecycle.control]: control is unrewind's own entity type")
    if lifecycle.kind is Kind.FREE and lifecycle.actions:
        raise SettingsInvalid(f"[lifecycle.{name}]: a free lifecycle lists no actions")
    if lifecycle.kind is Kind.DECLARED and not lifecycle.actions:
        raise SettingsInvalid(
            f'[lifecycle.{name}]: declare [lifecycle.{name}.actions.…] or set kind = "free"'
        )
    if (lifecycle.owner is Owner.EMBEDDED) != (lifecycle.projection is not None):
        raise SettingsInvalid(
            f'[lifecycle.{name}]: projection = "module:name" and owner = "embedded" go together'
        )
    reachable = {lifecycle.initial} | {action.to for action in lifecycle.actions.values()}
    for label, action in lifecycle.actions.items():
        unknown = [state for state in action.source if state not in reachable]
        if unknown or not action.source:
            named = ", ".join(unknown) or "no state at all"
            raise SettingsInvalid(
                f"[lifecycle.{name}.actions.{label}]: starts from {named}, which nothing leads to"
            )


def lifecycle_of(lifecycles: Mapping[str, Lifecycle], entity: str) -> Lifecycle:
    """The lifecycle of an entity's type. Raises Invalid with the lines that would declare it."""
    found = lifecycles.get(entity.partition("/")[0]) if "/" in entity else None
    return found if found is not None else _undeclared(entity)


def _undeclared(entity: str) -> NoReturn:
    kind = check_entity(entity)
    if kind == CONTROL:
        raise Invalid("control entities are written by unrewind alone", field="entity")
    raise Invalid(
        f"entity type {kind} is not declared. Add to unrewind.toml:\n"
        f'[lifecycle.{kind}]\nkind = "free"\n'
        f"or list its transitions in [lifecycle.{kind}.actions.…]",
        field="entity",
        entity_type=kind,
    )


def step(lifecycle: Lifecycle, state: str | None, action: str, version: str | None) -> str:
    """The state after ``action`` from ``state`` (None: the entity has no decision yet).

    Raises TransitionRefused naming what would be allowed, or Invalid when the action needs the
    version of the content that it decides on.
    """
    if lifecycle.kind is Kind.FREE:
        return action
    current = lifecycle.initial if state is None else state
    rule = lifecycle.actions.get(action)
    if rule is None or current not in rule.source:
        allowed = sorted(name for name, rule in lifecycle.actions.items() if current in rule.source)
        raise TransitionRefused(
            f"{action} is not allowed in state {current}; "
            f"allowed: {', '.join(allowed) or 'nothing'}",
            state=current,
            action=action,
            allowed=allowed,
        )
    if rule.needs_version and version is None:
        raise Invalid(f"{action} needs the version of the content it decides on", field="version")
    return rule.to
