"""Walking the journal: every byte hashed anew, every chain followed.

Memory stays flat: entries are read in the order of the unique index (entity, revision, history),
and only one entity is held at a time. A file of not too many entities is scanned first
(``scanning``), and only what the scan is not sure of is walked. Large journals are split over two
processes.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from journal import history as histories
from journal.abandonment import Cuts, dropping
from journal.control import Abandoned
from journal.entry import Predecessor
from journal.errors import Damaged, EngineError
from journal.history import Flaw, Head, Link
from journal.places import LogPlace
from journal.sql import Database, Statement
from journal.sqlite import Database as File
from reconstruct.scanning import (
    REPORT_EVERY,
    Fields,
    Progress,
    Scanned,
    Unsure,
    check_index,
    decode_fields,
    join,
    scan,
)

PARALLEL_FROM = 20_000
_OURS = ("control/", "observation/")
_MAPPED = 1 << 40
MAX_DOUBTED = 2000
T = TypeVar("T")

_WALK = (
    "SELECT entity, revision, history, digest, operation, sequence, CAST(envelope AS BLOB), body"
    " FROM entries WHERE entity >= ? AND entity < ? ORDER BY entity, revision, history"
)
_WALK_FILE = (
    "SELECT i.entity, i.revision, i.history, e.digest, e.operation, e.sequence,"
    " CAST(e.envelope AS BLOB), e.body, e.entity IS NOT i.entity"
    " OR e.revision IS NOT i.revision OR e.history IS NOT i.history"
    " FROM entries i INDEXED BY entries_revision"
    " LEFT JOIN entries e NOT INDEXED ON e.position = i.position"
    " WHERE i.entity >= ? AND i.entity < ? ORDER BY i.entity, i.revision, i.history"
)
"""The same of a file, whose engine would take from the index what the row has to repeat."""

_END = "\U0010ffff"


class Finding(Struct, frozen=True):
    """One thing that is wrong, with its place."""

    kind: str
    detail: str
    entity: str | None = None
    revision: int | None = None
    position: int | None = None
    sequence: int | None = None


class Walked(Struct, frozen=True):
    """What one walk over a range of entities found."""

    entries: int
    entities: int
    findings: list[Finding]
    dropped: Mapping[str, int] = {}
    """Entries that were abandoned, by entity."""


def nothing(_done: int, _total: int, _what: str) -> None:
    """No progress shown."""


def walk(
    place: LogPlace,
    tenant: str,
    low: str = "",
    high: str = _END,
    progress: Progress = nothing,
    cuts: Cuts | None = None,
) -> Walked:
    """Check every entry of the entities in [low, high): digest, columns, body, chain.

    Entries that ``cuts`` dropped are no part of a chain; their bytes are checked all the same,
    unless they were damaged when they were abandoned. A file is mapped into memory: reading by
    entity jumps about in it, and this halves the cost.
    """
    with _opened(place) as database:
        return _walk_range(database, tenant, low, high, progress, cuts or {})


@contextmanager
def _opened(place: LogPlace) -> Iterator[Database]:
    database = place.open(read_only=True).database
    try:
        if isinstance(database, File):
            database.connection.execute(f"PRAGMA mmap_size={_MAPPED}")
        yield database
    finally:
        database.close()


def _walk_range(
    database: Database, tenant: str, low: str, high: str, progress: Progress, cuts: Cuts
) -> Walked:
    try:
        return _walk(database, tenant, low, high, progress, cuts)
    except Damaged:
        if database.tolerant:
            raise
        database.tolerate()
        return _walk(database, tenant, low, high, progress, cuts)


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
            self.head = (
                Head() if before is None else Head(before.revision, before.history, before.digest)
            )
            self.links.append(last)
        else:
            self.head = Head(last.revision, last.history, last.digest)
        self.links.append(link)

    def findings(self) -> Iterator[Finding]:
        return _chain_findings(self.name, self.head, self.links) if self.links else iter(())


def _rows(database: Database, low: str, high: str) -> Iterator[tuple[Any, ...]]:
    """The entries of a range; the last column says whether index and row contradict each other."""
    if not isinstance(database, File):
        for row in database.stream(Statement(_WALK, (low, high))):
            yield (*row, False)
        return
    for row in database.stream(Statement(_WALK_FILE, (low, high))):
        _, _, history, digest, _, _, text, body, _ = row
        if type(history) is type(digest) is type(text) is type(body) is bytes:
            yield row
        else:
            name, revision, _, _, operation, sequence, _, _, crossed = row
            history, digest, text, body = map(_as_bytes, (history, digest, text, body))
            yield name, revision, history, digest, operation, sequence, text, body, crossed


def _walk(
    database: Database, tenant: str, low: str, high: str, progress: Progress, all_cuts: Cuts
) -> Walked:
    findings: list[Finding] = []
    dropped: dict[str, int] = {}
    cuts: Sequence[Abandoned] = ()
    entries = entities = 0
    current = _Entity("")
    # The last sound link, in plain variables: this loop runs for every entry of the journal.
    last_digest, last_history, last = "", "", 0
    last_before: Predecessor | None = None
    hexes: dict[bytes, str] = {}
    for row in _rows(database, low, high):
        name, revision, raw_history, raw_digest, operation, sequence, text, body, crossed = row
        entries += 1
        if name != current.name:
            findings.extend(current.findings())
            current = _Entity(name)
            last_digest, last_history, last, last_before = "", "", 0, None
            cuts = all_cuts.get(name, ())
            entities += not name.startswith(_OURS)
        history = hexes.get(raw_history) or hexes.setdefault(raw_history, raw_history.hex())
        digest = raw_digest.hex()
        try:
            fields = decode_fields(text)
        except (msgspec.MsgspecError, RecursionError):
            fields = None
        if (
            fields is None
            or sha256(b"\0" + text).hexdigest() != digest
            or fields.body.size != len(body)
            or fields.body.sha256 != sha256(body).hexdigest()
            or fields.entity != name
            or fields.revision != revision
            or fields.operation != operation
            or fields.sequence != sequence
            or fields.history != history
            or fields.tenant != tenant
            or crossed
        ):
            fault: Finding | None = _mismatch(row, fields, tenant)
        else:
            fault = None
        if cuts:
            cut = dropping(cuts, revision, history, digest)
            if cut is not None:
                dropped[name] = dropped.get(name, 0) + 1
                if fault is not None and digest not in cut.unreadable:
                    findings.append(fault)
                continue
        if fault is not None:
            findings.append(fault)
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
                last_digest, last_history, last = digest, history, revision
                last_before = before
            else:
                link = Link(revision, history, digest, before)
                current.breaks(Link(last, last_history, last_digest, last_before), link)
        else:
            current.links.append(Link(revision, history, digest, before))
        if entries % REPORT_EVERY == 0:
            progress(entries, 0, "entries verified")
    findings.extend(current.findings())
    return Walked(entries, entities, findings, dropped)


def _as_bytes(value: Any) -> bytes:
    """A value that damage gave another type, or that an index leads to and nobody finds."""
    if value is None:
        return b""
    return (
        str(value).encode(errors="replace")
        if isinstance(value, str | int | float)
        else bytes(value)
    )


def _mismatch(row: tuple[Any, ...], fields: Fields | None, tenant: str) -> Finding:
    """Say which of an entry's checks failed."""
    name, revision, history, digest, operation, sequence, text, body, _ = row
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


