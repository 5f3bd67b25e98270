"""What commands print: JSON for scripts, tables on a terminal, plain lines in a pipe.

Nothing that came from a caller reaches a terminal raw: control characters are shown escaped.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from rich.console import Console

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


def may_be_terminal(stream: IO[str]) -> bool:
    """Whether rich is worth importing, which decides: a pipe is no terminal unless said so."""
    said = any(os.environ.get(name) for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    return said or stream.isatty()


def _console() -> Console | None:
    """Standard output as rich sees it; None: it is no terminal."""
    if not may_be_terminal(sys.stdout):
        return None
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    return console if console.is_terminal else None


def print_line(text: str = "") -> None:
    """One plain line."""
    sys.stdout.write(text + "\n")


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Names with their values: a borderless table on a terminal, `name: value` in a pipe."""
    console = _console()
    if console is None:
        for name, value in facts:
            print_line(f"{name}: {plain(value)}")
        return
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(Text(name), Text(plain(value)))
    console.print(grid)


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on a terminal; in a pipe lines of fields parted by tabs, the first with the names."""
    console = _console()
    if console is None:
        print_line("\t".join(columns))
        for row in rows:
            print_line("\t".join(plain(value) for value in row))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(value)) for value in row))
    console.print(table)
