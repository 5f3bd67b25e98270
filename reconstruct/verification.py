"""Verification: every byte of the journal hashed anew, every chain walked, the store compared.

Memory stays flat: entries are read in the order of the unique index (entity, revision, history), and
only one entity is held at a time. Large journals are split by entity over two processes.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from journal import history as histories
from journal.control import ControlUnreadable
from journal.detection import Verdict, differing_heads
from journal.entry import Predecessor, read
from journal.errors import Damaged, EngineError, Invalid, JournalUnavailable
from journal.history import Flaw, Head, Link
from journal.log import FIRST_FLAW
from journal.record import Record
from journal.settings import Settings
from journal.sql import Statement
from journal.sqlite import Database
from journal.store import tables
from journal.worker import drive

PARALLEL_FROM = 20_000
MAX_FINDINGS = 10_000
_REPORT_EVERY = 20_000
_CONTROL = "control/"
_MAPPED = 1 << 40

Progress = Callable[[int, int, str], None]

_WALK = (
    "SELECT entity, revision, history, digest, operation, sequence, CAST(envelope AS BLOB), body"
    " FROM entries WHERE entity >= ? AND entity < ? ORDER BY entity, revision, history"
)
_END = "\U0010ffff"


class Finding(Struct, frozen=True):
    """One thing that is wrong, with its place."""

    kind: str
    detail: str
    entity: str | None = None
    revision: int | None = None
    position: int | None = None
    sequence: int | None = None


class Report(Struct, frozen=True):
    """What verification found.

    ``verdict`` is `clean`, the verdict of the comparison between store and journal, or the worst
    kind among the findings. ``state_digest`` is over the store's rows (None: no readable store).
    """

    verdict: str
    entries: int
    entities: int
    findings: list[Finding]
    state_digest: str | None


class Walked(Struct, frozen=True):
    """What one walk over a range of entities found."""

    entries: int
    entities: int
    findings: list[Finding]


class _BodyFields(Struct, gc=False):
    sha256: str
    size: int


class _Fields(Struct, gc=False):
    """The envelope's fields that verification needs; the digest vouches for the rest."""

    entity: str
    history: str
    operation: str
    revision: int
    tenant: str
    body: _BodyFields
    predecessor: Predecessor | None
    sequence: int | None


_decode = msgspec.json.Decoder(_Fields).decode


def _nothing(_done: int, _total: int, _what: str) -> None:
    """No progress shown."""


def walk(
    path: Path, tenant: str, low: str = "", high: str = _END, progress: Progress = _nothing
) -> Walked:
    """Check every entry of the entities in [low, high): digest, columns, body, chain.

    The file is mapped into memory: reading by entity jumps about in it, and this halves the cost.
    """
    database = Database(path, read_only=True)
    try:
        database.connection.execute(f"PRAGMA mmap_size={_MAPPED}")
        try:
            return _walk(database, tenant, low, high, progress)
        except Damaged:
            database.tolerate()
            return _walk(database, tenant, low, high, progress)
    finally:
        database.close()


