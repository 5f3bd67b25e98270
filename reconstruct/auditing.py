"""Auditing: what a reconciliation looks at beside the outcome of each release, and how it ends.

A receipt proves that a receiver accepted something, not that it should have been asked to. So
permissions are judged apart from delivery, and a wrongful release is recorded as an incident even
where it was delivered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from journal.control import RECONCILED, TENANT, Control
from journal.errors import (
    EngineError,
    FileChanged,
    JournalUnavailable,
    NotFound,
    Recovering,
    Refusal,
)
from journal.feed import clamp, decode_cursor, encode_cursor
from journal.handling import record_incident
from journal.log import OBSERVATIONS
from journal.observing import Observed, observation_of
from journal.outcomes import Outcome
from journal.record import Record
from journal.reports import GENERATION_BITS, read_row, write_ready
from journal.standing import LOGGER, change_control
from journal.store import reconciled
from journal.store import work as works
from journal.store.reconciled import Evidence, Found
from journal.work import Status, Work, note
from journal.writepath import Ready, make_ready
from reconstruct.announcing import ANNOUNCED, announced
from reconstruct.judging import FOR_A_PERSON, UNRESOLVED, Finding, Judgement, stopped_action
from reconstruct.planning import UndoneApproval
from reconstruct.reconciling import PAGE, Cursor, Run, steadily
from reconstruct.settling import evidence_of

LISTED = 100
"""Findings of a kind that a result lists; all of them are read page by page."""

_PAGE = 1000


class Reconciled(Struct, frozen=True):
    """What a reconciliation found in this generation.

    ``complete`` says that every release was judged and every receiver answered; ``left`` how many
    pieces of work are still to be looked at, ``unreachable`` which receivers gave no usable answer,
    and about how many releases. ``counts`` are by finding. ``unresolved``, ``authority`` and
    ``strange`` list at most LISTED findings each: those with an owner and a deadline, those whose
    permission is wrong, and observations that contradict what is known. ``anew`` are approvals that
    only the store had: ask for them anew. ``restored`` is how many decisions the apply brought
    back, null where it does not say. ``digest`` is over all releases with their findings.
    """

    generation: int
    complete: bool
    left: int
    counts: dict[str, int]
    unreachable: dict[str, int]
    wrong: int
    incidents: int
    unresolved: list[Found]
    authority: list[Found]
    strange: list[Found]
    anew: list[UndoneApproval]
    restored: int | None
    digest: str

    @property
    def exceptions(self) -> int:
        """How much a person has to look at."""
        found = sum(self.counts.get(kind, 0) for kind in FOR_A_PERSON)
        return found + self.wrong + len(self.anew) + self.left


# Authority, apart from delivery.


async def delivered(record: Record, run: Run, name: str, after: Cursor) -> Cursor | None:
    """Note a page of the releases that happened under an action that is stopped by now.

    ``name`` is the stop's, ``type`` or ``type/action``. Where the next page begins; None: at the
    end. Raises as ``make_ready`` does.
    """
    kind, _, action = name.partition("/")

    async def step() -> Cursor | None:
        ready = await make_ready(record)
        statement = reconciled.read_delivered(run.generation, kind, action or None, after, PAGE)
        found, now = await ready.store.read([statement, works.READ_NOW])
        rows, spoiled = reconciled.page_of(found)
        for identity in spoiled:
            LOGGER.error("work %s cannot be read", identity)
        if not rows:
            return None
        kept = [_delivered(record, ready, run, row, now[0][0]) for _, row in rows]
        await write_ready(record, ready, [reconciled.write(kept)])
        number, last = rows[-1]
        return (last.entity or "", number)

    return await steadily(record, step)


def _delivered(record: Record, ready: Ready, run: Run, row: Work, now: str) -> Found:
    judged = Judgement(Finding.DELIVERED, row.step)
    evidence = evidence_of(record, row, judged)
    authority = stopped_action(row, ready.control.holds)
    return Found(row.id, run.generation, str(Finding.DELIVERED), now, evidence, authority)


async def stops(record: Record) -> list[str]:
    """The stops of types and actions that are in force."""
    return sorted((await record.current_control(await record.look())).holds)


async def record_wrongs(
    record: Record, run: Run, after: str, principal: str | None = None
) -> tuple[int, str | None]:
    """Record a page of the releases that were made without authority as incidents.

    One that was never committed is none. How many were recorded, and where the next page begins.
    """

    async def step() -> tuple[int, str | None]:
        ready = await make_ready(record)
        wanted = reconciled.read_found(run.generation, None, after, PAGE, wrong=True)
        page = reconciled.found_of((await ready.store.read([wanted]))[0])
        recorded = 0
        for found in page:
            try:
                row = await read_row(record, found.id)
                if row.committed is None or row.incident is not None:
                    continue
                reason = f"without authority: {found.authority}"
                await record_incident(record, row.id, note(reason), principal)
            except (Refusal, NotFound) as error:
                LOGGER.warning("%s: its incident is not recorded: %s", found.id, error.detail)
            else:
                recorded += 1
        return recorded, page[-1].id if page else None

    return await steadily(record, step)


# Observations that fit nothing.


async def strays(record: Record, run: Run, after: int) -> int | None:
    """Note a page of the observations that fit no release, or contradict how one has ended.

    Where the next page begins; None: at the end.
    """

    async def step() -> int | None:
        ready = await make_ready(record)
        entries = await record.journal().stream(OBSERVATIONS, after, _PAGE)
        if not entries:
            return None
        observed = [one for entry in entries if (one := observation_of(entry)) is not None]
        wanted = works.read_work({one.release for one in observed})
        found, now = await ready.store.read([wanted, works.READ_NOW])
        rows = {row.id: row for row in works.rows_of(found)}
        kept = {
            one.release: _stray(run, one, rows.get(one.release), kind, now[0][0])
            for one in observed
            if (kind := _kind_of(one, rows.get(one.release))) is not None
        }
        if kept:
            await write_ready(record, ready, [reconciled.write([*kept.values()])])
        return entries[-1].sequence

    return await steadily(record, step)


def _kind_of(observed: Observed, row: Work | None) -> Finding | None:
    if row is None:
        return Finding.ORPHAN
    undone = row.over and row.status != Status.DONE
    return Finding.CONTRADICTED if undone and observed.outcome == Outcome.CONFIRMED else None


def _stray(run: Run, one: Observed, row: Work | None, kind: Finding, now: str) -> Found:
    why = f"observed: {one.outcome}: {one.evidence or one.why}"
    if row is not None:
        why = f"it is {row.status}, yet {why}"
    evidence = Evidence(
        note(why),
        None if row is None else row.entity,
        None if row is None else row.lane,
        None if row is None else row.receiver,
        one.receipt,
    )
    return Found(one.release, run.generation, str(kind), now, evidence)


# The end.


async def close(
    record: Record, run: Run, whole: bool, incidents: int = 0, principal: str | None = None
) -> Reconciled:
    """Say what was found; note in control that this generation is reconciled, once it is.

    ``whole`` says that nothing was left out. Counts and the digest of all findings are journalled.
    Raises as ``make_ready`` does.
    """

    async def step() -> Reconciled:
        ready = await make_ready(record)
        done = await _summary(record, ready, run, incidents, whole=whole)
        if done.complete:
            await _note(record, ready.control, done, principal)
        return done

    return await steadily(record, step)


async def _summary(
    record: Record, ready: Ready, run: Run, incidents: int, *, whole: bool
) -> Reconciled:
    generation = run.generation
    counted, left, mute = await ready.store.read(
        [
            reconciled.count(generation),
            reconciled.count_left(generation, run.began, generation << GENERATION_BITS),
            reconciled.count_unreachable(generation),
        ]
    )
    counts = {found: number for found, number, _ in counted}
    undone = (await announced(record, generation)).undone
    return Reconciled(
        generation=generation,
        complete=whole and not left[0][0] and not counts.get(Finding.UNREACHABLE),
        left=left[0][0],
        counts=counts,
        unreachable={receiver or "": number for receiver, number in mute},
        wrong=sum(wrong for _, _, wrong in counted),
        incidents=incidents,
        unresolved=await _some(ready, generation, UNRESOLVED, counts),
        authority=await _page(ready, generation, None, wrong=True),
        strange=await _some(ready, generation, _STRANGE, counts),
        anew=[
            UndoneApproval(item.entity, item.version, item.action, item.operation, item.releases)
            for item in undone
            if item.permits
        ],
        restored=await _restored(record, generation),
        digest=await _digest(ready, generation),
    )


_STRANGE = (Finding.ORPHAN, Finding.CONTRADICTED, Finding.REMOVED)


async def _page(
    ready: Ready, generation: int, kind: Finding | None, *, wrong: bool = False
) -> list[Found]:
    found = None if kind is None else str(kind)
    wanted = reconciled.read_found(generation, found, "", LISTED, wrong=wrong)
    return reconciled.found_of((await ready.store.read([wanted]))[0])


async def _some(
    ready: Ready, generation: int, kinds: Sequence[Finding], counts: Mapping[str, int]
) -> list[Found]:
    listed: list[Found] = []
    for kind in kinds:
        if counts.get(kind) and len(listed) < LISTED:
            listed += await _page(ready, generation, kind)
    return listed[:LISTED]


async def _digest(ready: Ready, generation: int) -> str:
    """SHA-256 over the lines `release, tab, finding` in the order of the releases' IDs."""
    hashed = sha256()
    after = ""
    while True:
        wanted = reconciled.read_found(generation, None, after, _PAGE)
        page = reconciled.found_of((await ready.store.read([wanted]))[0])
        if not page:
            return hashed.hexdigest()
        hashed.update("".join(f"{one.id}\t{one.found}\n" for one in page).encode())
        after = page[-1].id


