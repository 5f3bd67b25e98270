"""Abandon: let an entity go on whose history can never be made whole.

An operator's decision, within a recovery: what is above the last continuous revision becomes
evidence, by name, and the entity continues from there in the history in force. One control entry
says so; everything else follows from it, and from what is dropped, however often the store is
rewound after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from msgspec import Struct

from journal import decrees
from journal.abandonment import sort_releases
from journal.acceptance import EntityHead
from journal.control import Abandoned, Control
from journal.detection import Verdict
from journal.entry import MAX_INTEGER, MAX_STRING, Entry, check_entity, check_name
from journal.errors import (
    DiskFailed,
    EngineError,
    FileChanged,
    JournalUnavailable,
    NotFound,
    Refused,
    WriterStopped,
)
from journal.handoff import hand_off
from journal.history import Head
from journal.lifecycle import Owner, lifecycle_of
from journal.log import CONTROL, FIRST_FLAW, Append, EntityChain, FlawRow, Look, Moved, Row
from journal.record import Record
from journal.standing import examine, poison
from journal.store import tables
from journal.store import work as works
from journal.work import Work
from reconstruct.applying import commit, the_marker, the_store
from reconstruct.cut_releases import dropped_by, settled
from reconstruct.cutting import DECISION, Behind, Candidate, follow, look_behind, missing_in
from reconstruct.fencing import alone, open_anew

_ATTEMPTS = 3
_NAMED = 20


class Ended(Struct, frozen=True):
    """An entity whose history was cut off, and goes on from revision ``through``.

    ``dropped`` are the decisions that are evidence alone now, ``unreadable`` how many more entries
    are damaged and ``missing`` how many revisions nobody has. ``doubtful`` are releases that may
    have been committed in that: they are held as unknown. ``withdrawn`` were surely not, and stay
    taken back. ``again`` says that it had been done before.
    """

    entity: str
    through: int
    history: str
    generation: int
    dropped: list[Candidate]
    unreadable: int
    missing: int
    doubtful: list[str]
    withdrawn: list[str]
    since: str
    again: bool


class Named(Struct, frozen=True):
    """The tenant and the history in force as the operator named them, as a safeguard."""

    tenant: str
    history: str


class _Here(Struct):
    """Where the entity stands: its boundary, what is behind it, and how that shows in the store.

    ``head`` and ``rows`` are the store's, None and empty for a caller-owned entity; ``chain`` is
    that of a caller-owned one.
    """

    boundary: Head
    row: Row | None
    behind: Behind
    chain: EntityChain | None = None
    head: EntityHead | None = None
    rows: dict[str, Work] = {}


async def abandon(
    record: Record,
    entity: str,
    reason: str,
    evidence: str,
    drop: Collection[str],
    principal: str | None = None,
    named: Named | None = None,
) -> Ended:
    """Cut the entity's history off at its last continuous revision; it goes on from there.

    ``drop`` names, by operation ID or digest, every readable decision that is dropped by this, and
    every rival of a fork; a fork alone loses its rivals, and the stored chain goes on. Run again it
    says what was done. Raises Refused with what is to be named, when nothing is wrong with the
    entity, when no recovery has started the history in force since, or when store and journal do
    not agree; NotFound, Invalid, JournalUnavailable or WriterStopped.
    """
    check_entity(entity)
    check_name("reason", reason, MAX_STRING)
    check_name("evidence", evidence, MAX_STRING)
    lifecycle = lifecycle_of(record.lifecycles, entity)
    if record.poisoned is not None:
        raise WriterStopped(record.poisoned)
    with alone(record.settings):
        await open_anew(record)
        with record.lock.held():
            for _ in range(_ATTEMPTS):
                try:
                    control = await _agreed(record)
                    _check_named(record, control, named)
                    if lifecycle.owner is Owner.CALLER:
                        here = await _here_of_caller(record, control, entity)
                    else:
                        here = await _here(record, entity)
                    if here is None:
                        return await _done_before(record, control, entity)
                    return await _cut(
                        record, control, entity, here, reason, evidence, drop, principal
                    )
                except FileChanged:
                    await record.open_files()
                except Moved:
                    continue
    raise JournalUnavailable("store or journal is being replaced again and again")


async def _agreed(record: Record) -> Control:
    """Control, where store and journal agree and no recovery waits to be applied."""
    finding, seen = await examine(record)
    if finding.verdict is Verdict.CRASHED and record.control and record.control.begun is None:
        await hand_off(record, seen)
        finding, seen = await examine(record)
    control = await record.current_control(seen.look)
    if control.begun is not None:
        raise Refused(
            "a recovery has begun and was not applied: run `unrewind recover apply` first"
        )
    if finding.verdict is not Verdict.CLEAN:
        raise Refused(
            f"{finding.verdict}: {finding.detail}; run `unrewind recover begin` and `apply` first"
        )
    return control


def _check_named(record: Record, control: Control, named: Named | None) -> None:
    if named is None:
        return
    if named.tenant != record.settings.tenant:
        raise Refused(f"this is tenant {record.settings.tenant}, not {named.tenant}")
    force = control.authority.history
    if named.history != force:
        raise Refused(f"the history in force is {force}, not {named.history}; see unrewind status")


async def _flaws(record: Record, entity: str) -> list[FlawRow]:
    return await record.journal().flaws(entity, FIRST_FLAW, 1000)


async def _done_before(record: Record, control: Control, entity: str) -> Ended:
    """What was done, when a sound entity was abandoned into this history; Refused otherwise."""
    cuts = control.abandoned.get(entity, ())
    ended = tuple(item.history for item in control.histories[:-1])
    if not cuts or cuts[-1].ended != ended:
        raise Refused(
            f"{entity}: its history is complete as far as it was replayed; there is nothing to "
            "abandon"
        )
    cut = cuts[-1]
    rows = await record.journal().operations(cut.dropped)
    dropped = [Candidate.of(row.entry(), DECISION) for row in rows if row.dropped]
    return _ended(control, cut, dropped, again=True)


def _ended(control: Control, cut: Abandoned, dropped: Sequence[Candidate], *, again: bool) -> Ended:
    authority = control.authority
    return Ended(
        entity=cut.entity,
        through=cut.through,
        history=authority.history,
        generation=authority.generation,
        dropped=list(dropped),
        unreadable=len(cut.unreadable),
        missing=sum(each.count for each in cut.missing),
        doubtful=list(cut.doubtful),
        withdrawn=list(cut.withdrawn),
        since=cut.since,
        again=again,
    )


async def _here(record: Record, entity: str) -> _Here | None:
    """Where a managed or embedded entity stands: at the boundary that its flaws leave it.

    None: nothing is wrong with it.
    """
    log = record.journal()
    if not await log.history(entity, 1, MAX_INTEGER, 1, dropped=True):
        raise NotFound(f"{entity}: the journal holds no decision of it", entity=entity)
    flaws = await _flaws(record, entity)
    if not flaws:
        return None
    if record.store is None:
        raise Refused("the store is missing or unreadable: run `unrewind recover begin`")
    through = min(flaw.durable_through for flaw in flaws)
    heads, rows = await record.store.read(
        [tables.read_heads([entity]), works.read_all_of([entity])]
    )
    head = tables.heads_of(heads).get(entity)
    at = 0 if head is None else head.revision
    stored = [row for row in await log.history(entity, through, through, 8) if through]
    own = [row for row in stored if head is not None and row.digest == head.digest]
    if at != through or (through and not own):
        raise Refused(
            f"{entity}: the store has revision {at}, its history is continuous through {through}; "
            "run `unrewind recover begin` and `apply` first"
        )
    row = own[0] if own else None
    boundary = Head() if row is None else Head(through, row.history, row.digest)
    behind = await look_behind(log, entity, through)
    return _Here(boundary, row, behind, None, head, {w.id: w for w in works.rows_of(rows)})


async def _here_of_caller(record: Record, control: Control, entity: str) -> _Here | None:
    """Where a caller-owned entity stands, its chain followed anew from the first revision.

    None: nothing is wrong with it.
    """
    log = record.journal()
    if await log.chain(entity) is None:
        raise NotFound(f"{entity}: the journal holds no entry of it", entity=entity)
    found = await follow(log, entity, control.abandoned.get(entity, ()))
    if found.behind.nothing and not await _flaws(record, entity):
        return None
    boundary = found.boundary
    chain = EntityChain(entity, boundary, found.state, boundary.revision)
    return _Here(boundary, found.row, found.behind, chain)


def _check_dropped(
    control: Control, entity: str, here: _Here, drop: Collection[str]
) -> list[Candidate]:
    """Everything that is dropped, all of it named. Raises Refused with what is to be named."""
    force = control.authority.history
    behind, through = here.behind, here.boundary.revision
    young = [row for row in behind.rows if row.history == force and row.revision > through]
    if young:
        raise Refused(
            f"{entity}: {len(young)} entries above revision {through} belong to the history in "
            "force; run `unrewind recover begin` and `apply` first, which end it"
        )
    candidates = behind.candidates()
    given = set(drop)
    lacking = [each for each in candidates if not given & {each.operation, each.digest}]
    known = {each.operation for each in candidates} | {each.digest for each in candidates}
    known |= {row.operation for row in behind.unreadable}
    strange = sorted(given - known)
    facts = [{"operation": each.operation, "digest": each.digest} for each in candidates]
    if lacking:
        names = " ".join(f"--drop {each.operation}" for each in lacking[:_NAMED])
        more = "" if len(lacking) <= _NAMED else f" and {len(lacking) - _NAMED} more"
        raise Refused(
            f"{entity} would go on from revision {through}, and what was decided above it is "
            f"dropped: name it with {names}{more}",
            entity=entity,
            durable_through=through,
            drop=facts,
        )
    if strange:
        raise Refused(
            f"{entity}: {', '.join(strange[:_NAMED])} would not be dropped by this; look at "
            f"`unrewind history {entity}`",
            entity=entity,
            durable_through=through,
            drop=facts,
        )
    return candidates


async def _cut(
    record: Record,
    control: Control,
    entity: str,
    here: _Here,
    reason: str,
    evidence: str,
    drop: Collection[str],
    principal: str | None,
) -> Ended:
    """Hold what is doubtful in the store, then let the journal say what was decided."""
    candidates = _check_dropped(control, entity, here, drop)
    look = await record.look()
    behind, boundary = here.behind, here.boundary
    missing = missing_in(record.journal(), control, here.row, behind.rows, look.position)
    dropped = behind.readable()
    doubtful, withdrawn = sort_releases(
        here.rows, dropped, record.rules, proven=not (missing or behind.unreadable)
    )
    now = record.clock.now()
    ended = tuple([item.history for item in control.histories[:-1]])
    cut = Abandoned(
        entity=entity,
        through=boundary.revision,
        digest=boundary.digest or None,
        history=boundary.history or None,
        position=look.position,
        dropped=tuple([entry.envelope.operation for entry in dropped]),
        reason=reason,
        evidence=evidence,
        since=now,
        principal=principal,
        ended=ended,
        # By digest what the histories do not tell, those that control does not know among them.
        rivals=tuple(
            [
                each.digest
                for each in candidates
                if each.kind != DECISION or each.history not in ended
            ]
        ),
        unreadable=tuple([row.digest for row in behind.unreadable]),
        missing=tuple(missing),
        doubtful=doubtful,
        withdrawn=withdrawn,
    )
    # The store first: killed in between, the entity is held by its flaws all the same.
    await write_settled(record, cut, dropped)
    entry = decrees.abandon_entry(control, cut, f"control-{record.clock.fresh()}", now, principal)
    append = Append(
        entries=[(CONTROL, entry)],
        chains=[] if here.chain is None else [here.chain],
        settled=[entity],
        drops=[cut],
    )
    await _append(record, append, look)
    return _ended(await record.read_control(), cut, candidates, again=False)


async def _append(record: Record, append: Append, look: Look) -> None:
    try:
        await record.journal().append(append, look)
    except (FileChanged, Moved):
        raise
    except DiskFailed as error:
        raise poison(record, f"the journal's commit failed: {error}") from error
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be written: {error}") from error


async def reindex(record: Record) -> None:
    """Bring the journal's index of dropped entries to what its control says, where it differs.

    For a journal that was built anew, or whose index was lost: it is derived.
    """
    with record.lock.held():
        look = await record.look()
        control = await record.current_control(look)
        cuts = [cut for of_entity in control.abandoned.values() for cut in of_entity]
        log = record.journal()
        if not log.is_indexed(cuts):
            await _append(record, Append(drops=cuts, anew=True), look)


async def settle_abandoned(record: Record) -> None:
    """Settle the releases of every entity that stands in the store where it was cut off.

    A store that was rewound to before its abandonment has them as they were.
    """
    control = await record.current_control(await record.look())
    for cuts in control.abandoned.values():
        for cut in cuts:
            if cut.doubtful or cut.withdrawn:
                await write_settled(record, cut, await dropped_by(record, cut))


async def write_settled(record: Record, cut: Abandoned, dropped: Iterable[Entry]) -> None:
    """Settle an abandonment's releases in the store, where the entity stands at the cut."""
    if not (cut.doubtful or cut.withdrawn):
        return
    with record.lock.held():
        store = the_store(record)
        heads, found = await store.read(
            [tables.read_heads([cut.entity]), works.read_all_of([cut.entity])]
        )
        head = tables.heads_of(heads).get(cut.entity)
        if (None if head is None else head.digest) != cut.digest:
            return
        rows = {row.id: row for row in works.rows_of(found)}
        changed = settled(record, rows, cut, [*dropped])
        if not changed:
            return
        trusted = not record.touched()
        marker = await the_marker(record)
        fence = tables.fence(marker, marker.place, marker.journalled)
        await commit(record, [fence, works.write_work([*changed.values()])])
        if trusted:
            record.saw()
