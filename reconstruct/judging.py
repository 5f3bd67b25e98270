"""Judging what became of a release: the rules of a reconciliation.

Pure. In go a row of work, what its receiver said, what was observed and what the journal holds of
its entity; out comes a finding and, where there is one to make, a change. Nothing here lets a
release go again that is not proven undone by the rules of ``journal.outcomes``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec
from msgspec import Struct

from journal.abandonment import dropping
from journal.acceptance import COMMITTED_ACTION
from journal.control import Abandoned, Hold, hold_name
from journal.derivation import mismatch
from journal.entry import Entry
from journal.errors import Invalid
from journal.lanes import Terms
from journal.lifecycle import RELEASE_ACTIONS, Lifecycle
from journal.log import Row
from journal.outcomes import Change, Decide, Put, Reported, Told, after_answer, repeatable
from journal.release import Report, is_report, report_of
from journal.work import NOBODY, Status, Work, after_seconds, finish, note, seconds_since


class Finding(StrEnum):
    """What a reconciliation finds of a release. An open list."""

    CONFIRMED = "confirmed"
    """It happened: the receiver, or a receipt that was observed, says so."""
    REFUSED = "refused"
    """The receiver would not have it; nothing happened."""
    CANCELLED = "cancelled"
    """Withdrawn or superseded, and surely not done: the cancellation stands."""
    UNDONE = "undone"
    """The receiver proved that it was not done; it goes on in its lane."""
    WAITING = "waiting"
    """No attempt can have had its effect; it goes on in its lane."""
    PENDING = "pending"
    """The receiver has it and is at work."""
    HELD = "held"
    """It may have happened, and nobody can tell: it waits for its owner."""
    UNREACHABLE = "unreachable"
    """Its receiver gave no usable answer: held, and to be asked again."""
    INCOMPLETE = "incomplete"
    """Its entity's history is incomplete, so nothing is decided about it."""
    DELIVERED = "delivered"
    """It was confirmed before, and the action that permitted it is stopped."""
    REMOVED = "removed"
    """Work that no decision of the journal asked for."""
    ORPHAN = "orphan"
    """An observation about a release that nobody knows."""
    CONTRADICTED = "contradicted"
    """It had ended undone, and a receipt was observed all the same."""


UNRESOLVED = (
    Finding.PENDING,
    Finding.HELD,
    Finding.UNREACHABLE,
    Finding.INCOMPLETE,
)
"""Findings about releases whose outcome is not known: each has an owner and a deadline."""

FOR_A_PERSON = (
    Finding.HELD,
    Finding.UNREACHABLE,
    Finding.INCOMPLETE,
    Finding.ORPHAN,
    Finding.CONTRADICTED,
)
"""Findings that somebody has to look at."""


class Judgement(Struct, frozen=True):
    """A finding about a row, why, and the change that it leads to (None: the row stays)."""

    found: Finding
    why: str
    change: Change | None = None
    receipt: str | None = None


class Past(Struct, frozen=True):
    """What the journal holds of a release's entity, from the permission on.

    ``wrong`` says what is wrong with the permission, ``stale`` why the entity's later decisions
    take its work back, ``known`` whether the journal holds the decision that asked for it.
    """

    known: bool
    wrong: str | None
    stale: str | None


# What the journal says of a row.


class Reading:
    """Reads an entity's entries in order, from the decision that asked for a row of work on."""

    def __init__(
        self, row: Work, lifecycle: Lifecycle | None, cuts: Sequence[Abandoned] = ()
    ) -> None:
        self._row = row
        self._cuts = cuts
        self._withdrawn: frozenset[str] = frozenset(lifecycle.withdrawn if lifecycle else ())
        self._known = False
        self._within = False
        self._wrong: str | None = None
        self._out: str | None = None
        self._superseded: str | None = None

    def take(self, rows: Iterable[Row]) -> None:
        """Read on."""
        for row in rows:
            if dropping(self._cuts, row.revision, row.history, row.digest) is not None:
                if row.operation == self._row.operation:
                    self._known = True
                    self._wrong = f"its permission, revision {row.revision}, was abandoned"
                continue
            try:
                self._take(row.entry())
            except Invalid as error:
                self._known = self._known or row.operation == self._row.operation
                self._wrong = self._wrong or f"revision {row.revision} cannot be read: {error}"

    def _take(self, entry: Entry) -> None:
        envelope = entry.envelope
        within = envelope.outcome.state in self._withdrawn
        if envelope.operation == self._row.operation:
            self._known = True
            self._wrong = self._wrong or mismatch(self._row, entry)
            self._within = within
            return
        if is_report(envelope.action, envelope.body.type):
            self._check_commitment(entry)
        elif envelope.version is not None:
            self._superseded = (
                None
                if envelope.version == self._row.version
                else f"superseded: version {envelope.version} at revision {envelope.revision}"
            )
        if not within:
            self._out = None
        elif not self._within:
            self._out = f"withdrawn: {envelope.action} at revision {envelope.revision}"
        self._within = within

    def _check_commitment(self, entry: Entry) -> None:
        envelope = entry.envelope
        if envelope.action != COMMITTED_ACTION or self._out is None:
            return
        if report_of(entry.body).release == self._row.id:
            self._wrong = self._wrong or (
                f"it was committed at revision {envelope.revision} of an entity that was "
                f"{self._out}"
            )

    def past(self) -> Past:
        """What was read."""
        wrong = self._wrong
        if not self._known:
            wrong = f"the journal holds no decision {self._row.operation} of {self._row.entity}"
        superseded = self._superseded if self._row.version is not None else None
        return Past(self._known, wrong, self._out or superseded)