def verify_journal(
    place: LogPlace, tenant: str, progress: Progress = nothing, cuts: Cuts | None = None
) -> Walked:
    """Verify every entry, over two processes when there are many, each with its own connection.

    The second one is forked, which is safe only while this process has one thread. Raises Damaged
    when a process was killed, as a mapped page that the disk cannot read does.
    """
    cuts = cuts or {}
    with _opened(place) as database:
        total = database.read([Statement("SELECT count(*) FROM entries")])[0][0][0]
        ends = "SELECT (SELECT min(position) FROM entries), (SELECT max(position) FROM entries)"
        first, last = database.read([Statement(ends)])[0][0]
        scannable = isinstance(database, File)
    parallel = total >= PARALLEL_FROM and threading.active_count() == 1
    wrong: str | None = None
    if scannable and total:
        try:
            return _by_scan(place, tenant, (first, last), progress, cuts, parallel=parallel)
        except Unsure as error:
            wrong = error.index
    walked = _by_walk(place, tenant, total, progress, cuts, parallel=parallel)
    if wrong is not None and not walked.findings:
        walked.findings.append(Finding(str(Flaw.MISMATCH), wrong))
    progress(total, total, "entries verified")
    return walked


def _by_scan(
    place: LogPlace,
    tenant: str,
    positions: tuple[int, int],
    progress: Progress,
    cuts: Cuts,
    *,
    parallel: bool,
) -> Walked:
    """A scan from a position through another, and a walk of what is not sure. Raises Unsure."""
    first, last = positions
    total = last - first + 1

    def part(above: int, through: int, tell: Progress) -> Scanned:
        with _opened(place) as database:
            return scan(database, tenant, above, through, tell)

    # This process holds the index against the rows besides.
    middle = first + total * 9 // 20
    if parallel:
        with _forked(lambda: part(middle, last, nothing), place.label) as other:
            mine = part(
                first - 1,
                middle,
                lambda done, _, what: progress(min(2 * done, total), total, what),
            )
            whole = join(mine, other())
    else:
        whole = part(first - 1, last, lambda done, _, what: progress(done, total, what))
    with _opened(place) as database:
        whole = whole.settled()
        check_index(database, whole, last)
        doubted = sorted(whole.doubted | cuts.keys() & whole.firsts.keys())
        if len(doubted) > MAX_DOUBTED:
            raise Unsure("there is more to walk than a scan has spared")
        findings: list[Finding] = []
        dropped: dict[str, int] = {}
        for name in doubted:
            walked = _walk_range(database, tenant, name, name + "\0", nothing, cuts)
            findings += walked.findings
            dropped.update(walked.dropped)
    names = whole.firsts.keys() | whole.doubted
    entities = sum(not name.startswith(_OURS) for name in names)
    progress(whole.entries, whole.entries, "entries verified")
    return Walked(whole.entries, entities, findings, dropped)


