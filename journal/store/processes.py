"""SQL over the table of a tenant's processes, in a store that several machines share."""

from __future__ import annotations

from msgspec import Struct

from journal.sql import Result, Statement
from journal.store.work import NOW


class Process(Struct, frozen=True):
    """A process that has the tenant open to work on it, as it said last.

    ``declared`` is the fingerprint of its lanes and receivers and ``parts`` (JSON) a hash of each,
    ``seen`` and ``until`` are Unix times of the database: its last sign of life, and how long that
    counts. ``leads`` is 1 for the one that does the jobs of the schedule.
    """

    name: str
    kind: str
    declared: str
    parts: str
    joined: str
    seen: float
    until: float
    leads: int


_COLUMNS = ", ".join(Process.__struct_fields__)

READ = Statement(f"SELECT {_COLUMNS} FROM unrewind_processes ORDER BY joined, name")


def processes_of(rows: Result) -> list[Process]:
    """The processes from READ."""
    return [Process(*row) for row in rows]


def write(process: Process) -> Statement:
    """Put a process as it is, and since when."""
    return Statement(
        f"INSERT INTO unrewind_processes ({_COLUMNS}) VALUES (?, ?, ?, ?, {NOW}, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET seen = excluded.seen, until = excluded.until,"
        " leads = excluded.leads",
        (
            process.name,
            process.kind,
            process.declared,
            process.parts,
            process.seen,
            process.until,
            process.leads,
        ),
    )


def depose(name: str) -> Statement:
    """Nobody leads but this one."""
    return Statement(
        "UPDATE unrewind_processes SET leads = 0 WHERE name <> ? AND leads <> 0", (name,)
    )


def remove(name: str) -> Statement:
    """A process has ended."""
    return Statement("DELETE FROM unrewind_processes WHERE name = ?", (name,))


def forget(before: float) -> Statement:
    """Drop what has given no sign of life for long."""
    return Statement("DELETE FROM unrewind_processes WHERE until < ?", (before,))
