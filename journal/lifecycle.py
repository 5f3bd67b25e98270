"""Lifecycles: the declared states and actions of an entity type, and who owns its tables.

Pure: a lifecycle, a state and an action in, the next state out. A *declared* lifecycle allows the
transitions it lists; a *free* one takes any action and its state is the last action's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NoReturn

import msgspec
from msgspec import Struct

from journal.entry import MAX_ACTION, check_entity, check_name, check_type
from journal.errors import Invalid, SettingsInvalid, TransitionRefused

CONTROL = "control"
OBSERVATION = "observation"
RESERVED = (CONTROL, OBSERVATION)
"""Entity types that unrewind alone writes."""


class Owner(StrEnum):
    """Where an entity type's tables live."""

    MANAGED = "managed"
    EMBEDDED = "embedded"
    CALLER = "caller"


class Kind(StrEnum):
    """Whether a lifecycle lists its transitions."""

    DECLARED = "declared"
    FREE = "free"


class Mode(StrEnum):
    """When a command runs: in the request that decided, or afterwards."""

    SYNC = "sync"
    ASYNC = "async"


class Command(Struct, frozen=True, forbid_unknown_fields=True):
    """Internal work that an action asks for, at least once, in the order of the list."""

    name: str
    lane: str
    mode: Mode = Mode.ASYNC


