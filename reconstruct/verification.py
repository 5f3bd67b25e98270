"""Verification: the journal walked entry by entry, its orders counted, the store compared."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from hashlib import sha256
from itertools import islice, zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct

from journal.abandonment import Cuts
from journal.control import ControlUnreadable
from journal.detection import Difference, Verdict, differing_heads, still_differing
from journal.driving import drive
from journal.entry import read
from journal.errors import Damaged, EngineError, Invalid, JournalUnavailable, Unreachable
from journal.history import Flaw
from journal.log import FIRST_FLAW
from journal.log.engine import SqlLog
from journal.log.writing import dropped_by
from journal.places import LogPlace, place_of_log
from journal.record import Record
from journal.settings import Settings
from journal.sql import Database, Statement
from journal.store import tables
from journal.store.engine import SqlStore
from reconstruct.crosschecks import crosschecked
from reconstruct.filing import misfiled, misplaced, misread_rivals
from reconstruct.orders import holes, unexplained
from reconstruct.rederiving import permitting, unasked, unlike
from reconstruct.scanning import Progress
from reconstruct.walking import Finding, Walked, nothing, verify_journal

MAX_FINDINGS = 10_000
UNREACHABLE = "unreachable"
_LOOKS = 5
_PAUSE = 0.02


class CutOff(Struct, frozen=True):
    """A history that was abandoned: no finding, and said all the same.

    ``dropped`` counts the entries that are evidence alone since, those of earlier abandonments of
    the entity among them.
    """

    entity: str
    through: int
    since: str
    dropped: int
    detail: str


class Report(Struct, frozen=True):
    """What verification found.

    ``verdict`` is `clean`, the verdict of the comparison between store and journal, or the worst
    kind among the findings. ``state_digest`` is over the store's rows (None: no readable store).
    ``abandoned`` says which histories were cut off; what was abandoned is no finding.
    """

    verdict: str
    entries: int
    entities: int
    findings: list[Finding]
    state_digest: str | None
    abandoned: list[CutOff] = []


def verify(settings: Settings, progress: Progress | None = None) -> Report:
    """Verify one tenant's journal and compare its store; works beside a live server or with none.

    Raises Refused when there is no tenant, JournalUnavailable when the journal cannot be opened.
    """
    place = place_of_log(settings)
    with TemporaryDirectory(prefix="unrewind-") as folder:
        journal = place.afresh(Path(folder))
        walked = _walked(settings, journal, progress or nothing)
        record = Record(settings, read_only=True)
        try:
            drive(record.open())
            return _report(record, walked, None if journal is place else journal)
        finally:
            drive(record.close())


def _walked(settings: Settings, place: LogPlace, progress: Progress) -> Walked | Damaged | None:
    """What a walk finds; None: there is no journal. Raises JournalUnavailable."""
    try:
        if place.exists() if place.file is None else place.file.exists():
            return verify_journal(place, settings.tenant, progress, _cuts(settings))
    except Damaged as error:
        return error
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be read: {error}") from error
    return None


def _cuts(settings: Settings) -> Cuts:
    """What control says was abandoned; nothing where it cannot be read, which is a finding then.

    Its files are closed again: the walk forks.
    """
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        return drive(record.read_control()).abandoned
    except (ControlUnreadable, JournalUnavailable):
        return {}
    finally:
        drive(record.close())


def _cut_off(record: Record, walked: Walked) -> list[CutOff]:
    cuts = _cuts_in(record)
    return [
        CutOff(
            cut.entity,
            cut.through,
            cut.since,
            walked.dropped.get(cut.entity, 0),
            f"{cut.entity} goes on from revision {cut.through} since {cut.since}: {cut.reason}",
        )
        for entity in sorted(cuts)
        for cut in cuts[entity]
    ]


def _compared(record: Record) -> Finding | None:
    """How store and journal stand to each other, where that is not well."""
    try:
        finding, _ = drive(record.examine())
    except Unreachable as error:
        with suppress(ControlUnreadable, JournalUnavailable):
            drive(record.read_control())
        return Finding(UNREACHABLE, f"the store cannot be reached: {error}")
    return None if finding.verdict.sound else Finding(str(finding.verdict), finding.detail)


def _report(record: Record, walked: Walked | Damaged | None, journal: LogPlace | None) -> Report:
    wrong = _compared(record)
    if record.log is None or walked is None:
        findings = [Finding("truncated", "the journal is missing or not readable")]
        verdict = str(Verdict.CLEAN) if wrong is None else wrong.kind
        return Report(verdict, 0, 0, findings, _state_digest(record))
    try:
        if isinstance(walked, Damaged):
            raise walked
        findings = [
            *walked.findings,
            *_order_findings(record),
            *_index_findings(record),
            *_filing_findings(record),
            *_known_flaws(record),
            *_copy_findings(record, journal),
        ]
    except Damaged as error:
        findings = [Finding(Flaw.MISMATCH, f"the journal's file is damaged: {error}")]
        return Report(str(Flaw.MISMATCH), 0, 0, findings, _state_digest(record))
    findings += _control_findings(record)
    findings += _witness_findings(record)
    if wrong is None or wrong.kind != UNREACHABLE:
        findings += _store_findings(record, {item.entity for item in findings})
        if wrong is None:
            told = {(item.kind, item.entity) for item in findings if item.entity is not None}
            findings += [f for f in _crossed(record) if (f.kind, f.entity) not in told]
    verdict = str(Verdict.CLEAN)
    if wrong is not None:
        findings.append(wrong)
        verdict = wrong.kind
    elif findings:
        verdict = min((item.kind for item in findings), key=_severity)
    return Report(
        verdict,
        walked.entries,
        walked.entities,
        findings[:MAX_FINDINGS],
        _state_digest(record),
        _cut_off(record, walked),
    )


_ORDER = ("mismatch", "truncated", "fork", "gap", "orphan")


def _severity(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _order_findings(record: Record) -> list[Finding]:
    """Holes in the positions, and in the sequences of each order, that nothing explains."""
    found = holes(_log(record), record.control)
    return [hole.finding() for hole in unexplained(found, _cuts_in(record))]


def _index_findings(record: Record) -> list[Finding]:
    """Where the journal's index of dropped entries is not what its control says."""
    database = _log(record)
    control = record.control
    if control is None:
        return []
    wanted: set[int] = set()
    for cuts in control.abandoned.values():
        for cut in cuts:
            wanted |= {position for (position,) in database.read([dropped_by(cut)])[0]}
    indexed = set(_log_port(record).dropped())
    if wanted == indexed:
        return []
    wrong = sorted(wanted ^ indexed)
    return [
        Finding(
            "index",
            f"{len(wrong)} entries are dropped and not in the index of those, or the other way "
            f"round, from position {wrong[0]} on; `unrewind recover begin` and `apply` index anew",
            position=wrong[0],
        )
    ]


