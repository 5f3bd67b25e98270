"""SQL over unrewind's tables in the store (SQLite, D1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct

from journal import formats
from journal.acceptance import Decision, EntityHead, Place, head_after
from journal.entry import Entry
from journal.formats import check_needs
from journal.log import Row
from journal.sql import Fence, Result, Rows, Statement

FORMAT = 1
"""Of the tables: additions leave it as it is. Which code the data needs is in control."""


class Marker(Struct, frozen=True):
    """Where the store stands, and whose it is."""

    format: int
    tenant: str
    instance: str
    place: Place
    journalled: int


class StoredDecision(Struct, frozen=True):
    """A decision's bytes as the store keeps them."""

    sequence: int
    digest: str
    text: bytes
    body: bytes


MARKER_COLUMNS = "format, tenant, instance, history, generation, sequence, digest, journalled"
_HEAD_ARRAY = (
    "json_array(entity, revision, lower(hex(history)), lower(hex(digest)), sequence,"
    " state, version, data)"
)

READ_MARKER = Statement(f"SELECT {MARKER_COLUMNS} FROM unrewind_marker")

DEFER_FOREIGN_KEYS = Statement("PRAGMA defer_foreign_keys=ON")
"""For a replay's batches, after the fence: rows of several entities may come in another order.

Costly on the hot path: SQLite expires every prepared statement when a flag changes.
"""

_decode_heads = msgspec.json.Decoder(list[EntityHead]).decode


def marker_of(rows: Result) -> Marker | None:
    """The marker from the rows of READ_MARKER. Raises NewerFormat."""
    if not rows:
        return None
    version, tenant, instance, history, generation, sequence, digest, journalled = rows[0]
    check_needs(version)
    return Marker(
        version, tenant, instance, Place(history, generation, sequence, digest), journalled
    )


def found(marker: Marker) -> Statement:
    """Write the first marker into an empty store; a constraint refuses a second one."""
    place = marker.place
    return Statement(
        f"INSERT INTO unrewind_marker (one, {MARKER_COLUMNS}) VALUES (1,?,?,?,?,?,?,?,?)",
        (
            marker.format,
            marker.tenant,
            marker.instance,
            place.history,
            place.generation,
            place.sequence,
            place.digest,
            marker.journalled,
        ),
    )


def fence(marker: Marker, to: Place, journalled: int) -> Fence:
    """Move the marker from exactly ``marker`` to ``to``; fail when it is anywhere else.

    ``format`` becomes NULL, which its column refuses, unless one row matches everything expected;
    else it is that of this code, which the store refuses once the data needs a newer one.
    """
    place = marker.place
    return Fence(
        f"INSERT INTO unrewind_marker (one, {MARKER_COLUMNS}) VALUES (1,"
        " (SELECT ? FROM unrewind_marker WHERE history = ? AND generation = ?"
        "   AND sequence = ? AND digest = ? AND instance = ? AND format = ?),"
        " ?,?,?,?,?,?,?)"
        " ON CONFLICT (one) DO UPDATE SET history = excluded.history,"
        " generation = excluded.generation, sequence = excluded.sequence,"
        " digest = excluded.digest, journalled = excluded.journalled",
        (
            formats.FORMAT,
            place.history,
            place.generation,
            place.sequence,
            place.digest,
            marker.instance,
            marker.format,
            marker.tenant,
            marker.instance,
            to.history,
            to.generation,
            to.sequence,
            to.digest,
            journalled,
        ),
        expected=(
            place.history,
            place.generation,
            place.sequence,
            place.digest,
            marker.instance,
            marker.format,
        ),
        becomes=(
            formats.FORMAT,
            to.history,
            to.generation,
            to.sequence,
            to.digest,
            journalled,
        ),
    )


def read_heads(entities: Iterable[str]) -> Statement:
    """The heads of these entities as one JSON array: one row, whatever their number.

    One row matters in a threaded process: SQLite's driver gives up the interpreter lock for each.
    """
    named = sorted(entities)
    if len(named) == 1:
        return Statement(
            f"SELECT json_group_array({_HEAD_ARRAY}) FROM unrewind_entities WHERE entity = ?",
            (named[0],),
        )
    return Statement(
        f"SELECT json_group_array({_HEAD_ARRAY}) FROM unrewind_entities"
        " WHERE entity IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(named).decode(),),
    )


