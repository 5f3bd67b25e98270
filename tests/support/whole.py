"""Everything that a store and its journal must satisfy when a test has ended.

Each entry is judged twice: by the project's own rules and by ``tests/journal/independent.py``,
which imports nothing of the project. Files are read through the standard library's sqlite3.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from journal import Settings
from journal.abandonment import dropping, is_evidence
from journal.acceptance import Place
from journal.control import Abandoned, Control, ControlUnreadable, fold, tip_of
from journal.entry import Entry, read
from journal.errors import Invalid
from journal.history import Link, examine, link_of
from journal.lifecycle import Owner
from reconstruct.verification import verify
from tests.journal import independent
from tests.support.derived import derived, differences, miscounted, stored

_ENTRIES = (
    "SELECT position, stream, sequence, lower(hex(history)), entity, revision, operation,"
    " lower(hex(digest)), CAST(envelope AS BLOB), body FROM entries ORDER BY position"
)
_HEADS = (
    "SELECT entity, revision, lower(hex(history)), lower(hex(digest)), sequence, state, version,"
    " data FROM unrewind_entities ORDER BY entity"
)


def rows_of(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a database file, opened read-only."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(sql).fetchall()


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2, as its pseudocode has it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def verify_files(settings: Settings, *, store: bool = True, work: bool = True) -> list[str]:
    """Every finding about the tenant's files, as sentences; nothing when they are whole."""
    whole = _Journal(settings)
    findings = list(whole.findings())
    if store and not findings and whole.control is not None:
        findings += _store_findings(settings, whole, whole.control)
        findings += _told_otherwise(settings, work=work)
        if work and not findings:
            cuts = whole.control.abandoned
            wanted = derived(whole.kept, settings, cuts, whole.dropped)
            findings += differences(wanted, stored(settings))
            findings += miscounted(settings)
    return findings


def _told_otherwise(settings: Settings, *, work: bool) -> Iterator[str]:
    """`unrewind verify` has to find the flaws that the journal lists, and nothing else.

    Without ``work`` rows of work were changed on purpose, and it names them.
    """
    report = verify(settings)
    findings = [found for found in report.findings if work or found.kind != "work"]
    told = {(found.entity, found.kind, found.revision) for found in findings}
    listed = set(rows_of(settings.journal_file, "SELECT entity, flaw, first FROM flaws"))
    if told != listed:
        yield f"verify finds {report.findings}, the journal lists {listed}"
    entries = rows_of(settings.journal_file, "SELECT count(*) FROM entries")[0][0]
    if report.entries != entries or (report.verdict == "clean") != (not report.findings):
        yield f"verify says {report.verdict} of {report.entries} entries; there are {entries}"


