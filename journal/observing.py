"""Observations: journalled reports of outcomes that cannot be decisions now.

A worker that reports while the tenant is closed, under an ended claim or generation, or about an
entity whose history is incomplete, saw something all the same. Its report has no authority, but it
is evidence: an observed receipt counts as known, and nothing is sent on top of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

import msgspec
from msgspec import Struct

from journal.detection import Verdict
from journal.entry import (
    JSON_TYPE,
    MAX_OPERATION,
    Envelope,
    Outcome,
    Predecessor,
    body_of,
    check_name,
    seal,
)
from journal.errors import (
    Damaged,
    DiskFailed,
    EngineError,
    FileChanged,
    Invalid,
    JournalUnavailable,
    Unreachable,
)
from journal.lifecycle import OBSERVATION as OWN
from journal.log import OBSERVATIONS, Append, Moved, Row
from journal.outcomes import Decide, Reported, check_reported, only_attempt
from journal.outcomes import Outcome as Said
from journal.record import Record
from journal.release import Report
from journal.standing import poison
from journal.work import Work, note

OBSERVATION = f"{OWN}/"
_ATTEMPTS = 3
_NOT_OURS = frozenset({Verdict.JOURNAL_REWOUND, Verdict.CLOSED})
_LOOKED_AT = 1000
"""Observations of one release that are looked at, the newest; each kind is kept once a claim."""
_WEIGHTS = {str(Said.CONFIRMED): 2, str(Said.REFUSED): 1}


class Observed(Struct, frozen=True):
    """What an observation keeps of a report."""

    release: str
    outcome: str
    why: str
    lease: int | None = None
    worker: str | None = None
    execution: str | None = None
    evidence: str | None = None
    receipt: str | None = None
    digest: str | None = None
    recorded: str | None = None


async def observe(record: Record, said: Reported, why: str, principal: str | None = None) -> str:
    """Keep a report as an observation; the digest of its entry. The same report is kept once.

    Passes in any stage, but not into a journal that was rolled back or is another's. Raises Invalid
    for what no entry can hold, ControlUnreadable, JournalUnavailable or WriterStopped.
    """
    check_name("id", said.id, MAX_OPERATION)
    check_reported(said)
    facts = Observed(
        release=said.id,
        outcome=str(said.outcome),
        why=note(why),
        lease=said.lease,
        worker=said.worker,
        execution=said.execution,
        evidence=None if said.evidence is None else note(said.evidence),
        receipt=said.receipt,
        digest=said.digest,
    )
    operation = _identity(facts)
    with record.lock.held():
        for _ in range(_ATTEMPTS):
            try:
                await _check_ours(record)
                return await _append(record, facts, operation, principal)
            except Moved:
                continue
            except FileChanged:
                await record.open_files()
            except DiskFailed as error:
                raise poison(record, f"the journal's commit failed: {error}") from error
            except EngineError as error:
                raise JournalUnavailable(f"the journal cannot be written: {error}") from error
    raise JournalUnavailable("the journal keeps moving")


async def _check_ours(record: Record) -> None:
    """Raises JournalUnavailable where an observation would go down with the wrong journal."""
    try:
        finding, _ = await record.examine()
    except (Damaged, Unreachable):
        return  # the store's files: what became of them is no fault of the journal
    if finding.verdict in _NOT_OURS:
        raise JournalUnavailable(
            f"nothing is observed in this journal: {finding.detail}; report again once it is back"
        )


def _identity(facts: Observed) -> str:
    """The operation ID of an observation: of what was seen, not of why it is no decision."""
    seen = msgspec.json.encode(msgspec.structs.replace(facts, why=""))
    return f"observed-{sha256(seen).hexdigest()[:40]}"


async def _append(record: Record, facts: Observed, operation: str, principal: str | None) -> str:
    log = record.journal()
    known = await log.operations([operation])
    if known and known[0].stream == OBSERVATIONS:
        return known[0].digest
    if known:
        # Somebody gave a decision of theirs this very ID.
        operation = f"{operation}/{record.clock.fresh()}"
    look = await record.look()
    authority = (await record.current_control(look)).authority
    entity = OBSERVATION + facts.release
    before = await log.newest(entity)
    body = msgspec.json.encode(facts)
    now = record.clock.now()
    entry = seal(
        Envelope(
            action=f"observed.{facts.outcome}",
            actor=facts.worker,
            at=now,
            body=body_of(body, JSON_TYPE),
            entity=entity,
            generation=authority.generation,
            history=authority.history,
            lifecycle="1",
            operation=operation,
            outcome=Outcome(None, facts.outcome),
            predecessor=(
                None
                if before is None
                else Predecessor(before.digest, before.history, before.revision)
            ),
            principal=principal,
            recorded=now,
            releases=(),
            revision=1 if before is None else before.revision + 1,
            sequence=await log.last_in(OBSERVATIONS) + 1,
            tenant=record.settings.tenant,
            v=1,
            version=None,
        ),
        body,
    )
    await log.append(Append(entries=[(OBSERVATIONS, entry)]), look)
    return entry.digest


async def last_observed(record: Record, release: str) -> Observed | None:
    """What was observed of a release: its receipt, else a refusal, else anything; the newest."""
    entity = OBSERVATION + release
    newest = await record.journal().newest(entity)
    first = 1 if newest is None else max(1, newest.revision - _LOOKED_AT)
    rows = await record.journal().history(entity, first, 1 << 60, _LOOKED_AT + 1)
    found: Observed | None = None
    for row in rows:
        one = observation_of(row)
        if one is not None and (found is None or _weight(one) >= _weight(found)):
            found = one
    return found


async def observed_among(record: Record, releases: Iterable[str]) -> set[str]:
    """Those of the releases of which something may have been observed; the others have nothing."""
    wanted = {OBSERVATION + release: 1 for release in releases}
    page = await record.journal().histories(wanted, _LOOKED_AT) if wanted else []
    seen = {row.entity for row in page}
    if page:  # it may have ended before it came to those beyond
        seen |= {entity for entity in wanted if entity > page[-1].entity}
    return {entity.removeprefix(OBSERVATION) for entity in seen}


def _weight(found: Observed) -> int:
    return _WEIGHTS.get(found.outcome, 0)


def tells(found: Observed, row: Work) -> bool:
    """Whether an observation tells the outcome of a release.

    A receipt does, whichever attempt it is of. A refusal tells only of its own attempt, so it says
    nothing about a later one, nor about one before that may have had its effect. What was said
    before the commitment was in the journal is about no attempt at all (P3).
    """
    if row.committed is None or (found.recorded or row.committed) < row.committed:
        return False
    if found.outcome == Said.REFUSED:
        return found.lease is None or (found.lease == row.lease and only_attempt(row))
    return found.outcome == Said.CONFIRMED


def observation_of(row: Row) -> Observed | None:
    """What an entry of the journal observed; None for a damaged one, which `verify` names."""
    try:
        entry = row.entry()
        found = msgspec.json.decode(entry.body, type=Observed)
    except (Invalid, msgspec.MsgspecError, RecursionError):
        return None
    return msgspec.structs.replace(found, recorded=entry.envelope.recorded)


def decision_of(found: Observed, row: Work, *, ask: bool) -> Decide | None:
    """The decision that an observation becomes once the tenant may decide; None: it tells none.

    A receipt for other content than was sent is no receipt: it leaves the outcome unknown.
    """
    if not tells(found, row):
        return None
    what, evidence = found.outcome, f"observed: {found.evidence or found.why}"
    differs = None not in {found.digest, row.digest} and found.digest != row.digest
    if what == Said.CONFIRMED and differs:
        what = str(Said.UNKNOWN)
        evidence = f"observed: the receipt is for content {found.digest}, not {row.digest}"
    unknown = what == Said.UNKNOWN
    return Decide(
        f"release.{what}",
        Report(
            release=found.release,
            worker=found.worker,
            execution=found.execution,
            evidence=note(evidence),
            receipt=None if unknown else found.receipt,
            digest=found.digest,
            maybe=unknown,
            ask=unknown and ask,
        ),
    )
