"""What the receiver was asked and what it did: one JSON line each, in order, kept for good."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from examples.receiver.behaviours import OK, AnyRule, CallbackKind

Kind = Literal["call", "lookup", "callback", "change"]
State = Literal["done", "pending", "refused", "void"]


class Line(Struct, frozen=True, kw_only=True):
    """One line of the record.

    A *call* and a *lookup* came in, a *callback* went out. A *change* is what the receiver did
    later, by itself or on command; ``of`` is the number of the call that it completes.

    ``executed`` says that the effect happened with this line: a release was executed as often as
    lines say so. ``state`` is what the receiver holds of the release from here on; None changes
    nothing. ``answer`` is the status that the other side was told, None where it was told none.
    Giving an ID up covers the attempts up to ``through``. ``callback`` is the kind of a callback.
    """

    number: int
    at: datetime
    kind: Kind
    release: str | None
    attempt: int | None = None
    idempotency_key: str | None = None
    body_sha256: str | None = None
    content: Any = None
    outcome: str
    executed: bool = False
    state: State | None = None
    answer: int | None = None
    behaviour: AnyRule = OK
    detail: str | None = None
    of: int | None = None
    through: int | None = None
    callback: CallbackKind | None = None
    webhook_id: str | None = None


class RecordInUse(Exception):
    """Another receiver writes to this record."""


class Record:
    """The file of lines. A line is in it, whole, before anybody is answered.

    A line and the effect that it tells of are one: what was not written has not happened, so a
    killed receiver continues from its record. A line that a kill cut off is removed at the start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self.fd)
            raise RecordInUse(f"{path}: another receiver writes to this record") from None
        self.size = self._whole()
        os.ftruncate(self.fd, self.size)
        self.next = 1

    def read(self) -> Iterator[Line]:
        """The lines of earlier runs; to be read to their end before the first write.

        Raises ValueError at a line that is none of a record's.
        """
        decoder = msgspec.json.Decoder(Line)
        for raw in self.raw():
            try:
                line = decoder.decode(raw)
            except msgspec.MsgspecError as error:
                raise ValueError(
                    f"{self.path}: line {self.next} is not of a record: {error}"
                ) from None
            self.next = line.number + 1
            yield line

    def raw(self) -> Iterator[bytes]:
        """The lines as they stand in the file."""
        with self.path.open("rb") as file:
            yield from file

    def write(self, kind: Kind, release: str | None, outcome: str, **fields: Any) -> Line:
        """Append one line. Raises OSError, with nothing written, when it cannot be kept whole."""
        line = Line(
            number=self.next,
            at=datetime.now(UTC),
            kind=kind,
            release=release,
            outcome=outcome,
            **fields,
        )
        data = msgspec.json.encode(line) + b"\n"
        if (written := os.write(self.fd, data)) != len(data):
            os.ftruncate(self.fd, self.size)
            raise OSError(f"{self.path}: only {written} of {len(data)} bytes fit")
        self.size += len(data)
        self.next += 1
        return line

    def close(self) -> None:
        os.close(self.fd)

    def _whole(self) -> int:
        """Bytes up to the end of the last whole line."""
        with self.path.open("rb") as file:
            return file.read().rfind(b"\n") + 1