async def _restored(record: Record, generation: int) -> int | None:
    """How many decisions the store lacked when the first apply of a generation began."""
    for row in await record.journal().control():
        envelope = row.entry().envelope
        if (envelope.entity, envelope.action) == (TENANT, ANNOUNCED) and (
            envelope.generation == generation
        ):
            missing: int = msgspec.json.decode(row.body)["missing"]
            return missing
    return None


async def _note(record: Record, control: Control, done: Reconciled, principal: str | None) -> None:
    """The control entry that ends a reconciliation; none where one says the same already."""
    for row in reversed(await record.journal().control()):
        envelope = row.entry().envelope
        if envelope.action == RECONCILED and envelope.entity == TENANT:
            same = envelope.generation == done.generation
            if same and msgspec.json.decode(row.body).get("digest") == done.digest:
                return
            break
    facts: dict[str, Any] = {
        "reason": control.reason,
        "verdict": control.verdict,
        "counts": done.counts,
        "wrong": done.wrong,
        "digest": done.digest,
    }
    if control.opening is not None:
        facts["opening"] = msgspec.to_builtins(control.opening)
    await change_control(
        record,
        RECONCILED,
        lambda now: now.authority,
        facts,
        principal=principal,
        unless=lambda now: now.begun is not None or now.authority.generation != done.generation,
    )


class FindingPage(Struct, frozen=True):
    """Findings in the order of their releases' IDs; ``next`` is null at the end."""

    items: list[Found]
    next: str | None


async def read_findings(
    record: Record, generation: int | None, kind: str | None, after: str | None, limit: int | None
) -> FindingPage:
    """A page of what a generation's reconciliation found; of the one in force if None.

    Raises Invalid for a cursor or limit that is none, Recovering without a readable store.
    """
    size = clamp(limit)
    start = "" if after is None else str(decode_cursor(after, tuple[str])[0])
    if record.store is None:
        raise Recovering("the store is missing or unreadable")
    if generation is None:
        generation = (await record.current_control(await record.look())).authority.generation
    wanted = reconciled.read_found(generation, kind, start, size)
    try:
        items = reconciled.found_of((await record.store.read([wanted]))[0])
    except FileChanged:
        raise
    except EngineError as error:
        raise JournalUnavailable(f"the store cannot be read: {error}") from error
    return FindingPage(items, encode_cursor(items[-1].id) if len(items) == size else None)


def is_for_a_person(found: Found) -> bool:
    """Whether somebody has to look at a finding."""
    return found.found in {*map(str, FOR_A_PERSON)} or found.authority is not None
