"""After the application's commit: the journal takes the decision over, or nothing was committed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from journal.abandonment import abandoned_operation
from journal.acceptance import (
    DUPLICATE,
    Acceptance,
    Operation,
    check_durable,
    receipt,
    repeat,
)
from journal.control import tip_of
from journal.driving import drive
from journal.errors import (
    DiskFailed,
    EngineError,
    FileChanged,
    HistoryIncomplete,
    Invalid,
    JournalUnavailable,
    NotCommitted,
    OutcomeUnknown,
    Unreachable,
)
from journal.inside.deciding import ISSUED, Tentative
from journal.log import Row
from journal.record import Record
from journal.sqlite import Database, size_of
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.tables import Marker
from journal.writepath import check_door, check_stage, make_clean, settle

Wanted = str | Operation | Tentative

_WAL_BYTES = 64 * 1024 * 1024
_ATTEMPTS = 3


class Missing(Struct, frozen=True):
    """The committed marker under which the journal holds no such operation."""

    marker: Marker


async def confirm(record: Record, wanted: Sequence[Wanted]) -> list[Acceptance] | Missing:
    """Hand off what is committed; the acceptance of each, or where the store stood without it.

    Raises Recovering, JournalUnavailable or LockHeld while nothing can be acknowledged,
    OperationReused when an operation differs from the one that was decided, HistoryIncomplete.
    """
    check_door(record)
    with record.lock.held():
        for _ in range(_ATTEMPTS):
            try:
                return await _confirm(record, wanted)
            except FileChanged:
                await record.open_files()
            except EngineError as error:
                raise JournalUnavailable(f"the journal cannot be read: {error}") from error
    raise JournalUnavailable("the store is being replaced again and again")


async def _confirm(record: Record, wanted: Sequence[Wanted]) -> list[Acceptance] | Missing:
    seen = await make_clean(record)
    control = check_stage(record)
    if seen.marker is None:
        raise JournalUnavailable("the store went away")
    names = [name_of(each) for each in wanted]
    rows = {row.operation: row for row in await record.journal().operations(names)}
    if any(name not in rows for name in names):
        return Missing(seen.marker)
    flawed = await record.journal().flawed() if seen.look.flawed else {}
    answers: list[Acceptance] = []
    for each, name in zip(wanted, names, strict=True):
        row = rows[name]
        if row.dropped:
            raise abandoned_operation(row, control.abandoned)
        answers.append(_answer(each, row, flawed))
    tip = tip_of(control.authority, seen.look.last)
    await _tidy(record, tip.sequence - seen.marker.journalled)
    return answers


def name_of(wanted: Wanted) -> str:
    """The operation ID."""
    return wanted if isinstance(wanted, str) else wanted.operation


def _answer(wanted: Wanted, row: Row, flawed: dict[str, int]) -> Acceptance:
    try:
        entry = row.entry()
    except Invalid as error:
        raise HistoryIncomplete(
            f"the journal's entry of operation {row.operation} is damaged: {error}",
            entity=row.entity,
            revision=row.revision,
        ) from error
    check_durable(entry.envelope, flawed)
    if isinstance(wanted, Operation):
        return repeat(wanted, entry)
    if isinstance(wanted, str):
        return receipt(entry, DUPLICATE)
    if wanted.digest != entry.digest:
        # Rolled back, and decided anew by another transaction: its answer is the only one.
        return receipt(entry, DUPLICATE)
    ISSUED.forget(entry.digest)
    return receipt(entry, wanted.outcome, wanted.existing, wanted.commands)


async def _tidy(record: Record, behind: int) -> None:
    """Bring watermarks up to date, and with them a checkpoint, where nobody else has for long."""
    file = record.store_place.file
    if behind <= 0 or file is None:
        return
    if size_of(file.with_name(file.name + "-wal")) > _WAL_BYTES:
        with suppress(JournalUnavailable, EngineError):
            await settle(record)


def ensure_over(record: Record, missing: Missing, named: str, seconds: float) -> bool:
    """Whether no transaction that might commit the decision is left; else ask again.

    Who holds the writers' lock may still commit it. Raises OutcomeUnknown when it cannot be had in
    this time.
    """
    try:
        store = record.store_place.open()
    except EngineError as error:
        raise OutcomeUnknown(f"the store cannot be opened: {error}; {_ADVICE}") from error
    try:
        _wait_for(store, seconds)
        with store.database.transaction():
            marker = tables.marker_of(store.database.read([tables.READ_MARKER])[0])
    except (Unreachable, DiskFailed) as error:
        raise OutcomeUnknown(
            f"a transaction that may hold operation {named} is not over: {error}; {_ADVICE}"
        ) from error
    except EngineError as error:
        raise OutcomeUnknown(f"the store cannot be read: {error}; {_ADVICE}") from error
    finally:
        with suppress(EngineError):
            drive(store.close())
    return marker is not None and marker.place == missing.marker.place


def _wait_for(store: SqlStore, seconds: float) -> None:
    """How long this connection of ours waits for the writers' lock."""
    milliseconds = max(1, int(seconds * 1000))
    database: Any = store.database
    if isinstance(database, Database):
        database.connection.execute(f"PRAGMA busy_timeout={milliseconds}")
    else:
        database.ask(f"SELECT set_config('lock_timeout', '{milliseconds}', false)")


_ADVICE = "ask again, or run the transaction again with the same operation ID"


def not_committed(wanted: Sequence[Wanted]) -> NotCommitted:
    """What a caller is told whose decision surely was not committed."""
    for each in wanted:
        if isinstance(each, Tentative):
            ISSUED.forget(each.digest)
    named = ", ".join(name_of(each) for each in wanted)
    return NotCommitted(
        f"no transaction with operation {named} was committed: run it again, with the same "
        "operation ID",
        operation=named,
    )
