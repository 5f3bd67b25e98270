"""Planning a reconstruction: what the store lacks, what only it has, what cannot be replayed.

Reads, never writes. A plan names everything that ``apply`` will do; its ID is the hash of that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

import msgspec
from msgspec import Struct

from journal.acceptance import EntityHead
from journal.control import Control, tip_of
from journal.data import hash_of
from journal.detection import Seen, Verdict, differing_heads, is_torn
from journal.errors import Damaged, Invalid, Refused
from journal.history import Flaw
from journal.lifecycle import Lifecycle
from journal.log import FIRST_FLAW, FlawRow, Log, Row
from journal.log.engine import SqlLog
from journal.record import Record
from journal.standing import examine
from journal.store import tables
from journal.store.engine import SqlStore
from reconstruct.beside import apart, is_embedded, with_their_kind
from reconstruct.cutting import lineage_of
from reconstruct.healing import HealingSurvey, survey_healing
from reconstruct.kept import find_kept
from reconstruct.orders import Hole, lost_above, size_of
from reconstruct.rederiving import permitting, unlike
from reconstruct.replay import Lineage, Replay
from reconstruct.scratch import scratch
from reconstruct.working import check_declared

PAGE = 4000
"""Rows in one page and one commit: fewer syncs, and each entity's row written once for many."""
_DOWN = 500
"""Rows in one step of a comparison: names and digests, of which few are kept."""
_UNLIMITED = 1 << 60

STORE = "store"
"""A plan's direction: the store is brought to what the journal holds."""

JOURNAL = "journal"
"""The other direction: first the journal is rebuilt from what the store keeps of it."""

Progress = Callable[[int, int, str], None]


class LocalOnly(Struct, frozen=True):
    """A decision that only the store has: it was never acknowledged and will be undone.

    ``releases`` are the IDs of the releases that it permitted.
    """

    sequence: int
    operation: str
    entity: str
    digest: str
    action: str = ""
    version: str | None = None
    releases: tuple[str, ...] = ()

    @property
    def permits(self) -> bool:
        """Whether it decided on a version of some content: to be asked for anew, never assumed."""
        return self.version is not None or bool(self.releases)


class UndoneApproval(Struct, frozen=True):
    """An approval, or a permission to release, that only the store has: ask for it anew."""

    entity: str
    version: str | None
    action: str
    operation: str
    releases: tuple[str, ...]


class Incomplete(Struct, frozen=True):
    """An entity that stays incomplete, and from which revision."""

    entity: str
    flaw: Flaw
    revision: int
    durable_through: int
    detail: str


class Plan(Struct, frozen=True):
    """What ``apply`` will do. ``missing`` counts the decisions it will replay.

    ``direction`` is what is rebuilt: `store`, or `journal` when that was rewound, and then
    ``healing`` says from what. ``common`` is the last sequence at which store and journal agree,
    ``through`` the journal's last; ``fresh_store`` says that a new store file is built because
    there is none to mend. ``undo`` counts what only the store has, ``undone_approvals`` names what
    of that approved or permitted something. ``lost`` are sequences that the journal should hold,
    where more are missing than gaps of entities tell of.
    """

    plan: str
    direction: str
    verdict: str
    detail: str
    history: str
    generation: int
    begun: bool
    common: int
    through: int
    missing: int
    actions: dict[str, int]
    rebuild: list[str]
    undo: int
    local_only: list[LocalOnly]
    undone_approvals: list[UndoneApproval]
    incomplete: list[Incomplete]
    fresh_store: bool
    healing: HealingSurvey | None = None
    lost: list[Hole] = []

    @property
    def exceptions(self) -> int:
        """What an operator should look at before applying; a rewound journal always is."""
        healing = 0 if self.healing is None else 1 + self.healing.exceptions
        named = len(self.rebuild) + len(self.local_only) + len(self.incomplete) + len(self.lost)
        return named + healing


class Base(Struct, frozen=True):
    """Where store and journal part: the last common sequence and what only the store has."""

    common: int
    local_only: tuple[LocalOnly, ...]


def silent(_done: int, _total: int, _what: str) -> None:
    """No progress shown."""