class Action(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """One action: the states it may start from, the one it leads to, what it must carry.

    ``instead`` maps a starting state to another target. ``same_version`` demands the version that
    the decision before named. ``releases`` are the lanes in which it permits an effect; with
    ``corrects`` its body must name the release that they correct.
    """

    source: tuple[str, ...]
    to: str
    instead: dict[str, str] = {}
    needs_version: bool = False
    same_version: bool = False
    releases: tuple[str, ...] = ()
    corrects: bool = False
    commands: tuple[Command, ...] = ()

    def target(self, state: str) -> str:
        """The state that the action leads to from ``state``."""
        return self.instead.get(state, self.to)


class Lifecycle(Struct, frozen=True, forbid_unknown_fields=True):
    """An entity type's rules. ``withdrawn`` names the states in which the gate holds everything.

    ``earlier`` are states of earlier versions, to which nothing leads any more: an action may start
    from them, and until one has, nothing leaves on their strength.
    """

    kind: Kind = Kind.DECLARED
    owner: Owner = Owner.MANAGED
    version: str = "1"
    initial: str = "draft"
    actions: dict[str, Action] = {}
    withdrawn: tuple[str, ...] = ("cancelled", "revoked", "cancel-requested")
    projection: str | None = None
    earlier: tuple[str, ...] = ()

    def knows(self, state: str) -> bool:
        """Whether this version leads to a state. One that it does not know has no authority."""
        return (
            self.kind is Kind.FREE
            or state == self.initial
            or any(
                state == action.to or state in action.instead.values()
                for action in self.actions.values()
            )
        )

    @property
    def works(self) -> bool:
        """Whether any action permits a release or asks for a command."""
        return any(action.releases or action.commands for action in self.actions.values())


DOCUMENT = Lifecycle(
    version="2",
    initial="draft",
    actions={
        "submit": Action(("draft", "submitted", "revoked"), "submitted"),
        "approve": Action(("submitted", "revoked"), "approved"),
        "cancel": Action(
            ("submitted", "approved", "revoked", "committed"),
            "cancelled",
            instead={"committed": "cancel-requested"},
        ),
        "revoke": Action(("approved",), "revoked"),
        "release": Action(
            ("approved",),
            "approved",
            needs_version=True,
            same_version=True,
            releases=("delivery",),
        ),
        "recall": Action(
            ("released",), "recalled", needs_version=True, releases=("delivery",), corrects=True
        ),
        "release.committed": Action(("approved",), "committed"),
        "release.confirmed": Action(("committed", "cancel-requested"), "released"),
        "release.refused": Action(
            ("committed", "cancel-requested"),
            "approved",
            instead={"cancel-requested": "cancelled"},
        ),
        "release.cancelled": Action(
            ("committed", "cancel-requested"),
            "approved",
            instead={"cancel-requested": "cancelled"},
        ),
    },
)
"""The lifecycle that is shipped: a document is submitted, approved, and released or taken back."""

RELEASE_ACTIONS = "release."
"""Actions of this prefix say what became of a release. unrewind alone decides them."""

BASELINE = "baseline."
REBASELINE = "rebaseline."
"""Actions of these prefixes put an entity into the state that they name; an adoption alone decides
them. The first is an entity's first decision or none; the second follows others, where a
comparison has shown that the application's row went another way."""


def is_baseline(action: str) -> bool:
    """Whether a decision says how the application's row stood, not what was done."""
    return action.startswith((BASELINE, REBASELINE))


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
    if name in RESERVED:
        raise SettingsInvalid(f"[lifecycle.{name}]: {name} is unrewind's own entity type")
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
    _check_actions(name, lifecycle)


def _check_actions(name: str, lifecycle: Lifecycle) -> None:
    reachable = {lifecycle.initial}
    for action in lifecycle.actions.values():
        reachable |= {action.to, *action.instead.values()}
    current = [state for state in lifecycle.earlier if state in reachable]
    if current:
        raise SettingsInvalid(
            f"[lifecycle.{name}]: earlier names {', '.join(current)}, to which an action leads"
        )
    reachable |= {*lifecycle.earlier}
    for label, action in lifecycle.actions.items():
        unknown = [state for state in action.source if state not in reachable]
        if unknown or not action.source:
            named = ", ".join(unknown) or "no state at all"
            raise SettingsInvalid(
                f"[lifecycle.{name}.actions.{label}]: starts from {named}, which nothing leads to; "
                "a state of an earlier version goes into `earlier`"
            )
        astray = sorted(action.instead.keys() - set(action.source))
        if astray:
            raise SettingsInvalid(
                f"[lifecycle.{name}.actions.{label}]: instead names {', '.join(astray)}, from "
                "which the action does not start"
            )
        if is_baseline(label):
            raise SettingsInvalid(
                f"[lifecycle.{name}.actions.{label}]: a baseline is unrewind's own action"
            )
        if label.startswith(RELEASE_ACTIONS) and (action.releases or action.commands):
            raise SettingsInvalid(
                f"[lifecycle.{name}.actions.{label}]: what became of a release permits nothing"
            )
        if action.corrects and not action.releases:
            raise SettingsInvalid(
                f"[lifecycle.{name}.actions.{label}]: corrects goes with releases"
            )


def lifecycle_of(lifecycles: Mapping[str, Lifecycle], entity: str) -> Lifecycle:
    """The lifecycle of an entity's type. Raises Invalid with the lines that would declare it."""
    found = lifecycles.get(entity.partition("/")[0]) if "/" in entity else None
    return found if found is not None else _undeclared(entity)


def _undeclared(entity: str) -> NoReturn:
    kind = check_entity(entity)
    if kind in RESERVED:
        raise Invalid(f"{kind} entities are written by unrewind alone", field="entity")
    raise Invalid(
        f'entity type {kind} is not declared: in unrewind.toml, put the line `kind = "free"` under '
        f"`[lifecycle.{kind}]`, or list its transitions under `[lifecycle.{kind}.actions.…]`",
        field="entity",
        entity_type=kind,
    )


def step(
    lifecycle: Lifecycle, state: str | None, action: str, version: str | None, decided: str | None
) -> str:
    """The state after ``action`` from ``state`` (None: the entity has no decision yet).

    ``version`` is the one that the action names, ``decided`` the one that the decision before it
    named. Raises TransitionRefused naming what would be allowed, or that another version stands;
    Invalid when the action needs the version of the content that it decides on.
    """
    if is_baseline(action):
        return _state_taken(lifecycle, state, action)
    if lifecycle.kind is Kind.FREE:
        return action
    current = lifecycle.initial if state is None else state
    rule = lifecycle.actions.get(action)
    if rule is None or current not in rule.source:
        allowed = sorted(
            name
            for name, rule in lifecycle.actions.items()
            if current in rule.source and not name.startswith(RELEASE_ACTIONS)
        )
        raise TransitionRefused(
            f"{action} is not allowed in state {current}; "
            f"allowed: {', '.join(allowed) or 'nothing'}",
            state=current,
            action=action,
            allowed=allowed,
        )
    if (rule.needs_version or rule.releases) and version is None:
        raise Invalid(f"{action} needs the version of the content it decides on", field="version")
    if rule.same_version and version != decided:
        named = "no version" if decided is None else f"version {decided}"
        raise TransitionRefused(
            f"{action} names version {version}, and the decision before it names {named}: what was "
            "decided for one version holds for no other",
            state=current,
            action=action,
            version=version,
            decided=decided,
        )
    return rule.target(current)


def _state_taken(lifecycle: Lifecycle, state: str | None, action: str) -> str:
    """The state that a baseline names. Raises TransitionRefused."""
    prefix, _, taken = action.partition(".")
    if (state is None) != action.startswith(BASELINE):
        why = "has no decision yet" if state is None else f"is decided about: it is {state}"
        raise TransitionRefused(
            f"{prefix} is not allowed here: the entity {why}", state=state, action=action
        )
    if not taken or not lifecycle.knows(taken):
        raise TransitionRefused(
            f"no action of the lifecycle leads to the state {taken or 'without a name'}: name "
            "another in the query, or declare the action that leads there",
            state=state,
            action=action,
        )
    return taken


def check_content(
    lifecycle: Lifecycle,
    state: str,
    action: str,
    digests: Mapping[str, str],
    before_and_after: tuple[bytes, bytes],
) -> None:
    """Refuse other content under the version that may be released in ``state``.

    What was approved of a version is its content, and stands while the approval does. ``digests``
    names, by lane, the field of the data with the content's digest. Raises TransitionRefused.
    """
    releasing = [
        name
        for name, rule in lifecycle.actions.items()
        if rule.releases and rule.same_version and state in rule.source
    ]
    rule = lifecycle.actions.get(action)
    if not releasing or (rule is not None and rule.corrects):
        return
    then, now = (msgspec.json.decode(data) for data in before_and_after)
    lanes = {lane for name in releasing for lane in lifecycle.actions[name].releases}
    for field in sorted({digests[lane] for lane in lanes}):
        before, after = then.get(field), now.get(field)
        if before != after and (before is not None or action in releasing):
            raise TransitionRefused(
                f"{action} changes {field} of a version that may be released with "
                f"{before or 'none'}: other content is another version, and needs an approval of "
                "its own",
                state=state,
                action=action,
            )


def step_of_release(lifecycle: Lifecycle, state: str, action: str) -> str:
    """The state after something became of a release: never refused, mostly the state as it was.

    What happened in the world happened, whatever state the entity is in by now.
    """
    rule = lifecycle.actions.get(action)
    return rule.target(state) if rule is not None and state in rule.source else state
