"""Planning a reconstruction: what the store lacks, what only it has, what cannot be replayed.

Reads, never writes. A plan names everything that ``apply`` will do; its ID is the hash of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct

from journal.acceptance import EntityHead
from journal.control import Control, tip_of
from journal.data import hash_of
from journal.detection import Difference, Seen, Verdict, differing_heads, is_torn
from journal.errors import Damaged, Invalid, Refused
from journal.history import Flaw
from journal.lifecycle import Lifecycle
from journal.log import FIRST_FLAW, FlawRow, Log, Row
from journal.log.sqlite import SqliteLog
from journal.record import Record
from journal.standing import examine
from journal.store import tables
from journal.store.sqlite import SqliteStore
from reconstruct.replay import Replay
from reconstruct.working import check_declared

PAGE = 4000
"""Rows in one page and one commit: fewer syncs, and each entity's row written once for many."""
_UNLIMITED = 1 << 60

Progress = Callable[[int, int, str], None]


class LocalOnly(Struct, frozen=True):
    """A decision that only the store has: it was never acknowledged and will be undone."""

    sequence: int
    operation: str
    entity: str
    digest: str


class Incomplete(Struct, frozen=True):
    """An entity that stays incomplete, and from which revision."""

    entity: str
    flaw: Flaw
    revision: int
    durable_through: int
    detail: str


class Plan(Struct, frozen=True):
    """What ``apply`` will do. ``missing`` counts the decisions it will replay.

    ``common`` is the last sequence at which store and journal agree, ``through`` the journal's
    last; ``fresh_store`` says that a new store file is built because there is none to mend.
    """

    plan: str
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
    local_only: list[LocalOnly]
    incomplete: list[Incomplete]
    fresh_store: bool

    @property
    def exceptions(self) -> int:
        """What an operator should look at before applying."""
        return len(self.rebuild) + len(self.local_only) + len(self.incomplete)


class Base(Struct, frozen=True):
    """Where store and journal part: the last common sequence and what only the store has."""

    common: int
    local_only: tuple[LocalOnly, ...]


def silent(_done: int, _total: int, _what: str) -> None:
    """No progress shown."""


async def find_base(store: SqliteStore, log: Log, control: Control, seen: Seen) -> Base:
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
        rows = (await store.read([tables.read_decisions_down(sequence, PAGE)]))[0]
        page = tables.decisions_of(rows)
        for decision in page:
            place = await log.place(decision.sequence)
            if place is not None and place.digest == decision.digest:
                return Base(decision.sequence, tuple(reversed(local_only)))
            local_only.append(_local(decision))
        if len(page) < PAGE:
            break
        sequence = page[-1].sequence - 1
    return Base(0, tuple(reversed(local_only)))


class _Named(Struct):
    entity: str = "unreadable/unreadable"
    operation: str = "unreadable"


def _local(decision: tables.StoredDecision) -> LocalOnly:
    try:
        named = msgspec.json.decode(decision.text, type=_Named)
    except msgspec.MsgspecError:
        named = _Named()
    return LocalOnly(decision.sequence, named.operation, named.entity, decision.digest)


async def find_stale(
    store: SqliteStore, log: Log, common: int, suspects: Iterable[Difference]
) -> list[str]:
    """Entities whose row is not what the journal said at ``common``, by name.

    A row that merely lacks later revisions is not stale: the replay brings them.
    """
    stale: list[str] = []
    for item in suspects:
        row = tables.heads_of((await store.read([tables.read_heads([item.entity])]))[0]).get(
            item.entity
        )
        if await _is_stale(log, item.entity, row, common):
            stale.append(item.entity)
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


async def find_faulty(log: Log) -> tuple[FlawRow, ...]:
    """Flaws that an earlier replay found: their entities are tried again from the first."""
    found: list[FlawRow] = []
    after = FIRST_FLAW
    while page := await log.flaws(None, after, PAGE):
        # Those of a caller-owned entity, which has a chain, are the intake's.
        found += [flaw for flaw in page if await log.chain(flaw.entity) is None]
        after = page[-1].key
    return tuple(found)


async def survey(record: Record, progress: Progress = silent) -> Survey:
    """Find everything that a reconstruction would do. Changes nothing.

    Raises Refused when the verdict leaves nothing to reconstruct from, JournalUnavailable or
    ControlUnreadable.
    """
    finding, seen = await examine(record)
    log = record.journal()
    control = await record.current_control(seen.look)
    if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
        raise Refused(f"there is nothing to reconstruct from: {finding.detail}")
    base, stale, fresh = await _compare(record, control, seen)
    tip = tip_of(control.authority, seen.look.last)
    replay = Replay(record.lifecycles)
    undone = {decision.entity for decision in base.local_only}
    faulty = await find_faulty(log)
    again = set() if fresh else {flaw.entity for flaw in faulty}
    rebuild = await _with_their_kind(record, log, {*stale, *undone, *again})
    missing, actions = await _rehearse(record, log, base, set(rebuild), replay, progress, fresh)
    for entity in rebuild:
        await _rehearse_rebuild(log, entity, replay, record.lifecycles)
    incomplete = [
        Incomplete(stop.entity, stop.flaw, stop.revision, stop.through, stop.detail)
        for stop in sorted(replay.stops.values(), key=lambda stop: stop.entity)
    ]
    last = seen.look.last
    plan = Plan(
        plan="",
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
        local_only=list(base.local_only),
        incomplete=incomplete,
        fresh_store=fresh,
    )
    identity = sha256(msgspec.json.encode(plan, order="deterministic")).hexdigest()[:16]
    return Survey(msgspec.structs.replace(plan, plan=identity), base, faulty)