def _filing_findings(record: Record) -> list[Finding]:
    """Where the journal keeps an entry elsewhere, or a boundary, than the entries say."""
    database, cuts = _log(record), _cuts_in(record)
    found = [*islice(misfiled(database, record.lifecycles), MAX_FINDINGS)]
    found += misread_rivals(database)
    suspects = [*islice(misplaced(database, cuts), MAX_FINDINGS)]
    for _ in range(_LOOKS):
        if not suspects:
            break
        time.sleep(_PAUSE)  # a live process may have appended between the two looks
        again = {*misplaced(database, cuts)}
        suspects = [item for item in suspects if item in again]
    return found + suspects


def _witness_findings(record: Record) -> list[Finding]:
    """A witness that is there and cannot be read; that there is none `status` says."""
    record.witness.read()
    if record.witness.fault is None or not record.witness.exists():
        return []
    return [Finding("witness", record.witness.fault)]


def _crossed(record: Record) -> list[Finding]:
    """Rows of the store that contradict the journal, or each other."""
    try:
        return [*islice(crosschecked(record), MAX_FINDINGS)]
    except Damaged as error:
        return [Finding(str(Verdict.REPLACED), f"the store is damaged: {error}")]


_PLACES = Statement(
    "SELECT position, stream, sequence, history, entity, revision, operation, digest,"
    " CAST(envelope AS BLOB), body FROM entries ORDER BY position"
)


def _copy_findings(record: Record, journal: LogPlace | None) -> list[Finding]:
    """Where what this machine keeps of the journal is not what the journal holds."""
    if journal is None:
        return []
    found = journal.open(read_only=True)
    try:
        kept = _log(record).stream(_PLACES)
        for mine, theirs in zip_longest(kept, found.database.stream(_PLACES)):
            if mine != theirs and theirs is not None:
                return [
                    Finding(
                        "copy",
                        f"the copy on this machine, {_log_port(record).facts().get('copy')}, holds "
                        f"another entry at position {theirs[0]} than the journal: move it away, "
                        "and it is built again",
                        position=theirs[0],
                    )
                ]
    finally:
        found.database.close()
    return []


def _known_flaws(record: Record) -> list[Finding]:
    """What the journal's own index holds and a walk cannot see: rivals and refused projections."""
    if record.log is None:
        return []
    shown = {Flaw.FORK, Flaw.PROJECTION, Flaw.DIVERGENT}
    return [
        Finding(str(flaw.flaw), flaw.detail, flaw.entity, flaw.first)
        for flaw in drive(record.log.flaws(None, FIRST_FLAW, MAX_FINDINGS))
        if flaw.flaw in shown
    ]


def _control_findings(record: Record) -> list[Finding]:
    try:
        look = drive(record.look())
        drive(record.current_control(look))
    except (ControlUnreadable, JournalUnavailable) as error:
        return [Finding(str(Verdict.CLOSED), error.detail)]
    if record.store is None:
        return []
    try:
        copied = record.store.database.read([tables.READ_CONTROL_SEQUENCE])[0][0][0]
    except EngineError:
        return []
    if copied > look.control:
        return [
            Finding(
                str(Flaw.TRUNCATED),
                f"the store has control entries through {copied}, the journal through "
                f"{look.control}",
            )
        ]
    return []


