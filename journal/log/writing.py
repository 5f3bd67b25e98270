"""SQL of the journal's appends (SQLite)."""

from __future__ import annotations

import msgspec

from journal.control import Abandoned
from journal.log import Append
from journal.sql import Rows, Statement


def statements_of(append: Append, position: int) -> list[Statement | Rows]:
    """The statements of one append; its entries go to the positions above ``position``."""
    statements: list[Statement | Rows] = []
    if append.entries:
        statements.append(_insert_entries(append, position))
    if append.rivals:
        statements.append(_insert_rivals(append))
    if append.becomes is not None:
        force = append.becomes
        statements.append(
            Statement(
                "INSERT INTO authority (one, history, generation, stage, first, digest)"
                " VALUES (1,?,?,?,?,?) ON CONFLICT (one) DO UPDATE SET history = excluded.history,"
                " generation = excluded.generation, stage = excluded.stage,"
                " first = excluded.first, digest = excluded.digest",
                (force.history, force.generation, str(force.stage), force.first, force.digest),
            )
        )
    if append.settled:
        statements.append(
            Statement(
                "DELETE FROM flaws WHERE entity IN (SELECT value FROM json_each(?))",
                (msgspec.json.encode(append.settled).decode(),),
            )
        )
    if append.flaws:
        statements.append(_insert_flaws(append))
    if append.chains:
        statements.append(_upsert_chains(append))
    # After the entries: what this append adds is of the history in force, and stays.
    if append.anew:
        statements.append(Statement("DELETE FROM dropped"))
    statements += [_drop(abandoned) for abandoned in append.drops]
    return statements


def _drop(abandoned: Abandoned) -> Statement:
    positions = dropped_by(abandoned)
    return Statement(
        f"INSERT INTO dropped (position) {positions.sql} ON CONFLICT DO NOTHING",
        positions.parameters,
    )


def dropped_by(abandoned: Abandoned) -> Statement:
    """The positions of the entries that an abandonment dropped."""
    return Statement(
        "SELECT position FROM entries WHERE entity = ?"
        " AND (lower(hex(digest)) IN (SELECT value FROM json_each(?))"
        " OR (revision > ? AND lower(hex(history)) IN (SELECT value FROM json_each(?))))",
        (
            abandoned.entity,
            msgspec.json.encode([*abandoned.rivals, *abandoned.unreadable]).decode(),
            abandoned.through,
            msgspec.json.encode(abandoned.ended).decode(),
        ),
    )


def _insert_entries(append: Append, position: int) -> Rows:
    return Rows(
        "INSERT INTO entries (position, stream, sequence, history, entity, revision, operation,"
        " digest, envelope, body) VALUES {rows}",
        [
            (
                number,
                stream,
                entry.envelope.sequence,
                bytes.fromhex(entry.envelope.history),
                entry.envelope.entity,
                entry.envelope.revision,
                entry.envelope.operation,
                bytes.fromhex(entry.digest),
                entry.text.decode(),
                entry.body,
            )
            for number, (stream, entry) in enumerate(append.entries, position + 1)
        ],
    )


def _insert_rivals(append: Append) -> Rows:
    return Rows(
        "INSERT INTO rivals (entity, stored, seen, digest, envelope, body) VALUES {rows}"
        " ON CONFLICT (digest) DO NOTHING",
        [
            (
                rival.entry.envelope.entity,
                rival.stored,
                rival.seen,
                rival.entry.digest,
                rival.entry.text.decode(),
                rival.entry.body,
            )
            for rival in append.rivals
        ],
    )


def _insert_flaws(append: Append) -> Rows:
    return Rows(
        "INSERT INTO flaws (entity, flaw, first, last, digests, through, holds, since, detail)"
        " VALUES {rows} ON CONFLICT DO NOTHING",
        [
            (
                flaw.entity,
                str(flaw.flaw),
                flaw.first,
                flaw.last,
                msgspec.json.encode(flaw.digests).decode(),
                flaw.durable_through,
                flaw.holds,
                flaw.since,
                flaw.detail,
            )
            for flaw in append.flaws
        ],
    )


def _upsert_chains(append: Append) -> Rows:
    return Rows(
        "INSERT INTO chains (entity, revision, history, digest, state, newest) VALUES {rows}"
        " ON CONFLICT (entity) DO UPDATE SET revision = excluded.revision,"
        " history = excluded.history, digest = excluded.digest, state = excluded.state,"
        " newest = excluded.newest",
        [
            (
                chain.entity,
                chain.boundary.revision,
                chain.boundary.history,
                chain.boundary.digest,
                chain.state,
                chain.newest,
            )
            for chain in append.chains
        ],
    )
