"""Doubting: releases of which a loss that was accepted may have taken an attempt.

Nothing that was permitted before such a loss goes out again on what is left of it. Only evidence of
after the loss answers: what a reconciliation found out, or a commitment that it let through.
"""

from __future__ import annotations

from collections.abc import Iterable

from journal.acceptance import COMMITTED_ACTION, CONFIRMED_ACTION
from journal.control import Doubt
from journal.entry import Entry
from journal.errors import EngineError, FileChanged, Invalid, JournalUnavailable
from journal.lanes import Effect
from journal.lifecycle import RELEASE_ACTIONS
from journal.log import Row
from journal.observing import Observed, decision_of
from journal.outcomes import Decide
from journal.record import Record
from journal.release import is_report, report_of
from journal.store import reconciled
from journal.work import NOBODY, Work

_ENTRIES = 1000
_UNLIMITED = 1 << 60


async def is_doubtful(record: Record, row: Work, doubt: Doubt | None) -> bool:
    """Whether a lost attempt of a release may have had its effect, and nobody has answered for it.

    Free of any read while no loss was ever accepted. Raises JournalUnavailable.
    """
    if doubt is None or row.effect != Effect.EXTERNAL or row.over or row.entity is None:
        return False
    reading = _Reading(row, doubt)
    # One that was cancelled and permitted anew after the loss has the same ID as before.
    first = (row.revision or 1) if row.sequence <= doubt.sequence else 1
    while rows := await record.journal().history(row.entity, first, _UNLIMITED, _ENTRIES):
        reading.take(rows)
        if reading.done:
            break
        first = rows[-1].revision + 1
    if not reading.older or reading.answered:
        return False
    return not await _was_proven_undone(record, row, doubt)


async def decision_after(
    record: Record, row: Work, found: Observed | None, doubt: Doubt | None, *, ask: bool
) -> Decide | None:
    """The decision that an observation of a release becomes; None: it tells none.

    A refusal of the attempt that is known says nothing of one that a loss has taken.
    """
    decided = None if found is None else decision_of(found, row, ask=ask)
    if found is None or decided is None or decided.action == CONFIRMED_ACTION:
        return decided
    of_one = found.lease is not None
    return None if of_one and await is_doubtful(record, row, doubt) else decided


class _Reading:
    """Reads an entity's entries in order."""

    def __init__(self, row: Work, doubt: Doubt) -> None:
        self._row = row
        self._doubt = doubt
        self.older = row.sequence <= doubt.sequence
        self.answered = False
        self.done = False

    def take(self, rows: Iterable[Row]) -> None:
        """Read on; ``done`` says that no more is to be read."""
        for row in rows:
            try:
                self._take(row.entry())
            except Invalid:
                continue  # `verify` names it, and the entity's history is incomplete
            if self.done:
                return

    def _take(self, entry: Entry) -> None:
        envelope = entry.envelope
        before = (envelope.sequence or 0) <= self._doubt.sequence
        if before:
            named = any(release.id == self._row.id for release in envelope.releases)
            self.older = self.older or named
        elif not self.older:
            self.done = True
        elif is_report(envelope.action, envelope.body.type):
            self.answered = self.done = self._answers(entry)

    def _answers(self, entry: Entry) -> bool:
        report = report_of(entry.body)
        if report.release != self._row.id:
            return False
        what = entry.envelope.action
        # Of what else came to be unknown, the attempt that is known may have been the one.
        doubted = what == f"{RELEASE_ACTIONS}unknown" and report.worker == NOBODY
        return doubted or what == COMMITTED_ACTION


async def _was_proven_undone(record: Record, row: Work, doubt: Doubt) -> bool:
    if record.store is None:
        return False
    try:
        wanted = reconciled.count_undone(row.id, doubt.generation, doubt.since)
        found = await record.store.read([wanted])
    except FileChanged:
        raise
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be read: {error}") from error
    return bool(found[0][0][0])