class _Journal:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.rows = rows_of(settings.journal_file, _ENTRIES)
        self.entries: dict[str, list[Entry]] = {}
        self.decisions: list[Entry] = []
        self.kept: list[Entry] = []
        self.dropped: dict[str, list[Entry]] = {}
        self.damaged: set[str] = set()
        self.control: Control | None = None
        self.cuts = _cuts_of(self.rows, settings.tenant)

    def is_kept(self, entry: Entry) -> bool:
        """Whether an entry counts; what was abandoned is evidence alone."""
        envelope = entry.envelope
        cuts = self.cuts.get(envelope.entity, ())
        return dropping(cuts, envelope.revision, envelope.history, entry.digest) is None

    def accounted(self, what: str, number: int) -> bool:
        """Whether a number is missing where revisions were that were abandoned."""
        gone = [each for cuts in self.cuts.values() for cut in cuts for each in cut.missing]
        spans = [getattr(each, what) for each in gone]
        return any(span is not None and span[0] < number < span[1] for span in spans)

    def findings(self) -> Iterator[str]:
        control: list[Entry] = []
        expected = 0
        known = {d for cuts in self.cuts.values() for cut in cuts for d in cut.unreadable}
        for row in self.rows:
            position, stream, *_, stored, text, body = row
            for missing in range(expected + 1, position):
                if not self.accounted("positions", missing):
                    yield f"position {missing} is missing"
            expected = position
            try:
                digest = independent.check(text, body)
                entry = read(text, body)
                if stored in known:
                    self.damaged.add(stored)
                    continue
            except (ValueError, Invalid) as error:
                self.damaged.add(stored)
                _, _, _, history, entity, revision, *_ = row
                cuts = self.cuts.get(entity, ())
                if dropping(cuts, revision, history, stored) is None:
                    yield f"position {position}: {error}"
                continue
            yield from self._columns(row, digest, entry)
            self.entries.setdefault(entry.envelope.entity, []).append(entry)
            if stream == "control":
                control.append(entry)
            elif stream == "decisions":
                self.decisions.append(entry)
                if self.is_kept(entry):
                    self.kept.append(entry)
                else:
                    self.dropped.setdefault(entry.envelope.entity, []).append(entry)
        try:
            self.control = fold(control, self.settings.tenant)
        except ControlUnreadable as error:
            yield str(error)
            return
        yield from self._authority()
        yield from self._main_order()
        yield from self._chains()

    def _columns(self, row: tuple[Any, ...], digest: str, entry: Entry) -> Iterator[str]:
        position, stream, *columns, stored, text, _ = row
        fields = json.loads(text)
        names = ("sequence", "history", "entity", "revision", "operation")
        if [fields[name] for name in names] != columns:
            yield f"position {position}: the columns do not repeat the envelope"
        if not digest == stored == entry.digest:
            yield f"position {position}: hashes to {digest}, stored as {stored}"
        if fields["tenant"] != self.settings.tenant:
            yield f"position {position}: belongs to tenant {fields['tenant']}"
        if stream != self._stream(fields["entity"]):
            yield f"position {position}: {fields['entity']} stands in {stream}"

    def _stream(self, entity: str) -> str:
        kind = entity.partition("/")[0]
        if kind == "control":
            return kind
        if kind == "observation":
            return "observations"
        owner = self.settings.lifecycles[kind].owner
        return f"caller/{kind}" if owner is Owner.CALLER else "decisions"

    def _authority(self) -> Iterator[str]:
        assert self.control is not None
        force = self.control.authority
        wanted = (force.history, force.generation, str(force.stage), force.first, force.digest)
        sql = "SELECT history, generation, stage, first, digest FROM authority"
        if rows_of(self.settings.journal_file, sql) != [wanted]:
            yield "the authority row is not what the control entries say"

    def _main_order(self) -> Iterator[str]:
        assert self.control is not None
        firsts = {record.history: record.first for record in self.control.histories}
        last: dict[str, int] = {}
        for entry in self.decisions:
            envelope = entry.envelope
            expected = last.get(envelope.history, firsts.get(envelope.history, 0) - 1) + 1
            while expected < (envelope.sequence or 0) and self.accounted("sequences", expected):
                expected += 1
            if envelope.sequence != expected and not self.damaged:
                yield f"{envelope.operation}: sequence {envelope.sequence}, not {expected}"
            last[envelope.history] = expected

    def _chains(self) -> Iterator[str]:
        file = self.settings.journal_file
        rivals = rows_of(file, "SELECT entity, CAST(envelope AS BLOB), body, digest FROM rivals")
        flaws: dict[str, set[tuple[Any, ...]]] = {}
        for entity, *flaw in rows_of(file, "SELECT entity, flaw, first, last FROM flaws"):
            flaws.setdefault(entity, set()).add(tuple(flaw))
        chains = {
            entity: tuple(chain)
            for entity, *chain in rows_of(
                file, "SELECT entity, revision, history, digest, newest FROM chains"
            )
        }
        for entity, every in self.entries.items():
            entries = [entry for entry in every if self.is_kept(entry)]
            links = [link_of(entry.envelope, entry.digest) for entry in entries]
            found = examine(links)
            breaks: set[tuple[Any, ...]] = {(str(b.flaw), b.first, b.last) for b in found.breaks}
            seen = [read(text, body) for name, text, body, _ in rivals if name == entity]
            others = [
                (rival.text, rival.body)
                for rival in seen
                if not is_evidence(self.cuts.get(entity, ()), link_of(rival.envelope, rival.digest))
            ]
            for text, body in others:
                revision = json.loads(text)["revision"]
                breaks.add(("fork", revision, revision))
                independent.check(text, body)
            if breaks != flaws.pop(entity, set()):
                yield f"{entity}: its flaws are {breaks or 'none'}, the journal lists others"
            told = independent.check_chain(
                [*((entry.text, entry.body) for entry in entries), *others]
            )
            if bool(told) != bool(breaks):
                yield f"{entity}: the independent check says {told or 'whole'}"
            if self._stream(entity).startswith("caller/"):
                newest = max([entry.envelope.revision for entry in entries], default=0)
                boundary = found.boundary
                wanted = (boundary.revision, boundary.history, boundary.digest, newest)
                stands = chains.pop(entity, None)
                if stands != wanted and not (others and _is_before(stands, wanted, links)):
                    yield f"{entity}: its stored boundary is not {wanted}"
            elif breaks:
                yield f"{entity}: a managed history is incomplete: {breaks}"
        yield from (f"{entity}: flaws without an entry" for entity in flaws)
        yield from (f"{entity}: a chain without an entry" for entity in chains)