def page_of_heads(after: str, limit: int) -> Statement:
    """Heads in the order of their names, as ``heads_of`` takes them."""
    return Statement(
        f"SELECT json_group_array({_HEAD_ARRAY}) FROM (SELECT * FROM unrewind_entities"
        " WHERE entity > ? ORDER BY entity LIMIT ?) e",
        (after, limit),
    )


def heads_of(rows: Result) -> dict[str, EntityHead]:
    """The heads from one of the two statements above, in the order of the rows."""
    return {head.entity: head for head in _decode_heads(rows[0][0])}


def insert_decisions(entries: Sequence[Entry]) -> Rows:
    """Keep the entries' bytes."""
    return Rows(
        "INSERT INTO unrewind_decisions (sequence, digest, envelope, body) VALUES {rows}",
        [
            (entry.envelope.sequence, bytes.fromhex(entry.digest), entry.text.decode(), entry.body)
            for entry in entries
        ],
    )


def upsert_heads(heads: Iterable[EntityHead]) -> Rows:
    """Put entities at their new heads."""
    return Rows(
        "INSERT INTO unrewind_entities"
        " (entity, revision, history, digest, sequence, state, version, data) VALUES {rows}"
        " ON CONFLICT (entity) DO UPDATE SET revision = excluded.revision,"
        " history = excluded.history, digest = excluded.digest, sequence = excluded.sequence,"
        " state = excluded.state, version = excluded.version, data = excluded.data",
        [
            (
                head.entity,
                head.revision,
                bytes.fromhex(head.history),
                bytes.fromhex(head.digest),
                head.sequence,
                head.state,
                head.version,
                head.data,
            )
            for head in heads
        ],
    )


def heads_after(decisions: Iterable[Decision]) -> list[EntityHead]:
    """Each entity's row after its last decision."""
    last = {decision.entry.envelope.entity: decision for decision in decisions}
    return [head_after(decision) for decision in last.values()]


def write_decisions(decisions: Sequence[Decision]) -> list[Rows]:
    """The decisions' bytes, and each entity's row after its last one."""
    heads = heads_after(decisions)
    return [
        insert_decisions([decision.entry for decision in decisions]),
        upsert_heads(heads),
    ]


def write_heads(decisions: Sequence[Decision]) -> list[Rows]:
    """Each entity's row after its last decision, without the decisions' bytes."""
    heads = heads_after(decisions)
    return [upsert_heads(heads)]


def keep_decisions(rows: Sequence[Row]) -> Rows:
    """Keep journal entries' bytes as they are, unjudged; damaged ones need not be text."""
    return Rows(
        "INSERT INTO unrewind_decisions (sequence, digest, envelope, body)"
        " SELECT column1, column2, CAST(column3 AS TEXT), column4 FROM (VALUES {rows}) v"
        " WHERE true ON CONFLICT (sequence) DO NOTHING",
        [(row.sequence, bytes.fromhex(row.digest), row.text, row.body) for row in rows],
    )


def read_decisions(after: int, limit: int) -> Statement:
    """Stored decisions above a sequence, in order."""
    return Statement(
        "SELECT sequence, lower(hex(digest)), CAST(envelope AS BLOB), body FROM unrewind_decisions"
        " WHERE sequence > ? ORDER BY sequence LIMIT ?",
        (after, limit),
    )


def read_decisions_down(from_: int, limit: int) -> Statement:
    """Stored decisions at or below a sequence, newest first."""
    return Statement(
        "SELECT sequence, lower(hex(digest)), CAST(envelope AS BLOB), body FROM unrewind_decisions"
        " WHERE sequence <= ? ORDER BY sequence DESC LIMIT ?",
        (from_, limit),
    )