def stopped_action(row: Work, holds: Mapping[str, Hold]) -> str | None:
    """The stop of the action that permitted a release, or of its entity type; None: neither."""
    kind = (row.entity or "").partition("/")[0]
    for name in (hold_name(kind, None), hold_name(kind, row.name)):
        if name in holds:
            return f"{name} is stopped since {holds[name].since}: {holds[name].reason}"
    return None


# What becomes of a row.


class Basis(Struct, frozen=True):
    """What a row is judged on beside the answer: its lane's terms, the time, its receiver.

    ``poll`` is in seconds; ``names_digest`` says that the receiver declares to name the content's
    digest, ``doubtful`` that the journal may have lost an attempt of the row: then nothing but what
    the receiver says for good (done, refused, void) tells what became of it.
    """

    terms: Terms
    now: str
    poll: float
    names_digest: bool
    doubtful: bool = False


class Answer(Struct, frozen=True):
    """What a receiver said, to a question that was put at ``asked``.

    ``ended`` says that the row's last attempt is proven to have ended on our side only now.
    """

    told: Told
    said: Reported
    asked: str
    ended: bool = False


def by_itself(row: Work, past: Past, *, doubtful: bool) -> Judgement | None:
    """What can be told of a release without asking anybody; None: its receiver is to be asked.

    ``doubtful`` says that the journal may have lost an attempt of it.
    """
    if row.status == Status.READY and not doubtful:
        if past.stale is not None:
            return _cancelled(row, past.stale)
        return Judgement(Finding.WAITING, "permitted, and the journal holds no attempt of it")
    if row.status == Status.RETRY and not row.maybe and not doubtful:
        if row.cancel_requested or past.stale is not None:
            return _cancelled(row, past.stale or "its cancellation was requested")
        return Judgement(Finding.WAITING, "no attempt of it can have had its effect")
    return None


def _cancelled(row: Work, why: str) -> Judgement:
    report = Report(release=row.id, evidence=note(why))
    return Judgement(Finding.CANCELLED, why, Decide(f"{RELEASE_ACTIONS}cancelled", report))


def unanswered(row: Work, why: str, basis: Basis, *, ask: bool) -> Judgement:
    """What becomes of a release when nobody could tell, or nobody can be asked.

    ``ask`` says that its receiver is to be asked again.
    """
    if row.status == Status.RETRY and not row.maybe and not basis.doubtful:
        return Judgement(Finding.WAITING, f"no attempt of it can have had its effect; {why}")
    return _held(row, Finding.UNREACHABLE if ask else Finding.HELD, why, basis, ask=ask)