async def find_base(store: SqlStore, log: Log, control: Control, seen: Seen) -> Base:
    """Walk down from the store's marker to the last decision that the journal holds too."""
    marker = seen.marker
    if marker is None:
        return Base(0, ())
    sequence = marker.place.sequence
    for record in control.histories:
        if record.first - 1 == sequence and record.digest == marker.place.digest:
            return Base(sequence, ())
    local_only: list[LocalOnly] = []
    while sequence > 0:
        page = (await store.read([tables.read_envelopes_down(sequence, _DOWN)]))[0]
        for at, digest, envelope in page:
            place = await log.place(at)
            if place is not None and place.digest == digest:
                return Base(at, tuple(reversed(local_only)))
            local_only.append(_local(at, digest, bytes(envelope)))
        if len(page) < _DOWN:
            break
        sequence = page[-1][0] - 1
    return Base(0, tuple(reversed(local_only)))


class _Permitted(Struct):
    id: str


class _Named(Struct):
    entity: str = "unreadable/unreadable"
    operation: str = "unreadable"
    action: str = "unreadable"
    version: str | None = None
    releases: tuple[_Permitted, ...] = ()


def _local(sequence: int, digest: str, envelope: bytes) -> LocalOnly:
    try:
        named = msgspec.json.decode(envelope, type=_Named)
    except msgspec.MsgspecError:
        named = _Named()
    return LocalOnly(
        sequence,
        named.operation,
        named.entity,
        digest,
        named.action,
        named.version,
        tuple(release.id for release in named.releases),
    )


async def find_stale(store: SqlStore, log: Log, common: int) -> list[str]:
    """Entities whose row is not what the journal said at ``common``, by name.

    A row that merely lacks later revisions is not stale: the replay brings them.
    """
    stale: list[str] = []
    after = ""
    while page := await differing_heads(store, log, frozenset(), _DOWN, after):
        for item in page:
            found = (await store.read([tables.read_heads([item.entity])]))[0]
            row = tables.heads_of(found).get(item.entity)
            if await _is_stale(log, item.entity, row, common):
                stale.append(item.entity)
        after = page[-1].entity
    return stale


async def _is_stale(log: Log, entity: str, row: EntityHead | None, common: int) -> bool:
    revision = 0 if row is None else row.revision
    near = await log.history(entity, max(revision, 1), revision + 1, 8)
    later = [found for found in near if found.revision == revision + 1]
    if any(found.sequence is not None and found.sequence <= common for found in later):
        return True
    if row is None:
        return False
    own = [found for found in near if found.digest == row.digest]
    return not own or _data_of(own[0]) != hash_of(row.data.encode())


def _data_of(row: Row) -> str | None:
    try:
        return row.entry().envelope.outcome.data
    except Invalid:
        return None


class Survey(Struct, frozen=True):
    """What planning found; ``apply`` works from it."""

    plan: Plan
    base: Base
    faulty: tuple[FlawRow, ...]
    kept: tuple[Lineage, ...] = ()


async def find_faulty(log: Log) -> tuple[FlawRow, ...]:
    """Flaws that an earlier replay found: their entities are tried again from the first."""
    found: list[FlawRow] = []
    after = FIRST_FLAW
    while page := await log.flaws(None, after, PAGE):
        # Those of a caller-owned entity, which has a chain, are the intake's.
        found += [flaw for flaw in page if await log.chain(flaw.entity) is None]
        after = page[-1].key
    return tuple(found)


async def find_plan(record: Record, progress: Progress = silent) -> Plan:
    """What a reconstruction would do, of the store or of a journal that was rewound.

    Raises what ``survey`` and ``reconstruct.healing.survey_healing`` do.
    """
    finding, _ = await examine(record, witness=True)
    if finding.verdict is not Verdict.JOURNAL_REWOUND:
        return (await survey(record, progress)).plan
    healing = await survey_healing(record)
    force = None if record.control is None else record.control.authority
    known = healing.journal or healing.store
    plan = Plan(
        plan="",
        direction=JOURNAL,
        verdict=str(finding.verdict),
        detail=finding.detail,
        history=(force and force.history) or (known and known.history) or "",
        generation=0 if force is None else force.generation,
        begun=record.stop.stands(),
        common=0 if healing.journal is None else healing.journal.sequence,
        through=healing.last or (0 if healing.journal is None else healing.journal.sequence),
        missing=healing.decisions,
        actions=healing.actions,
        rebuild=[],
        undo=0,
        local_only=[],
        undone_approvals=[],
        incomplete=[],
        fresh_store=False,
        healing=healing,
    )
    return identified(plan)


