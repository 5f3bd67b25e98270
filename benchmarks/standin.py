"""Files of the shape that DESIGN.md describes, while `ours.import_decisions` is empty.

Floors that read these are marked in the report. Delete this file, and `material.py`'s use of it,
once unrewind writes its own.
"""

import hashlib
import json
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks import floors
from benchmarks.workload import Decision

STORE = """
CREATE TABLE decision (
    sequence INTEGER PRIMARY KEY, operation TEXT NOT NULL UNIQUE, entity TEXT NOT NULL,
    revision INTEGER NOT NULL, digest BLOB NOT NULL, envelope BLOB NOT NULL, body BLOB NOT NULL,
    UNIQUE (entity, revision)
) STRICT;
CREATE TABLE entity (
    entity TEXT PRIMARY KEY, revision INTEGER NOT NULL, state TEXT NOT NULL,
    digest BLOB NOT NULL, data BLOB NOT NULL, data_hash BLOB NOT NULL
) STRICT, WITHOUT ROWID;
"""
JOURNAL = """
CREATE TABLE entry (
    position INTEGER PRIMARY KEY, operation TEXT NOT NULL UNIQUE, entity TEXT NOT NULL,
    history BLOB NOT NULL, revision INTEGER NOT NULL, sequence INTEGER NOT NULL,
    digest BLOB NOT NULL, envelope BLOB NOT NULL, body BLOB NOT NULL,
    UNIQUE (history, sequence), UNIQUE (history, entity, revision)
) STRICT;
"""
ENTRY_BYTES = "SELECT envelope, body FROM entry"
HISTORY = "5f0c6a1e9d7b43288c1e0f2a7b6d9c34"
_FLAGS = {"sort_keys": True, "separators": (",", ":")}


def write(folder: Path, decisions: Iterable[Decision]) -> tuple[Path, Path]:
    """Write the decisions into a store and a journal, and return their paths."""
    heads: dict[str, tuple[int, bytes, str, dict[str, Any]]] = {}
    stored, journalled = [], []
    for sequence, one in enumerate(decisions, 1):
        revision, before, _, data = heads.get(one.entity, (0, b"", "", {}))
        data = {**data, **json.loads(one.body)}
        envelope = _envelope(one, sequence, revision + 1, before, data)
        digest = hashlib.sha256(b"\0" + envelope).digest()
        heads[one.entity] = (revision + 1, digest, one.action, data)
        sealed = (digest, envelope, one.body)
        place = (one.operation, one.entity)
        stored.append((sequence, *place, revision + 1, *sealed))
        history = bytes.fromhex(HISTORY)
        journalled.append((sequence, *place, history, revision + 1, sequence, *sealed))
    entities = [
        (entity, revision, state, digest, raw := _json(data), hashlib.sha256(raw).digest())
        for entity, (revision, digest, state, data) in heads.items()
    ]
    store, journal = folder / "store.db", folder / "journal.db"
    _fill(store, STORE, {"decision": stored, "entity": entities})
    _fill(journal, JOURNAL, {"entry": journalled})
    return store, journal


def _envelope(one: Decision, sequence: int, revision: int, before: bytes, data: object) -> bytes:
    predecessor = {"digest": before.hex(), "history": HISTORY, "revision": revision - 1}
    return _json(
        {
            "v": 1,
            "tenant": "main",
            "entity": one.entity,
            "operation": one.operation,
            "action": one.action,
            "history": HISTORY,
            "generation": 1,
            "revision": revision,
            "predecessor": predecessor if before else None,
            "sequence": sequence,
            "version": None,
            "actor": None,
            "principal": "writer-1",
            "at": "2025-10-09T08:53:20.000000Z",
            "recorded": "2025-10-09T08:53:20.000000Z",
            "lifecycle": 1,
            "outcome": {"data": hashlib.sha256(_json(data)).hexdigest(), "state": one.action},
            "releases": [],
            "body": {
                "sha256": hashlib.sha256(one.body).hexdigest(),
                "size": len(one.body),
                "type": "application/json",
            },
        }
    )


def _json(value: object) -> bytes:
    return json.dumps(value, **_FLAGS).encode()  # type: ignore[arg-type]


def _fill(path: Path, schema: str, tables: dict[str, list[tuple[Any, ...]]]) -> None:
    with closing(floors.opened(path)) as file:
        file.executescript(schema)
        file.execute("BEGIN")
        for name, rows in tables.items():
            marks = ", ".join("?" * len(rows[0]))
            file.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        file.execute("COMMIT")
