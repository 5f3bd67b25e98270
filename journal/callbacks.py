"""Callbacks: a receiver's word that something has changed, and all that follows from it.

A callback says when to ask, never what happened: the receiver is asked and its answer counts. Each
callback's ID is taken once.
"""

from __future__ import annotations

from msgspec import Struct

from journal.errors import ConstraintFailed, DiskFailed, EngineError
from journal.record import Record
from journal.reports import asks
from journal.sql import Rows, Statement
from journal.standing import not_written, poison
from journal.store import tables
from journal.store import work as works
from journal.work import ASKABLE
from journal.writepath import make_ready


class Heard(Struct, frozen=True):
    """What a callback led to: its receiver is asked at once, or nothing follows.

    ``seen`` says that this callback was taken before.
    """

    release: str
    woken: bool
    seen: bool = False


async def hear(record: Record, receiver: str, identity: str, release: str) -> Heard:
    """Take a callback that is known to be the receiver's own: have the release asked about now.

    The ID is remembered in the same commit. Nothing is woken but a release that was sent to this
    receiver, whose outcome is not known and about which the receiver can be asked. Raises
    Recovering, JournalUnavailable or WriterStopped, with the ID not remembered: call back again.
    """
    with record.lock.held():
        ready = await make_ready(record)
        rows = works.rows_of((await ready.store.read([works.read_work([release])]))[0])
        woken = any(
            row.receiver == receiver and row.status in ASKABLE and asks(record, row) for row in rows
        )
        statements: list[Statement | Rows] = [
            tables.fence(ready.marker, ready.marker.place, ready.tip.sequence),
            works.remember_callback(receiver, identity),
        ]
        if woken:
            statements.append(works.wake([release]))
        try:
            await ready.store.batch(statements)
        except ConstraintFailed:
            return Heard(release, woken=False, seen=True)
        except DiskFailed as error:
            raise poison(record, f"the store's commit failed: {error}") from error
        except EngineError as error:
            raise not_written(record, error) from error
        record.saw()
    return Heard(release, woken)