async def survey(record: Record, progress: Progress = silent) -> Survey:
    """Find everything that a reconstruction would do. Changes nothing.

    Raises Refused when the verdict leaves nothing to reconstruct from, JournalUnavailable or
    ControlUnreadable.
    """
    finding, seen = await examine(record, witness=True)
    log = record.journal()
    control = await record.current_control(seen.look)
    if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
        raise Refused(f"there is nothing to reconstruct from: {finding.detail}")
    faulty = await find_faulty(log)
    base, stale, fresh, kept = await _compare(record, control, seen, again=bool(faulty))
    tip = tip_of(control.authority, seen.look.last)
    replay = Replay(record.lifecycles)
    rebuild: list[str] = []
    undone = {decision.entity for decision in base.local_only}
    beside = apart(record, fresh=fresh)
    if not fresh:
        again = {flaw.entity for flaw in faulty}
        short = {lineage.stop.entity for lineage in kept}
        rebuild = await with_their_kind(record, log, {*stale, *undone, *again, *short})
    if beside is not None:
        embedded = {entity for entity in undone if is_embedded(record, entity)}
        named = {*rebuild, *beside, *embedded}
        rebuild = await with_their_kind(record, log, named, record.projections)
    missing, actions = await _rehearse(record, log, base, set(rebuild), replay, progress, fresh)
    forked = [entity for entity in replay.stops if await log.forks(entity)]
    if forked:
        # The order cannot tell which of two decisions in one place counts; their entity can.
        rebuild = await with_their_kind(record, log, {*rebuild, *forked})
    await take_lineages(log, rebuild, replay, kept)
    for entity in rebuild:
        await _rehearse_rebuild(log, entity, replay, record.lifecycles)
    last = seen.look.last
    plan = Plan(
        plan="",
        direction=STORE,
        verdict=str(finding.verdict),
        detail=finding.detail,
        history=control.authority.history,
        generation=control.authority.generation,
        begun=control.begun is not None,
        common=base.common,
        through=tip.sequence if last is None else last.sequence,
        missing=missing,
        actions=actions,
        rebuild=rebuild,
        undo=len(base.local_only),
        local_only=list(base.local_only),
        undone_approvals=[
            UndoneApproval(item.entity, item.version, item.action, item.operation, item.releases)
            for item in base.local_only
            if item.permits
        ],
        incomplete=[
            Incomplete(stop.entity, stop.flaw, stop.revision, stop.through, stop.detail)
            for stop in sorted(replay.stops.values(), key=lambda stop: stop.entity)
        ],
        fresh_store=fresh,
        lost=_lost(log, control, base.common, replay),
    )
    return Survey(identified(plan), base, faulty, tuple(kept))


def identified(plan: Plan) -> Plan:
    """The plan under its ID."""
    identity = sha256(msgspec.json.encode(plan, order="deterministic")).hexdigest()[:16]
    return msgspec.structs.replace(plan, plan=identity)


def _lost(log: SqlLog, control: Control, common: int, replay: Replay) -> list[Hole]:
    """Sequences without a decision, where there are more than the gaps of entities tell of."""
    lost = lost_above(log.database, control, common)
    gaps = [stop for stop in replay.stops.values() if stop.flaw is Flaw.GAP]
    told = sum(stop.revision - stop.through - 1 for stop in gaps)
    return lost if size_of(lost) > told else []


async def take_lineages(
    log: Log, rebuild: Sequence[str], replay: Replay, kept: Sequence[Lineage]
) -> None:
    """Let a replay of these entities begin anew, and follow one lineage where there are two.

    Those in ``kept`` lost a decision in the journal: they are followed up to there.
    """
    for entity in rebuild:
        replay.stops.pop(entity, None)
        lineage = await lineage_of(log, entity)
        if lineage is not None:
            replay.take_lineage(lineage)
    for lineage in kept:
        if lineage.stop.entity not in replay.stops:
            replay.take_lineage(lineage)


