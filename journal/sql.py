"""Statements: what the store port carries. D1's prepared statements, plus many rows in one.

A ``Statement`` is SQL text with its parameters. ``Rows`` is one INSERT over many rows, written once
with ``{rows}`` where its VALUES stand; the engine decides how many rows go into one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

Value = str | bytes | int | float | None


class Statement(Struct, frozen=True):
    """One SQL statement with its positional parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class Projected(Statement, frozen=True):
    """A statement of the application's: what is wrong with it is no fault of the database."""


class Rows(Struct, frozen=True):
    """One INSERT of many rows; ``sql`` holds `{rows}` where the VALUES go."""

    sql: str
    rows: Sequence[tuple[Any, ...]]


Batch = Sequence[Statement | Rows]
Result = list[tuple[Any, ...]]
