"""Cross-checks: what the store keeps of the journal, held against the journal and against itself.

The marker says where the store stands, and the heads what its entities hold. Each row below them
can be damaged or put back alone: the copies of decisions and of control, an entity's state, a row
of work, a counter. Every query shows one moment, so a live process beside it is no finding.

Nothing says what a store alone knows: leases, steps, due times, rates, who is alive. The newest
copies of control may be missing too, for the next turn brings them.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from journal.control import Control
from journal.data import hash_of
from journal.driving import drive
from journal.formats import FIRST
from journal.lanes import Effect
from journal.record import Record
from journal.release import command_id
from journal.sql import Database, Statement
from journal.store import tables
from journal.work import FINISHED
from reconstruct.walking import Finding

STORE = "store"
HEAD = "head"
WORK = "work"

_TINY = 1e-6

_WAITING = Statement(
    f"SELECT {tables.MARKER_COLUMNS},"
    " (SELECT count(*) FROM unrewind_decisions WHERE sequence > journalled),"
    " (SELECT lower(hex(d.digest)) FROM unrewind_decisions d"
    "   WHERE d.sequence = unrewind_marker.sequence)"
    " FROM unrewind_marker"
)
_COPIES = "SELECT sequence, digest FROM unrewind_decisions WHERE sequence <= ? ORDER BY sequence"
_DECIDED = (
    "SELECT sequence, digest, history FROM entries WHERE stream = 'decisions'"
    " AND sequence IS NOT NULL AND sequence <= ? ORDER BY sequence"
)
_HEADS = Statement(
    "SELECT e.entity, e.revision, e.history, e.digest, e.state, e.version, d.digest,"
    " CAST(d.envelope AS BLOB) FROM unrewind_entities e"
    " LEFT JOIN unrewind_decisions d ON d.sequence = e.sequence"
)
_CONTROL = Statement(
    "SELECT sequence, digest, CAST(envelope AS BLOB), body FROM unrewind_control ORDER BY sequence"
)
_WORK = Statement(
    "SELECT w.id, w.effect, w.name, w.status, w.finished, w.entity, w.revision, w.place,"
    " w.operation, w.version, w.data, w.created, CAST(d.envelope AS BLOB) FROM unrewind_work w"
    " LEFT JOIN unrewind_decisions d ON d.sequence = w.sequence ORDER BY w.number"
)
_COUNTS = Statement(
    "SELECT lane, status, items, weight, 0 FROM unrewind_counts"
    " WHERE items <> 0 OR weight <> 0 UNION ALL"
    " SELECT lane, status, count(*), sum(weight), 1 FROM unrewind_work GROUP BY lane, status"
)


class _Outcome(Struct, gc=False):
    data: str | None
    state: str


class _Decided(Struct, gc=False):
    """What rows of the store repeat of a decision's envelope."""

    action: str
    entity: str
    history: str
    operation: str
    outcome: _Outcome
    recorded: str
    revision: int
    tenant: str
    version: str | None


_decode = msgspec.json.Decoder(_Decided).decode


def crosschecked(record: Record) -> Iterator[Finding]:
    """Where the store's rows contradict the journal or each other; for a store that stands well.

    Its bytes are hashed elsewhere: a copy that cannot be read is left out here. Raises Damaged.
    """
    if record.store is None or record.log is None:
        return
    store, journal = record.store.database, record.log.database
    control = drive(record.read_control())
    yield from _marker_findings(store)
    yield from _copies_of_decisions(store, journal, control)
    yield from _copies_of_control(record, store)
    yield from _heads(store)
    if any(lifecycle.works for lifecycle in record.lifecycles.values()):
        yield from _work(store)
        yield from _counters(store)


def _marker_findings(store: Database) -> Iterator[Finding]:
    """What waits for its handoff is there, and nothing beyond."""
    for row in store.read([_WAITING])[0]:
        form, *_, sequence, digest, journalled, waiting, at_marker = row
        if form < FIRST:
            yield Finding(STORE, f"the store's marker names format {form}, which never was")
        if waiting != sequence - journalled:
            yield Finding(
                STORE,
                f"the store's marker says that {sequence - journalled} decisions wait for their "
                f"handoff, and it holds {waiting}",
                sequence=sequence,
            )
        if at_marker not in {None, digest}:
            yield Finding(
                STORE,
                f"the store's marker names {digest[:12]} at sequence {sequence}, and it holds "
                f"{at_marker[:12]} there",
                sequence=sequence,
            )


def _copies_of_decisions(store: Database, journal: Database, control: Control) -> Iterator[Finding]:
    """The copies through the handed-off watermark are the journal's decisions, none left out.

    A copy of a decision that the journal lost is no finding here: the journal's hole is one.
    """
    marker = tables.marker_of(store.read([tables.READ_MARKER])[0])
    if marker is None:
        return
    through = (marker.journalled,)
    copies = store.stream(Statement(_COPIES, through))
    firsts = {item.history: item.first for item in control.histories}
    before: str | None = None
    copy = next(copies, None)
    for sequence, digest, raw in journal.stream(Statement(_DECIDED, through)):
        history = raw.hex()
        while copy is not None and copy[0] < sequence:
            if before != history and copy[0] < firsts.get(history, sequence):
                yield _copy_finding(copy[0], "the journal never gave this sequence")
            copy = next(copies, None)
        if copy is None or copy[0] > sequence:
            yield _copy_finding(sequence, "its copy of the decision is missing")
        else:
            if copy[1] != digest:
                yield _copy_finding(sequence, "its copy is of another decision than the journal's")
            copy = next(copies, None)
        before = history
    while copy is not None:
        if before != control.authority.history:
            yield _copy_finding(copy[0], "the journal never gave this sequence")
        copy = next(copies, None)


