"""The report of a recovery: what was done, by whom, how long it took, and what is left.

Everything in it is read from where it was journalled or found; it changes nothing, and may be asked
for at any time, during a recovery too.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from journal import accounts
from journal.accounts import Account
from journal.control import ABANDONED, REBASE, RECONCILED, TENANT, Control, Stage
from journal.entry import Envelope
from journal.errors import EngineError, FileChanged, NotFound
from journal.feed import MAX_PAGE
from journal.log import Row
from journal.record import Record
from journal.settings import Objective
from journal.sql import Result, Statement
from journal.store import accounts as books
from journal.store import reconciled
from journal.store.reconciled import Found
from reconstruct.announcing import ANNOUNCED
from reconstruct.judging import FOR_A_PERSON

LISTED = 100
"""How many of each list a report names; the commands that it points to list them all."""

_BEGINS = frozenset({"begin", REBASE})
_KEPT = ("verdict", "plan", "passed", "despite", "missing", "opening", "counts", "evidence", "loss")


class Step(Struct, frozen=True):
    """One step as it was journalled; ``seconds`` since the interruption began."""

    at: str
    seconds: float
    action: str
    stage: str
    principal: str | None
    reason: str
    facts: dict[str, Any]


class Dropped(Struct, frozen=True):
    """A history that was abandoned, with the acknowledged decisions that went with it."""

    entity: str
    at: str
    reason: str
    evidence: str
    through: int
    dropped: tuple[str, ...]
    principal: str | None


class Measured(Struct, frozen=True):
    """A time against its objective, in seconds; an objective of 0 is none.

    ``seconds`` is None while it still runs, ``met`` None without an objective or while it can
    still be met.
    """

    seconds: float | None
    objective: float
    met: bool | None


class Backlog(Struct, frozen=True):
    """What waited when the tenant decided again.

    ``left`` has not ended, ``with_people`` waits for somebody to find out, with an owner and a
    deadline of its own: that is no backlog.
    """

    waited: int
    left: int
    with_people: int


class RecoveryReport(Struct, frozen=True):
    """The report of one recovery.

    The interruption began at ``started``: when the tenant closed, or when the recovery began.
    ``safe`` runs from there until decisions were taken again, ``drained`` until everything that
    waited then had ended. ``lost`` counts acknowledged decisions that are decisions no more, None
    where nobody can count them.
    """

    tenant: str
    generation: int
    history: str
    parent: str | None
    started: str
    reason: str
    verdict: str | None
    evidence: list[dict[str, Any]]
    steps: list[Step]
    plan: str | None
    replayed: int | None
    undone: int | None
    undone_operations: list[str]
    incomplete: list[str]
    findings: dict[str, int]
    to_look_at: list[Found]
    wrong: list[Found]
    abandoned: list[Dropped]
    loss: dict[str, Any] | None
    stage: str
    safe: Measured
    drained: Measured
    backlog: Backlog | None
    lost: int | None
    lost_objective: int
    unresolved: int
    overdue: int
    oldest: list[Account]

    @property
    def fine(self) -> bool:
        """Whether the tenant is open, within its objectives, and nothing is overdue."""
        return (
            self.stage == Stage.OPEN
            and self.safe.met is not False
            and self.drained.met is not False
            and self.lost is not None
            and self.lost <= self.lost_objective
            and not self.overdue
        )


class _Entry(Struct):
    row: Row
    envelope: Envelope
    facts: dict[str, Any]


async def report(record: Record, generation: int | None = None) -> RecoveryReport:
    """The report of the recovery that gave this generation, of the newest one if None.

    Raises NotFound where there was none, JournalUnavailable or ControlUnreadable.
    """
    control = await record.current_control(await record.look())
    entries = [_Entry(row, row.entry().envelope, {}) for row in await record.journal().control()]
    for entry in entries:
        if entry.envelope.entity == TENANT or entry.envelope.entity.startswith(ABANDONED):
            entry.facts = msgspec.json.decode(entry.row.body)
    known = [entry.envelope.generation for entry in entries if entry.envelope.action in _BEGINS]
    if not known:
        raise NotFound("there was no recovery yet")
    wanted = max(known) if generation is None else generation
    if wanted not in known:
        raise NotFound(
            f"no recovery gave generation {wanted}; there were: "
            f"{', '.join(map(str, sorted(set(known))))}"
        )
    return await _report(record, control, entries, wanted)


async def _report(
    record: Record, control: Control, entries: Sequence[_Entry], generation: int
) -> RecoveryReport:
    own, closed = _of_generation(entries, generation)
    first = (closed or own[0]).envelope.recorded
    steps = [_step(entry, first) for entry in ([closed] if closed else []) + own]
    tenant = [entry for entry in own if entry.envelope.entity == TENANT]
    started = next((entry for entry in tenant if entry.envelope.action == "history"), None)
    announced = [entry.facts for entry in tenant if entry.envelope.action == ANNOUNCED]
    counted = [entry.facts for entry in tenant if entry.envelope.action == RECONCILED]
    loss = next((entry.facts.get("loss") for entry in tenant if "loss" in entry.facts), None)
    newest = generation == control.authority.generation
    decided = next((entry for entry in tenant if _decides(entry)), None)
    objective = record.settings.objective
    dropped = [_dropped(entry) for entry in own if entry.envelope.entity.startswith(ABANDONED)]
    backlog, drained = await _drained(record, decided, objective, first)
    left = await _left(record) if newest else _Left(0, 0, [])
    flawed = sorted(await record.journal().flawed()) if newest else []
    return RecoveryReport(
        tenant=control.tenant,
        generation=generation,
        history=tenant[-1].envelope.history,
        parent=None if started is None else started.facts.get("parent"),
        started=first,
        reason=str(own[0].facts.get("reason", "")),
        verdict=own[0].facts.get("verdict"),
        evidence=_evidence(tenant),
        steps=steps,
        plan=None if started is None else started.facts.get("plan"),
        replayed=announced[0].get("missing") if announced else None,
        undone=_undone(announced),
        undone_operations=_undone_operations(announced),
        incomplete=flawed[:LISTED],
        findings=counted[-1].get("counts", {}) if counted else {},
        to_look_at=await _to_look_at(record, generation),
        wrong=await _found(record, reconciled.read_found(generation, None, "", LISTED, wrong=True)),
        abandoned=dropped,
        loss=loss,
        stage=str(_stage(record, control) if newest else tenant[-1].envelope.outcome.state),
        safe=_safe(decided, objective, first, record.clock.now()),
        drained=drained,
        backlog=backlog,
        lost=_lost(loss, dropped, own),
        lost_objective=objective.lost,
        unresolved=left.count,
        overdue=left.overdue,
        oldest=left.oldest,
    )


def _of_generation(
    entries: Sequence[_Entry], generation: int
) -> tuple[list[_Entry], _Entry | None]:
    """The entries of a recovery, and the one that closed the tenant before it began."""
    begins = next(
        place
        for place, entry in enumerate(entries)
        if entry.envelope.generation == generation and entry.envelope.action in _BEGINS
    )
    own = [
        entry
        for entry in entries[begins:]
        if entry.envelope.generation == generation
        and (entry.envelope.entity == TENANT or entry.envelope.entity.startswith(ABANDONED))
    ]
    closed = None
    for entry in reversed(entries[:begins]):
        if entry.envelope.entity != TENANT:
            continue
        if entry.envelope.action == "close":
            closed = entry
        break
    return own, closed


def _step(entry: _Entry, first: str) -> Step:
    envelope = entry.envelope
    facts = {key: entry.facts[key] for key in _KEPT if entry.facts.get(key) is not None}
    if envelope.entity.startswith(ABANDONED):
        facts = {"entity": entry.facts.get("entity"), "dropped": entry.facts.get("dropped")}
    return Step(
        at=envelope.recorded,
        seconds=_seconds(first, envelope.recorded),
        action=envelope.action,
        stage=envelope.outcome.state,
        principal=envelope.principal,
        reason=str(entry.facts.get("reason", "")),
        facts=facts,
    )


def _seconds(first: str, then: str) -> float:
    passed = datetime.fromisoformat(then) - datetime.fromisoformat(first)
    return round(passed.total_seconds(), 3)


def _decides(entry: _Entry) -> bool:
    """Whether decisions were taken from here on."""
    try:
        return entry.envelope.action == "reopen" and Stage(entry.envelope.outcome.state).decides
    except ValueError:
        return False


def _dropped(entry: _Entry) -> Dropped:
    facts = entry.facts
    return Dropped(
        entity=str(facts["entity"]),
        at=entry.envelope.recorded,
        reason=str(facts["reason"]),
        evidence=str(facts["evidence"]),
        through=int(facts["through"]),
        dropped=tuple(facts["dropped"]),
        principal=entry.envelope.principal,
    )


def _evidence(tenant: Sequence[_Entry]) -> list[dict[str, Any]]:
    """Where the evidence of each begin lies, with the hash of its manifest."""
    return [
        entry.facts["evidence"] for entry in tenant if isinstance(entry.facts.get("evidence"), dict)
    ]


def _undone(announced: Sequence[dict[str, Any]]) -> int | None:
    return max((int(facts.get("undo", 0)) for facts in announced), default=None)


def _undone_operations(announced: Sequence[dict[str, Any]]) -> list[str]:
    found: dict[str, None] = {}
    for facts in announced:
        for item in facts.get("undone", ()):
            found[str(item.get("operation"))] = None
    return [*found][:LISTED]


def _lost(
    loss: dict[str, Any] | None, dropped: Sequence[Dropped], own: Sequence[_Entry]
) -> int | None:
    """Acknowledged decisions that are decisions no more; None where nobody can count them."""
    named = sum(len(each.dropped) for each in dropped)
    for entry in own:
        for missing in entry.facts.get("missing", ()) if _drops(entry) else ():
            named += int(missing["count"])
    if loss is None:
        return named
    if not loss.get("known") or loss.get("parted"):
        return None
    spans = [(span["first"], span["last"]) for span in loss.get("decisions", ())]
    if any(last is None for _, last in spans):
        return None
    return named + sum(int(last) - int(first) + 1 for first, last in spans)


def _drops(entry: _Entry) -> bool:
    return entry.envelope.entity.startswith(ABANDONED)


def _stage(record: Record, control: Control) -> Stage:
    return Stage.CLOSED if record.stop.stands() else control.authority.stage


# Times.


def _safe(decided: _Entry | None, objective: Objective, first: str, now: str) -> Measured:
    seconds = None if decided is None else _seconds(first, decided.envelope.recorded)
    return _measured(seconds, objective.safe_within, _seconds(first, now))


def _measured(seconds: float | None, objective: float, so_far: float) -> Measured:
    if not objective:
        return Measured(seconds, objective, None)
    if seconds is not None:
        return Measured(seconds, objective, seconds <= objective)
    return Measured(None, objective, False if so_far > objective else None)


async def _drained(
    record: Record, decided: _Entry | None, objective: Objective, first: str
) -> tuple[Backlog | None, Measured]:
    within = objective.backlog_within
    so_far = _seconds(first, record.clock.now())
    if decided is None:
        return None, _measured(None, within, so_far)
    moment = decided.envelope.recorded
    rows = await _rows(record, books.read_backlog(moment))
    if rows is None:
        return None, _measured(None, within, so_far)
    waited, left, with_people, last = rows[0]
    seconds = None
    if not left:
        seconds = _seconds(first, max(last or moment, moment))
    return Backlog(waited, left, with_people), _measured(seconds, within, so_far)


# What the store adds.


async def _rows(record: Record, statement: Statement) -> Result | None:
    if record.store is None:
        return None
    try:
        return (await record.store.read([statement]))[0]
    except FileChanged:
        raise
    except EngineError:
        return None


async def _found(record: Record, statement: Statement) -> list[Found]:
    rows = await _rows(record, statement)
    return [] if rows is None else reconciled.found_of(rows)


async def _to_look_at(record: Record, generation: int) -> list[Found]:
    """Findings that somebody has to look at, the releases whose outcome is not known first."""
    found: list[Found] = []
    for kind in FOR_A_PERSON:
        if len(found) < LISTED:
            statement = reconciled.read_found(generation, str(kind), "", LISTED - len(found))
            found += await _found(record, statement)
    return found


class _Left(Struct):
    count: int
    overdue: int
    oldest: list[Account]


async def _left(record: Record) -> _Left:
    """Everything that is unresolved now, counted; the oldest by name."""
    left = _Left(0, 0, [])
    after: str | None = None
    while True:
        page = await accounts.read_unresolved(record, entity=None, after=after, limit=MAX_PAGE)
        left.count += len(page.items)
        left.overdue += sum(account.fate.overdue for account in page.items)
        left.oldest += page.items[: LISTED - len(left.oldest)]
        after = page.next
        if after is None:
            return left
