"""A schema's rows as text files, as of one moment; and putting them back.

A copy is a directory: a file in COPY's text format for each table, and `copy.json`, which says what
they hold. It is written last, so a copy without it is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
import psycopg
from msgspec import Struct
from psycopg import Connection, sql

from journal.errors import Damaged, Refused, Unreachable
from journal.postgres.database import PostgresDatabase
from journal.postgres.ddl import tables_in
from journal.postgres.faults import error_of
from journal.postgres.newest import towards
from journal.sqlite import sync_file

MANIFEST = "copy.json"
_BLOCK = 1 << 20


class Copied(Struct, frozen=True):
    """One table's file."""

    columns: tuple[str, ...]
    rows: int
    sha256: str


class Manifest(Struct, frozen=True):
    """What a copy holds, and of which schema."""

    schema: str
    tables: dict[str, Copied]


def copy_to(database: PostgresDatabase, target: Path) -> None:
    """Copy every table of ours as of one moment, durably. Raises Unreachable, Refused."""
    target.mkdir(parents=True, exist_ok=True)
    if any(target.iterdir()):
        raise Refused(f"{target} is not empty: give a new directory for the copy")
    schema = database.where.schema
    copied: dict[str, Copied] = {}
    with _connected(database) as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        for table in tables_in(database.ddl):
            columns = _columns(connection, schema, table)
            if columns:
                copied[table] = _copy(connection, schema, table, columns, target)
    manifest = target / MANIFEST
    manifest.write_bytes(
        msgspec.json.format(msgspec.json.encode(Manifest(schema, copied)), indent=1)
    )
    sync_file(manifest)


def _copy(
    connection: Connection, schema: str, table: str, columns: tuple[str, ...], target: Path
) -> Copied:
    query = sql.SQL("COPY (SELECT {} FROM {} ORDER BY 1, 2) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, columns)), sql.Identifier(schema, table)
    )
    if len(columns) == 1:
        query = sql.SQL("COPY (SELECT {} FROM {} ORDER BY 1) TO STDOUT").format(
            sql.Identifier(*columns), sql.Identifier(schema, table)
        )
    file = target / f"{table}.copy"
    digest = sha256()
    with file.open("wb") as out, connection.cursor() as cursor:
        with cursor.copy(query) as copy:
            for block in copy:
                out.write(block)
                digest.update(block)
        rows = cursor.rowcount
    sync_file(file)
    return Copied(columns, rows, digest.hexdigest())


def put_back(database: PostgresDatabase, source: Path) -> None:
    """Replace the rows of every table of ours by a copy's, in one transaction.

    The role has to own the tables. The schema is made where it is missing. The tables get new
    files, so that whoever has them open notices. Raises Damaged for a copy that is none, or
    Unreachable.
    """
    manifest = manifest_of(source)
    schema = database.where.schema
    with _connected(database) as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (database.where.key,))
        connection.execute(database.ddl.encode())
        tables = tables_in(database.ddl)
        names = [sql.Identifier(schema, table) for table in tables]
        for name in names:
            connection.execute(sql.SQL("ALTER TABLE {} DISABLE TRIGGER USER").format(name))
        connection.execute(
            sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(names))
        )
        for table, copied in manifest.tables.items():
            if table in tables:
                _fill(connection, schema, table, copied, source)
        for name in names:
            connection.execute(sql.SQL("ALTER TABLE {} ENABLE TRIGGER USER").format(name))


def manifest_of(source: Path) -> Manifest:
    """What a copy holds. Raises Damaged when it is none, or not what it was."""
    try:
        manifest = msgspec.json.decode((source / MANIFEST).read_bytes(), type=Manifest)
        for table, copied in manifest.tables.items():
            with (source / f"{table}.copy").open("rb") as file:
                digest = sha256()
                while block := file.read(_BLOCK):
                    digest.update(block)
            if digest.hexdigest() != copied.sha256:
                raise Damaged(f"{source}: {table}.copy is not what was copied")
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise Damaged(f"{source} is no whole copy: {error}") from None
    return manifest


def _fill(connection: Connection, schema: str, table: str, copied: Copied, source: Path) -> None:
    query = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(schema, table), sql.SQL(", ").join(map(sql.Identifier, copied.columns))
    )
    with (
        (source / f"{table}.copy").open("rb") as file,
        connection.cursor() as cursor,
        cursor.copy(query) as copy,
    ):
        while block := file.read(_BLOCK):
            copy.write(block)
    if "number" in copied.columns:
        connection.execute(
            sql.SQL(
                "SELECT setval(pg_get_serial_sequence({name}, 'number'), max(number))"
                " FROM {table} HAVING max(number) IS NOT NULL"
            ).format(name=sql.Literal(f'"{schema}"."{table}"'), table=sql.Identifier(schema, table))
        )


def _columns(connection: Connection, schema: str, table: str) -> tuple[str, ...]:
    rows = connection.execute(
        "SELECT attname FROM pg_catalog.pg_attribute WHERE attrelid = to_regclass(%s)"
        " AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        (f'"{schema}"."{table}"',),
    ).fetchall()
    return tuple(name for (name,) in rows)


@contextmanager
def _connected(database: PostgresDatabase) -> Iterator[Connection]:
    """A connection of its own, in which a statement may take its time."""
    conninfo = database.where.connecting(statement_timeout=0, idle_in_transaction_session_timeout=0)
    try:
        with psycopg.connect(towards(conninfo), autocommit=True) as connection:
            yield connection
    except psycopg.Error as error:
        words = str(error)
        if error.sqlstate is None:
            raise Unreachable(f"{database.label}: {' '.join(words.split())}") from None
        raise error_of(database.label, error.sqlstate, words, write=True) from None
