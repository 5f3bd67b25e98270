"""The SQL that makes a schema: for ourselves, and for administrators who keep ownership apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files

from journal.errors import EngineError

_NAME = re.compile(
    r"CREATE (?:OR REPLACE )?(?:UNIQUE )?(?:TABLE|INDEX|FUNCTION|TRIGGER) (?:IF NOT EXISTS )?"
    r'(?:"[^"]*"\.)?(\w+)'
)
_TABLE = re.compile(r'CREATE TABLE IF NOT EXISTS "[^"]*"\.(\w+)')
_FUNCTION = re.compile(r'CREATE OR REPLACE FUNCTION "[^"]*"\.(\w+)\(.*?AS \$\$(.*?)\$\$', re.DOTALL)
REVISION = 1
"""Of the functions: whoever changes one raises it. An older version puts none of its own back."""
_REVISED = "\nCOMMENT ON FUNCTION {schema}.unrewind_guard(bigint, bigint, bigint) IS 'unrewind %d';"
FOUND = """
WITH here AS (SELECT to_regnamespace($1) AS oid)
SELECT relname, NULL, NULL FROM pg_catalog.pg_class, here WHERE relnamespace = here.oid
UNION ALL SELECT tgname, NULL, NULL FROM pg_catalog.pg_trigger
  JOIN pg_catalog.pg_class c ON c.oid = tgrelid, here WHERE relnamespace = here.oid
UNION ALL SELECT p.proname, p.prosrc, pg_catalog.obj_description(p.oid, 'pg_proc')
  FROM pg_catalog.pg_proc p, here WHERE pronamespace = here.oid
"""
"""What stands in a schema, for ``lacking``."""
EVIDENCE = ("entries", "rivals")
"""Tables whose rows are only ever added."""


def filled(tables: str, schema: str, landmark: str) -> str:
    """The DDL of a schema (quoted): its functions, then its tables."""
    functions = files("journal.postgres").joinpath("functions.sql").read_text(encoding="utf-8")
    whole = f"{functions}\n{tables}{_REVISED % REVISION}"
    return whole.replace("{landmark}", f"{schema}.{landmark}").replace("{schema}", schema)


@lru_cache(maxsize=16)
def names_in(ddl: str) -> frozenset[str]:
    """The names of everything that a schema's DDL makes."""
    return frozenset(_NAME.findall(ddl))


@lru_cache(maxsize=16)
def functions_in(ddl: str) -> frozenset[tuple[str, str]]:
    """The functions that a schema's DDL makes: their names and bodies."""
    return frozenset(_FUNCTION.findall(ddl))


def lacking(ddl: str, found: Iterable[tuple[str, str | None, str | None]]) -> list[str]:
    """What of the DDL a schema lacks, or has as an earlier version made it, by name.

    Raises EngineError for one that a later version made and that is not whole.
    """
    rows = [*found]
    missing = names_in(ddl) - {name for name, *_ in rows}
    known = [words for *_, words in rows if words is not None and words.startswith("unrewind ")]
    revision = max((int(words.split()[1]) for words in known), default=0)
    if revision > REVISION:
        if missing:
            raise EngineError(
                f"it lacks {', '.join(sorted(missing))} and was made by a later version of "
                "unrewind: start that one"
            )
        return []
    bodies = {(name, body) for name, body, _ in rows}
    return sorted(
        missing | {name for name, body in functions_in(ddl) if (name, body) not in bodies}
    )


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
