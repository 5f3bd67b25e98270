"""Walking the journal: every byte hashed anew, every chain followed.

Memory stays flat: entries are read in the order of the unique index (entity, revision, history),
and only one entity is held at a time. Large journals are split by entity over two processes.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from journal import history as histories
from journal.abandonment import Cuts, dropping
from journal.control import Abandoned
from journal.entry import Predecessor
from journal.errors import Damaged
from journal.history import Flaw, Head, Link
from journal.places import LogPlace
from journal.sql import Database, Statement
from journal.sqlite import Database as File

PARALLEL_FROM = 20_000
_REPORT_EVERY = 20_000
_OURS = ("control/", "observation/")
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


class Walked(Struct, frozen=True):
    """What one walk over a range of entities found."""

    entries: int
    entities: int
    findings: list[Finding]
    dropped: Mapping[str, int] = {}
    """Entries that were abandoned, by entity."""


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
    database = place.open(read_only=True).database
    try:
        if isinstance(database, File):
            database.connection.execute(f"PRAGMA mmap_size={_MAPPED}")
        try:
            return _walk(database, tenant, low, high, progress, cuts or {})
        except Damaged:
            database.tolerate()
            return _walk(database, tenant, low, high, progress, cuts or {})
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
            self.head = (
                Head() if before is None else Head(before.revision, before.history, before.digest)
            )
            self.links.append(last)
        else:
            self.head = Head(last.revision, last.history, last.digest)
        self.links.append(link)

    def findings(self) -> Iterator[Finding]:
        return _chain_findings(self.name, self.head, self.links) if self.links else iter(())


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
    for row in database.stream(Statement(_WALK, (low, high))):
        name, revision, raw_history, raw_digest, operation, sequence, text, body = row
        entries += 1
        if name != current.name:
            findings.extend(current.findings())
            current = _Entity(name)
            last_digest, last_history, last, last_before = "", "", 0, None
            cuts = all_cuts.get(name, ())
            entities += not name.startswith(_OURS)
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
            fault: Finding | None = _mismatch(row, fields, tenant)
        else:
            fault = None
        if cuts:
            cut = dropping(cuts, revision, history, raw_digest.hex())
            if cut is not None:
                dropped[name] = dropped.get(name, 0) + 1
                if fault is not None and raw_digest.hex() not in cut.unreadable:
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
    return Walked(entries, entities, findings, dropped)


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


def verify_journal(
    place: LogPlace, tenant: str, progress: Progress = nothing, cuts: Cuts | None = None
) -> Walked:
    """Walk the whole journal, over two processes when it is large, each with its own connection.

    The second one is forked, which is safe only while this process has one thread. Raises Damaged
    when a walker was killed, as a mapped page that the disk cannot read does.
    """
    database = place.open(read_only=True).database
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
        return walk(
            place,
            tenant,
            progress=lambda done, _, what: progress(done, total, what),
            cuts=cuts,
        )
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        other = pool.submit(walk, place, tenant, middle, _END, nothing, cuts)
        mine = walk(
            place,
            tenant,
            "",
            middle,
            lambda done, _, what: progress(min(2 * done, total), total, what),
            cuts,
        )
        try:
            theirs = other.result()
        except BrokenProcessPool:
            raise Damaged(f"{place.label}: a page of the file could not be read") from None
    progress(total, total, "entries verified")
    return Walked(
        mine.entries + theirs.entries,
        mine.entities + theirs.entities,
        [*mine.findings, *theirs.findings],
        {**mine.dropped, **theirs.dropped},
    )
