"""What commands print: JSON for scripts, tables on a terminal, plain lines in a pipe.

Nothing that came from a caller reaches a terminal raw: control characters are shown escaped.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def plain(value: object) -> str:
    """A value as one printable line; nothing is shown as `-`."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | frozenset):
        return ", ".join(plain(item) for item in value) or "none"
    return _CONTROL.sub(_escape, str(value))


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape", "surrogatepass").decode()


def one_line(text: str) -> str:
    """A message of any shape as one printable line."""
    return plain(" ".join(text.split()))


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


@cache
def console() -> Console:
    """Standard output as rich sees it."""
    return Console(highlight=False, markup=False, emoji=False)


def print_line(text: str = "") -> None:
    """One plain line."""
    sys.stdout.write(text + "\n")


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names with their values: a borderless table on a terminal, `name: value` in a pipe."""
    if not console().is_terminal:
        for name, value in facts:
            print_line(f"{name}: {plain(value)}")
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(name), Text(plain(value)))
    console().print(grid)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal; in a pipe lines of fields parted by tabs, the first with the names."""
    if not console().is_terminal:
        print_line("\t".join(columns))
        for row in rows:
            print_line("\t".join(plain(value) for value in row))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(value)) for value in row))
    console().print(table)
