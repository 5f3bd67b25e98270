"""Progress of long work: a bar on a terminal, nothing in a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from api.output import may_be_terminal

Show = Callable[[int, int, str], None]
"""Called as ``show(done, total, what)``; a total of 0 means that it is not known."""

_EVERY_SECONDS = 0.1


def _silent(_done: int, _total: int, _what: str) -> None:
    """A pipe gets no progress."""


@contextmanager
def shown() -> Iterator[Show]:
    """Show progress on stderr while the block runs, when stderr is a terminal."""
    if not may_be_terminal(sys.stderr):
        yield _silent
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        yield _silent
        return
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None)
        last = 0.0

        def show(done: int, total: int, what: str) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _EVERY_SECONDS or done == total:
                last = now
                progress.update(task, completed=done, total=total or None, description=what)

        yield show