class _Entity:
    """The entity under the walk: its last sound link, and every link from the first flaw on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.head = Head()
        self.links: list[Link] = []

    def breaks(self, last: Link, link: Link) -> None:
        """Note the first link that does not continue the last sound one."""
        if link.revision == last.revision:
            # Two in one place: both are looked at, from the one before them.
            before = last.predecessor
            self.head = Head() if before is None else Head(
                before.revision, before.history, before.digest
            )
            self.links.append(last)
        else:
            self.head = Head(last.revision, last.history, last.digest)
        self.links.append(link)

    def findings(self) -> Iterator[Finding]:
        return _chain_findings(self.name, self.head, self.links) if self.links else iter(())


def _walk(database: Database, tenant: str, low: str, high: str, progress: Progress) -> Walked:
    findings: list[Finding] = []
    entries = entities = 0
    current = _Entity("")
    # The last sound link, in plain variables: this loop runs for every entry of the journal.
    last_digest, last_history, last = "", "", 0
    last_before: Predecessor | None = None
    hexes: dict[bytes, str] = {}
    for row in database.stream(Statement(_WALK, (low, high))):
        name, revision, raw_history, raw_digest, operation, sequence, text, body = row
        entries += 1
        if name != current.name:
            findings.extend(current.findings())
            current = _Entity(name)
            last_digest, last_history, last, last_before = "", "", 0, None
            entities += not name.startswith(_CONTROL)
        history = hexes.get(raw_history) or hexes.setdefault(raw_history, raw_history.hex())
        digest = sha256(b"\0" + text).hexdigest()
        try:
            fields = _decode(text)
        except msgspec.MsgspecError:
            fields = None
        if (
            fields is None
            or digest != raw_digest.hex()
            or fields.body.size != len(body)
            or fields.body.sha256 != sha256(body).hexdigest()
            or fields.entity != name
            or fields.revision != revision
            or fields.operation != operation
            or fields.sequence != sequence
            or fields.history != history
            or fields.tenant != tenant
        ):
            findings.append(_mismatch(row, fields, tenant))
        before = None if fields is None else fields.predecessor
        if not current.links:
            # What cannot be read is a mismatch already; the next entry says whether it fits.
            if revision == last + 1 and (
                revision == 1 or fields is None
                if before is None
                else before.digest == last_digest
                and before.revision == last
                and before.history == last_history
            ):
                last_digest, last_history, last = raw_digest.hex(), history, revision
                last_before = before
            else:
                link = Link(revision, history, raw_digest.hex(), before)
                current.breaks(Link(last, last_history, last_digest, last_before), link)
        else:
            current.links.append(Link(revision, history, raw_digest.hex(), before))
        if entries % _REPORT_EVERY == 0:
            progress(entries, 0, "entries verified")
    findings.extend(current.findings())
    return Walked(entries, entities, findings)


def _mismatch(row: tuple[Any, ...], fields: _Fields | None, tenant: str) -> Finding:
    """Say which of an entry's checks failed."""
    name, revision, history, digest, operation, sequence, text, body = row
    if sha256(b"\0" + text).digest() != digest:
        fault = "the envelope does not hash to the stored digest"
    elif fields is None:
        fault = "the envelope is not one"
    elif fields.body.size != len(body) or fields.body.sha256 != sha256(body).hexdigest():
        fault = "the body is not the one that the envelope names"
    elif fields.tenant != tenant:
        fault = f"it belongs to tenant {fields.tenant}"
    else:
        fault = "the indexed columns do not repeat the envelope"
    return Finding(
        str(Flaw.MISMATCH),
        f"{name} revision {revision} (operation {operation}, digest {digest.hex()[:12]}, "
        f"history {history.hex()[:12]}): {fault}",
        name,
        revision,
        sequence=sequence,
    )


def _chain_findings(entity: str, head: Head, links: list[Link]) -> Iterator[Finding]:
    for found in histories.examine(links, head).breaks:
        where = (
            f"revision {found.first}"
            if found.first == found.last
            else f"revisions {found.first} to {found.last}"
        )
        digests = f" ({', '.join(found.digests)})" if found.digests else ""
        yield Finding(
            str(found.flaw), f"{entity}: {where}: {found.flaw}{digests}", entity, found.first
        )


def verify(settings: Settings, progress: Progress | None = None) -> Report:
    """Verify one tenant's journal and compare its store; works beside a live server or with none.

    Raises Refused when there is no tenant, JournalUnavailable when the journal cannot be opened.
    """
    walked: Walked | Damaged | None = None
    if settings.journal_file.exists():
        try:
            walked = verify_journal(settings.journal_file, settings.tenant, progress or _nothing)
        except Damaged as error:
            walked = error
        except EngineError as error:
            raise JournalUnavailable(f"the journal cannot be read: {error}") from error
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        return _report(record, walked)
    finally:
        drive(record.close())


def _report(record: Record, walked: Walked | Damaged | None) -> Report:
    finding, _ = drive(record.examine())
    if record.log is None or walked is None:
        findings = [Finding("truncated", "the journal is missing or not readable")]
        return Report(str(finding.verdict), 0, 0, findings, _state_digest(record))
    try:
        if isinstance(walked, Damaged):
            raise walked
        findings = [*walked.findings, *_order_findings(record), *_known_flaws(record)]
    except Damaged as error:
        findings = [Finding(Flaw.MISMATCH, f"the journal's file is damaged: {error}")]
        return Report(str(Flaw.MISMATCH), 0, 0, findings, _state_digest(record))
    findings += _control_findings(record)
    findings += _store_findings(record)
    if not finding.verdict.sound:
        findings.append(Finding(str(finding.verdict), finding.detail))
    verdict = str(Verdict.CLEAN)
    if not finding.verdict.sound:
        verdict = str(finding.verdict)
    elif findings:
        verdict = min((item.kind for item in findings), key=_severity)
    return Report(
        verdict, walked.entries, walked.entities, findings[:MAX_FINDINGS], _state_digest(record)
    )


