"""SQL over the store's work for the ledger (SQLite, D1)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from journal.sql import Statement
from journal.store.work import select_numbered

_TEXT = "iif(typeof({0}) = 'text', {0}, '')"


def read_open_operations(entity: str | None, after: tuple[str, str], limit: int) -> Statement:
    """Operations whose work is not over, by when they were accepted and their ID, above a key."""
    created = _TEXT.format("created")
    where, parameters = "", [*after]
    if entity is not None:
        where = " AND entity = ?"
        parameters.append(entity)
    return Statement(
        f"SELECT DISTINCT {created}, operation FROM unrewind_work"
        f" WHERE finished IS NULL AND typeof(operation) = 'text'"
        f" AND ({created}, operation) > (?, ?){where} ORDER BY 1, 2 LIMIT ?",
        (*parameters, limit),
    )


def read_of_operations(pairs: Iterable[tuple[str, str]]) -> Statement:
    """Every row that these decisions made, each named by its entity and its operation."""
    return select_numbered(
        "(entity, operation) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))",
        "",
        msgspec.json.encode([*pairs]).decode(),
    )


def read_named(ids: Iterable[str]) -> Statement:
    """These rows, whatever is wrong with them."""
    return select_numbered(
        "id IN (SELECT value FROM json_each(?))", "", msgspec.json.encode([*ids]).decode()
    )


def read_backlog(moment: str) -> Statement:
    """What waited at a moment: how much, what of it has not ended, what waits for people, its end.

    People have what is unknown and asked about by nobody, and dead letters.
    """
    people = "(status = 'dead' OR (status = 'unknown' AND due IS NULL))"
    return Statement(
        "SELECT count(*),"
        f" count(*) FILTER (WHERE finished IS NULL AND NOT {people}),"
        f" count(*) FILTER (WHERE finished IS NULL AND {people}), max(finished)"
        " FROM unrewind_work WHERE created <= ? AND (finished IS NULL OR finished > ?)",
        (moment, moment),
    )