def _by_walk(
    place: LogPlace, tenant: str, total: int, progress: Progress, cuts: Cuts, *, parallel: bool
) -> Walked:
    if not parallel:
        return walk(
            place, tenant, progress=lambda done, _, what: progress(done, total, what), cuts=cuts
        )
    with _opened(place) as database:
        half = "SELECT entity FROM entries ORDER BY entity LIMIT 1 OFFSET ?"
        middle = database.read([Statement(half, (total // 2,))])[0][0][0]
    with _forked(lambda: walk(place, tenant, middle, _END, nothing, cuts), place.label) as other:
        mine = walk(
            place,
            tenant,
            "",
            middle,
            lambda done, _, what: progress(min(2 * done, total), total, what),
            cuts,
        )
        theirs = other()
    return Walked(
        mine.entries + theirs.entries,
        mine.entities + theirs.entities,
        [*mine.findings, *theirs.findings],
        {**mine.dropped, **theirs.dropped},
    )


@contextmanager
def _forked(work: Callable[[], T], label: str) -> Iterator[Callable[[], T]]:
    """Do work in a second process; what is given waits for it. Its errors are raised here.

    Raises Damaged when the process was killed.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()

    def result() -> T:
        try:
            done = ours.recv()
        except EOFError:
            raise Damaged(f"{label}: a page of the file could not be read") from None
        if isinstance(done, Exception):
            raise done
        found: T = done
        return found

    try:
        yield result
    finally:
        process.kill()
        process.join()
        ours.close()


def _send(work: Callable[[], object], to: Connection) -> None:
    try:
        to.send(work())
    except (EngineError, Unsure) as error:
        to.send(error)