_ORDER = ("mismatch", "truncated", "fork", "gap", "orphan")


def _severity(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def verify_journal(path: Path, tenant: str, progress: Progress = _nothing) -> Walked:
    """Walk the whole journal, over two processes when it is large.

    The second one is forked, which is safe only while this process has one thread. Raises Damaged
    when a walker was killed, as a mapped page that the disk cannot read does.
    """
    database = Database(path, read_only=True)
    try:
        total = database.read([Statement("SELECT count(*) FROM entries")])[0][0][0]
        middle = None
        if total >= PARALLEL_FROM and threading.active_count() == 1:
            half = Statement(
                "SELECT entity FROM entries ORDER BY entity LIMIT 1 OFFSET ?", (total // 2,)
            )
            middle = database.read([half])[0][0][0]
    finally:
        database.close()
    if middle is None:
        return walk(path, tenant, progress=lambda done, _, what: progress(done, total, what))
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        other = pool.submit(walk, path, tenant, middle, _END)
        mine = walk(
            path,
            tenant,
            "",
            middle,
            lambda done, _, what: progress(min(2 * done, total), total, what),
        )
        try:
            theirs = other.result()
        except BrokenProcessPool:
            raise Damaged(f"{path.name}: a page of the file could not be read") from None
    progress(total, total, "entries verified")
    return Walked(
        mine.entries + theirs.entries,
        mine.entities + theirs.entities,
        [*mine.findings, *theirs.findings],
    )


def _order_findings(record: Record) -> list[Finding]:
    """Holes in the positions, and in the sequences of each order."""
    database = _log(record)
    findings = []
    count, last = database.read(
        [Statement("SELECT count(*), coalesce(max(position), 0) FROM entries")]
    )[0][0]
    if count != last:
        findings += _holes(
            database,
            "SELECT position AS at, lag(position, 1, 0) OVER (ORDER BY position) AS before"
            " FROM entries",
            "position",
        )
    counts = database.read(
        [
            Statement(
                "SELECT stream, lower(hex(history)), count(*), min(sequence), max(sequence)"
                " FROM entries WHERE stream IN ('decisions', 'control')"
                " AND sequence IS NOT NULL GROUP BY stream, history"
            )
        ]
    )[0]
    firsts = {} if record.control is None else {
        item.history: item.first for item in record.control.histories
    }
    for stream, history, number, least, most in counts:
        if stream == "control":
            continue
        first = firsts.get(history, least)
        if most - first + 1 != number:
            findings += _holes(
                database,
                "SELECT sequence AS at, lag(sequence, 1, ?) OVER (ORDER BY sequence) AS before"
                " FROM entries WHERE stream = 'decisions' AND history = ?",
                "sequence",
                first - 1,
                bytes.fromhex(history),
            )
    return findings


def _holes(database: Database, query: str, what: str, *parameters: Any) -> list[Finding]:
    rows = database.read(
        [Statement(f"SELECT before, at FROM ({query}) WHERE at > before + 1 LIMIT 1000", parameters)]
    )[0]
    return [
        Finding(
            str(Flaw.GAP),
            f"{what} {before + 1} is missing"
            if at == before + 2  # noqa: PLR2004 - exactly one is missing
            else f"{what}s {before + 1} to {at - 1} are missing",
            position=before + 1 if what == "position" else None,
            sequence=before + 1 if what == "sequence" else None,
        )
        for before, at in rows
    ]


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


def _store_findings(record: Record) -> list[Finding]:
    """Where the store knows better, and rows or bytes that are not the journal's."""
    if record.store is None or record.log is None:
        return []
    try:
        findings = _byte_findings(record)
        flawed = drive(record.log.flawed())
        for item in drive(differing_heads(record.store, record.log, flawed)):
            findings.append(
                Finding(
                    "head",
                    f"{item.entity}: the store is at revision {item.store}, "
                    f"the journal at {item.journal}, or their data differ",
                    item.entity,
                    item.store,
                )
            )
    except (Damaged, Invalid) as error:
        return [Finding(str(Verdict.REPLACED), f"the store is damaged: {error}")]
    return findings


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
    for sequence, digest, text, body in record.store.database.stream(query):
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


def _log(record: Record) -> Database:
    if record.log is None:
        raise JournalUnavailable
    return record.log.database


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
