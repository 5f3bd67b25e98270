"""How the tenant stands: detection run for real, closing, and changes of control.

The rules are in ``journal.detection`` and ``journal.control``; this is where they meet the files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from journal import decrees
from journal.control import Authority, Control, ControlUnreadable, Stage
from journal.derivation import behind, still_behind
from journal.detection import (
    Difference,
    Finding,
    Seen,
    Verdict,
    differing_heads,
    is_torn,
    still_differing,
)
from journal.entry import Entry
from journal.errors import (
    Damaged,
    DiskFailed,
    EngineError,
    FenceFailed,
    FileChanged,
    Invalid,
    JournalUnavailable,
    Recovering,
    Refused,
    Unreachable,
    UnrewindError,
    WriterStopped,
)
from journal.files import HEALING, remove_database
from journal.formats import needs_of
from journal.log import CONTROL, Append, Log, Look, Moved
from journal.record import Record
from journal.store import tables
from journal.store.engine import SqlStore
from journal.witness import Witness, WitnessUnreadable, witness_of

LOGGER = logging.getLogger("unrewind")
_NAMED = 10
_ATTEMPTS = 3


async def examine(record: Record, *, witness: bool = False) -> tuple[Finding, Seen]:
    """Compare markers and heads of order, reopening files that were replaced meanwhile.

    ``witness`` asks to look at the witness too; what was opened just now is held against it anyway.
    """
    if record.store is None or record.log is None:
        # What was missing or unreadable a while ago may have been put back, or recovered.
        with nullcontext() if record.read_only else record.lock.held():
            await record.open_files()
    for _ in range(_ATTEMPTS):
        try:
            finding, seen = await record.examine(witness=witness)
            if finding.verdict is not Verdict.REWOUND or not _is_left_behind(record):
                return finding, seen
            await record.open_files()
        except FileChanged as error:
            LOGGER.warning("%s; opening it anew", error)
            await record.open_files()
        except Damaged as error:
            if not _is_of_store(record, error):
                raise JournalUnavailable(f"the journal is damaged: {error}") from error
            seen = Seen(await record.look(), None)
            return Finding(Verdict.REPLACED, f"the store is damaged: {error}"), seen
        except EngineError as error:
            raise JournalUnavailable(f"store or journal cannot be read: {error}") from error
    raise JournalUnavailable("store or journal is being replaced again and again")


def _is_left_behind(record: Record) -> bool:
    """Whether it is an old primary that was looked at, beside its successor."""
    return record.store is not None and record.store.is_left_behind()


def _is_of_store(record: Record, error: Damaged) -> bool:
    """Whether it is the store that is damaged: a file by its path, a schema by its label."""
    store = record.store
    known = {record.store_place.label, None if store is None else store.database.label}
    return error.members.get("file") in known


async def compare_heads(record: Record, finding: Finding) -> Finding:
    """Compare every entity's head and data hash; the finding stands, or becomes `rewound`.

    Where somebody else wrote to the file, whether its pages belong together is looked at first.
    Differences are looked at a second time under the turn lock, so this may run beside a writer.
    Raises JournalUnavailable when the store cannot be opened.
    """
    if record.store is None or record.log is None:
        return finding
    stamp = record.store.stamp()
    touched = record.touched()
    if touched:
        record.doubtful = True
    try:
        # A connection of its own: the record's shows pages as it has cached them, not as they stand
        # in a file that was overwritten in place.
        store = record.store_place.open(read_only=True)
    except Damaged as error:
        return Finding(Verdict.REPLACED, f"the store is damaged: {error}", finding.facts)
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be read: {error}") from error
    try:
        if touched and await _is_torn(store, record.log):
            record.distrust()
            return Finding(
                Verdict.REPLACED, "the store's file mixes pages of several moments", finding.facts
            )
        flawed = await record.log.flawed()
        suspects = await differing_heads(store, record.log, flawed)
        releases = await behind(record, store, flawed)
        with record.lock.held():
            differing = await _differing_now(record, store, suspects, releases)
            if isinstance(differing, Finding):
                if not differing.verdict.sound:
                    record.distrust()
                return differing
            if not differing:
                if record.store.stamp() == stamp:
                    record.saw()
                return finding
    except (Damaged, Invalid) as error:
        record.distrust()
        return Finding(Verdict.REPLACED, f"the store is damaged: {error}", finding.facts)
    finally:
        await store.close()
    record.distrust()
    named = ", ".join(_say(item) for item in differing[:_NAMED])
    more = "" if len(differing) <= _NAMED else f" and {len(differing) - _NAMED} more"
    return Finding(
        Verdict.REWOUND,
        f"the store's rows are not the ones that the journal names: {named}{more}",
        {**finding.facts, "differing": [item.entity for item in differing]},
    )


async def _differing_now(
    record: Record, store: SqlStore, suspects: list[Difference], releases: Collection[str]
) -> list[Difference] | Finding:
    """Those of the suspects that differ while store and journal stand still and agree.

    Another process may have decided since they were found, or have left in the store alone what it
    decided: then what is found of the two comes first.
    """
    if not (suspects or releases) or record.log is None:
        return []
    for _ in range(_ATTEMPTS):
        finding, seen = await record.examine()
        if finding.verdict is not Verdict.CLEAN:
            return finding
        differing = await still_differing(store, record.log, suspects)
        wrong = await still_behind(record, store, releases)
        if not (differing or wrong) or (await record.examine())[1] == seen:
            return differing or (other_work(wrong, finding.facts) if wrong else [])
    raise JournalUnavailable("store and journal move on faster than they can be compared")


def other_work(wrong: Mapping[str, str], facts: Mapping[str, Any]) -> Finding:
    """The finding that releases of the store are not what the journal's decisions lead to."""
    named = ", ".join(f"{identity}: {why}" for identity, why in [*wrong.items()][:_NAMED])
    more = "" if len(wrong) <= _NAMED else f" and {len(wrong) - _NAMED} more"
    detail = f"the store's releases are not the ones that the journal names: {named}{more}"
    return Finding(Verdict.REWOUND, detail, {**facts, "releases": [*wrong]})


