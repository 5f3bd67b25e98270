"""SQLite's dialect, in which our statements are written, as PostgreSQL has it.

A few rules over the text, and functions of SQLite's names that stand in the schema (strftime,
julianday, iif, typeof, hex, instr, to_blob). Tables and functions are named with their schema, so
that no search path matters. It translates the statements of this code, not any SQL.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import count

_TABLES = r"unrewind_\w+|entries|rivals|authority|chains|flaws|dropped"
_FUNCTIONS = "strftime|julianday|iif|typeof|hex|instr|to_blob"
_LIST = "json_array_elements_text(CAST(? AS json))"

_SECONDS = "CAST(floor(extract(epoch FROM statement_timestamp())) AS bigint)"

_RULES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), becomes)
    for pattern, becomes in (
        # Of a whole statement.
        (r"^PRAGMA defer_foreign_keys=ON$", "SET CONSTRAINTS ALL DEFERRED"),
        (r"^PRAGMA integrity_check$", "SELECT 'ok'"),
        # Lists, given as JSON.
        (r"\bIN \(SELECT value FROM json_each\(\?\)\)", f"= ANY (ARRAY(SELECT {_LIST}))"),
        (r"\bjson_each\(\?\)", "json_array_elements(CAST(? AS json))"),
        (r"\b(\w+) ->> '", r"CAST(\1 AS json) ->> '"),
        # Rows, given back as JSON. The first one: no rows are an empty list.
        (r"\bjson_group_array\((json_array\(.*?\))\) FROM", r"coalesce(json_agg(\1), '[]') FROM"),
        (r"\bjson_array\(", "json_build_array("),
        # Bytes.
        (r"\binstr\(CAST\((\w+) AS BLOB\), \?\)", r"position(? IN \1)"),
        (r"\blower\(hex\(([\w.]+)\)\)", r"encode(\1, 'hex')"),
        (r"\bCAST\(((?:\w+\.)?envelope) AS BLOB\)", r"\1"),
        (r"\bCAST\(([\w.]+) AS BLOB\)", r"to_blob(\1)"),
        # What steers SQLite's planner, and what it understands of itself.
        (r"\bCROSS JOIN\b", "JOIN"),
        (r"(?<=[\s(])\+(?=[a-z])", ""),
        (r"\bstrftime\('%s', 'now'\)", _SECONDS),
        (r"\bGLOB '([^'*?\[]*)\*'", r"LIKE '\1%'"),
    )
)  # fmt: skip
_QUALIFIED = re.compile(rf"\b(FROM|JOIN|INTO|UPDATE)\s+({_TABLES})\b|\b({_FUNCTIONS})(?=\()")
_LITERAL_OR_PLACE = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|\?")


@lru_cache(maxsize=2048)
def translated(sql: str, schema: str) -> str:
    """One of our statements, in PostgreSQL's words; ``schema`` is quoted."""
    for pattern, becomes in _RULES:
        sql = pattern.sub(becomes, sql)

    def qualify(match: re.Match[str]) -> str:
        before, table, function = match.groups()
        return f"{schema}.{function}" if table is None else f"{before} {schema}.{table}"

    return numbered(_QUALIFIED.sub(qualify, sql))


@lru_cache(maxsize=2048)
def numbered(sql: str) -> str:
    """A statement whose placeholders are `?`, with `$1` and so on; literals are left alone."""
    numbers = count(1)

    def number(match: re.Match[str]) -> str:
        found = match.group()
        return f"${next(numbers)}" if found == "?" else found

    return _LITERAL_OR_PLACE.sub(number, sql)


_BY_COLUMN = re.compile(r"SELECT column1, .* FROM \(VALUES \{rows\}\) v WHERE true")
"""How SQLite is told which bytes are text; the tables here keep envelopes as bytes."""


@lru_cache(maxsize=2048)
def expanded(sql: str, width: int, rows: int, schema: str) -> str:
    """An INSERT of this many rows, translated."""
    row = "(" + ",".join("?" * width) + ")"
    sql = _BY_COLUMN.sub("VALUES {rows}", sql)
    return translated(sql.replace("{rows}", ",".join([row] * rows)), schema)


_INSERT = re.compile(r"INSERT INTO \w+\s*\(([^)]*)\)")
_UPSERT = re.compile(r"ON CONFLICT \(([^)]*)\) DO UPDATE")


@lru_cache(maxsize=64)
def key_columns(sql: str) -> tuple[int, ...]:
    """Which values of an upsert's rows say that two are the same; none where it is no upsert.

    PostgreSQL refuses to put one row twice in one statement, where SQLite takes the last.
    """
    insert, upsert = _INSERT.search(sql), _UPSERT.search(sql)
    if insert is None or upsert is None:
        return ()
    names = [name.strip() for name in insert[1].split(",")]
    return tuple(names.index(name.strip()) for name in upsert[1].split(","))
