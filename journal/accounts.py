"""Accounts: the ledger read from the files: every accepted operation, and what became of it.

Coroutines over a read-only ``Record``, in any stage. Where the store is missing, damaged or behind
its journal, what it lacks is unresolved, never over.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from heapq import nsmallest
from itertools import chain

import msgspec
from msgspec import Struct

from journal.acceptance import DUPLICATE, Acceptance, receipt
from journal.control import Control, ControlUnreadable
from journal.entry import MAX_INTEGER, Envelope
from journal.errors import EngineError, FileChanged, Invalid, NotFound
from journal.feed import Page, clamp, decode_cursor, encode_cursor
from journal.ledger import Decided, Duty, Verdict, fate_of
from journal.log import CONTROL, FIRST_FLAW, OBSERVATIONS, FlawRow, Row
from journal.record import Record
from journal.sql import Result, Statement
from journal.store import accounts
from journal.store import work as works
from journal.work import Work

_NO_OPERATIONS = frozenset({CONTROL, OBSERVATIONS})
_PAGE = 500


class Account(Acceptance, frozen=True, kw_only=True):
    """An accepted operation with what became of it. ``recorded`` is when it was accepted."""

    action: str
    recorded: str
    fate: Verdict


class _Standing(Struct):
    """What every fate of one look rests on."""

    control: Control | None
    through: int
    whole: bool
    closed_since: str
    flaws: Mapping[str, FlawRow]
    now: str


async def fate_of_operation(record: Record, operation: str) -> Account:
    """What became of one operation. Raises NotFound for one that the journal does not hold."""
    rows = await record.journal().operations([operation])
    rows = [row for row in rows if row.stream not in _NO_OPERATIONS]
    if not rows:
        raise NotFound(
            f"the journal holds no operation {operation}; if it was sent, repeat it",
            operation=operation,
        )
    return (await accounts_of(record, rows))[0]


async def accounts_of(record: Record, rows: Sequence[Row]) -> list[Account]:
    """The accounts of these entries, in their order."""
    return await _accounts(record, await _look(record, rows), rows)


async def read_ledger(
    record: Record, *, entity: str | None, after: str | None, limit: int | None
) -> Page:
    """A page of all accepted operations, or of an entity's, as the journal took them."""
    size = clamp(limit)
    if entity is None:
        position = 0 if after is None else decode_cursor(after, tuple[int])[0]
        rows, more = await _fed(record, position, size)
        cursor = encode_cursor(rows[-1].position) if rows and more else None
    else:
        revision, position = (1, 0) if after is None else decode_cursor(after, tuple[int, int])
        rows, more = await _of_entity(record, entity, revision, position, size)
        cursor = encode_cursor(rows[-1].revision, rows[-1].position) if more else None
    return Page(await accounts_of(record, rows), cursor)


async def _fed(record: Record, position: int, size: int) -> tuple[list[Row], bool]:
    found: list[Row] = []
    while rows := await record.journal().feed(position, size):
        for row in rows:
            if row.stream not in _NO_OPERATIONS:
                if len(found) == size:
                    return found, True
                found.append(row)
        position = rows[-1].position
    return found, False


async def _of_entity(
    record: Record, entity: str, revision: int, position: int, size: int
) -> tuple[list[Row], bool]:
    """Entries of an entity above a place in the order of revision and position."""
    found: list[Row] = []
    first = revision
    while rows := await record.journal().history(entity, first, MAX_INTEGER, _PAGE, dropped=True):
        rows = sorted(rows, key=lambda row: (row.revision, row.position))
        known = {row.position for row in found}
        for row in rows:
            if (row.revision, row.position) <= (revision, position) or row.position in known:
                continue
            if row.stream in _NO_OPERATIONS:
                continue
            if len(found) == size:
                return found, True
            found.append(row)
        # The last revision of a page may go on in the next one, unless it stands alone.
        last = rows[-1].revision
        first = last if last > first else last + 1
    return found, False


# What is unresolved, oldest first.


async def read_unresolved(
    record: Record, *, entity: str | None, after: str | None, limit: int | None
) -> Page:
    """A page of what is unresolved, the oldest acceptance first, of one entity or of all."""
    size = clamp(limit)
    key = ("", "") if after is None else decode_cursor(after, tuple[str, str])
    found: list[Account] = []
    for _ in range(_MOST_LOOKS):
        keys = await _candidates(record, entity, key, size + 1)
        named = [operation for _, operation in keys[:size]]
        rows = {row.operation: row for row in await record.journal().operations(named)}
        accounts = await accounts_of(
            record,
            [
                rows[name]
                for name in named
                if name in rows and rows[name].stream not in _NO_OPERATIONS
            ],
        )
        found += [account for account in accounts if account.fate.deadline is not None]
        if len(keys) <= size:
            return Page(found, None)
        key = keys[size - 1]
        if found:
            break
    return Page(found, encode_cursor(*key))


_MOST_LOOKS = 100
"""Reads that one page makes: one that finds little is short, and its cursor goes on."""


async def _candidates(
    record: Record, entity: str | None, after: tuple[str, str], limit: int
) -> list[tuple[str, str]]:
    """Operations that may be unresolved, by when they were accepted and their ID, above a key."""
    stored = await _read(record, accounts.read_open_operations(entity, after, limit))
    keys = {(created, operation) for created, operation in stored or ()}
    standing = await _look(record, None)
    if stored is None:
        standing.through = 0
    beyond = [key async for key in _unvouched(record, standing, entity) if key > after]
    return nsmallest(limit, keys.union(beyond))


