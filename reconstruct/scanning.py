"""Scanning: a journal's file read in its own order, to say quickly that nothing is wrong.

The rows of a file stand in the order in which they were written, and reading them so is much
cheaper than by entity. The price is a link in memory for every entity, so this is for journals of
up to MAX_ENTITIES. A scan accuses nobody: what it is not sure of it names, and ``walking`` looks at
that, entity by entity. What it leaves unnamed is as sound as a walk would find it.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import msgspec
from msgspec import Struct

from journal.entry import Predecessor
from journal.errors import Damaged
from journal.sql import Database, Statement

MAX_ENTITIES = 20_000
REPORT_EVERY = 20_000

Progress = Callable[[int, int, str], None]


class _BodyFields(Struct, gc=False):
    sha256: str
    size: int


class Fields(Struct, gc=False):
    """The envelope's fields that verification needs; the digest vouches for the rest.

    In the order of RFC 8785, in which they are found quickest.
    """

    body: _BodyFields
    entity: str
    history: str
    operation: str
    predecessor: Predecessor | None
    revision: int
    sequence: int | None
    tenant: str


decode_fields = msgspec.json.Decoder(Fields).decode

_SCAN = (
    "SELECT entity, revision, history, digest, operation, sequence, CAST(envelope AS BLOB), body,"
    " position FROM entries NOT INDEXED WHERE position > ? AND position <= ? ORDER BY position"
)
_BY_ENTITY = (
    "SELECT entity, count(*), min(revision), max(revision), sum(position),"
    " sum(history NOT IN ({known}))"
    " FROM entries INDEXED BY entries_revision WHERE position <= ? GROUP BY entity"
)
_MANY = 500


Place = tuple[str, int, str]
"""Digest, revision and history of an entry: what the next one of its entity names."""


class Scanned(Struct):
    """What a scan of consecutive rows saw.

    ``positions`` is their sum. ``firsts`` has what the first entry of each entity names as the one
    before it, ``lasts`` the last entry of each. ``doubted`` are the entities that a walk has to
    look at.
    """

    entries: int
    positions: int
    firsts: dict[str, Place | None]
    lasts: dict[str, Place]
    histories: set[bytes]
    doubted: set[str]

    def settled(self) -> Scanned:
        """The scan of a whole journal: what does not begin with its first entry is doubted too."""
        begun = {name for name, before in self.firsts.items() if before is not None}
        return msgspec.structs.replace(self, doubted=self.doubted | begun)


class Unsure(Exception):
    """A scan cannot speak for these rows: too many entities, or values that it does not compare.

    ``index`` says how the index by entity contradicts the rows, where it does.
    """

    def __init__(self, why: str, index: str | None = None) -> None:
        self.index = index
        super().__init__(why, index)


def scan(database: Database, tenant: str, above: int, through: int, progress: Progress) -> Scanned:
    """Check every entry at the positions in (above, through]: digest, columns, body, chain.

    Raises Unsure.
    """
    try:
        return _scan(database, tenant, above, through, progress)
    except (Damaged, TypeError, AttributeError) as error:
        # Text that is none, or a value of another type than its column's: the walk names it.
        raise Unsure(str(error)) from None


def _scan(database: Database, tenant: str, above: int, through: int, progress: Progress) -> Scanned:
    firsts: dict[str, Place | None] = {}
    lasts: dict[str, Place] = {}
    doubted: set[str] = set()
    hexes: dict[bytes, str] = {}
    entries = positions = 0
    # This loop runs for every entry of the journal.
    last_of, decode, hashed = lasts.get, decode_fields, sha256
    for row in database.stream(Statement(_SCAN, (above, through))):
        name, revision, raw_history, raw_digest, operation, sequence, text, body, position = row
        entries += 1
        positions += position
        if entries % REPORT_EVERY == 0:
            progress(entries, 0, "entries verified")
        try:
            fields = decode(text)
        except (msgspec.MsgspecError, RecursionError):
            doubted.add(name)
            continue
        history = hexes.get(raw_history) or hexes.setdefault(raw_history, raw_history.hex())
        said, before = fields.body, fields.predecessor
        if (
            hashed(b"\0" + text).digest() != raw_digest
            or said.size != len(body)
            or said.sha256 != hashed(body).hexdigest()
            or fields.entity != name
            or fields.revision != revision
            or fields.operation != operation
            or fields.sequence != sequence
            or fields.history != history
            or fields.tenant != tenant
        ):
            doubted.add(name)
            continue
        last = last_of(name)
        if last is None:
            if len(firsts) >= MAX_ENTITIES:
                raise Unsure("more entities than a scan remembers")
            firsts[name] = _place(before)
            if revision != (1 if before is None else before.revision + 1):
                doubted.add(name)
        else:
            digest, through_revision, of = last
            if (
                before is None
                or before.digest != digest
                or before.revision != through_revision
                or before.history != of
                or revision != through_revision + 1
            ):
                doubted.add(name)
        lasts[name] = (raw_digest.hex(), revision, history)
    return Scanned(entries, positions, firsts, lasts, {*hexes}, doubted)


def _place(before: Predecessor | None) -> Place | None:
    return None if before is None else (before.digest, before.revision, before.history)


def join(one: Scanned, other: Scanned) -> Scanned:
    """Two scans as one, of which the ``other`` began where the first ended. Raises Unsure."""
    doubted = one.doubted | other.doubted
    for name, before in other.firsts.items():
        if before != one.lasts.get(name):
            doubted.add(name)
    firsts = {**other.firsts, **one.firsts}
    if len(firsts) > MAX_ENTITIES:
        raise Unsure("more entities than a scan remembers")
    return Scanned(
        one.entries + other.entries,
        one.positions + other.positions,
        firsts,
        {**one.lasts, **other.lasts},
        one.histories | other.histories,
        doubted,
    )


def check_index(database: Database, scanned: Scanned, through: int) -> None:
    """Hold the index by entity against a scan of all rows through a position.

    Reads of an entity go by the index, which a scan of the rows alone would say nothing about. Each
    entity must have its revisions from 1 on there, once each, of histories that the rows have, and
    the index must lead to as many rows, and to the same ones by the sum of their positions.
    Raises Unsure when it does not.
    """
    if len(scanned.histories) > _MANY:
        raise Unsure("more histories than a scan compares")
    known = ",".join("?" * len(scanned.histories))
    query = Statement(_BY_ENTITY.format(known=known), (*scanned.histories, through))
    lasts, doubted = scanned.lasts, scanned.doubted
    entities = entries = positions = 0
    try:
        for name, count, least, most, where, foreign in database.stream(query):
            entities += 1
            entries += count
            positions += where
            last = lasts.get(name)
            whole = least == 1 and count == most and foreign == 0
            if name not in doubted and not (whole and last is not None and last[1] == most):
                raise _crossed(f"the index by entity does not repeat the entries of {name}")
    except (Damaged, TypeError) as error:
        raise Unsure(str(error)) from None
    if (entries, positions) != (scanned.entries, scanned.positions):
        raise _crossed("the index by entity does not lead to every entry")
    if entities != len(scanned.firsts.keys() | doubted):
        raise _crossed("the index by entity names other entities than the entries")


def _crossed(how: str) -> Unsure:
    return Unsure(how, how)
