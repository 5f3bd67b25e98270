"""A worker that pulls, as a process to be killed: each effect is one line of a record of its own.

    python3 tests/soak/puller.py URL LANE NAME RECORD JOURNAL PAUSE

The token is read from TOKEN, and the name is to be the same over restarts: only who made a claim is
given its permit again. It asks under operation IDs that it writes down first, so that a claim
whose permit a kill took away is repeated after the restart. It never looks a release up in its own
record: whether one may be done again is for the permits to say. What it notes of a permit before it
acts is whether the journal holds the commitment already.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import sqlite3
import sys
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from api.client import Abandoned, ClaimLost, Client, Refused
from api.client.permits import Permit


class Record:
    """Lines of JSON, each of them whole and in the file before anything goes on."""

    def __init__(self, path: Path) -> None:
        known = path.read_bytes() if path.exists() else b""
        self.lines = [json.loads(line) for line in known.rpartition(b"\n")[0].splitlines()]
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._handle, known.rfind(b"\n") + 1)

    def note(self, kind: str, operation: str, release: str | None = None, **fields: Any) -> None:
        at = datetime.now(UTC).isoformat(timespec="microseconds")
        line = {"kind": kind, "at": at, "operation": operation, "release": release, **fields}
        self.lines.append(line)
        os.write(self._handle, json.dumps(line).encode() + b"\n")

    def last(self) -> str | None:
        """The claim that has not come to its end, as far as is written."""
        if not self.lines or self.lines[-1]["kind"] == "over":
            return None
        return str(self.lines[-1]["operation"])

    def executed(self, operation: str) -> bool:
        """Whether the effect of this very claim happened before the process was killed."""
        kinds = [line["kind"] for line in self.lines if line["operation"] == operation]
        return "executed" in kinds


def is_journalled(journal: Path, digest: str | None) -> bool:
    with closing(sqlite3.connect(f"{journal.as_uri()}?mode=ro", uri=True)) as database:
        found = database.execute(
            "SELECT 1 FROM entries WHERE digest = ?", (bytes.fromhex(digest or ""),)
        ).fetchall()
    return bool(found)


def work(permit: Permit[Any], operation: str, record: Record, journal: Path, pause: float) -> None:
    """Do it, and say so. Begins nothing on the strength of a claim that is lost."""
    release = permit.id
    journalled = is_journalled(journal, permit.grant.commitment)
    record.note("permit", operation, release, journalled=journalled, attempt=permit.grant.attempt)
    time.sleep(random.random() * pause)
    if not record.executed(operation):
        permit.check()
        record.note("executed", operation, release, journalled=journalled)
    time.sleep(random.random() * pause)
    reception = permit.confirm(receipt=f"pulled-{operation[:12]}")
    record.note("over", operation, release, kept=str(reception.kept))


def main(url: str, lane: str, name: str, path: Path, journal: Path, pause: float) -> None:
    record = Record(path)
    client = Client(url, os.environ["TOKEN"], timeout=5, deadline=5)
    operation = record.last()
    while True:
        if operation is None:
            operation = secrets.token_hex(16)
            record.note("asking", operation)
        try:
            with client.permit(lane, worker=name, operation=operation, wait=1.0) as permit:
                if permit is not None:
                    work(permit, operation, record, journal, pause)
                    operation = None
        except Abandoned:
            continue
        except (ClaimLost, Refused) as error:
            record.note("over", operation or "", why=str(error))
            operation = None


if __name__ == "__main__":
    where, queue, called, *files, most = sys.argv[1:]
    main(where, queue, called, Path(files[0]), Path(files[1]), float(most))
