"""The gate: whether something may be done on the strength of a revision."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from journal.lifecycle import Lifecycle

GO = "go"
HELD = "held"


class Standing(Struct, frozen=True):
    """What the journal knows of an entity: its newest revision and how far it is continuous.

    ``state`` is the one at the durable boundary; ``flaws`` are sentences, empty when complete.
    """

    entity: str
    revision: int
    durable_through: int
    state: str
    complete: bool
    flaws: tuple[str, ...] = ()


class Ruling(Struct, frozen=True):
    """`go`, or `held` with every reason."""

    entity: str
    revision: int
    gate: str
    state: str
    durable_through: int
    reasons: tuple[str, ...]


def rule(
    standing: Standing | None,
    entity: str,
    revision: int | None,
    lifecycle: Lifecycle,
    held: Sequence[str] = (),
) -> Ruling:
    """Whether ``revision`` (None: the newest) of the entity may have effects now.

    It may when the history is complete and durable through it, nothing later supersedes it, its
    state is not a withdrawn one, and nothing is ``held`` for what the tenant allows now.
    """
    reasons = [*held]
    if standing is None or standing.revision < 1:  # none at all, or all of it was abandoned
        reasons.append("unknown: the journal holds no decision of this entity")
        return Ruling(entity, revision or 0, HELD, "", 0, tuple(reasons))
    wanted = standing.revision if revision is None else revision
    if not standing.complete:
        reasons.extend(f"incomplete: {flaw}" for flaw in standing.flaws)
    if wanted > standing.durable_through:
        reasons.append(
            f"not durable: the history is continuous through revision {standing.durable_through}"
        )
    elif wanted < standing.durable_through:
        reasons.append(
            f"superseded: revision {standing.durable_through} is the newest, state {standing.state}"
        )
    if standing.state and not lifecycle.knows(standing.state):
        reasons.append(
            f"unknown: state {standing.state} is none that version {lifecycle.version} of the "
            "lifecycle leads to"
        )
    if standing.state in lifecycle.withdrawn and wanted <= standing.durable_through:
        reasons.append(f"{standing.state}: the entity is {standing.state}")
    gate = HELD if reasons else GO
    return Ruling(entity, wanted, gate, standing.state, standing.durable_through, tuple(reasons))