class _Compared(NamedTuple):
    """The base, entities whose rows are not the journal's, and whether to build a new store.

    ``kept`` says how far to follow entities that lost a decision in the journal.
    """

    base: Base
    stale: Sequence[str] = ()
    fresh: bool = False
    kept: Sequence[Lineage] = ()


async def _compare(record: Record, control: Control, seen: Seen, *, again: bool) -> _Compared:
    """How the store stands to the journal; ``again``: some entity is rebuilt in any case."""
    marker = seen.marker
    if record.store is None or marker is None:
        return _FRESH
    if (marker.tenant, marker.instance) != (control.tenant, control.instance):
        return _FRESH
    trusted = record.stopped_clean()
    try:
        # A connection of its own: the record's may show pages that the file no longer has.
        store = record.store_place.open(read_only=True)
    except Damaged:
        return _FRESH
    try:
        base = await find_base(store, record.journal(), control, seen)
        if trusted and not (base.local_only or again):
            return _Compared(base)
        log, cuts = record.journal(), control.abandoned
        if trusted:
            return _Compared(base, kept=await find_kept(store, log, cuts, base.common))
        if await is_torn(store, log, base.common):
            # Nothing of it is built on; what can still be read of its own is named all the same.
            return _Compared(Base(0, base.local_only), fresh=True)
        stale = set(await find_stale(store, log, base.common))
        # A row ahead of the base says what some later decision left; the walk would meet it again.
        ahead = (await store.read([tables.entities_above(base.common)]))[0]
        stale.update(entity for (entity,) in ahead)
        stale |= _of_other_work(record, store, control, base.common)
        kept = await find_kept(store, log, cuts, base.common)
        return _Compared(base, sorted(stale), kept=kept)
    except Damaged:
        return _FRESH
    finally:
        await store.close()


def _of_other_work(record: Record, store: SqlStore, control: Control, through: int) -> set[str]:
    """Entities whose releases are not what the decisions through a sequence lead to."""
    if not any(lifecycle.works for lifecycle in record.lifecycles.values()):
        return set()
    found = unlike(record, store, (), permitting(record), control.abandoned, through)
    return {entity for entity, _ in found}


_FRESH = _Compared(Base(0, ()), fresh=True)


async def _rehearse(
    record: Record,
    log: SqlLog,
    base: Base,
    rebuild: set[str],
    replay: Replay,
    progress: Progress,
    fresh: bool,
) -> tuple[int, dict[str, int]]:
    """Replay aside what the store lacks; how many decisions, and how many of each action."""
    missing = 0
    actions: dict[str, int] = {}
    after = base.common
    last = (await record.look()).last
    total = 0 if last is None else last.sequence - after
    store = None if fresh else record.store
    with scratch() as kept:
        while rows := await log.decisions(after, PAGE):
            missing += len(rows)
            after = rows[-1].sequence or after
            wanted = {row.entity for row in rows} - rebuild
            known = kept.read(wanted)
            fetched = wanted - known.keys()
            if fetched and store is not None:
                replay.load(tables.heads_of((await store.read([tables.read_heads(fetched)]))[0]))
            replay.load(known)
            for action in _rehearsed(record, rows, rebuild, replay):
                actions[action] = actions.get(action, 0) + 1
            kept.write(replay.heads)
            replay.forget()
            progress(missing, max(total, missing), "planned")
    return missing, dict(sorted(actions.items()))


def _rehearsed(
    record: Record, rows: Sequence[Row], left_out: Collection[str], replay: Replay
) -> Iterator[str]:
    """The actions that are replayed, one after the other: each leaves the data of its entity."""
    for row in rows:
        if row.entity in left_out:
            continue
        for decision in replay.run([row]):
            check_declared(record.lifecycles, [decision])
            yield decision.entry.envelope.action


async def _rehearse_rebuild(
    log: Log, entity: str, replay: Replay, lifecycles: Mapping[str, Lifecycle]
) -> None:
    first = 1
    while rows := await log.history(entity, first, _UNLIMITED, PAGE):
        for row in rows:
            check_declared(lifecycles, replay.run([row]))
        first = rows[-1].revision + 1
    replay.forget()