async def _is_torn(store: SqlStore, log: Log) -> bool:
    marker = tables.marker_of((await store.read([tables.READ_MARKER]))[0])
    return marker is None or await is_torn(store, log, marker.place.sequence)


def _say(item: Difference) -> str:
    store = "nothing" if item.store is None else f"revision {item.store}"
    journal = "nothing" if item.journal is None else f"revision {item.journal}"
    return f"{item.entity} (store {store}, journal {journal})"


async def close_tenant(record: Record, finding: Finding) -> None:
    """Stop the tenant for a verdict: the stop file first, then control where it can be written.

    Nothing is appended to a journal that was rewound, is another's, or whose control is unreadable.
    Where the disk refuses both, every turn finds the same again: nothing is decided either way. A
    place that the tenant moved away from is closed already.
    """
    LOGGER.error("closed: %s: %s", finding.verdict, finding.detail)
    if finding.facts.get("moved"):
        return  # the stop file is the tenant's, wherever it is now: it would stop it there
    known = record.control
    facts = {} if known is None else {"generation": known.authority.generation}
    try:
        verdict = str(finding.verdict)
        record.stop.put_up(finding.detail, record.clock.now(), verdict=verdict, **facts)
    except OSError as error:
        LOGGER.critical("the stop file cannot be written: %s", error)
    if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
        return

    def is_outdated(control: Control) -> bool:
        now, then = control.authority, control.authority if known is None else known.authority
        return (now.generation, now.history) != (then.generation, then.history)

    try:
        control = await change_control(
            record,
            "close",
            lambda control: _at_stage(control, Stage.CLOSED),
            {"reason": finding.detail, "verdict": str(finding.verdict)},
            unless=lambda control: control.authority.stage is Stage.CLOSED or is_outdated(control),
        )
    except (EngineError, JournalUnavailable, ControlUnreadable) as error:
        LOGGER.warning("closed by the stop file alone, the journal refused: %s", error)
    else:
        # Found before a recovery that another process made meanwhile, it ends with that.
        outdated = known is not None and is_outdated(control)
        record.stop.carry(known.sequence if known and outdated else control.sequence)


