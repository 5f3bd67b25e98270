"""Status: where the tenant stands and which failures it is not covered against (P13)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from journal.control import Stage, tip_of
from journal.detection import Verdict
from journal.errors import EngineError, FileChanged, JournalUnavailable
from journal.filesystem import same_device
from journal.lanes import Contract, terms_of
from journal.leading import Alive, processes
from journal.lifecycle import Owner
from journal.log.engine import SqlLog
from journal.places import SAME, stand_together
from journal.record import Record
from journal.store import tables
from journal.store.engine import SqlStore

_CLOSER = frozenset({Verdict.REWOUND, Verdict.REPLACED, Verdict.FORKED})


class Witnessed(Struct, frozen=True):
    """What the witness remembers: how many entries, through which sequence, and when.

    ``behind`` counts the journal's entries that it has not seen (None: the journal cannot say),
    ``age`` is in seconds.
    """

    path: str
    position: int
    sequence: int
    behind: int | None
    age: float
    at: str


class Status(Struct, frozen=True):
    """What `unrewind status --json` prints. ``pending`` counts decisions not yet in the journal.

    ``store`` and ``journal`` say where they are and what is known of their engines.
    """

    tenant: str
    instance: str
    stage: str
    verdict: str
    detail: str
    history: str | None
    parent: str | None
    generation: int | None
    sequence: int | None
    entities: int | None
    gaps: int
    pending: int
    stopped: dict[str, Any] | None
    witness: Witnessed | None
    store: dict[str, Any]
    journal: dict[str, Any]
    failure_scope: list[str]
    processes: list[Alive]


async def status(record: Record) -> Status:
    """Look at both files without changing them; works in any stage, beside anything or alone."""
    settings = record.settings
    stopped = record.stop.facts() if record.stop.stands() else None
    try:
        finding, seen = await record.examine(witness=True)
        if finding.verdict is Verdict.REWOUND and record.store and record.store.is_left_behind():
            raise FileChanged("another primary has taken the place of the one that was looked at")
        verdict, detail = str(finding.verdict), finding.detail
    except (EngineError, JournalUnavailable) as error:
        if isinstance(error, FileChanged):
            raise
        return _unreadable(record, str(error), stopped)
    control = record.control if finding.verdict is not Verdict.CLOSED else None
    control = control or record.control
    stage = Stage.CLOSED if control is None else control.authority.stage
    if stopped is not None or not finding.verdict.sound:
        stage = Stage.CLOSED
    witness = _witnessed(record, None if control is None else seen.look.position)
    tip = None if control is None else tip_of(control.authority, seen.look.last)
    pending = 0
    if tip is not None and seen.marker is not None and finding.verdict is Verdict.CRASHED:
        pending = seen.marker.place.sequence - tip.sequence
    if stopped is not None and finding.verdict.sound:
        # Markers agree, but a closer look may have found the rows wrong: that verdict stands.
        if stopped.get("verdict") in _CLOSER:
            verdict = str(stopped["verdict"])
        detail = str(stopped.get("reason") or detail)
    return Status(
        tenant=settings.tenant,
        instance=settings.instance,
        stage=str(stage),
        verdict=verdict,
        detail=detail,
        history=None if control is None else control.authority.history,
        parent=None if control is None else control.histories[-1].parent,
        generation=None if control is None else control.authority.generation,
        sequence=None if tip is None else tip.sequence,
        entities=await _count_entities(record),
        gaps=await _count_gaps(record),
        pending=pending,
        stopped=stopped,
        witness=witness,
        store=_engine(record.store, record.store_place.label),
        journal=_engine(record.log, record.log_place.label),
        failure_scope=failure_scope(record, witness),
        processes=await processes(record),
    )


def _engine(engine: SqlStore | SqlLog | None, where: str) -> dict[str, Any]:
    """What is known of an engine, and where it is."""
    return {"where": where, **({} if engine is None else engine.facts())}


def _unreadable(record: Record, why: str, stopped: dict[str, Any] | None) -> Status:
    witness = _witnessed(record, None)
    return Status(
        tenant=record.settings.tenant,
        instance=record.settings.instance,
        stage=str(Stage.CLOSED),
        verdict=str(Verdict.CLOSED),
        detail=why,
        history=None,
        parent=None,
        generation=None,
        sequence=None,
        entities=None,
        gaps=0,
        pending=0,
        stopped=stopped,
        witness=witness,
        store=_engine(record.store, record.store_place.label),
        journal=_engine(record.log, record.log_place.label),
        failure_scope=failure_scope(record, witness),
        processes=[],
    )


async def _count_entities(record: Record) -> int | None:
    if record.store is None:
        return None
    try:
        count: int = (await record.store.read([tables.COUNT_ENTITIES]))[0][0][0]
    except EngineError:
        return None
    return count


async def _count_gaps(record: Record) -> int:
    if record.log is None:
        return 0
    return await record.log.count_flaws()


def _witnessed(record: Record, position: int | None) -> Witnessed | None:
    """What the witness remembers of a journal of ``position`` entries; None: no readable one."""
    found = record.witness.read()
    if found is None:
        return None
    behind = None if position is None else max(0, position - found.position)
    age = datetime.fromisoformat(record.clock.now()) - datetime.fromisoformat(found.at)
    return Witnessed(
        str(record.witness.path),
        found.position,
        found.sequence,
        behind,
        max(0.0, age.total_seconds()),
        found.at,
    )


def failure_scope(record: Record, witness: Witnessed | None) -> list[str]:
    """Sentences on what is not covered as things are set up now."""
    settings = record.settings
    scope = []
    if same_device(record.store_place.file, record.log_place.file):
        scope.append("store and journal lie on one device: losing it loses both")
    scope += _of_servers(record)
    scope += _of_witness(record, witness)
    callers = sorted(
        kind for kind, lifecycle in record.lifecycles.items() if lifecycle.owner is Owner.CALLER
    )
    if callers:
        scope.append(
            f"caller-owned types ({', '.join(callers)}): a rewound caller is noticed by its next "
            "append when it keeps a sequence, else only per entity"
        )
    scope += _of_lanes(record)
    if settings.allow_network_filesystem:
        scope.append("network filesystems are allowed: SQLite can lose commits there")
    return scope


def _of_servers(record: Record) -> list[str]:
    """What the servers, as they are set up, promise less than ours, by the word that accepts it."""
    lines = []
    if stand_together(record.store, record.log):
        lines.append(
            f"accepted as {SAME}: store and journal are on one server, and a rewind takes both back"
        )
    return lines + [
        f"accepted as {word}: {why}"
        for engine in (record.store, record.log)
        if engine is not None
        for word, why in engine.weaker.items()
    ]


def _of_witness(record: Record, witness: Witnessed | None) -> list[str]:
    """What a rollback of store and journal together would have to miss to go unnoticed."""
    unnoticed = "store and journal rolled back to the same moment would not be noticed"
    if witness is None:
        fault = record.witness.fault
        return [
            f"no witness: {unnoticed}" if fault is None else f"no witness, {fault}: {unnoticed}"
        ]
    scope = []
    if record.witness.failed is not None:
        scope.append(f"the witness does not follow the journal: {record.witness.failed}")
    if witness.behind:
        scope.append(
            f"the witness is {witness.behind} entries behind: store and journal rolled back "
            f"together to a moment after {witness.at} would not be noticed"
        )
    files = {"store": record.store_place.file, "journal": record.log_place.file}
    shared = [name for name, file in files.items() if same_device(record.witness.path, file)]
    if shared:
        scope.append(
            f"the witness lies on one device with the {' and the '.join(shared)}: rolled back or "
            "lost together with it, it notices nothing"
        )
    return scope


def _of_lanes(record: Record) -> list[str]:
    """What receivers do not promise, of the lanes that lifecycles release to."""
    settings = record.settings
    used = {
        lane
        for lifecycle in record.lifecycles.values()
        for action in lifecycle.actions.values()
        for lane in action.releases
    }
    scope = []
    for name in sorted(used):
        lane = settings.lanes[name]
        who = "its workers' receivers" if lane.receiver is None else f"receiver {lane.receiver}"
        terms = terms_of(lane, settings.receiver)
        if terms.contract is Contract.OPAQUE:
            scope.append(
                f"lane {name}: {who} can neither be asked nor suppress a repeat: an unknown "
                f"outcome waits for {lane.owner}"
            )
        elif terms.contract is Contract.IDEMPOTENT:
            scope.append(
                f"lane {name}: {who} suppress repeats for {terms.window:g} s after the first "
                "commitment; an outcome still unknown then is held"
            )
    return scope