def _cuts_of(rows: list[tuple[Any, ...]], tenant: str) -> dict[str, tuple[Abandoned, ...]]:
    """What control says was abandoned; nothing where it cannot be read."""
    try:
        entries = [read(row[-2], row[-1]) for row in rows if row[1] == "control"]
        return fold(entries, tenant).abandoned
    except (ControlUnreadable, Invalid):
        return {}


def _is_before(stands: tuple[Any, ...] | None, wanted: tuple[Any, ...], links: list[Link]) -> bool:
    """Whether a boundary stands on the chain, at or before the one wanted: a fork keeps it."""
    if stands is None or stands[0] > wanted[0] or stands[3] != wanted[3]:
        return False
    places = {(link.revision, link.history, link.digest) for link in links}
    return stands[:3] == (0, "", "") or stands[:3] in places


def _store_findings(settings: Settings, whole: _Journal, control: Control) -> Iterator[str]:
    file = settings.store_file
    tip = tip_of(control.authority, None)
    if whole.decisions:
        newest = whole.decisions[-1]
        envelope = newest.envelope
        last = Place(envelope.history, 0, envelope.sequence or 0, newest.digest)
        tip = tip_of(control.authority, last)
    sql = "SELECT tenant, instance, history, generation, sequence, digest, journalled"
    marker = rows_of(file, f"{sql} FROM unrewind_marker")
    wanted = (control.tenant, control.instance, tip.history, tip.generation, tip.sequence)
    if marker != [(*wanted, tip.digest, tip.sequence)]:
        yield f"the marker is {marker}, the journal's tip {tip}"
    sql = "SELECT sequence, lower(hex(digest)), CAST(envelope AS BLOB), body"
    stored = rows_of(file, f"{sql} FROM unrewind_decisions ORDER BY sequence")
    wanted_rows = [(e.envelope.sequence, e.digest, e.text, e.body) for e in whole.decisions]
    if [row for row in stored if row[1] not in whole.damaged] != wanted_rows:
        yield "the store's decisions are not the journal's, byte for byte"
    yield from _head_findings(file, whole)
    copies = rows_of(file, "SELECT lower(hex(digest)) FROM unrewind_control ORDER BY sequence")
    known = [row[7] for row in whole.rows if row[1] == "control"]
    if [digest for (digest,) in copies] != known:
        yield "the store's copies of control are not the journal's"
    yield from (f"the store's {line}" for (line,) in rows_of(file, "PRAGMA foreign_key_check"))
    yield from _ledger_findings(file)


def _head_findings(file: Path, whole: _Journal) -> Iterator[str]:
    heads = {row[0]: row for row in rows_of(file, _HEADS)}
    for entity in {entry.envelope.entity for entry in whole.kept}:
        kept = [entry for entry in whole.entries[entity] if whole.is_kept(entry)]
        entries = sorted(kept, key=lambda entry: entry.envelope.revision)
        envelope = entries[-1].envelope
        head = heads.pop(entity, None)
        place = (entity, envelope.revision, envelope.history, entries[-1].digest)
        wanted = (*place, envelope.sequence, envelope.outcome.state, envelope.version)
        if head is None or head[:-1] != wanted:
            yield f"{entity}: the store's row is {head}, the journal's {wanted}"
            continue
        if hashlib.sha256(head[-1].encode()).hexdigest() != envelope.outcome.data:
            yield f"{entity}: the store's data does not hash to the recorded outcome"
        data: Any = {}
        for entry in entries:
            if entry.envelope.body.type == "application/json" and entry.body:
                patch = json.loads(entry.body)
                data = merged(data, patch) if isinstance(patch, dict) else data
        if json.loads(head[-1]) != data:
            yield f"{entity}: the store's data is not the merge of its bodies"
    yield from (f"{entity}: a row without a journalled decision" for entity in heads)


def _ledger_findings(file: Path) -> Iterator[str]:
    if not rows_of(file, "SELECT 1 FROM sqlite_master WHERE name = 'ledger'"):
        return
    rows = rows_of(file, "SELECT entity, state, revision FROM ledger ORDER BY entity")
    sql = "SELECT entity, state, revision FROM unrewind_entities WHERE entity LIKE 'account/%'"
    if rows != rows_of(file, f"{sql} ORDER BY entity"):
        yield "the application's rows are not in step with the decisions"
