"""Mending: a journal on a server that was rolled back, healed where it stands.

Nothing can be built beside it and put in its place. So one control entry says first what is about
to happen; while it is the tenant's last, the journal counts as rolled back and takes nothing else.
Then the decisions follow, byte for byte and in order, and the last of them in one append with the
entry that gives the journal its new beginning. Killed anywhere, the next run goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from journal.control import HEAL, TENANT, Control, fold
from journal.detection import Finding, Seen
from journal.entry import Entry
from journal.errors import ConstraintFailed, EngineError, JournalUnavailable, Refused
from journal.log import CONTROL, DECISIONS, Append, Look, Moved, Row
from journal.log.engine import SqlLog
from journal.record import Record
from journal.standing import LOGGER
from journal.store.engine import SqlStore
from reconstruct.fencing import at_stage
from reconstruct.rebasing import (
    abandoned_anew,
    check_loss,
    facts_of,
    flaws_of,
    format_entries,
    rebase,
)
from reconstruct.remains import HealingSurvey, Known
from reconstruct.salvage import Last, Salvage, Taken, pages, salvage_of
from reconstruct.unfinished import is_kept

Progress = Callable[[int, int, str], None]
_NOTHING = Look(0, None, None, 0, flawed=False)


async def mend(
    record: Record,
    finding: Finding,
    seen: Seen,
    principal: str | None,
    progress: Progress,
    accept_loss: str | None,
) -> bool:
    """Heal the journal in its place; False when it moved meanwhile, to be looked at again.

    Raises Refused as ``reconstruct.healing.heal`` does, JournalUnavailable while the server does
    not take it.
    """
    try:
        if await half_mended(record) is None:
            salvage = await salvage_of(record, finding, seen)
            check_loss(salvage.survey, accept_loss)
            await _check_free(record, salvage)
            await _announce(record, salvage, seen.look, principal)
        await _go_on(record, principal, progress)
    except Moved:
        return False
    except ConstraintFailed as error:
        raise Refused(f"the store's entries do not fit into the journal: {error}") from error
    except EngineError as error:
        raise JournalUnavailable(f"the journal cannot be healed now: {error}") from error
    await record.remember()
    LOGGER.warning("the journal was healed where it stands")
    return True


async def half_mended(record: Record) -> HealingSurvey | None:
    """A healing of the journal as it stands that has begun and can go on; None: there is none.

    The store has to be as it was then, and to hold all that is left to be brought back. Otherwise
    what is there now is looked at anew.
    """
    if record.log is None:
        return None
    row, control = await _announced(record.log, record.settings.tenant)
    if row is None:
        return None
    facts: dict[str, Any] = msgspec.json.decode(row.body)
    if not await is_kept(record, control, facts["store"]):
        return None
    survey = _survey_of(record, facts)
    look = await record.log.look()
    if _store_of(record, facts) is not None:
        done = look.position - row.position
        if done + await _count(record, look, control) != survey.decisions:
            return None
    return survey


async def _announced(log: SqlLog, tenant: str) -> tuple[Row | None, Control]:
    """The entry that says what is about to happen, unless it has ended; and control."""
    rows = await log.control()
    entries = [row.entry() for row in rows]
    control = fold(entries, tenant)
    if control.last != HEAL:
        return None, control
    of_tenant = [row for row, entry in zip(rows, entries, strict=True) if _is_tenants(entry)]
    return of_tenant[-1], control


def _is_tenants(entry: Entry) -> bool:
    return entry.envelope.entity == TENANT


def _survey_of(record: Record, facts: dict[str, Any]) -> HealingSurvey:
    """What was about to happen; its loss was accepted then."""

    def known(side: str) -> Known | None:
        found = facts[side]
        return None if found is None else msgspec.convert(found, Known)

    healed = facts["healed"]
    return HealingSurvey(
        detail="its healing has begun and not ended: apply goes on with it",
        journal=known("journal"),
        store=known("store"),
        witness=record.witness.read(),
        control=healed["control"],
        decisions=healed["decisions"],
        first=healed["first"],
        last=healed["last"],
        actions={},
        broken=[],
        others=facts["others"],
        loss=None,
        generation=facts["generation"],
        highest=facts["highest"],
    )


def _store_of(record: Record, facts: dict[str, Any]) -> SqlStore | None:
    """The store to heal from; None where it was of no use."""
    return None if facts["store"] is None else record.store


async def _count(record: Record, look: Look, control: Control) -> int:
    """How many decisions the store still has for a journal that stands at ``look``."""
    taken = Taken(record.settings.tenant, control, Last.of(look), None)
    if record.store is not None:
        for rows in pages(record.store, taken.last.sequence):
            await taken.add(record.log, rows)
    return taken.count


async def _check_free(record: Record, salvage: Salvage) -> None:
    """Refuse before the first append what the journal could not take in the end."""
    log, store = record.log, record.store
    if log is None or store is None or salvage.survey.store is None:
        return
    taken = Taken(record.settings.tenant, salvage.whole, salvage.start, None)
    for rows in pages(store, salvage.start.sequence):
        ids = [entry.envelope.operation for entry in await taken.add(log, rows)]
        clashing = await log.operations(ids)
        if clashing:
            named = ", ".join(row.operation for row in clashing[:3])
            raise Refused(
                f"the journal has used operation IDs of the store's decisions since ({named}): it "
                "went on after it was rolled back. Put the journal back as it was before"
            )


async def _announce(record: Record, salvage: Salvage, look: Look, principal: str | None) -> None:
    """Bring control back, and say in its last entry what is about to happen."""
    log = record.log
    tenant = record.settings.tenant
    own = [] if log is None else [row.entry() for row in await log.control()]
    control = fold([*own, *salvage.control], tenant)
    last = format_entries(record, control)
    control = fold([*own, *salvage.control, *last], tenant)
    facts = {**facts_of(salvage.survey), "generation": salvage.survey.generation}
    last.append(rebase(record, control, control.authority.generation, facts, principal, HEAL))
    append = Append(
        [(CONTROL, entry) for entry in [*salvage.control, *last]],
        fold([*own, *salvage.control, *last], tenant).authority,
        settled=sorted(abandoned_anew(salvage.control)),
    )
    if log is not None:
        await log.append(append, look)
        return
    with record.lock.held():
        with record.log_place.created() as made:
            await made.append(append, _NOTHING)
        await record.open_files()


async def _go_on(record: Record, principal: str | None, progress: Progress) -> None:
    """Append what is left of the decisions; with the last of them, the new beginning."""
    log = record.journal()
    row, control = await _announced(log, record.settings.tenant)
    if row is None:
        raise Moved("somebody else has healed the journal")
    facts: dict[str, Any] = msgspec.json.decode(row.body)
    total = facts["healed"]["decisions"]
    look = await log.look()
    done = look.position - row.position
    taken = Taken(record.settings.tenant, control, Last.of(look), None)
    store = _store_of(record, facts)
    held: list[Entry] = []
    told: set[str] = set()
    for rows in pages(store, taken.last.sequence) if store is not None else ():
        found = await taken.add(log, rows)
        if not (held and found):
            held = held or found
            continue
        await log.append(_append(record, held, taken, told), look)
        done += len(held)
        progress(done, total, "healed")
        look, held = await log.look(), found
    if done + len(held) != total:
        raise Moved("the store changed while the journal was healed")
    last = rebase(record, control, facts["generation"], facts, principal)
    append = _append(record, held, taken, told)
    append = msgspec.structs.replace(
        append,
        entries=[*append.entries, (CONTROL, last)],
        becomes=at_stage(control, facts["generation"]),
        drops=[each for line in control.abandoned.values() for each in line],
    )
    await log.append(append, look)
    progress(total, total, "healed")


def _append(record: Record, held: list[Entry], taken: Taken, told: set[str]) -> Append:
    """A page of decisions, with what is broken by them and was not ``told`` before."""
    broken = [each for name, each in taken.broken.items() if name not in told]
    told.update(each.entity for each in broken)
    return Append(
        [(DECISIONS, entry) for entry in held],
        settled=[each.entity for each in broken],
        flaws=flaws_of(broken, record.clock.now()),
    )