def _copy_finding(sequence: int, fault: str) -> Finding:
    return Finding(STORE, f"store, sequence {sequence}: {fault}", sequence=sequence)


def _copies_of_control(record: Record, store: Database) -> Iterator[Finding]:
    """What a healing would take control from."""
    known = {row.sequence: row.digest for row in drive(record.journal().control())}
    expected = 1
    for sequence, digest, text, body in store.stream(_CONTROL):
        fault = None
        if sequence != expected:
            fault = "the copies before it are missing"
        elif sha256(b"\0" + text).digest() != digest:
            fault = "its envelope does not hash to its digest"
        elif not _is_body_of(text, body):
            fault = "its body is not the one that its envelope names"
        elif known.get(sequence, digest.hex()) != digest.hex():
            fault = "the journal holds another one"
        if fault is not None:
            yield Finding(
                STORE, f"the store's copy of control entry {sequence}: {fault}", sequence=sequence
            )
        expected = sequence + 1


class _Body(Struct):
    sha256: str


class _Bodied(Struct):
    body: _Body


def _is_body_of(text: bytes, body: bytes) -> bool:
    try:
        named = msgspec.json.decode(text, type=_Bodied).body.sha256
    except (msgspec.MsgspecError, RecursionError):
        return False
    return named == sha256(body).hexdigest()


def _heads(store: Database) -> Iterator[Finding]:
    """Each entity's row repeats the decision whose place it names."""
    for entity, revision, history, digest, state, version, kept, text in store.stream(_HEADS):
        decided = None if text is None else _read(text)
        if text is not None and decided is None:
            continue
        if decided is None or kept != digest:
            fault = "the sequence in its row is not that of its last decision"
        elif (decided.entity, decided.revision) != (entity, revision):
            fault = f"its row stands at a decision of {decided.entity}"
        elif decided.outcome.state != state:
            fault = f"the store says {state}, its last decision led to {decided.outcome.state}"
        elif decided.version != version:
            fault = f"the store has version {version}, its last decision {decided.version}"
        elif decided.history != history.hex():
            fault = "its row names another history than its last decision"
        else:
            continue
        yield Finding(HEAD, f"{entity}: {fault}", entity, revision)


def _read(text: bytes) -> _Decided | None:
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


class _Made(Struct, array_like=True):
    """What a row of work says of the decision that made it."""

    id: str
    effect: str
    name: str
    status: str
    finished: str | None
    entity: str | None
    revision: int | None
    place: int
    operation: str | None
    version: str | None
    data: str
    created: str


def _work(store: Database) -> Iterator[Finding]:
    """Each row of work names the decision that made it, and has ended or has not."""
    for *row, text in store.stream(_WORK):
        made = _Made(*row)
        fault = None
        if made.effect not in _EFFECTS or _is_release(made) != (made.effect == Effect.EXTERNAL):
            fault = f"its effect is {made.effect}"
        elif (made.status in FINISHED) != (made.finished is not None):
            fault = f"it is {made.status}, and {'has' if made.finished else 'has not'} ended"
        elif _is_release(made) or made.id.startswith("cmd_") or made.operation is not None:
            fault = "no decision made it"
            if text is not None:
                decided = _read(text)
                fault = None if decided is None else _unlike(made, decided)
        if fault is not None:
            yield Finding(WORK, f"work {made.id}: {fault}", made.entity)


def _is_release(made: _Made) -> bool:
    return made.id.startswith("rel_")


def _unlike(made: _Made, decided: _Decided) -> str | None:
    names = (made.entity, made.revision, made.operation, made.created)
    if names != (decided.entity, decided.revision, decided.operation, decided.recorded):
        return f"operation {made.operation} is not the decision that it names"
    # Whatever stands in the column: a spoiled row is a finding, too.
    data: Any = made.data
    if decided.outcome.data not in {None, hash_of(data.encode() if isinstance(data, str) else b"")}:
        return f"its content is not what {made.operation} led to"
    if _is_release(made):
        return None if decided.action == made.name else f"its decision is {decided.action}"
    if decided.version != made.version:
        return f"its version is {made.version}, its decision's {decided.version}"
    identity = command_id(decided.tenant, decided.operation, made.place, made.name)
    return None if identity == made.id else f"it is not command {made.place} of its decision"


_EFFECTS = frozenset(map(str, Effect))


def _counters(store: Database) -> Iterator[Finding]:
    """What the pages show is what the rows add up to."""
    sums: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for lane, status, items, weight, counted in store.read([_COUNTS])[0]:
        pair = sums.setdefault((lane, status), [(0, 0.0), (0, 0.0)])
        pair[counted] = (items, weight)
    for (lane, status), ((items, weight), (counted, summed)) in sums.items():
        if items != counted or not _is_about(weight, summed):
            yield Finding(
                WORK,
                f"the counters say {items} {status} in lane {lane} of weight {weight}, "
                f"there are {counted} of {summed}",
            )


def _is_about(weight: Any, summed: Any) -> bool:
    """Whether two weights are the same; a row may hold what is no number."""
    if not (isinstance(weight, int | float) and isinstance(summed, int | float)):
        return False
    return abs(weight - summed) <= _TINY * max(1.0, abs(summed))
