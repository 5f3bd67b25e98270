"""The tables, indexes and rows of an SQLite file, so that a baseline writes the very same rows."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ORDERED_BY = ("sequence", "position")
"""Columns that tell the order in which rows were written, best first."""


@dataclass(frozen=True)
class Table:
    """One table's rows in the order in which they were written, and the statement for them."""

    name: str
    insert: str
    rows: list[tuple[Any, ...]]


@dataclass(frozen=True)
class Shape:
    """What makes a bare copy of a file: its statements of creation, then its rows."""

    page_size: int
    schema: list[str]
    tables: list[Table]

    def dealt(self, number: int, parts: int) -> list[tuple[str, list[tuple[Any, ...]]]]:
        """Part `number` of `parts`: each table's statement with its share of the rows."""
        shares = []
        for table in self.tables:
            first = len(table.rows) * number // parts
            last = len(table.rows) * (number + 1) // parts
            if first < last:
                shares.append((table.insert, table.rows[first:last]))
        return shares


def read(path: Path) -> Shape:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        made = file.execute(
            "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL "
            "AND type IN ('table', 'index') AND name NOT LIKE 'sqlite!_%' ESCAPE '!' "
            "AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY type DESC, name"
        ).fetchall()
        return Shape(
            page_size=file.execute("PRAGMA page_size").fetchone()[0],
            schema=[sql for _, _, sql in made],
            tables=[_table(file, name) for kind, name, _ in made if kind == "table"],
        )


def _table(file: sqlite3.Connection, name: str) -> Table:
    quoted = _quoted(name)
    columns = [row[1] for row in file.execute(f"PRAGMA table_xinfo({quoted})") if row[6] == 0]
    listed = ", ".join(_quoted(column) for column in columns)
    rows = file.execute(f"SELECT {listed} FROM {quoted}{_order(file, name, columns)}").fetchall()
    marks = ", ".join("?" * len(columns))
    return Table(name, f"INSERT INTO {quoted} ({listed}) VALUES ({marks})", rows)


def _order(file: sqlite3.Connection, name: str, columns: list[str]) -> str:
    for column in ORDERED_BY:
        if column in columns:
            return f" ORDER BY {_quoted(column)}"
    without_rowid = file.execute(
        "SELECT wr FROM pragma_table_list(?) WHERE schema = 'main'", (name,)
    ).fetchone()[0]
    return "" if without_rowid else " ORDER BY rowid"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
