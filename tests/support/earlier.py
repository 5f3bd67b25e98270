"""Data of an earlier format, put where a tenant's files are."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from journal import Settings

DATA = Path(__file__).resolve().parents[1] / "data"

OLD_FENCE = """
INSERT INTO unrewind_marker
  (one, format, tenant, instance, history, generation, sequence, digest, journalled)
VALUES (1, (SELECT format FROM unrewind_marker WHERE history = ? AND generation = ?
  AND sequence = ? AND digest = ? AND instance = ?), ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (one) DO UPDATE SET history = excluded.history, generation = excluded.generation,
  sequence = excluded.sequence, digest = excluded.digest, journalled = excluded.journalled
"""
"""The statement with which code of format 1 begins every batch."""


def load(settings: Settings, name: str = "format-1") -> None:
    """Make the tenant's files of the dumps under this name."""
    for path, dump in ((settings.store_file, "store"), (settings.journal_file, "journal")):
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(path)) as file:
            file.executescript((DATA / name / f"{dump}.sql").read_text(encoding="utf-8"))
            file.execute("PRAGMA journal_mode=WAL")


def write_as_format_1(path: Path) -> None:
    """Write to a store as code of format 1 does, leaving it as it is. Raises sqlite3's errors."""
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        read = "SELECT tenant, instance, history, generation, sequence, digest, journalled"
        found = file.execute(f"{read} FROM unrewind_marker").fetchone()
        tenant, instance, history, generation, sequence, digest, journalled = found
        place = (history, generation, sequence, digest)
        file.execute(OLD_FENCE, (*place, instance, tenant, instance, *place, journalled))
