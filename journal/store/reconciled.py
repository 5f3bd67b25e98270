"""SQL over what reconciliations found (SQLite, D1): one row for each release and generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from journal.sql import Result, Rows, Statement
from journal.store.work import COLUMNS
from journal.work import Work


class Evidence(Struct, frozen=True, omit_defaults=True):
    """What a finding rests on, and who answers for it where it is unresolved.

    ``why`` is one sentence, ``receipt`` the receiver's own name for what it did, ``deadline`` an
    RFC 3339 time.
    """

    why: str
    entity: str | None = None
    lane: str | None = None
    receiver: str | None = None
    receipt: str | None = None
    owner: str | None = None
    deadline: str | None = None


class Found(Struct, frozen=True):
    """One finding: what became of a release, as far as could be found out in a generation.

    ``authority`` says what is wrong with its permission, whatever became of it.
    """

    id: str
    generation: int
    found: str
    at: str
    evidence: Evidence
    authority: str | None = None


_FOUND = "id, generation, found, at, evidence, authority"
_WORK = ", ".join(
    f"iif(typeof(w.{name}) = 'text', w.{name}, NULL)" if name == "data" else f"w.{name}"
    for name in COLUMNS
)
_OPEN = "w.finished IS NULL AND w.entity IS NOT NULL"


def write(found: Sequence[Found]) -> Rows:
    """Keep findings; a later one about the same release takes the earlier one's place."""
    return Rows(
        f"INSERT INTO unrewind_reconciled ({_FOUND}) VALUES {{rows}}"
        " ON CONFLICT (id, generation) DO UPDATE SET found = excluded.found, at = excluded.at,"
        " evidence = excluded.evidence, authority = excluded.authority",
        [
            (
                one.id,
                one.generation,
                one.found,
                one.at,
                msgspec.json.encode(one.evidence).decode(),
                one.authority,
            )
            for one in found
        ],
    )


def read_fresh(generation: int, until: str, after: tuple[str, int], limit: int) -> Statement:
    """Open work, made ``until`` then, that has no finding; after an entity and a number."""
    return Statement(
        f"SELECT json_group_array(json_array(number, json_array({_WORK}))) FROM (SELECT w.*"
        f" FROM unrewind_work w WHERE {_OPEN} AND w.created <= ? AND (w.entity, w.number) > (?, ?)"
        " AND NOT EXISTS (SELECT 1 FROM unrewind_reconciled r"
        "  WHERE r.id = w.id AND r.generation = ?)"
        " ORDER BY w.entity, w.number LIMIT ?) w",
        (until, *after, generation, limit),
    )


def read_again(
    generation: int, found: Iterable[str], before: str, after: str, limit: int
) -> Statement:
    """Work of which this generation had found one of these ``before``, ended or not, by ID."""
    return Statement(
        f"SELECT json_group_array(json_array(number, json_array({_WORK}))) FROM (SELECT w.*"
        " FROM unrewind_reconciled r CROSS JOIN unrewind_work w ON w.id = r.id"
        " WHERE r.generation = ? AND r.id > ? AND r.at < ?"
        " AND r.found IN (SELECT value FROM json_each(?))"
        " ORDER BY r.id LIMIT ?) w",
        (generation, after, before, msgspec.json.encode([*found]).decode(), limit),
    )


def read_delivered(
    generation: int, kind: str, action: str | None, after: tuple[str, int], limit: int
) -> Statement:
    """Releases of an entity type, or of one of its actions, that happened and have no finding."""
    return Statement(
        f"SELECT json_group_array(json_array(number, json_array({_WORK}))) FROM (SELECT w.*"
        " FROM unrewind_work w WHERE w.entity >= ? AND w.entity < ? AND w.status = 'done'"
        " AND w.effect = 'external' AND (CAST(? AS TEXT) IS NULL OR w.name = ?)"
        " AND (w.entity, w.number) > (?, ?) AND NOT EXISTS (SELECT 1 FROM unrewind_reconciled r"
        "  WHERE r.id = w.id AND r.generation = ?)"
        " ORDER BY w.entity, w.number LIMIT ?) w",
        (f"{kind}/", f"{kind}0", action, action, *after, generation, limit),
    )


_decode_page = msgspec.json.Decoder(list[tuple[int, msgspec.Raw]]).decode
_decode_work = msgspec.json.Decoder(Work).decode


def page_of(rows: Result) -> tuple[list[tuple[int, Work]], list[str]]:
    """The work of a page with its numbers, and the IDs of rows that cannot be read."""
    found: list[tuple[int, Work]] = []
    spoiled: list[str] = []
    for number, raw in _decode_page(rows[0][0]):
        try:
            found.append((number, _decode_work(raw)))
        except msgspec.MsgspecError:
            spoiled.append(str(msgspec.json.decode(raw)[0]))
    return found, spoiled


def read_found(
    generation: int, found: str | None, after: str, limit: int, *, wrong: bool = False
) -> Statement:
    """A generation's findings by ID: all, those of one kind, or those whose authority is wrong."""
    where = "generation = ? AND id > ?"
    parameters: list[object] = [generation, after]
    if found is not None:
        where += " AND found = ?"
        parameters.append(found)
    if wrong:
        where += " AND authority IS NOT NULL"
    return Statement(
        f"SELECT {_FOUND} FROM unrewind_reconciled WHERE {where} ORDER BY id LIMIT ?",
        (*parameters, limit),
    )


def found_of(rows: Result) -> list[Found]:
    """The findings of ``read_found``."""
    return [
        Found(
            identity,
            generation,
            found,
            at,
            msgspec.json.decode(evidence, type=Evidence),
            authority,
        )
        for identity, generation, found, at, evidence, authority in rows
    ]


def count_undone(identity: str, generation: int, since: str) -> Statement:
    """How often a release was found surely not to have happened, from a generation on."""
    return Statement(
        "SELECT count(*) FROM unrewind_reconciled WHERE id = ? AND generation >= ? AND at > ?"
        " AND found IN ('undone', 'waiting')",
        (identity, generation, since),
    )


def count(generation: int) -> Statement:
    """How many findings of each kind a generation has, and with how many authority is wrong."""
    return Statement(
        "SELECT found, count(*), count(authority) FROM unrewind_reconciled WHERE generation = ?"
        " GROUP BY found ORDER BY found",
        (generation,),
    )


def count_left(generation: int, until: str, live: int) -> Statement:
    """How many open releases, made ``until`` then, have no finding and no live attempt.

    ``live`` is the lowest number of a claim of this generation.
    """
    return Statement(
        "SELECT count(*) FROM unrewind_work w WHERE w.finished IS NULL AND w.effect = 'external'"
        " AND w.entity IS NOT NULL AND w.created <= ?"
        " AND NOT (w.status = 'running' AND w.lease >= ?)"
        " AND NOT EXISTS (SELECT 1 FROM unrewind_reconciled r"
        "  WHERE r.id = w.id AND r.generation = ?)",
        (until, live, generation),
    )


def count_unreachable(generation: int) -> Statement:
    """About how many releases each receiver gave no usable answer."""
    return Statement(
        "SELECT evidence ->> 'receiver', count(*) FROM unrewind_reconciled"
        " WHERE generation = ? AND found = 'unreachable' GROUP BY 1 ORDER BY 1",
        (generation,),
    )


def remove_underived(identity: str) -> Statement:
    """Drop work that no decision asked for; a release only where nobody can have begun with it."""
    return Statement(
        "DELETE FROM unrewind_work WHERE id = ? AND (effect <> 'external'"
        " OR (status = 'ready' AND committed IS NULL AND lease = 0))",
        (identity,),
    )
