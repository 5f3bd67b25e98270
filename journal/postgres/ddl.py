"""The SQL that makes a schema: for ourselves, and for administrators who keep ownership apart."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.resources import files

_NAME = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNIQUE )?(?:TABLE|INDEX|FUNCTION|TRIGGER) (?:IF NOT EXISTS )?"
    r'(?:"[^"]*"\.)?(\w+)'
)
_TABLE = re.compile(r'CREATE TABLE IF NOT EXISTS "[^"]*"\.(\w+)')
EVIDENCE = ("entries", "rivals")
"""Tables whose rows are only ever added."""


def filled(tables: str, schema: str, landmark: str) -> str:
    """The DDL of a schema (quoted): its functions, then its tables."""
    functions = files("journal.postgres").joinpath("functions.sql").read_text(encoding="utf-8")
    whole = f"{functions}\n{tables}"
    return whole.replace("{landmark}", f"{schema}.{landmark}").replace("{schema}", schema)


@lru_cache(maxsize=16)
def names_in(ddl: str) -> frozenset[str]:
    """The names of everything that a schema's DDL makes."""
    return frozenset(_NAME.findall(ddl))


def tables_in(ddl: str) -> list[str]:
    """The names of its tables, in order."""
    return _TABLE.findall(ddl)


def granted(ddl: str, schema: str, owner: str, writer: str) -> str:
    """The same for an administrator to run: ``owner`` owns everything, ``writer`` is unrewind's.

    The writer may read and add evidence, and never change it or take its triggers away.
    """
    may, who = _quoted(writer), _quoted(owner)
    lines = [
        "-- Run as a role that may create schemas here and is a member of the owner's.",
        "BEGIN;",
        f"SET LOCAL ROLE {who};",
        ddl.strip(),
        f"GRANT USAGE ON SCHEMA {schema} TO {may};",
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {may};",
    ]
    for table in tables_in(ddl):
        rights = "SELECT, INSERT" if table in EVIDENCE else "SELECT, INSERT, UPDATE, DELETE"
        lines.append(f"GRANT {rights} ON {schema}.{table} TO {may};")
    return "\n".join([*lines, "COMMIT;", ""])


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
