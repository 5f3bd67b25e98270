"""Keeping a schema under another name, so that a new one can take its place."""

from __future__ import annotations

import psycopg
from psycopg import sql

from journal.errors import Unreachable
from journal.files import compact
from journal.postgres.faults import error_of
from journal.postgres.newest import towards
from journal.postgres.where import Where

_LONGEST = 63


def rename_schema(where: Where, now: str) -> str | None:
    """Rename a schema with everything in it; its new name. None: there is none.

    Nobody writes to it any more: writers find another table where they look. Raises Unreachable or
    EngineError, naming what the role lacks.
    """
    suffix = f"_replaced_{compact(now).lower()}"
    aside = where.schema[: _LONGEST - len(suffix)] + suffix
    try:
        with psycopg.connect(towards(where.connecting()), autocommit=True) as connection:
            found = connection.execute(
                "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = %s", (where.schema,)
            ).fetchone()
            if found is None:
                return None
            connection.execute(
                sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(
                    sql.Identifier(where.schema), sql.Identifier(aside)
                )
            )
    except psycopg.Error as error:
        if error.sqlstate is None:
            raise Unreachable(f"{where.label}: {' '.join(str(error).split())}") from None
        raise error_of(where.label, error.sqlstate, str(error), write=True) from None
    return aside
