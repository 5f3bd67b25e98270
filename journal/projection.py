"""Projections: the application's own tables, kept in step with the decisions.

For an *embedded* entity type the application's tables stand in the store. Its projection runs in
the batch that accepts a decision and again when a decision is replayed, so the application's rows
and the decision commit, rewind and return together.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from journal.acceptance import Decision
from journal.errors import ConstraintFailed, SettingsInvalid, TransitionRefused
from journal.lifecycle import Lifecycle
from journal.sql import Projected, Statement

LOGGER = logging.getLogger("unrewind")
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "WITH")


class Decided(Struct, frozen=True):
    """A decision as a projection sees it. ``data`` is the entity's data after it."""

    entity: str
    revision: int
    action: str
    state: str
    operation: str
    version: str | None
    actor: str | None
    at: str
    digest: str
    data: dict[str, Any]
    body: bytes


class Projection(Protocol):
    """Two pure functions from a decision to statements, and the tables that these write.

    MUST touch only rows of its entity, MUST depend on nothing but its argument: a replay runs it
    again, years later, and must get the same rows. No foreign key may lead from one entity's rows
    to another's, for each entity is rebuilt by itself.
    """

    @property
    def tables(self) -> Sequence[str]:
        """DDL that can be repeated (`CREATE TABLE IF NOT EXISTS …`), one statement each."""

    def apply(self, decision: Decided) -> Sequence[Statement]:
        """The INSERT, UPDATE and DELETE statements that a decision adds to its batch.

        What this raises, or a constraint of its tables, refuses the decision and no other.
        """

    def clear(self, entity: str) -> Sequence[Statement]:
        """The statements that remove the entity's rows, before it is rebuilt from its first."""


def decided(decision: Decision) -> Decided:
    """A decision as a projection sees it."""
    envelope = decision.entry.envelope
    return Decided(
        entity=envelope.entity,
        revision=envelope.revision,
        action=envelope.action,
        state=envelope.outcome.state,
        operation=envelope.operation,
        version=envelope.version,
        actor=envelope.actor,
        at=envelope.at,
        digest=decision.entry.digest,
        data=msgspec.json.decode(decision.data),
        body=decision.entry.body,
    )


def statements_of(projection: Projection, decision: Decision) -> list[Projected]:
    """What a decision adds to its batch. Raises ConstraintFailed, whatever `apply` raised."""
    try:
        return [_written(found) for found in projection.apply(decided(decision))]
    except (Exception, SystemExit) as error:
        name = type(projection).__name__
        raise ConstraintFailed(
            f"{name}.apply: {type(error).__name__}: {error}", projection=True
        ) from error


def clearing(projection: Projection, entity: str) -> list[Projected]:
    """What removes an entity's rows. Raises ConstraintFailed, whatever `clear` raised."""
    try:
        return [_written(found) for found in projection.clear(entity)]
    except (Exception, SystemExit) as error:
        name = type(projection).__name__
        raise ConstraintFailed(
            f"{name}.clear: {type(error).__name__}: {error}", projection=True
        ) from error


def _written(found: object) -> Projected:
    if not isinstance(found, Statement):
        raise TypeError(f"it gave a {type(found).__name__}, not a journal.Statement")
    if not found.sql.lstrip().upper().startswith(_WRITES):
        raise ValueError(f"a batch takes {', '.join(_WRITES)} alone, not: {found.sql}")
    return Projected(found.sql, found.parameters)


def refusal_of(entity: str, error: ConstraintFailed) -> TransitionRefused:
    """What the caller is told; a fault of the projection itself is logged too."""
    if error.members.get("projection"):
        LOGGER.error("%s: a projection failed: %s", entity, error, exc_info=error)
        return TransitionRefused(
            f"{entity}: the application's projection failed: {error}", entity=entity
        )
    return TransitionRefused(
        f"{entity}: the application's own constraint refused it: {error}",
        entity=entity,
        constraint=str(error),
    )


def load_projections(lifecycles: Mapping[str, Lifecycle]) -> dict[str, Projection]:
    """Import the projections that the lifecycles name as `module:name`. Raises SettingsInvalid."""
    return {
        kind: _load(
            f'[lifecycle.{kind}]: projection = "{lifecycle.projection}"', lifecycle.projection
        )
        for kind, lifecycle in lifecycles.items()
        if lifecycle.projection is not None
    }


def _load(setting: str, path: str) -> Projection:
    module, _, name = path.partition(":")
    if not module or not name:
        raise SettingsInvalid(f'{setting}: write it as "module:name"')
    try:
        thing: Any = getattr(importlib.import_module(module), name)
        projection: Projection = thing() if isinstance(thing, type) else thing
    except Exception as error:
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = "; install it, or name the folder that holds it in PYTHONPATH"
        raise SettingsInvalid(f"{setting}: {type(error).__name__}: {error}{advice}") from error
    missing = [part for part in ("tables", "apply", "clear") if not hasattr(projection, part)]
    if missing:
        raise SettingsInvalid(f"{setting}: it lacks {' and '.join(missing)}")
    if isinstance(projection.tables, str):
        raise SettingsInvalid(f"{setting}: its tables are one string; give a list of statements")
    return projection
