"""Recovery: stop, plan, apply, reopen.

    begin ──► (the operator restores the store) ──► plan ──► apply ──► reopen

Each step can be interrupted anywhere and run again. ``begin`` fences: it puts the stop file up and
raises the generation. ``apply`` brings the store to what the journal holds and starts a new
history.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from journal.acceptance import beginning
from journal.control import Authority, Control, Stage
from journal.detection import Verdict
from journal.entry import GENESIS
from journal.errors import EngineError, Refused
from journal.log import Append, FlawRow
from journal.record import Record
from journal.settings import Settings
from journal.standing import LOGGER, change_control, examine
from journal.store import tables
from reconstruct.abandoning import reindex, settle_abandoned
from reconstruct.announcing import announce
from reconstruct.applying import (
    commit,
    rebuild_entity,
    rebuild_together,
    the_marker,
    undo,
    walk,
)
from reconstruct.beginning import Begun, Stopped, begin, stop
from reconstruct.beside import forget_apart, is_embedded
from reconstruct.completeness import Proof, prove
from reconstruct.evidence import keep_unseen
from reconstruct.fencing import alone, has_only_started, open_anew, raise_in_store
from reconstruct.healing import Healed, heal
from reconstruct.planning import (
    LocalOnly,
    Plan,
    Progress,
    Survey,
    find_plan,
    silent,
    survey,
    take_lineages,
)
from reconstruct.reopening import Reopened, reopen
from reconstruct.replay import Replay

__all__ = [
    "Applied",
    "Begun",
    "Consent",
    "Reopened",
    "Stopped",
    "apply",
    "begin",
    "plan",
    "reopen",
    "stop",
]

GAP_BETWEEN_HISTORIES = 65_537
"""A new history's first sequence is this far beyond the highest known one (R2)."""


class Consent(Struct, frozen=True):
    """What an operator allows by name: undoing up to ``max_undo`` decisions, of this tenant.

    ``tenant`` and ``history`` (the one in force) are named as a safeguard.
    """

    max_undo: int | None = None
    tenant: str | None = None
    history: str | None = None


class Applied(Struct, frozen=True):
    """What ``apply`` did. ``history`` is the new one, ``first_sequence`` where it starts.

    ``undone`` counts the decisions that only the store had and this recovery undid,
    ``undone_operations`` names them. ``actions`` proves, of each kind of action, that nothing was
    left out. ``healed`` says what came back to a journal that was rewound (None: it was not).
    """

    plan: str
    replayed: int
    rebuilt: int
    undone: int
    undone_operations: list[LocalOnly]
    incomplete: list[str]
    actions: dict[str, Proof]
    history: str
    parent: str
    generation: int
    first_sequence: int
    healed: Healed | None = None


# Plan.


async def plan(record: Record) -> Plan:
    """What ``apply`` would do now; changes nothing. Raises Refused or JournalUnavailable."""
    return await find_plan(record)


# Apply.


async def apply(
    record: Record,
    plan_id: str | None = None,
    principal: str | None = None,
    progress: Progress = silent,
    consent: Consent | None = None,
    accept_loss: str | None = None,
) -> Applied:
    """Bring the store to what the journal holds, then start a new history.

    A journal that was rewound is healed first; what neither side holds any more is lost only where
    ``accept_loss`` names that loss. Does what the plan says, or refuses when ``plan_id`` names
    another one. Progress is committed with the rows it describes; interrupted anywhere and run
    again it ends in the same state (P11).
    Raises Refused when no recovery has begun, another apply runs, the plan has changed, more would
    be undone than ``consent`` allows, or a decision is missing in the end that no gap holds.
    """
    with alone(record.settings):
        await open_anew(record)
        allowed = consent or Consent()
        healed = await _heal_first(record, plan_id, principal, progress, allowed, accept_loss)
        if healed is not None:
            plan_id = None
        await reindex(record)
        found = await survey(record, progress)
        control = await _require_begun(record)
        _check_plan(found.plan, plan_id)
        _check_names(record.settings, found.plan, allowed)
        _check_limit(record.settings, found.plan, allowed)
        so_far = await announce(record, found, principal)
        # From here on the file is trusted no more, until `reopen` has compared every head.
        record.distrust()
        if found.plan.fresh_store:
            await _fresh_store(record)
        elif not _fresh_mark(record.settings).exists():
            await keep_unseen(record, control.authority.generation)
        with record.lock.held():
            await raise_in_store(record, control.authority.generation)
        replay = Replay(record.lifecycles)
        rebuild = found.plan.rebuild
        await take_lineages(record.journal(), rebuild, replay, found.kept)
        await undo(record, found.base, rebuild)
        await settle_abandoned(record)
        anew = _fresh_mark(record.settings).exists()
        replayed = await walk(
            record,
            found.base.common,
            set(rebuild),
            replay,
            progress,
            found.plan.missing,
            anew=anew,
        )
        embedded = {entity for entity in rebuild if is_embedded(record, entity)}
        for number, entity in enumerate(rebuild, 1):
            if entity not in embedded:
                await rebuild_entity(record, entity, replay)
            progress(number, len(rebuild), "rebuilt")
        if embedded:
            await rebuild_together(record, embedded, replay, progress)
        await _note_flaws(record, replay, found.faulty)
        proofs = await prove(record, _least(so_far.common, found.base.common))
        control = await _start_history(record, found, principal)
        await _finish(record, control)
        _fresh_mark(record.settings).unlink(missing_ok=True)
        forget_apart(record.settings)
    authority = control.authority
    return Applied(
        plan=found.plan.plan,
        replayed=replayed,
        rebuilt=len(rebuild),
        undone=so_far.undo,
        undone_operations=list(so_far.undone),
        incomplete=sorted(replay.stops),
        actions=proofs,
        history=authority.history,
        parent=control.histories[-1].parent or "",
        generation=authority.generation,
        first_sequence=authority.first,
        healed=healed,
    )