def read_envelopes_down(from_: int, limit: int) -> Statement:
    """Sequence, digest and envelope at or below a sequence, newest first; without the bodies."""
    return Statement(
        "SELECT sequence, lower(hex(digest)), CAST(envelope AS BLOB) FROM unrewind_decisions"
        " WHERE sequence <= ? ORDER BY sequence DESC LIMIT ?",
        (from_, limit),
    )


def read_digests(after: int, through: int) -> Statement:
    """Sequences with the digests that the store keeps there, above one and through another."""
    return Statement(
        "SELECT sequence, lower(hex(digest)) FROM unrewind_decisions"
        " WHERE sequence > ? AND sequence <= ?",
        (after, through),
    )


def decisions_of(rows: Result) -> list[StoredDecision]:
    """The decisions from one of the two statements above."""
    return [
        StoredDecision(sequence, digest, bytes(text), bytes(body))
        for sequence, digest, text, body in rows
    ]


def delete_decisions_above(sequence: int) -> Statement:
    """Drop decisions that the journal never held, or that a replay is about to bring back."""
    return Statement("DELETE FROM unrewind_decisions WHERE sequence > ?", (sequence,))


def count_decisions(through: int) -> Statement:
    """How many decisions stand at or below a sequence."""
    return Statement("SELECT count(*) FROM unrewind_decisions WHERE sequence <= ?", (through,))


def entities_above(sequence: int) -> Statement:
    """Entities whose row rests on a decision above a sequence, by name."""
    return Statement(
        "SELECT entity FROM unrewind_entities WHERE sequence > ? ORDER BY entity", (sequence,)
    )


def delete_heads(entities: Iterable[str]) -> Statement:
    """Drop entity rows that are about to be rebuilt, or that should not exist."""
    return Statement(
        "DELETE FROM unrewind_entities WHERE entity IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(sorted(entities)).decode(),),
    )


READ_CONTROL_SEQUENCE = Statement("SELECT coalesce(max(sequence), 0) FROM unrewind_control")


def copy_control(entries: Sequence[Entry]) -> Rows:
    """Byte copies of control entries, from which a lost journal can be healed."""
    return Rows(
        "INSERT INTO unrewind_control (sequence, digest, envelope, body) VALUES {rows}"
        " ON CONFLICT (sequence) DO UPDATE SET digest = excluded.digest,"
        " envelope = excluded.envelope, body = excluded.body",
        [
            (entry.envelope.sequence, bytes.fromhex(entry.digest), entry.text.decode(), entry.body)
            for entry in entries
        ],
    )


def drop_control_above(sequence: int) -> Statement:
    """Drop copies of control entries that the journal does not hold: it was healed without them."""
    return Statement("DELETE FROM unrewind_control WHERE sequence > ?", (sequence,))


def read_control(after: int, limit: int) -> Statement:
    """Copies of control entries above a control sequence, in order, as ``decisions_of`` takes."""
    return Statement(
        "SELECT sequence, lower(hex(digest)), CAST(envelope AS BLOB), body FROM unrewind_control"
        " WHERE sequence > ? ORDER BY sequence LIMIT ?",
        (after, limit),
    )


READ_LAST_CONTROL = Statement(
    "SELECT sequence, lower(hex(digest)), CAST(envelope AS BLOB), body FROM unrewind_control"
    " ORDER BY sequence DESC LIMIT 1"
)
"""The last copy of a control entry, as ``decisions_of`` takes it."""


COUNT_ENTITIES = Statement("SELECT count(*) FROM unrewind_entities")

DIGEST_ROWS = Statement(
    "SELECT entity, revision, state, data FROM unrewind_entities ORDER BY entity"
)
"""What ``state_digest`` is taken over."""


def list_entities(kind: str | None, after: str, limit: int) -> Statement:
    """A page of entities' names, optionally of one type, each with the size of its data."""
    low, high = ("", "\U0010ffff") if kind is None else (f"{kind}/", f"{kind}0")
    return Statement(
        "SELECT entity, length(CAST(data AS BLOB)) FROM unrewind_entities"
        " WHERE entity > ? AND entity >= ? AND entity < ? ORDER BY entity LIMIT ?",
        (after, low, high, limit),
    )