async def _unvouched(
    record: Record, standing: _Standing, entity: str | None
) -> AsyncIterator[tuple[str, str]]:
    """Operations beyond their entity's durable boundary, and those that the store has lost."""
    for name, flaw in standing.flaws.items():
        if entity in {None, name}:
            async for row in _above(record, name, flaw.durable_through):
                yield _recorded(row), row.operation
    after = standing.through
    while rows := await record.journal().decisions(after, _PAGE):
        for row in rows:
            if entity in {None, row.entity} and not row.dropped:
                yield _recorded(row), row.operation
        after = rows[-1].sequence or after + 1


async def _above(record: Record, entity: str, revision: int) -> AsyncIterator[Row]:
    while rows := await record.journal().history(entity, revision + 1, MAX_INTEGER, _PAGE):
        for row in rows:
            yield row
        revision = rows[-1].revision


def _recorded(row: Row) -> str:
    try:
        return row.entry().envelope.recorded
    except Invalid:
        return ""


# Fates.


async def _look(record: Record, rows: Sequence[Row] | None) -> _Standing:
    """What fates rest on now: the flaws of these entries' entities, or all flaws."""
    try:
        control: Control | None = await record.current_control(await record.look())
    except ControlUnreadable:
        control = None
    through, whole = 0, False
    try:
        marker = await record.marker()
    except FileChanged:
        raise
    except EngineError:
        marker = None
    if marker is not None:
        through, whole = marker.place.sequence, True
    now = record.clock.now()
    flawed = await record.journal().flawed()
    names = flawed if rows is None else {row.entity for row in rows}.intersection(flawed)
    flaws: dict[str, FlawRow] = {}
    for name in sorted(names):
        for flaw in await record.journal().flaws(name, FIRST_FLAW, _PAGE):
            least = flaws.get(name)
            if least is None or flaw.durable_through < least.durable_through:
                flaws[name] = flaw
    since = now if control is None else control.since
    return _Standing(control, through, whole, since, flaws, now)


async def _accounts(record: Record, standing: _Standing, rows: Sequence[Row]) -> list[Account]:
    settings = record.settings
    duty = Duty(settings.owner, settings.resolve_within, settings.lanes)
    opened = [(row, _envelope(row)) for row in rows]
    named = [
        release.id
        for _, envelope in opened
        if envelope is not None
        for release in envelope.releases
    ]
    work = await _work_of(record, rows, named)
    if work is None:
        work, standing.whole = [], False
    found = []
    for row, envelope in opened:
        releases = () if envelope is None else tuple(one.id for one in envelope.releases)
        decided = Decided(
            operation=row.operation,
            revision=row.revision,
            recorded=standing.now if envelope is None else envelope.recorded,
            releases=releases,
            abandoned=_abandoned(standing, row),
        )
        decided = _vouched(standing, row, envelope, decided)
        mine = [
            each
            for each in work
            if (each.operation == row.operation and each.entity == row.entity)
            or each.id in releases
        ]
        found.append(_account(row, envelope, fate_of(decided, mine, duty, standing.now)))
    return found


def _envelope(row: Row) -> Envelope | None:
    try:
        return row.entry().envelope
    except Invalid:
        return None


def _abandoned(standing: _Standing, row: Row) -> str | None:
    """Why an entry is no decision any more; None: it is one."""
    if not row.dropped:
        return None
    done = () if standing.control is None else standing.control.abandoned.get(row.entity, ())
    return done[-1].reason if done else "its history was cut off before it"


def _vouched(standing: _Standing, row: Row, envelope: Envelope | None, decided: Decided) -> Decided:
    """The same, held where the journal does not vouch for it or the store has lost it."""
    flaw = standing.flaws.get(row.entity)
    since, why = None, ""
    if flaw is not None and row.revision > flaw.durable_through:
        since, why = flaw.since, f"its history is incomplete: {flaw.detail}"
    elif envelope is None:
        since = standing.closed_since
        why = "its entry is damaged: run `unrewind verify`"
    elif row.stream == "decisions" and not standing.whole:
        since, why = standing.closed_since, "the store is missing or unreadable"
    elif row.stream == "decisions" and (row.sequence or 0) > standing.through:
        since, why = standing.closed_since, "the store has lost it: it was rewound"
    return msgspec.structs.replace(decided, held_since=since, held=why)


def _account(row: Row, envelope: Envelope | None, fate: Verdict) -> Account:
    if envelope is not None:
        known = receipt(row.entry(), DUPLICATE)
        return Account(
            **{name: getattr(known, name) for name in Acceptance.__struct_fields__},
            action=envelope.action,
            recorded=envelope.recorded,
            fate=fate,
        )
    return Account(
        operation=row.operation,
        outcome=DUPLICATE,
        entity=row.entity,
        version=None,
        revision=row.revision,
        predecessor=None,
        history=row.history,
        generation=0,
        sequence=row.sequence,
        digest=row.digest,
        state="",
        durable_through=0,
        action="",
        recorded="",
        fate=fate,
    )


async def _read(record: Record, statement: Statement) -> Result | None:
    """The rows of a statement on the store; None where there is no readable store."""
    if record.store is None:
        return None
    try:
        return (await record.store.read([statement]))[0]
    except FileChanged:
        raise
    except EngineError:
        return None


async def _work_of(record: Record, rows: Iterable[Row], named: Sequence[str]) -> list[Work] | None:
    """The rows of work that these entries made, and those of the releases that they permit."""
    pairs = [(row.entity, row.operation) for row in rows]
    made = await _read(record, accounts.read_of_operations(pairs))
    known = await _read(record, accounts.read_named(named))
    if made is None or known is None:
        return None
    found = {row.id: row for _, row in chain(works.page_of(made), works.page_of(known))}
    return [*found.values()]