def _differing(store: SqlStore, log: SqlLog, flawed: Collection[str]) -> list[Difference]:
    """The heads that differ; a decision that a live process makes meanwhile is none."""
    found = drive(differing_heads(store, log, flawed))
    for _ in range(_LOOKS):
        if not found:
            break
        time.sleep(_PAUSE)
        drive(log.look())  # which brings a copy on this machine up to date
        found = drive(still_differing(store, log, found))
    return found


def _store_findings(record: Record, broken: Collection[str | None]) -> list[Finding]:
    """Where the store knows better, and rows or bytes that are not the journal's.

    What entities whose history is ``broken`` would lead to, nobody can tell.
    """
    if record.store is None or record.log is None:
        return []
    try:
        findings = _byte_findings(record)
        flawed = drive(record.log.flawed())
        for item in _differing(record.store, record.log, flawed):
            findings.append(
                Finding(
                    "head",
                    f"{item.entity}: the store is at revision {item.store}, "
                    f"the journal at {item.journal}, or their data differ",
                    item.entity,
                    item.store,
                )
            )
        findings += _work_findings(record, {*flawed, *broken})
    except (Damaged, Invalid) as error:
        return [Finding(str(Verdict.REPLACED), f"the store is damaged: {error}")]
    return findings


def _work_findings(record: Record, flawed: Collection[str | None]) -> list[Finding]:
    """Releases in the store that are not what the journal's decisions lead to, or not there."""
    store = record.store
    if store is None or not any(lifecycle.works for lifecycle in record.lifecycles.values()):
        return []
    cuts = _cuts_in(record)
    suspects = dict(islice(unlike(record, store, flawed, permitting(record), cuts), MAX_FINDINGS))
    for _ in range(_LOOKS):
        if not suspects:
            break
        time.sleep(_PAUSE)  # a live process may have decided between the two looks
        suspects = dict(unlike(record, store, flawed, iter([*suspects]), cuts))
    for entity, why in islice(unasked(record, store), MAX_FINDINGS):
        suspects.setdefault(entity, why)
    return [Finding("work", f"{entity}: {why}", entity) for entity, why in suspects.items()]


def _byte_findings(record: Record) -> list[Finding]:
    """The store's own copies: hashed anew, and held against the journal's digests."""
    if record.store is None:
        return []
    marker = drive(record.marker())
    last = drive(record.look()).last
    top = 0 if last is None else last.sequence
    findings: list[Finding] = []
    query = Statement(
        "SELECT sequence, digest, CAST(envelope AS BLOB), body FROM unrewind_decisions"
        " ORDER BY sequence"
    )
    gone = _gone(record)
    for sequence, digest, text, body in record.store.database.stream(query):
        if sequence in gone:
            continue
        fault = None
        try:
            if bytes.fromhex(read(bytes(text), bytes(body)).digest) != digest:
                fault = "its copy does not hash to its digest"
        except Invalid as error:
            fault = f"its copy: {error.detail}"
        if fault is not None:
            findings.append(
                Finding(Flaw.MISMATCH, f"store, sequence {sequence}: {fault}", sequence=sequence)
            )
        if len(findings) >= MAX_FINDINGS:
            break
    if marker is not None and marker.journalled > top:
        known = {item.first - 1 for item in record.control.histories} if record.control else set()
        if marker.journalled not in known:
            findings.append(
                Finding(
                    Flaw.TRUNCATED,
                    f"the store handed off through sequence {marker.journalled}, "
                    f"the journal ends at {top}",
                    sequence=top + 1,
                )
            )
    return findings


def _gone(record: Record) -> set[int]:
    """Sequences at which the journal holds what was damaged when it was abandoned."""
    digests = [
        digest for cuts in _cuts_in(record).values() for cut in cuts for digest in cut.unreadable
    ]
    if not digests:
        return set()
    query = Statement(
        "SELECT sequence FROM entries WHERE stream = 'decisions'"
        " AND lower(hex(digest)) IN (SELECT value FROM json_each(?))",
        (msgspec.json.encode(digests).decode(),),
    )
    return {sequence for (sequence,) in _log(record).read([query])[0]}


def _cuts_in(record: Record) -> Cuts:
    return {} if record.control is None else record.control.abandoned


def _log_port(record: Record) -> SqlLog:
    if record.log is None:
        raise JournalUnavailable
    return record.log


def _log(record: Record) -> Database:
    return _log_port(record).database


def _state_digest(record: Record) -> str | None:
    return None if record.store is None else state_digest(record.store.database)


def state_digest(store: Database) -> str | None:
    """SHA-256 over the store's rows at their durable boundaries, one line each, sorted by entity.

    A line is entity, revision, state and the SHA-256 of the data as stored, tab-separated. None
    when the store cannot be read.
    """
    digest = sha256()
    try:
        for entity, revision, state, data in store.stream(tables.DIGEST_ROWS):
            hashed = sha256(str(data).encode()).hexdigest()
            digest.update(f"{entity}\t{revision}\t{state}\t{hashed}\n".encode())
    except EngineError:
        return None
    return digest.hexdigest()
