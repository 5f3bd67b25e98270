"""What clients were told, and whether the tenant still says so."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.soak.processes import Server

_BATCH = 500
ROWS = (
    "SELECT operation, entity, revision, sequence, lower(hex(history)), lower(hex(digest))"
    " FROM entries WHERE stream = 'decisions' ORDER BY sequence"
)
_REFUSED = {409}
_LATER = {429, 503}


class Ledger:
    """Every operation that was sent, every first answer, and no contradiction between answers."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[str, Any]] = {}
        self.told: dict[str, dict[str, Any]] = {}
        self.accepted: Counter[str] = Counter()
        self.imported: set[str] = set()
        self.reasons: Counter[str] = Counter()

    @property
    def unsettled(self) -> list[str]:
        """Operations whose fate nobody was told."""
        return [operation for operation in self.sent if operation not in self.told]

    def send(self, item: dict[str, Any]) -> dict[str, Any]:
        self.sent[item["operation"]] = item
        return item

    def hear(self, operation: str, status: int, answer: dict[str, Any]) -> None:
        """Keep an answer. An acknowledgement has to be the first one again.

        A refusal is not remembered: sent twice at once, an operation may be refused and accepted.
        """
        if status in _LATER | _REFUSED:
            self.reasons[answer["type"]] += 1
            return
        assert status in {200, 201}, f"{operation}: {status} {answer}"
        assert answer["outcome"] == ("duplicate" if status == 200 else "accepted")
        later = {"outcome", "fate"}  # what became of it since is no part of the answer
        fields = {name: value for name, value in answer.items() if name not in later}
        first = self.told.setdefault(operation, fields)
        assert fields == first, f"{operation} was answered\n{first}\nand then\n{fields}"
        self.accepted[operation] += status == 201
        assert self.accepted[operation] <= 1, f"{operation} was made a decision twice"

    def hear_items(self, items: Sequence[dict[str, Any]], status: int, answer: Any) -> None:
        """Keep the answers to `POST decisions/batch`."""
        if status != 200:
            assert status in _LATER, answer
            self.reasons[answer["type"]] += 1
            return
        assert len(answer["items"]) == len(items)
        for item, judged in zip(items, answer["items"], strict=True):
            told = judged.get("acceptance") or judged["problem"]
            self.hear(item["operation"], judged["status"], told)

    # Asking again.

    def repeat(self, server: Server, operations: Iterable[str]) -> None:
        """Send operations again; each is decided now, and an acknowledged one as it was."""
        wanted = list(operations)
        for start in range(0, len(wanted), _BATCH):
            items = [self.sent[operation] for operation in wanted[start : start + _BATCH]]
            known = [item["operation"] in self.told for item in items]
            status, answer = server.ask("POST", "/v1/main/decisions/batch", {"items": items})
            assert status == 200, answer
            for item, told, judged in zip(items, known, answer["items"], strict=True):
                fit = {200} if told else {200, 201} | _REFUSED
                assert judged["status"] in fit, f"{item['operation']} was lost: {judged}"
            self.hear_items(items, status, answer)

    def check(self, server: Server, rng: random.Random, most: int) -> None:
        """The latest ``most`` acknowledged operations and as many others are answered as at first.

        Then those are settled whose fate nobody was told.
        """
        told = list(self.told)
        known = told[-most:] + rng.sample(told[:-most], min(most, len(told[:-most])))
        self.repeat(server, known)
        for operation in rng.sample(known, min(20, len(known))):
            status, answer = server.get(f"operations/{operation}")
            assert status == 200, answer
            self.hear(operation, status, answer)
        self.repeat(server, self.unsettled)

    def check_journal(self, file: Path) -> None:
        """The journal holds what was acknowledged, each operation once, in unbroken revisions."""
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            rows = database.execute(ROWS).fetchall()
        self.check_rows(rows)

    def check_rows(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """The same of a journal's rows, however they were read."""
        held = {row[0]: row for row in rows}
        assert len(held) == len(rows), "an operation stands in the journal twice"
        revisions: Counter[str] = Counter()
        last = 0
        for operation, entity, revision, sequence, *_ in rows:
            revisions[entity] += 1
            assert revision == revisions[entity], f"{operation}: {entity} has no unbroken revisions"
            assert sequence > last
            last = sequence
        names = ("operation", "entity", "revision", "sequence", "history", "digest")
        for operation, told in self.told.items():
            wanted = tuple(told[name] for name in names)
            assert held.get(operation) == wanted, f"told {wanted}, journal {held.get(operation)}"
        strangers = held.keys() - self.told.keys() - self.imported
        assert not strangers, f"decisions that nobody was told of: {sorted(strangers)[:5]}"
        missing = self.imported - held.keys()
        assert not missing, f"imported and lost: {sorted(missing)[:5]}"
