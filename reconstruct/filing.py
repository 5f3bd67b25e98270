"""Filing: where the journal keeps an entry, and what it derives from the entries of a chain.

Stream and position stand beside an entry, under no digest; ``chains`` says how far a caller-owned
history is durable, and its callers are acknowledged by that. All of it follows from the entries.
The order in which entries of different streams arrived follows from nothing that is stored twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import msgspec
from msgspec import Struct

from journal.abandonment import Cuts, dropping, is_evidence
from journal.control import Abandoned
from journal.entry import Predecessor, read, read_envelope
from journal.errors import Invalid
from journal.history import Flaw, Link, examine, link_of
from journal.lifecycle import Lifecycle, Owner
from journal.log import CALLER, CONTROL, DECISIONS, OBSERVATIONS
from journal.sql import Database, Statement
from reconstruct.walking import Finding

INDEX = "index"

_FILED = Statement(
    "SELECT position, stream, sequence, history, entity FROM entries ORDER BY position"
)
_CALLERS = Statement(
    "SELECT entity, revision, history, digest, CAST(envelope AS BLOB) FROM entries"
    " WHERE stream GLOB 'caller/*' ORDER BY entity, revision, history"
)
_CHAINS = Statement(
    "SELECT entity, revision, history, digest, state, newest FROM chains ORDER BY entity"
)
_FLAWS = Statement("SELECT entity, flaw, first, last FROM flaws")
_RIVALS = Statement("SELECT entity, digest, CAST(envelope AS BLOB), body FROM rivals")


class _Outcome(Struct, gc=False):
    state: str


class _Linked(Struct, gc=False):
    """What a boundary needs to know of an envelope."""

    outcome: _Outcome
    predecessor: Predecessor | None


_decode = msgspec.json.Decoder(_Linked).decode


def misfiled(database: Database, lifecycles: Mapping[str, Lifecycle]) -> Iterator[Finding]:
    """Entries in another stream than theirs, or out of their stream's order."""
    types = {name: _stream_of(name, lifecycle) for name, lifecycle in lifecycles.items()}
    last: dict[tuple[str, bytes], int] = {}
    first = True
    for position, stream, sequence, history, entity in database.stream(_FILED):
        if first and position < 1:
            yield _misfiled(position, f"{entity} stands at position {position}, before the first")
        first = False
        kind = entity.partition("/")[0]
        wanted = types.get(kind) or _OURS.get(kind)
        if stream != wanted and (wanted is not None or stream not in {DECISIONS, CALLER + kind}):
            yield _misfiled(position, f"{entity} stands in stream {stream}")
        if sequence is None or stream.startswith(CALLER):
            continue  # a caller's entries may arrive in any order
        before = last.get((stream, history), 0)
        if sequence <= before:
            yield _misfiled(
                position, f"sequence {sequence} of {stream} stands after sequence {before}"
            )
        last[stream, history] = max(sequence, before)


_OURS = {"control": CONTROL, "observation": OBSERVATIONS}


def _stream_of(name: str, lifecycle: Lifecycle) -> str:
    return CALLER + name if lifecycle.owner is Owner.CALLER else DECISIONS


def _misfiled(position: int, fault: str) -> Finding:
    return Finding(str(Flaw.MISMATCH), f"position {position}: {fault}", position=position)


def misread_rivals(database: Database) -> Iterator[Finding]:
    """Rivals whose bytes are not what their digest says."""
    for entity, digest, text, body in database.stream(_RIVALS):
        try:
            fault = None if read(text, body).digest == digest else "does not hash to its digest"
        except Invalid as error:
            fault = error.detail
        if fault is not None:
            yield Finding(str(Flaw.MISMATCH), f"{entity}: a rival, {digest[:12]}, {fault}", entity)


