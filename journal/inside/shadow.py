"""Shadow mode: unrewind judges beside the application, and holds nothing up.

What it would have refused, or could not do, goes into a file of the tenant's, one JSON object a
line, which no rewind of the store touches. A transaction that is rolled back afterwards leaves its
line there: it says what was tried.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.acceptance import Operation
from journal.errors import Refusal, UnrewindError

LOGGER = logging.getLogger("unrewind.shadow")
MAX_BYTES = 64 * 1024 * 1024
REFUSED = "refused"
UNDECIDED = "undecided"
UNCONFIRMED = "unconfirmed"


class Differed(Struct, frozen=True):
    """One thing that the application did and unrewind would not have done, or could not do.

    ``kind`` is `refused` when it was judged and refused, `undecided` when nothing could be judged,
    `unconfirmed` when the journal does not hold it.
    """

    at: str
    kind: str
    error: str
    detail: str
    operation: str
    entity: str | None = None
    action: str | None = None


class Shadow:
    """The file that the differences go to. Nothing here raises into the application's path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, at: str, kind: str, error: Exception, operations: list[Operation | str]) -> None:
        """Add a line for each operation; one that cannot be written goes to the log alone."""
        told = error.detail if isinstance(error, UnrewindError) else str(error)
        name = type(error).__name__
        for each in operations:
            LOGGER.warning("%s: %s: %s: %s", _name_of(each), kind, name, told)
        lines = b"".join(
            msgspec.json.encode(_differed(at, kind, name, told, each)) + b"\n"
            for each in operations
        )
        try:
            self._append(lines)
        except OSError as fault:
            LOGGER.error("%s cannot be written: %s", self.path, fault)  # noqa: TRY400 - no trace

    def _append(self, lines: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(handle).st_size < MAX_BYTES:
                os.write(handle, lines)
        finally:
            os.close(handle)

    def read(self) -> Iterator[Differed]:
        """Every line; one that a kill cut off is left out."""
        try:
            lines = self.path.open("rb")
        except FileNotFoundError:
            return
        with lines:
            for line in lines:
                try:
                    yield msgspec.json.decode(line, type=Differed)
                except msgspec.MsgspecError:
                    continue


def kind_of(error: Exception) -> str:
    """Whether an error is a judgement, or says that there was none."""
    return REFUSED if isinstance(error, Refusal) else UNDECIDED


def _differed(at: str, kind: str, name: str, told: str, each: Operation | str) -> Differed:
    if isinstance(each, str):
        return Differed(at, kind, name, told, each)
    return Differed(at, kind, name, told, each.operation, each.entity, each.action)


def _name_of(each: Operation | str) -> str:
    return each if isinstance(each, str) else each.operation