def is_embedded(record: Record, entity: str) -> bool:
    """Whether the application's own tables hold rows of the entity."""
    return entity.partition("/")[0] in record.projections


async def _with_their_kind(record: Record, log: Log, entities: set[str]) -> list[str]:
    """These entities, and for an embedded one all of its type: they are rebuilt together."""
    kinds = {entity.partition("/")[0] for entity in entities if is_embedded(record, entity)}
    for kind in kinds:
        after: str | None = f"{kind}/"
        while after is not None and after < f"{kind}0":
            page = await log.heads(after, PAGE)
            entities |= {head.entity for head in page.heads if head.entity < f"{kind}0"}
            after = page.end
    return sorted(entities)


async def _compare(record: Record, control: Control, seen: Seen) -> tuple[Base, list[str], bool]:
    """The base, entities whose rows are not the journal's, and whether to build a new store."""
    marker = seen.marker
    if record.store is None or marker is None:
        return _FRESH
    if (marker.tenant, marker.instance) != (control.tenant, control.instance):
        return _FRESH
    trusted = record.stopped_clean()
    try:
        # A connection of its own: the record's may show pages that the file no longer has.
        store = SqliteStore(record.settings.store_file, read_only=True)
    except Damaged:
        return _FRESH
    try:
        base = await find_base(store, record.journal(), control, seen)
        if trusted:
            return base, [], False
        if await is_torn(store, record.journal(), base.common):
            return _FRESH
        suspects = await differing_heads(store, record.journal(), frozenset(), _UNLIMITED)
        stale = set(await find_stale(store, record.journal(), base.common, suspects))
        # A row ahead of the base says what some later decision left; the walk would meet it again.
        ahead = (await store.read([tables.entities_above(base.common)]))[0]
        return base, sorted(stale.union(entity for (entity,) in ahead)), False
    except Damaged:
        return _FRESH
    finally:
        await store.close()


_FRESH: tuple[Base, list[str], bool] = (Base(0, ()), [], True)


async def _rehearse(
    record: Record,
    log: SqliteLog,
    base: Base,
    rebuild: set[str],
    replay: Replay,
    progress: Progress,
    fresh: bool,
) -> tuple[int, dict[str, int]]:
    """Replay in memory what the store lacks; how many decisions, and how many of each action."""
    missing = 0
    actions: dict[str, int] = {}
    after = base.common
    last = (await record.look()).last
    total = 0 if last is None else last.sequence - after
    while rows := await log.decisions(after, PAGE):
        missing += len(rows)
        after = rows[-1].sequence or after
        wanted = {row.entity for row in rows} - rebuild - replay.heads.keys()
        if wanted and not fresh and record.store is not None:
            statement = tables.read_heads(wanted)
            replay.load(tables.heads_of((await record.store.read([statement]))[0]))
        replayed = replay.run(row for row in rows if row.entity not in rebuild)
        check_declared(record.lifecycles, replayed)
        for decision in replayed:
            action = decision.entry.envelope.action
            actions[action] = actions.get(action, 0) + 1
        progress(missing, max(total, missing), "planned")
    return missing, dict(sorted(actions.items()))


async def _rehearse_rebuild(
    log: Log, entity: str, replay: Replay, lifecycles: Mapping[str, Lifecycle]
) -> None:
    first = 1
    while rows := await log.history(entity, first, _UNLIMITED, PAGE):
        check_declared(lifecycles, replay.run(rows))
        first = rows[-1].revision + 1


def describe(plan: Plan) -> list[str]:
    """The plan in sentences, most important first."""
    lines = [f"{plan.missing} decisions to replay, sequence {plan.common} to {plan.through}"]
    if plan.fresh_store:
        lines.insert(0, "the store is missing or damaged: a new one is built from the journal")
    lines += [
        f"undo {item.operation} of {item.entity} (sequence {item.sequence}): only the store has it"
        for item in plan.local_only
    ]
    lines += [f"rebuild {entity} from its first revision" for entity in plan.rebuild]
    lines += [
        f"incomplete: {item.detail}; durable through revision {item.durable_through}"
        for item in plan.incomplete
    ]
    return lines
