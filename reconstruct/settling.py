"""Settling: what a page of a reconciliation leads to, gathered for one commit."""

from __future__ import annotations

import msgspec

from journal.acceptance import Operation
from journal.errors import HistoryIncomplete, UnrewindError
from journal.lifecycle import RELEASE_ACTIONS
from journal.outcomes import Decide, Reported
from journal.record import Record
from journal.release import Report, report_of
from journal.reports import operation_of
from journal.sql import Rows, Statement
from journal.store import reconciled
from journal.store import work as works
from journal.store.reconciled import Evidence, Found
from journal.work import NOBODY, Status, Work, after_seconds, note
from reconstruct.judging import UNRESOLVED, Finding, Judgement

LOST = "a loss of the journal was accepted: an attempt of it may have been journalled there"


class Batch:
    """What a page leads to, for one commit."""

    def __init__(
        self, record: Record, generation: int, now: str, principal: str | None = None
    ) -> None:
        self.record = record
        self.generation = generation
        self.now = now
        self.principal = principal
        self.operations: list[Operation] = []
        self.statements: list[Statement | Rows] = []
        self.found: dict[str, Found] = {}
        self.observed: list[Reported] = []
        self._rows: dict[str, Work] = {}

    @property
    def writes(self) -> list[Statement | Rows]:
        """What is written beside the decisions."""
        return [*self.statements, reconciled.write([*self.found.values()])]

    def add(self, row: Work, judged: Judgement, authority: str | None) -> None:
        """Add what a row was found to be, and what that leads to."""
        self._rows[row.id] = row
        change = judged.change
        if isinstance(change, Decide):
            outcome = change.action.removeprefix(RELEASE_ACTIONS)
            if row.status == Status.READY and outcome in {"confirmed", "refused"}:
                # The commitment that the journal lost is made good as doubt first.
                doubt = Report(release=row.id, worker=NOBODY, evidence=LOST, maybe=True)
                self._decide(row, Decide(f"{RELEASE_ACTIONS}unknown", doubt))
            self._decide(row, change)
        elif change is not None:
            self.statements.append(works.put_while(row, change.row))
        self.found[row.id] = Found(
            row.id,
            self.generation,
            str(judged.found),
            self.now,
            evidence_of(self.record, row, judged),
            None if authority is None else note(authority),
        )

    def _decide(self, row: Work, change: Decide) -> None:
        what = change.action.removeprefix(RELEASE_ACTIONS)
        fresh = self.record.clock.fresh()[:12]
        # What was never claimed is doubted just before, in this very batch.
        doubted = row.status == Status.READY and what in {"confirmed", "refused"}
        report = msgspec.structs.replace(
            change.report,
            reason=f"reconciliation of generation {self.generation}",
            expected=str(Status.UNKNOWN) if doubted else row.status,
        )
        change = Decide(change.action, report)
        identity = f"{row.id}/{what}/reconciled-{self.generation}-{fresh}"
        self.operations.append(operation_of(row, change, self.principal, identity))

    def refuse(self, operation: Operation, error: UnrewindError) -> None:
        """Say of a release that what was found of it could not be decided."""
        release = report_of(operation.body).release
        found = self.found[release]
        kind = Finding.INCOMPLETE if isinstance(error, HistoryIncomplete) else Finding.HELD
        why = note(f"{found.evidence.why}; that could not be decided: {error.detail}")
        evidence = evidence_of(self.record, self._rows[release], Judgement(kind, why))
        self.found[release] = msgspec.structs.replace(found, found=str(kind), evidence=evidence)


def evidence_of(record: Record, row: Work, judged: Judgement) -> Evidence:
    """What a finding rests on, and who answers for it while it is unresolved."""
    owner = deadline = None
    if judged.found in UNRESOLVED:
        owner = row.owner or record.settings.owner
        deadline = deadline_of(record, row)
    return Evidence(
        note(judged.why),
        row.entity,
        row.lane,
        row.receiver,
        judged.receipt or row.receipt,
        owner,
        deadline,
    )


def deadline_of(record: Record, row: Work) -> str:
    """Until when what is unresolved about a row is to be resolved."""
    lane = record.settings.lanes.get(row.lane)
    within = (0.0 if lane is None else lane.resolve_within) or record.settings.resolve_within
    return after_seconds(row.created, within)