async def lift(record: Record) -> None:
    """Take the stop down that control has ended since, wherever that was done.

    A stop file stands on one machine, and the tenant may be reopened on another. What control never
    said, an operator's stop beside a journal that could not be reached, ends by hand alone.
    """
    try:
        seen = record.stop.standing()
        facts = record.stop.facts()
        carried, generation = facts.get("carried"), facts.get("generation")
        if seen is None or (carried is None and generation is None):
            return
        control = await record.current_control(await record.look())
        if control.begun is not None or not control.authority.stage.reads:
            return
        over = isinstance(generation, int) and control.renewed > generation
        if isinstance(carried, int):
            over = control.sequence > carried
        if over and record.stop.take_down(seen):
            LOGGER.warning("the stop is over, control says %s", control.authority.stage)
    except (UnrewindError, OSError) as error:
        LOGGER.debug("the stop stays: %s", error)


def _at_stage(control: Control, stage: Stage) -> Authority:
    before = control.authority
    return Authority(before.history, before.generation, stage, before.first, before.digest)


async def change_control(
    record: Record,
    action: str,
    becomes: Callable[[Control], Authority],
    facts: dict[str, Any],
    *,
    principal: str | None = None,
    unless: Callable[[Control], bool] | None = None,
) -> Control:
    """Append a control entry that puts ``becomes(control)`` in force; the control after it.

    With ``unless`` true for the control found, nothing is appended. Control passes in any stage.
    Raises ControlUnreadable, JournalUnavailable, WriterStopped or LockHeld.
    """

    def build(control: Control) -> tuple[Entry, Authority] | None:
        if unless is not None and unless(control):
            return None
        force = becomes(control)
        operation = f"control-{record.clock.fresh()}"
        entry = decrees.change(
            control, action, force, facts, operation, record.clock.now(), principal
        )
        return entry, force

    return await append_control(record, build)


async def append_control(
    record: Record, build: Callable[[Control], tuple[Entry, Authority] | None]
) -> Control:
    """Append the control entry that ``build`` makes of the present control; the one after it.

    A token or a recovery's step is an acknowledgement too: a stopped writer gives none, and a
    journal that was rolled back takes none. Before this returns the store keeps a copy of the
    entry and the witness has seen it, as far as each can: either is enough for a revocation to
    outlive the journal's tail.
    """
    if record.poisoned is not None:
        raise WriterStopped(record.poisoned)
    with record.lock.held():
        for _ in range(_ATTEMPTS):
            try:
                finding = await _check_whole(record)
                look = await record.look()
                control = await record.current_control(look)
                built = build(control)
                if built is not None and needs_of(built[0]) > control.needs:
                    await _raise_needs(record, look, control, needs_of(built[0]))
                    continue
                if built is not None:
                    entry, force = built
                    append = Append(entries=[(CONTROL, entry)], becomes=force)
                    await record.journal().append(append, look)
                control = await record.read_control()
                if built is not None:
                    await _show_witness(record)
                    await _copy_to_store(record, finding)
                return control
            except FileChanged:
                await record.open_files()
            except Moved:
                continue
            except DiskFailed as error:
                raise poison(record, f"the journal's commit failed: {error}") from error
            except EngineError as error:
                raise JournalUnavailable(f"the journal cannot be written: {error}") from error
    raise JournalUnavailable("the journal keeps moving")


async def _check_whole(record: Record) -> Finding | None:
    """Refuse to append to a journal that was rolled back. Raises JournalUnavailable.

    None: the store's files cannot be read, which is no fault of the journal.
    """
    try:
        finding, _ = await record.examine()
    except (Damaged, Unreachable):
        return None
    if finding.verdict is Verdict.JOURNAL_REWOUND:
        raise JournalUnavailable(
            f"nothing is appended to a journal that was rolled back: {finding.detail}; "
            "see unrewind recover plan"
        )
    return finding


async def _copy_to_store(record: Record, finding: Finding | None) -> None:
    """Copies of control into a store that is known to be the journal's; no other one is written to.

    The entry stands in the journal whatever becomes of its copy: `settle` brings it later.
    """
    if finding is None or not finding.verdict.sound or record.guarded:
        return
    try:
        if record.store is None or record.touched():
            return
        marker = await record.marker()
        if marker is None:
            return
        entries = [row.entry() for row in await record.journal().control()]
        rows = (await record.store.read([tables.READ_LAST_CONTROL]))[0]
        last = tables.decisions_of(rows)
        after = 0
        if last and last[0].sequence <= len(entries):
            after = last[0].sequence
            if entries[after - 1].digest != last[0].digest:
                after = 0  # another line's: written anew from the first
        fence = tables.fence(marker, marker.place, marker.journalled)
        await record.store.batch([fence, tables.copy_control(entries[after:])])
        record.saw()
    except DiskFailed as error:
        poison(record, f"the store's commit failed: {error}")
    except (EngineError, FenceFailed, FileChanged, Invalid) as error:
        LOGGER.warning("the store keeps no copy of the last control entry yet: %s", error)


