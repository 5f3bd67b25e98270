"""A decision inside the application's transaction: compare, judge, write; the commit is not ours.

    application: BEGIN ─ its own rows ─ decide_in ─ its own rows ─ COMMIT ─► confirmed ─► answer
                                          │                                   │
                  lock the marker ─ compare ─ judge ─ write        hand off ─ journal

From the lock to the application's commit no other decision is made in this store, so what was
compared stays true. The turn lock is not held: nobody knows how long the application takes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from msgspec import Struct

from journal.acceptance import (
    ACCEPTED,
    Acceptance,
    Judged,
    Operation,
    Place,
    check_operation,
)
from journal.control import Control, tip_of
from journal.detection import MAX_WAITING, Seen
from journal.entry import Entry, Predecessor, admit
from journal.errors import (
    ConstraintFailed,
    DiskFailed,
    EngineError,
    FenceFailed,
    Invalid,
    JournalUnavailable,
    Overloaded,
    Recovering,
    Refused,
    UnrewindError,
)
from journal.inside.guest import Guest, GuestStore
from journal.log import Look
from journal.projection import refusal_of
from journal.record import Record
from journal.standing import examine
from journal.store import tables
from journal.store.tables import Marker, StoredDecision
from journal.writepath import (
    Ready,
    batch_of,
    check_door,
    check_stage,
    judge_now,
    make_clean,
)

_ISSUED = 65_536
_MANY = 500


class Tentative(Struct, frozen=True):
    """A decision as it stands in the application's transaction; acknowledge nothing by it.

    ``outcome`` is `accepted`, or `duplicate` when an earlier transaction decided it: then its rows
    are there already. Hand it to ``confirmed`` after the commit.
    """

    operation: str
    outcome: str
    entity: str
    version: str | None
    revision: int
    predecessor: Predecessor | None
    history: str
    generation: int
    sequence: int | None
    digest: str
    state: str
    releases: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()


class _Issued:
    """Digests of what this process has decided in open transactions, the newest ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digests: OrderedDict[str, None] = OrderedDict()

    def add(self, digests: Sequence[str]) -> None:
        with self._lock:
            self._digests.update(dict.fromkeys(digests))
            while len(self._digests) > _ISSUED:
                self._digests.popitem(last=False)

    def forget(self, digest: str) -> None:
        with self._lock:
            self._digests.pop(digest, None)

    def __contains__(self, digest: str) -> bool:
        return digest in self._digests


ISSUED = _Issued()


class Standing(Struct, frozen=True):
    """What a decision rests on: the journal, control, and the store as others see it."""

    look: Look
    control: Control
    committed: Marker


async def decide(
    record: Record,
    guest: Guest,
    store: GuestStore,
    operations: Sequence[Operation],
    alone: AbstractContextManager[Any],
    *,
    projected: bool = True,
) -> list[Tentative]:
    """Decide all operations in the transaction that ``guest`` is in, or none of them.

    ``alone`` is entered once the marker is locked: whoever waits for that lock must not keep this
    process's other transactions from going on.

    Raises the refusal of the first operation that is refused, Recovering, JournalUnavailable, or
    Refused where the connection is not one to the tenant's store.
    """
    for operation in operations:
        check_operation(operation, record.lifecycles, record.settings.max_body)
    check_door(record)
    try:
        with guest.borrowed():
            marker = guest.lock()
            with alone:
                return await _decide(record, guest, store, marker, operations, projected=projected)
    except FenceFailed as error:
        raise JournalUnavailable(
            f"another transaction decided meanwhile ({error}): roll back and run the transaction "
            "again, with the same operation ID"
        ) from error
    except EngineError as error:
        raise JournalUnavailable(
            f"nothing was decided: {error}; roll back and repeat, with the same operation ID"
        ) from error


