"""Replaying work: the rows of releases and commands that replayed decisions lead to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from journal.acceptance import Decision
from journal.errors import Refused
from journal.folding import fold
from journal.lanes import Effect
from journal.lifecycle import Lifecycle
from journal.record import Record
from journal.release import is_report
from journal.sql import Rows
from journal.store import work as works
from journal.work import Status, Work
from reconstruct.cut_releases import cuts_at, dropped_by, settled


def check_declared(lifecycles: Mapping[str, Lifecycle], decisions: Iterable[Decision]) -> None:
    """Refuse to forget releases: what their entity's type takes back only its lifecycle tells.

    Raises Refused naming the type that is declared no more.
    """
    for decision in decisions:
        envelope = decision.entry.envelope
        kind = envelope.entity.partition("/")[0]
        if kind in lifecycles:
            continue
        if envelope.releases or is_report(envelope.action, envelope.body.type):
            raise Refused(
                f"{envelope.entity} has releases, and its type is not declared here: recover with "
                f"the configuration that declares [lifecycle.{kind}]",
                entity_type=kind,
            )


async def work_of(
    record: Record, decisions: Sequence[Decision], *, anew: bool = False
) -> list[Rows]:
    """The rows of work that these decisions make and change, for the batch that replays them.

    A release that was committed and has no outcome comes back as in progress, its time over: the
    sweeper finds out what may be done about it. A command comes back waiting, and is run at least
    once more; ``anew`` says that an entity is rebuilt from its first decision: then a command that
    the store lacks becomes a dead letter, for nobody knows whether it ran, perhaps years ago.
    """
    working = {kind for kind, lifecycle in record.lifecycles.items() if lifecycle.works}
    concerned = [decision for decision in decisions if _has_work(working, decision)]
    if not concerned:
        return []
    if record.store is None:
        raise Refused("the store went away during the recovery")
    entities = {decision.entry.envelope.entity for decision in concerned}
    found = (await record.store.read([works.read_all_of(entities)]))[0]
    before = {row.id: row for row in works.rows_of(found)}
    by_entity: dict[str, dict[str, Work]] = {entity: {} for entity in entities}
    for row in before.values():
        by_entity[row.entity or ""][row.id] = row
    changed: dict[str, Work] = {}
    cuts = await cuts_at(record)
    for decision in concerned:
        rows = by_entity[decision.entry.envelope.entity]
        after = fold(rows, decision.entry, decision.data, record.rules)
        rows.update(after)
        changed.update(after)
        cut = cuts.get(decision.entry.digest)
        if cut is not None:
            after = settled(record, rows, cut, await dropped_by(record, cut))
            rows.update(after)
            changed.update(after)
    now = record.clock.now()
    changed = {identity: _cut_off(row, now) for identity, row in changed.items()}
    if anew:
        changed = {
            identity: row if identity in before else _in_doubt(row)
            for identity, row in changed.items()
        }
    return [works.write_work([*changed.values()])] if changed else []


def _has_work(working: Collection[str], decision: Decision) -> bool:
    envelope = decision.entry.envelope
    if envelope.releases or is_report(envelope.action, envelope.body.type):
        return True
    return bool(working) and envelope.entity.partition("/")[0] in working


def _cut_off(row: Work, now: str) -> Work:
    """An attempt whose end is not journalled may have begun until the recovery stopped it."""
    return msgspec.structs.replace(row, started=now) if row.status == Status.RUNNING else row


def _in_doubt(row: Work) -> Work:
    if row.effect == Effect.EXTERNAL:
        return row
    return msgspec.structs.replace(
        row,
        status=str(Status.DEAD),
        due=None,
        maybe=1,
        step="rebuilt from the journal: it may have run before",
    )
