"""The record: entries, histories, acceptance, and the ports that carry them.

An application in the same process uses it like this::

    settings = journal.load_settings("unrewind.toml")
    async with journal.open(settings) as tenant:
        receipt = await tenant.accept(journal.Operation("op-1", "document/7", "submit"))
"""

from journal.acceptance import Acceptance, Operation
from journal.projection import Decided, Projection
from journal.service import Journal
from journal.service import open_journal as open  # noqa: A004 - `journal.open` is how it reads
from journal.settings import Settings
from journal.settings import load as load_settings
from journal.sql import Statement

__all__ = [
    "Acceptance",
    "Decided",
    "Journal",
    "Operation",
    "Projection",
    "Settings",
    "Statement",
    "load_settings",
    "open",
]
