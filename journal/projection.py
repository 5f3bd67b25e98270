"""Projections: the application's own tables, kept in step with the decisions.

For an *embedded* entity type the application's tables stand in the store. Its projection runs in the
batch that accepts a decision and again when a decision is replayed, so the application's rows and
the decision commit, rewind and return together.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from journal.acceptance import Decision
from journal.errors import SettingsInvalid
from journal.lifecycle import Lifecycle
from journal.sql import Statement


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


@runtime_checkable
class Projection(Protocol):
    """Two pure functions from a decision to statements, and the tables that these write.

    MUST touch only rows of its entity, MUST depend on nothing but its argument: a replay runs it
    again, years later, and must get the same rows.
    """

    tables: Sequence[str]
    """DDL that can be repeated (`CREATE TABLE IF NOT EXISTS …`)."""

    def apply(self, decision: Decided) -> Sequence[Statement]:
        """The statements that a decision adds to its batch."""

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


def load_projections(lifecycles: Mapping[str, Lifecycle]) -> dict[str, Projection]:
    """Import the projections that the lifecycles name as `module:name`. Raises SettingsInvalid."""
    found: dict[str, Projection] = {}
    for kind, lifecycle in lifecycles.items():
        if lifecycle.projection is None:
            continue
        module, _, name = lifecycle.projection.partition(":")
        try:
            thing = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise SettingsInvalid(
                f"[lifecycle.{kind}]: projection {lifecycle.projection}: {error}"
            ) from None
        projection = thing() if isinstance(thing, type) else thing
        if not isinstance(projection, Projection):
            raise SettingsInvalid(
                f"[lifecycle.{kind}]: {lifecycle.projection} lacks tables, apply or clear"
            )
        found[kind] = projection
    return found
