"""The notebook: what callers of the drill sent and were told, line by line, in a file."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPEATED = ("entity", "revision", "history", "generation", "sequence", "digest", "state")
"""Fields in which a repeat may never differ from the first answer."""


def moment() -> str:
    """Now, as the entry format writes it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class Notebook:
    """Operations that were sent, and the first acknowledgement of each.

    ``differing`` has the operations whose repeat was answered otherwise.
    """

    def __init__(self, path: Path) -> None:
        self.sent: dict[str, dict[str, Any]] = {}
        self.told: dict[str, dict[str, Any]] = {}
        self.unanswered: set[str] = set()
        self.differing: list[str] = []
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def send(self, item: dict[str, Any]) -> dict[str, Any]:
        """Note an operation before it is sent."""
        self.sent.setdefault(item["operation"], item)
        self._note("sent", item["operation"], item)
        return item

    def hear(self, operation: str, status: int, answer: Any) -> None:
        """Note an answer; an acknowledgement has to be the first one again."""
        self._note("heard", operation, {"status": status, "answer": answer})
        if status not in {200, 201} or not isinstance(answer, dict):
            return
        self.unanswered.discard(operation)
        first = self.told.setdefault(operation, answer)
        if any(answer.get(name) != first.get(name) for name in REPEATED):
            self.differing.append(operation)

    def miss(self, operation: str, why: str) -> None:
        """Note that no answer came."""
        self._note("unanswered", operation, {"why": why})
        if operation not in self.told:
            self.unanswered.add(operation)

    def _note(self, kind: str, operation: str, fields: Any) -> None:
        line = {"kind": kind, "at": moment(), "operation": operation, "said": fields}
        os.write(self._handle, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)
