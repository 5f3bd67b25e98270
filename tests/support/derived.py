"""Rows of work against the journal: everything that is derived, folded again from the first entry.

What a store may know better than the journal is how far an attempt got. Everything else about a
release, and the IDs of all commands, follows from the decisions.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from journal import Settings
from journal.abandonment import Cuts, settle_releases
from journal.data import EMPTY, after_again
from journal.entry import Entry
from journal.folding import fold
from journal.lanes import Effect
from journal.release import Rules
from journal.work import FINISHED, Status, Work

PERMISSION = (
    "lane",
    "effect",
    "name",
    "entity",
    "revision",
    "sequence",
    "place",
    "operation",
    "version",
    "receiver",
    "recipient",
    "digest",
    "corrects",
    "data",
    "weight",
    "created",
)
"""What a row says of the decision that made it."""

OUTCOME = (
    "committed",
    "finished",
    "receipt",
    "cancel_requested",
    "incident",
    "attempts",
    "lease",
)
"""What the row of a release says of the decisions after that one."""

UNDER_WAY = frozenset({Status.RUNNING, Status.RETRY, Status.PENDING, Status.UNKNOWN})
"""Statuses between which a store moves by itself, once the commitment is journalled."""


def derived(
    entries: Sequence[Entry],
    settings: Settings,
    cuts: Cuts | None = None,
    dropped: Mapping[str, Sequence[Entry]] | None = None,
) -> dict[str, Work]:
    """The rows that the tenant's decisions lead to, by ID, and those that were cut off."""
    rules = Rules(settings.tenant, settings.lifecycles, settings.lanes)
    data: dict[str, bytes] = {}
    rows: dict[str, dict[str, Work]] = {}

    def settle(entity: str, digest: str | None) -> None:
        of_entity = rows.setdefault(entity, {})
        for cut in (cuts or {}).get(entity, ()):
            if cut.digest == digest:
                cut_off = (dropped or {}).get(entity, ())
                of_entity.update(settle_releases(of_entity, cut, cut_off, rules))

    for entity in cuts or {}:
        settle(entity, None)
    for entry in entries:
        entity = entry.envelope.entity
        data[entity] = after_again(data.get(entity, EMPTY), entry.body, entry.envelope.body.type)
        of_entity = rows.setdefault(entity, {})
        of_entity.update(fold(of_entity, entry, data[entity], rules))
        settle(entity, entry.digest)
    return {row.id: row for of_entity in rows.values() for row in of_entity.values()}


def stored(settings: Settings) -> dict[str, Work]:
    """The store's rows of work by ID, read with nothing of the project; {} without a table."""
    uri = f"{settings.store_file.resolve().as_uri()}?mode=ro"
    names = ", ".join(Work.__struct_fields__)
    with closing(sqlite3.connect(uri, uri=True)) as database:
        if not _has_table(database):
            return {}
        rows = database.execute(f"SELECT {names} FROM unrewind_work").fetchall()
    return {row[0]: Work(*row) for row in rows}


def differences(wanted: Mapping[str, Work], found: Mapping[str, Work]) -> Iterator[str]:
    """Where the store's rows contradict what the decisions lead to, as sentences."""
    for identity, row in wanted.items():
        other = found.get(identity)
        if other is None:
            yield f"{identity}: the decisions lead to it, and the store has no such row"
            continue
        columns = (*PERMISSION, *(OUTCOME if row.effect == Effect.EXTERNAL else ()))
        for name in columns:
            if getattr(row, name) != getattr(other, name):
                yield f"{identity}: {name} is {getattr(other, name)}, not {getattr(row, name)}"
        if row.effect == Effect.EXTERNAL and status_class(row) != status_class(other):
            yield f"{identity}: the store says {other.status}, the decisions {row.status}"
    for identity, row in found.items():
        if row.entity is not None and identity not in wanted:
            yield f"{identity}: no decision leads to this row"


def status_class(row: Work) -> str:
    """The status, as far as decisions tell it."""
    return "under way" if row.status in UNDER_WAY else row.status


def miscounted(settings: Settings) -> Iterator[str]:
    """Where the counters are not what a scan of the rows gives."""
    uri = f"{settings.store_file.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True)) as database:
        if not _has_table(database):
            return
        counted: dict[Any, Any] = {
            (lane, status): (items, round(weight, 6))
            for lane, status, items, weight in database.execute(
                "SELECT lane, status, items, weight FROM unrewind_counts WHERE items <> 0"
            )
        }
        scanned = {
            (lane, status): (items, round(weight, 6))
            for lane, status, items, weight in database.execute(
                "SELECT lane, status, count(*), sum(weight) FROM unrewind_work GROUP BY 1, 2"
            )
        }
        if counted != scanned:
            yield f"the counters say {counted}, the rows {scanned}"
        unfinished = Counter(
            status
            for status, finished in database.execute("SELECT status, finished FROM unrewind_work")
            if (status in FINISHED) != (finished is not None)
        )
        if unfinished:
            yield f"finished and status contradict each other: {dict(unfinished)}"


def _has_table(database: sqlite3.Connection) -> bool:
    sql = "SELECT count(*) FROM sqlite_master WHERE name = 'unrewind_work'"
    return bool(database.execute(sql).fetchone()[0])
