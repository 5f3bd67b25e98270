"""A tenant inside an application: one object a process, for all of its threads."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from typing import Any, cast, overload

from journal.acceptance import Acceptance, Operation
from journal.agreement import check_agreement
from journal.driving import drive
from journal.errors import EngineError, JournalUnavailable, LockHeld, OutcomeUnknown, UnrewindError
from journal.inside.beside import check_adopted
from journal.inside.confirming import (
    Missing,
    Wanted,
    confirm,
    ensure_over,
    name_of,
    not_committed,
)
from journal.inside.deciding import Tentative, decide
from journal.inside.guest import guest_of
from journal.inside.shadow import UNCONFIRMED, Shadow, kind_of
from journal.record import Record
from journal.settings import Settings
from journal.writepath import settle

_PAUSE = 0.02
_LEFT_OPEN: list[Record | None] = []
"""Records of the process that this one was forked from: closing them would let go of its locks."""


class Inside:
    """Decisions of one tenant, made inside the application's own transactions.

    Safe for threads, and after a fork. The first call opens the tenant, founding it when there is
    neither store nor journal. With ``shadow`` nothing is gated: what unrewind would have refused,
    or could not do, is noted for `unrewind adopt --compare`, and no call raises.
    """

    def __init__(self, settings: Settings, *, shadow: bool = False) -> None:
        self.settings = settings
        self.shadow = shadow
        self.differences = Shadow(settings.beside("shadow.jsonl"))
        self._mutex = threading.RLock()
        self._record: Record | None = None
        self._pid = os.getpid()
        self._shown = 0.0

    # Deciding.

    @overload
    def decide_in(
        self,
        connection: Any,
        operation: Operation,
        *,
        projected: bool = True,
        shadow: bool | None = None,
    ) -> Tentative: ...

    @overload
    def decide_in(
        self,
        connection: Any,
        operation: Sequence[Operation],
        *,
        projected: bool = True,
        shadow: bool | None = None,
    ) -> list[Tentative]: ...

    def decide_in(
        self,
        connection: Any,
        operation: Operation | Sequence[Operation],
        *,
        projected: bool = True,
        shadow: bool | None = None,
    ) -> Tentative | list[Tentative] | None:
        """Make an operation a decision in the transaction that is open in ``connection``.

        Nothing is committed here and nothing may be acknowledged yet: the application commits, and
        calls ``confirmed``. An operation that was decided before gives its first answer; its rows
        are there then. Of several operations all are decided or none. The projection of an embedded
        type writes its rows too, unless ``projected`` is false because the application does.

        Raises a Refusal when it was judged and refused, Invalid when it could never be a decision,
        Recovering and JournalUnavailable when it is worth repeating, and Refused where the
        connection is none to this tenant's store or has no transaction open. What this call had
        written is taken back then, and the transaction goes on as it was.

        In shadow mode it raises nothing; None, or an empty list, is a difference that was noted.
        """
        alone = isinstance(operation, Operation)
        operations = [operation] if isinstance(operation, Operation) else [*operation]
        shadowing = self.shadow if shadow is None else shadow
        try:
            answers = self._decide(connection, operations, projected=projected)
        except Exception as error:
            if not shadowing:
                raise
            self._note(kind_of(error), error, [*operations])
            return None if alone else []
        return answers[0] if alone else answers

    def _decide(
        self, connection: Any, operations: Sequence[Operation], *, projected: bool
    ) -> list[Tentative]:
        if not operations:
            return []
        with self._own():
            record = self._opened()
            guest, store = guest_of(connection, record)
        return drive(decide(record, guest, store, operations, self._own(), projected=projected))

    # Confirming.

    def confirmed(
        self, operation: Wanted, *, within: float = 10.0, shadow: bool | None = None
    ) -> Acceptance:
        """Wait until the journal holds a decision whose transaction the application has committed.

        Only when this returns may the decision be acknowledged (P1). Takes what ``decide_in`` gave,
        an operation or its ID; after a commit whose outcome is unknown too.

        Raises NotCommitted when surely no transaction with it was committed, OutcomeUnknown when
        one that may hold it is still open after ``within`` seconds, JournalUnavailable or
        Recovering when it may not be acknowledged yet. In all of these the same operation ID may be
        run again: it makes no second decision. In shadow mode it raises nothing; None is a
        difference that was noted.
        """
        answers = self.confirmed_all([operation], within=within, shadow=shadow)
        return answers[0] if answers else cast("Acceptance", None)

    def confirmed_all(
        self, operations: Sequence[Wanted], *, within: float = 10.0, shadow: bool | None = None
    ) -> list[Acceptance]:
        """``confirmed`` for the decisions of one transaction; all of them, or it raises."""
        if not operations:
            return []
        try:
            return self._confirmed(operations, time.monotonic() + within)
        except Exception as error:
            if not (self.shadow if shadow is None else shadow):
                raise
            named = [each if isinstance(each, Operation) else name_of(each) for each in operations]
            self._note(UNCONFIRMED, error, named)
            return []

    async def confirmed_async(
        self, operation: Wanted, *, within: float = 10.0, shadow: bool | None = None
    ) -> Acceptance:
        """``confirmed``, in a thread."""
        return await asyncio.to_thread(self.confirmed, operation, within=within, shadow=shadow)

    def _confirmed(self, wanted: Sequence[Wanted], deadline: float) -> list[Acceptance]:
        while True:
            try:
                with self._own():
                    record = self._opened()
                    found = drive(confirm(record, wanted))
                    if not isinstance(found, Missing):
                        self._show_witness(record)
                        return found
                named = ", ".join(name_of(each) for each in wanted)
                if ensure_over(record, found, named, max(0.0, deadline - time.monotonic())):
                    raise not_committed(wanted)
            except (OutcomeUnknown, JournalUnavailable, LockHeld):
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise OutcomeUnknown(
                    "the store keeps moving: ask again, or run the transaction again with the same "
                    "operation ID"
                )
            time.sleep(_PAUSE)

    def _show_witness(self, record: Record) -> None:
        """Let the witness follow, as often as the settings say; a service beside does it too."""
        now = time.monotonic()
        if now - self._shown >= self.settings.witness_every:
            self._shown = now
            drive(record.remember())

    # The tenant's own files.

    def _own(self) -> threading.RLock:
        """The lock of the record, which belongs to one thread at a time."""
        if self._pid != os.getpid():
            _LEFT_OPEN.append(self._record)
            self._record = None
            self._mutex = threading.RLock()
            self._pid = os.getpid()
        return self._mutex

    def _opened(self) -> Record:
        if self._record is None:
            check_agreement(self.settings)
            record = Record(self.settings)
            check_adopted(record)
            try:
                drive(record.open())
            except BaseException:
                drive(record.close())
                raise
            self._record = record
        return self._record

    def open(self) -> None:
        """Open the tenant now, and hand off what a crash left. Raises what ``decide_in`` does.

        An application calls it when it starts, so that the first transaction need not compare.
        """
        with self._own():
            drive(settle(self._opened()))

    def close(self) -> None:
        """Hand off what waits, and let go of the files."""
        with self._own():
            record, self._record = self._record, None
            if record is None:
                return
            try:
                drive(settle(record))
            except (UnrewindError, EngineError):
                pass
            finally:
                drive(record.close())

    def _note(self, kind: str, error: Exception, operations: list[Operation | str]) -> None:
        at = self._record.clock.now() if self._record is not None else _now()
        self.differences.note(at, kind, error, operations)


def _now() -> str:
    from journal.clock import SystemClock  # noqa: PLC0415 - only where nothing could be opened

    return SystemClock().now()