async def _show_witness(record: Record) -> None:
    """Let the witness see a control entry at once, whatever the comparison says of the store."""
    finding = record.finding
    try:
        await record.remember()
    finally:
        record.finding = finding


async def renew_witness(record: Record) -> tuple[Witness, Path | None]:
    """Let the witness begin anew where it is damaged or gone; where the damaged one was moved.

    What it remembered is given up: whether store and journal were rolled back together before this
    is for a person to know. Raises Refused when the journal is known to have been rolled back,
    WitnessUnreadable where there is one that can be read, or the system refuses.
    """
    with record.lock.held():
        finding, seen = await examine(record, witness=True)
        control = record.control
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED} or control is None:
            raise Refused(
                f"the witness follows no journal like this: {finding.verdict}, {finding.detail}"
            )
        row = await record.journal().at(seen.look.position)
        if row is None:
            raise Refused("the journal's last entry cannot be read: see `unrewind verify`")
        found = witness_of(control, seen.look, row.digest, record.clock.now())
        try:
            aside = record.witness.renew(found)
        except OSError as error:
            raise WitnessUnreadable(f"the witness cannot be written: {error}") from error
    LOGGER.warning("the witness begins anew at %d entries", found.position)
    return found, aside


async def _raise_needs(record: Record, look: Look, control: Control, needs: int) -> None:
    """Keep code that would not heed what comes next from the tenant, before it comes."""
    entry = decrees.format_entry(
        control,
        needs,
        "what follows is not heeded by earlier formats",
        f"control-{record.clock.fresh()}",
        record.clock.now(),
    )
    await record.journal().append(Append([(CONTROL, entry)], becomes=control.authority), look)


def poison(record: Record, reason: str) -> WriterStopped:
    """Stop this process's writer for good: what the disk did with the commit is unknown."""
    record.poisoned = reason
    LOGGER.critical("no more acknowledgements from this process: %s", reason)
    return WriterStopped(reason)


async def close_for_work(record: Record, older: Mapping[str, str]) -> Recovering:
    """Close the tenant whose rows of work are of an earlier moment; what to raise then."""
    finding = other_work(older, {})
    record.distrust()
    await close_tenant(record, finding)
    return Recovering(f"the tenant is closed: {finding.detail}", verdict=str(finding.verdict))


def not_written(record: Record, error: EngineError) -> JournalUnavailable:
    """What somebody is told whose batch the store refused.

    A store that is damaged is compared whole before the next turn, which closes the tenant.
    """
    if isinstance(error, Damaged):
        record.distrust()
    return JournalUnavailable(f"the store cannot be written: {error}")


async def detect(record: Record, *, deep: bool) -> Finding:
    """Compare now and close the tenant where it must be; what was found.

    Hands nothing off: ``journal.writepath.make_ready`` does, when the next turn comes.
    """
    with record.lock.held():
        finding, _ = await examine(record, witness=True)
        if record.poisoned is None and not finding.verdict.sound and not record.stop.stands():
            await close_tenant(record, finding)
    # What waits for its handoff differs until then: the turn that hands it off compares.
    if deep and finding.verdict is Verdict.CLEAN:
        finding = await compare_heads(record, finding)
        if not finding.verdict.sound and not record.stop.stands():
            with record.lock.held():
                await close_tenant(record, finding)
    if finding.verdict.sound:
        drop_healing(record)
    record.finding = finding
    return finding


def drop_healing(record: Record) -> None:
    """Remove what a healing had built and never put in place: the journal that stands is whole.

    Put in the place of that journal later, it would take back what was journalled since.
    """
    file = record.log_place.file
    if file is None:
        return
    for suffix in HEALING:
        try:
            remove_database(file.with_name(file.name + suffix))
        except OSError as error:
            LOGGER.warning("%s%s is of no use any more: remove it: %s", file, suffix, error)