def misplaced(database: Database, cuts: Cuts) -> Iterator[Finding]:
    """Caller-owned entities whose stored boundary or flaws are not what their entries lead to.

    Found beside a writer, so to be looked at again.
    """
    rivals, flaws = _rivals(database, cuts), _flaws(database)
    kept = database.stream(_CHAINS)
    chain = next(kept, None)
    for entity, rows in groupby(database.stream(_CALLERS), key=lambda row: str(row[0])):
        while chain is not None and chain[0] < entity:
            yield _index(chain[0], chain[1:], None)
            chain = next(kept, None)
        stands = None
        if chain is not None and chain[0] == entity:
            stands, chain = chain[1:], next(kept, None)
        led = _led([*rows], cuts.get(entity, ()))
        if led is None:
            continue
        disputed = rivals.get(entity, set())
        # A fork keeps the boundary where it stood when the rival came.
        place, newest = led.boundary, led.boundary[4]
        if disputed and stands is not None and stands[:4] in led.places:
            place = (*stands[:4], newest)
        if stands != place:
            yield _index(entity, stands, led.boundary)
        if flaws.get(entity, set()) != led.flaws | disputed:
            yield Finding(
                INDEX, f"{entity}: its flaws are kept otherwise than its entries show them", entity
            )
    while chain is not None:
        yield _index(chain[0], chain[1:], None)
        chain = next(kept, None)


def _rivals(database: Database, cuts: Cuts) -> dict[str, set[_Flaw]]:
    """The forks that rivals of stored entries make, by entity; abandoned ones make none."""
    found: dict[str, set[_Flaw]] = {}
    for entity, digest, text, _ in database.stream(_RIVALS):
        try:
            link = link_of(read_envelope(text), digest)
        except Invalid:
            continue
        if not is_evidence(cuts.get(entity, ()), link):
            found.setdefault(entity, set()).add((str(Flaw.FORK), link.revision, link.revision))
    return found


def _flaws(database: Database) -> dict[str, set[_Flaw]]:
    found: dict[str, set[_Flaw]] = {}
    for entity, flaw, first, last in database.stream(_FLAWS):
        found.setdefault(entity, set()).add((flaw, first, last))
    return found


_Flaw = tuple[str, int, int]
_Boundary = tuple[int, str, str, str, int]


class _Led(Struct):
    """Where the entries of one entity lead to: boundary, flaws, and every place on the way."""

    boundary: _Boundary
    flaws: set[_Flaw]
    places: set[tuple[int, str, str, str]]


def _led(
    rows: Sequence[tuple[str, int, bytes, bytes, bytes]],
    cuts: Sequence[Abandoned],
) -> _Led | None:
    """None where an entry cannot be read."""
    links: list[Link] = []
    states: dict[str, str] = {"": ""}
    for _, revision, raw, digest, text in rows:
        if cuts and dropping(cuts, revision, raw.hex(), digest.hex()) is not None:
            continue
        try:
            fields = _decode(text)
        except (msgspec.MsgspecError, RecursionError):
            return None
        links.append(Link(revision, raw.hex(), digest.hex(), fields.predecessor))
        states[digest.hex()] = fields.outcome.state
    chain = examine(links)
    head = chain.boundary
    newest = max((link.revision for link in links), default=0)
    places = {(link.revision, link.history, link.digest, states[link.digest]) for link in links}
    return _Led(
        (head.revision, head.history, head.digest, states.get(head.digest, ""), newest),
        {(str(found.flaw), found.first, found.last) for found in chain.breaks},
        places | {(0, "", "", "")},
    )


def _index(entity: str, stands: _Boundary | None, wanted: _Boundary | None) -> Finding:
    return Finding(
        INDEX,
        f"{entity}: its durable boundary is kept as {_shown(stands)}, and its entries lead to "
        f"{_shown(wanted)}",
        entity,
    )


def _shown(boundary: _Boundary | None) -> str:
    if boundary is None:
        return "none"
    return f"revision {boundary[0]} of {boundary[4]}, {boundary[3] or 'nothing'}"
