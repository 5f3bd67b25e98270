"""Decisions inside the application's own transaction.

The store is the application's database, with unrewind's tables beside its own::

    inside.use(journal.load_settings("unrewind.toml"))
    with connection:
        decision = inside.decide_in(connection, operation)
        connection.execute("UPDATE payouts SET state = ? WHERE id = ?", (decision.state, 7))
    inside.confirmed(decision)      # the journal holds it: now it may be acknowledged

docs/embedding.md has the rules. The functions here work on the tenant that ``use`` names, or on
that of `unrewind.toml` and the environment; an application with several has an ``Inside`` for each.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, overload

from journal.acceptance import Acceptance, Operation
from journal.errors import NotCommitted, OutcomeUnknown
from journal.inside.confirming import Wanted
from journal.inside.deciding import Tentative
from journal.inside.shadow import Differed, Shadow
from journal.inside.tenant import Inside
from journal.settings import Settings, load

__all__ = [
    "Differed",
    "Inside",
    "NotCommitted",
    "OutcomeUnknown",
    "Shadow",
    "Tentative",
    "close",
    "confirmed",
    "confirmed_all",
    "confirmed_async",
    "decide_in",
    "use",
]

_lock = threading.Lock()
_default: Inside | None = None


def use(settings: Settings, *, shadow: bool = False) -> Inside:
    """Name the tenant that this process decides about; call it when the application starts."""
    global _default
    with _lock:
        before, _default = _default, Inside(settings, shadow=shadow)
        if before is not None:
            before.close()
        return _default


def default() -> Inside:
    """The tenant that ``use`` has named, else that of the settings found here."""
    if _default is None:
        return use(load())
    return _default


def close() -> None:
    """Let go of the tenant's files; the next call opens them again."""
    if _default is not None:
        _default.close()


@overload
def decide_in(connection: Any, operation: Operation, *, projected: bool = True) -> Tentative: ...


@overload
def decide_in(
    connection: Any, operation: Sequence[Operation], *, projected: bool = True
) -> list[Tentative]: ...


def decide_in(
    connection: Any, operation: Operation | Sequence[Operation], *, projected: bool = True
) -> Tentative | list[Tentative]:
    """See ``Inside.decide_in``."""
    return default().decide_in(connection, operation, projected=projected)


def confirmed(operation: Wanted, *, within: float = 10.0) -> Acceptance:
    """See ``Inside.confirmed``."""
    return default().confirmed(operation, within=within)


def confirmed_all(operations: Sequence[Wanted], *, within: float = 10.0) -> list[Acceptance]:
    """See ``Inside.confirmed_all``."""
    return default().confirmed_all(operations, within=within)


async def confirmed_async(operation: Wanted, *, within: float = 10.0) -> Acceptance:
    """See ``Inside.confirmed_async``."""
    return await default().confirmed_async(operation, within=within)
