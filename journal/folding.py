"""Folding: from decisions to rows of work.

Pure, and the same at acceptance and at a replay, so a replay of the decisions gives the releases
again. Only leases, steps and attempts are the store's own and are lost with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from journal.entry import Entry, Release
from journal.errors import Invalid
from journal.lanes import Effect, Lane
from journal.lifecycle import RELEASE_ACTIONS, Command, Lifecycle, Mode
from journal.release import (
    Report,
    Rules,
    command_id,
    is_report,
    read_due,
    read_weight,
    report_of,
)
from journal.work import NOBODY, Status, Work, after_seconds, finish, note


def fold(rows: Mapping[str, Work], entry: Entry, data: bytes, rules: Rules) -> dict[str, Work]:
    """The rows that a decision makes or changes, out of those of its entity and its releases.

    The same at acceptance and at a replay. A replay judges nothing: a report on a release that
    ``rows`` lack changes nothing.
    """
    envelope = entry.envelope
    if is_report(envelope.action, envelope.body.type):
        return _fold_report(rows, entry)
    kind = envelope.entity.partition("/")[0]
    lifecycle = rules.lifecycles.get(kind)
    if lifecycle is None:
        return {}
    action = lifecycle.actions.get(envelope.action)
    commands: tuple[Command, ...] = () if action is None else action.commands
    if not (rows or commands or envelope.releases):
        return {}
    changed = _withdraw(rows, entry, lifecycle)
    fields: dict[str, Any] = {}
    # What another version of the lifecycle asked for cannot be told from this one.
    doubtful = envelope.lifecycle != lifecycle.version
    if envelope.releases or commands:
        fields = msgspec.json.decode(data)
    for release in envelope.releases:
        known = changed.get(release.id) or rows.get(release.id)
        if known is None or (known.status == Status.CANCELLED and known.committed is None):
            place = len(changed)
            changed[release.id] = _permission(release, entry, data, fields, rules, place)
        elif known.cancel_requested and not known.over:
            # Permitted anew while it is under way: what was asked for before holds no more.
            changed[release.id] = msgspec.structs.replace(known, cancel_requested=0)
    for place, command in enumerate(commands):
        identity = command_id(envelope.tenant, envelope.operation, place, command.name)
        lane = rules.lanes.get(command.lane)
        if lane is not None and identity not in rows:
            made = Work(
                id=identity,
                lane=command.lane,
                effect=str(lane.effect),
                name=command.name,
                status=str(Status.READY),
                entity=envelope.entity,
                revision=envelope.revision,
                sequence=envelope.sequence or 0,
                place=place,
                operation=envelope.operation,
                version=envelope.version,
                receiver=lane.receiver,
                recipient=None,
                digest=None,
                corrects=None,
                data=data.decode(),
                weight=1.0,
                due=_due(command, lane, envelope.recorded),
                created=envelope.recorded,
                step="accepted: waits to be picked up",
                owner=lane.owner,
            )
            changed[identity] = _in_doubt(made, envelope.lifecycle) if doubtful else made
    return changed


def _in_doubt(row: Work, version: str) -> Work:
    """A command of a decision that another version of the lifecycle judged: for a person to see."""
    return msgspec.structs.replace(
        row,
        status=str(Status.DEAD),
        due=None,
        maybe=1,
        step=note(f"its decision was judged by lifecycle version {version}: is it still wanted?"),
    )


def _due(command: Command, lane: Lane, recorded: str) -> str:
    """At once, or when the request that is to run it must have ended without doing so."""
    return after_seconds(recorded, lane.lease) if command.mode is Mode.SYNC else recorded


def _withdraw(rows: Mapping[str, Work], entry: Entry, lifecycle: Lifecycle) -> dict[str, Work]:
    """What a decision takes back: releases of another version, or all once it withdraws."""
    envelope = entry.envelope
    withdrawn = envelope.outcome.state in lifecycle.withdrawn
    changed: dict[str, Work] = {}
    for row in rows.values():
        if row.entity != envelope.entity or row.effect != Effect.EXTERNAL or row.over:
            continue
        superseded = envelope.version is not None and envelope.version != row.version
        if not withdrawn and not superseded:
            continue
        if row.status == Status.READY:
            why = (
                f"withdrawn: {envelope.action} at revision {envelope.revision}"
                if withdrawn
                else f"superseded: version {envelope.version} at revision {envelope.revision}"
            )
            changed[row.id] = finish(row, Status.CANCELLED, envelope.recorded, why)
        else:
            # What is under way may still happen; no further attempt of it is begun.
            changed[row.id] = msgspec.structs.replace(row, cancel_requested=1)
    return changed


def _permission(
    release: Release,
    entry: Entry,
    data: bytes,
    fields: dict[str, Any],
    rules: Rules,
    place: int,
) -> Work:
    envelope = entry.envelope
    lane = rules.lanes.get(release.lane, Lane())
    due, weight = None, 1.0
    try:
        due, weight = read_due(fields, lane.due), read_weight(fields, lane.weight)
    except Invalid:
        # A lane declared anew reads other fields; the permission stands as it was given.
        due = None
    return Work(
        id=release.id,
        lane=release.lane,
        effect=str(Effect.EXTERNAL),
        name=envelope.action,
        status=str(Status.READY),
        entity=envelope.entity,
        revision=envelope.revision,
        sequence=envelope.sequence or 0,
        place=place,
        operation=envelope.operation,
        version=release.version,
        receiver=release.receiver,
        recipient=release.recipient,
        digest=release.digest,
        corrects=release.corrects,
        data=data.decode(),
        weight=weight,
        due=due or envelope.recorded,
        created=envelope.recorded,
        step="permitted: waits for its commitment",
        owner=lane.owner,
    )


def _fold_report(rows: Mapping[str, Work], entry: Entry) -> dict[str, Work]:
    report = report_of(entry.body)
    row = rows.get(report.release)
    if row is None:
        return {}
    return {row.id: after_report(row, entry.envelope.action, report, entry.envelope.recorded)}


def after_report(row: Work, action: str, report: Report, now: str) -> Work:
    """The row after something became of its release."""
    what = action.removeprefix(RELEASE_ACTIONS)
    row = msgspec.structs.replace(
        row,
        receipt=report.receipt or row.receipt,
        last_error=report.evidence if what in _FAILED and report.evidence else row.last_error,
    )
    match what:
        case "committed":
            return msgspec.structs.replace(
                row,
                status=str(Status.RUNNING),
                committed=row.committed or now,
                claimed=now,
                started=None,
                heartbeat=None,
                claim=None,
                lease=report.lease or row.lease,
                worker=report.worker,
                execution=report.execution,
                attempts=row.attempts + 1,
                # Whoever reads this after a crash, or a replay, must assume the worst.
                maybe=1,
                sweep_at=now,
                due=None,
                step="committed; how far its attempt got is not known here",
            )
        case "confirmed":
            return finish(msgspec.structs.replace(row, maybe=0), Status.DONE, now, report.evidence)
        case "refused":
            row = msgspec.structs.replace(row, maybe=0)
            return finish(row, Status.REFUSED, now, report.evidence)
        case "cancelled":
            return finish(row, Status.CANCELLED, now, report.evidence)
        case "drained":
            return finish(row, Status.DRAINED, now, report.evidence)
        case "unknown":
            status = Status.DEAD if report.dead else Status.UNKNOWN
            return msgspec.structs.replace(
                row,
                status=str(status),
                maybe=int(report.maybe),
                failures=row.failures + int(report.ended and report.dead),
                # No call of the attempt left us later than this: one that has ended may have been
                # held up since its step.
                started=now if report.ended else row.started or now,
                sweep_at=None,
                due=now if report.ask and not report.dead else None,
                worker=None if report.ended else _worker_of(row, report),
                step=note(f"{status} after: {row.step}"),
            )
        case "replayed":
            return msgspec.structs.replace(
                row,
                status=str(Status.RETRY),
                due=now,
                failures=0,
                expired=0,
                step="replayed: waits to be picked up",
            )
        case "cancel-requested":
            return msgspec.structs.replace(row, cancel_requested=1)
        case "incident":
            return msgspec.structs.replace(row, incident=report.evidence)
        case _:
            return row


def _worker_of(row: Work, report: Report) -> str | None:
    """Who may still be at an attempt: nobody can tell after one that the journal may have lost."""
    return NOBODY if report.worker == NOBODY else row.worker


_FAILED = frozenset({"refused", "unknown"})