async def _heal_first(
    record: Record,
    plan_id: str | None,
    principal: str | None,
    progress: Progress,
    consent: Consent,
    accept_loss: str | None,
) -> Healed | None:
    """Heal a journal that was rewound, as planned; None: there was none."""
    finding, _ = await examine(record, witness=True)
    if finding.verdict is not Verdict.JOURNAL_REWOUND:
        return None
    if not record.stop.stands():
        raise Refused("no recovery has begun: run `unrewind recover begin` first")
    planned = await find_plan(record)
    _check_plan(planned, plan_id)
    _check_names(record.settings, planned, consent)
    return await heal(record, principal, progress, accept_loss)


def _check_plan(plan: Plan, named: str | None) -> None:
    if named is not None and named != plan.plan:
        raise Refused(f"the plan is now {plan.plan}, not {named}: look at it again and name it")


def _check_names(settings: Settings, plan: Plan, consent: Consent) -> None:
    """Refuse whatever names another tenant or history (R20)."""
    if consent.tenant not in {None, settings.tenant}:
        raise Refused(f"this is tenant {settings.tenant}, not {consent.tenant}")
    if consent.history not in {None, plan.history}:
        raise Refused(
            f"the history in force is {plan.history}, not {consent.history}; see unrewind status"
        )


def _check_limit(settings: Settings, plan: Plan, consent: Consent) -> None:
    """Refuse to undo more than was allowed by name, with the words that would allow it (R18)."""
    if plan.undo <= settings.max_undo:
        return
    needed = (
        f"--max-undo {plan.undo} --confirm-tenant {settings.tenant} "
        f"--confirm-history {plan.history}"
    )
    what = (
        f"{plan.undo} decisions that only the store has would be undone, and max_undo is "
        f"{settings.max_undo}"
    )
    if consent.max_undo is None or consent.max_undo < plan.undo:
        raise Refused(f"{what}: look at `unrewind recover plan`, then allow it with {needed}")
    if consent.tenant is None or consent.history is None:
        raise Refused(f"{what}: name the tenant and the history that it ends: {needed}")


def _least(announced: int | None, common: int) -> int:
    return common if announced is None else min(announced, common)


async def _require_begun(record: Record) -> Control:
    look = await record.look()
    control = await record.current_control(look)
    if control.begun is None and not has_only_started(control, look):
        raise Refused("no recovery has begun: run `unrewind recover begin` first")
    return control


def _fresh_mark(settings: Settings) -> Path:
    """Stands while a store is rebuilt from nothing, so that an interrupted apply knows it too."""
    return settings.beside("fresh")


async def _fresh_store(record: Record) -> None:
    """A new store; what is left of the old one is kept under another name, never overwritten."""
    _fresh_mark(record.settings).touch()
    with record.lock.held():
        if record.store is not None:
            with suppress(EngineError):
                await record.store.close()
            record.store = None
        aside = record.store_place.set_aside(record.clock.now())
        if aside is not None:
            LOGGER.warning("what stood in the store's place is kept as %s", aside)
        await record.create_store()


async def _note_flaws(record: Record, replay: Replay, before: Sequence[FlawRow]) -> None:
    """Keep the index of incomplete histories: what stopped now stands, what was mended goes."""
    settled = sorted({*replay.stops, *(flaw.entity for flaw in before)})
    if not settled:
        return
    known = {(flaw.entity, flaw.flaw, flaw.first): flaw.since for flaw in before}
    with record.lock.held():
        append = Append(settled=settled, flaws=replay.flaws(record.clock.now(), known))
        await record.journal().append(append, await record.look())


async def _start_history(record: Record, found: Survey, principal: str | None) -> Control:
    """The control entry that ends the old history; once for each recovery."""
    with record.lock.held():
        look = await record.look()
        control = await record.current_control(look)
        if control.begun is None:
            return control
        marker = await the_marker(record)
        last = look.last
        known = [
            control.authority.first - 1,
            control.highest,
            marker.place.sequence,
            0 if last is None else last.sequence,
            *(item.sequence for item in found.base.local_only),
        ]
        first = max(known) + GAP_BETWEEN_HISTORIES
        digest = GENESIS if last is None else last.digest
        history = record.clock.fresh()
        return await change_control(
            record,
            "history",
            lambda now: Authority(history, now.authority.generation, Stage.CLOSED, first, digest),
            {
                "first": first,
                "digest": digest,
                "parent": control.authority.history,
                "plan": found.plan.plan,
                "reason": control.reason,
            },
            principal=principal,
        )


async def _finish(record: Record, control: Control) -> None:
    """Put the store at the beginning of the history in force, with its copy of control.

    Without the entry that started it, decisions of that history could not heal a journal.
    """
    entries = [row.entry() for row in await record.journal().control()]
    with record.lock.held():
        marker = await the_marker(record)
        force = control.authority
        place = beginning(force.history, force.generation, force.first, force.digest)
        if marker.place == place:
            return
        fence = tables.fence(marker, place, place.sequence)
        stale = tables.drop_control_above(len(entries))
        await commit(record, [fence, tables.copy_control(entries), stale])
