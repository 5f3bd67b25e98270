"""The record: entries, histories, acceptance, and the ports that carry them.

An application in the same process uses it like this::

    settings = journal.load_settings("unrewind.toml")
    async with journal.open(settings) as tenant:
        receipt = await tenant.accept(journal.Operation("op-1", "document/7", "submit"))
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from journal import inside
    from journal.acceptance import Acceptance, Operation
    from journal.inside import confirmed, decide_in
    from journal.projection import Decided, Projection
    from journal.service import Journal
    from journal.service import open_journal as open  # noqa: A004 - `journal.open` is how it reads
    from journal.settings import Settings
    from journal.settings import load as load_settings
    from journal.sql import Statement

# Imported when they are first asked for: a command that only looks needs no event loop.
_PLACES = {
    "Acceptance": ("acceptance", "Acceptance"),
    "Decided": ("projection", "Decided"),
    "Journal": ("service", "Journal"),
    "Operation": ("acceptance", "Operation"),
    "Projection": ("projection", "Projection"),
    "Settings": ("settings", "Settings"),
    "Statement": ("sql", "Statement"),
    "confirmed": ("inside", "confirmed"),
    "decide_in": ("inside", "decide_in"),
    "load_settings": ("settings", "load"),
    "open": ("service", "open_journal"),
}

__all__ = [
    "Acceptance",
    "Decided",
    "Journal",
    "Operation",
    "Projection",
    "Settings",
    "Statement",
    "confirmed",
    "decide_in",
    "inside",
    "load_settings",
    "open",
]


def __getattr__(name: str) -> object:
    if name == "inside":
        return import_module("journal.inside")
    if name not in _PLACES:
        raise AttributeError(f"module 'journal' has no attribute {name!r}")
    module, wanted = _PLACES[name]
    found: object = getattr(import_module(f"journal.{module}"), wanted)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