async def _decide(
    record: Record,
    guest: Guest,
    store: GuestStore,
    marker: Marker,
    operations: Sequence[Operation],
    *,
    projected: bool,
) -> list[Tentative]:
    standing = await _compare(record)
    guest.check_place(record)
    tip = tip_of(standing.control.authority, standing.look.last)
    if marker.place.sequence - tip.sequence > _MANY:
        standing = await _handed_off(record)
        tip = tip_of(standing.control.authority, standing.look.last)
    waiting = await _waiting(store, tip, marker)
    _check_same(record, standing.committed, marker, tip, waiting)
    ready = Ready(standing.look, standing.control, store, marker, marker.place)
    known = {entry.envelope.operation: entry for entry in waiting}
    judged = await judge_now(record, ready, operations, known)
    fresh = [one for one in judged.answers if _is_new(one)]
    if len(fresh) < len(judged.answers) and standing.committed.place.sequence > tip.sequence:
        # A refusal and a first answer rest on journalled decisions only (P1).
        await _handed_off(record)
    for answer in judged.answers:
        if isinstance(answer, UnrewindError):
            raise answer
    if judged.decisions:
        await _write(record, store, marker, judged, tip.sequence, projected=projected)
    return [_tentative(each) for each in judged.answers if isinstance(each, Acceptance)]


def _is_new(answer: Acceptance | UnrewindError) -> bool:
    return isinstance(answer, Acceptance) and answer.outcome == ACCEPTED


async def _compare(record: Record) -> Standing:
    """The tenant as every turn compares it; what waits may go on waiting.

    Raises Recovering, after closing the tenant where the verdict asks for it.
    """
    finding, seen = await examine(record)
    if not finding.verdict.sound or record.touched():
        with record.lock.held():
            seen = await make_clean(record)
    else:
        record.finding = finding
    return _standing(record, seen)


async def _handed_off(record: Record) -> Standing:
    with record.lock.held():
        seen = await make_clean(record)
    return _standing(record, seen)


def _standing(record: Record, seen: Seen) -> Standing:
    control = check_stage(record)
    if seen.marker is None:
        raise Recovering("the store went away")
    return Standing(seen.look, control, seen.marker)


async def _waiting(store: GuestStore, tip: Place, marker: Marker) -> list[Entry]:
    """What this transaction sees beyond the journal's tip: others' and its own decisions."""
    ahead = marker.place.sequence - tip.sequence
    if ahead <= 0:
        return []
    if ahead > MAX_WAITING:
        raise Overloaded(f"{ahead} decisions wait for their handoff: commit, and confirm them")
    rows = (await store.read([tables.read_decisions(tip.sequence, ahead)]))[0]
    return [_admitted(stored) for stored in tables.decisions_of(rows)]


def _admitted(stored: StoredDecision) -> Entry:
    try:
        return admit(stored.text, stored.body)
    except Invalid as error:
        raise JournalUnavailable(
            f"the store's decision at sequence {stored.sequence} is damaged: {error}"
        ) from error


def _check_same(
    record: Record, committed: Marker, marker: Marker, tip: Place, waiting: Sequence[Entry]
) -> None:
    """Refuse a connection to another database than the tenant's store, such as a replaced file.

    What the transaction sees beyond the committed marker is its own, decided by this process.
    """
    places: Mapping[int, str] = {
        tip.sequence: tip.digest,
        **{entry.envelope.sequence or 0: entry.digest for entry in waiting},
    }
    there, here = committed.place, marker.place
    same = (
        (committed.tenant, committed.instance) == (marker.tenant, marker.instance)
        and (there.history, there.generation) == (here.history, here.generation)
        and places.get(there.sequence) == there.digest
        and places.get(here.sequence) == here.digest
        and len(places) == here.sequence - tip.sequence + 1
    )
    own = [each.digest for each in waiting if (each.envelope.sequence or 0) > there.sequence]
    if not same or not all(digest in ISSUED for digest in own):
        raise Refused(
            f"this connection is open on another database than {record.store_place.label} is now "
            f"(sequence {here.sequence} here, {there.sequence} there): roll back and connect anew"
        )


async def _write(
    record: Record,
    store: GuestStore,
    marker: Marker,
    judged: Judged,
    journalled: int,
    *,
    projected: bool,
) -> None:
    named = ", ".join(dict.fromkeys(each.entry.envelope.entity for each in judged.decisions))
    try:
        statements = batch_of(record, marker, judged, journalled, projected=projected)
        await store.batch(statements)
    except ConstraintFailed as error:
        raise refusal_of(named, error) from error
    except DiskFailed as error:
        raise JournalUnavailable(
            f"the disk refused it, and the database rolled the transaction back: {error}"
        ) from error
    ISSUED.add([each.entry.digest for each in judged.decisions])


def _tentative(answer: Acceptance) -> Tentative:
    return Tentative(**{name: getattr(answer, name) for name in Tentative.__struct_fields__})