def told(row: Work, answer: Answer, basis: Basis) -> Judgement:
    """What becomes of a release about which its receiver gave a usable answer."""
    said, now = answer.said, basis.now
    evidence = said.evidence or str(answer.told)
    if answer.told is Told.DONE:
        return _done(row, said, evidence, basis)
    if answer.told is Told.NOT_FOUND and seconds_since(row.committed, now) >= basis.terms.window:
        why = f"{evidence}: its window is over, which proves nothing"
        if row.committed is None:
            why = f"{evidence}: when it was first committed is not known, so that proves nothing"
        return _held(row, Finding.HELD, why, basis, ask=False)
    if basis.doubtful and answer.told not in {Told.REFUSED, Told.VOID}:
        why = f"{evidence}; an attempt that the journal has lost may still have its effect"
        return _held(row, Finding.HELD, why, basis, ask=True)
    before = msgspec.structs.replace(row, worker=None, started=now) if answer.ended else row
    over = row.worker is None or answer.ended
    change = after_answer(
        before, answer.told, said, basis.terms, now, basis.poll, over=over, asked=answer.asked
    )
    if isinstance(change, Decide):
        what = change.action.removeprefix(RELEASE_ACTIONS)
        return Judgement(Finding(what), evidence, change)
    if row.status == Status.DEAD:
        # A dead letter goes back into its lane when its owner says so, and not before.
        return Judgement(Finding.HELD, f"a dead letter; {evidence}")
    if change.row.status == Status.RETRY and not change.row.maybe:
        # In progress, ``maybe`` is about the attempts before that one.
        if row.status == Status.READY or (row.status == Status.RETRY and not row.maybe):
            return Judgement(Finding.WAITING, f"no attempt of it has had its effect; {evidence}")
        return Judgement(Finding.UNDONE, evidence, change)
    if answer.told is Told.PENDING and row.status != Status.READY:
        return Judgement(Finding.PENDING, evidence, change)
    why = f"{evidence}; that proves nothing yet" if answer.told is Told.NOT_FOUND else evidence
    return _held(row, Finding.HELD, why, basis, ask=True, ended=answer.ended)


def _done(row: Work, said: Reported, evidence: str, basis: Basis) -> Judgement:
    """A receipt is one for the same content; what names none is compared by its ID alone."""
    if said.digest is None and row.digest is not None and basis.names_digest:
        why = f"{evidence}, but names no digest, which its declaration promises"
        return _held(row, Finding.HELD, why, basis, ask=True)
    if said.digest is not None and row.digest is not None and said.digest != row.digest:
        why = f"the receipt is for content {said.digest}, not {row.digest}"
        return _held(row, Finding.HELD, why, basis, ask=True)
    if said.digest is None:
        evidence = f"{evidence}; compared by its ID alone, for no digest was named"
    report = Report(
        release=row.id,
        worker=row.worker,
        execution=row.execution,
        evidence=note(evidence),
        receipt=said.receipt,
        digest=said.digest,
    )
    change = Decide(f"{RELEASE_ACTIONS}confirmed", report)
    return Judgement(Finding.CONFIRMED, note(evidence), change, said.receipt)


def _held(
    row: Work, found: Finding, why: str, basis: Basis, *, ask: bool, ended: bool = False
) -> Judgement:
    """Held as of unknown outcome; one that is held already, or a dead letter, stays as it is."""
    if row.status == Status.DEAD:
        return Judgement(found, f"a dead letter; {why}")
    if row.status == Status.UNKNOWN and not basis.doubtful:
        due = after_seconds(basis.now, basis.poll) if ask else None
        kept = msgspec.structs.replace(row, last_error=note(why), due=due)
        if ended:
            kept = msgspec.structs.replace(kept, worker=None, started=basis.now)
        return Judgement(found, why, Put(kept))
    report = Report(
        release=row.id,
        worker=NOBODY if basis.doubtful else row.worker,
        execution=row.execution,
        evidence=note(why),
        maybe=True,
        ask=ask,
        ended=ended and not basis.doubtful,
    )
    return Judgement(found, why, Decide(f"{RELEASE_ACTIONS}unknown", report))


def contradicted(row: Work, wrong: str, basis: Basis) -> Judgement:
    """What becomes of a release that could go on, and is not what was permitted."""
    why = f"it is not what was permitted: {wrong}"
    return _held(row, Finding.HELD, why, basis, ask=False)


def by_observation(decided: Decide) -> Judgement:
    """What an observation that tells a release's outcome makes of it."""
    report = decided.report
    what = decided.action.removeprefix(RELEASE_ACTIONS)
    return Judgement(Finding(what), report.evidence or "observed", decided, report.receipt)


_ENDS = {
    Status.DONE: Finding.CONFIRMED,
    Status.REFUSED: Finding.REFUSED,
}


def ended(row: Work) -> Judgement:
    """What was found of a release that has ended since it was looked at last."""
    found = next((found for status, found in _ENDS.items() if row.status == status), None)
    return Judgement(found or Finding.CANCELLED, row.step, None, row.receipt)


def of_command(row: Work, past: Past, now: str) -> Judgement | None:
    """What becomes of a command; None: nothing, it goes on in its lane."""
    if past.stale is None or row.status == Status.RUNNING:
        return None
    return Judgement(
        Finding.CANCELLED, past.stale, Put(finish(row, Status.CANCELLED, now, past.stale))
    )


def way_out(row: Work, terms: Terms, now: str) -> str:
    """What its owner can do about a release that is held."""
    if row.committed is not None and repeatable(row, terms, now):
        return "its receiver suppresses a repeat: replay it, or settle it on evidence"
    return "settle it on evidence"
