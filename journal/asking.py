"""Asking: what receivers are to be asked about, and what follows from their answers.

An answer of the receiver is the authority on an outcome; callbacks and elapsed time only say when
to ask.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.errors import NotFound
from journal.lifecycle import RELEASE_ACTIONS
from journal.outcomes import Change, Decide, Put, Reported, Told, after_answer
from journal.record import Record
from journal.release import Report
from journal.reports import Reception, apply, lane_of, read_row, terms, write_ready
from journal.settings import Settings, scheme_of
from journal.standing import LOGGER
from journal.store import work as works
from journal.work import ASKABLE, Status, Work, note, seconds_since
from journal.writepath import make_ready

_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Question(Struct, frozen=True):
    """A release about which its receiver is to be asked: up to which attempt, and since when."""

    id: str
    receiver: str
    digest: str | None
    attempt: int
    asked: str


async def to_ask(record: Record, lane: str, limit: int) -> list[Question]:
    """The releases of a lane about which to ask now; nobody else asks about them for a while."""
    receiver = lane_of(record, lane).receiver
    declared = None if receiver is None else record.settings.receiver.get(receiver)
    if declared is None or declared.status_url is None:
        return []
    with record.lock.held():
        ready = await make_ready(record)
        found, now = await ready.store.read([works.read_askable(lane, limit), works.READ_NOW])
        rows, spoiled = works.readable_of(found)
        ids = [*(row.id for row in rows), *spoiled]
        if ids:
            await write_ready(record, ready, [works.postpone(ids, declared.poll)])
    for identity, why in spoiled.items():
        LOGGER.error("work %s of lane %s cannot be read: %s", identity, lane, why)
    return [
        Question(row.id, row.receiver or "", row.digest, row.attempts, now[0][0]) for row in rows
    ]


async def take_answer(
    record: Record,
    told: Told,
    said: Reported,
    idle: str | None = None,
    question: Question | None = None,
) -> Reception | None:
    """Take in what the receiver said; None when the release has ended or has moved on since.

    ``idle`` is the worker that asked, where it is at no work on this release itself. An answer
    tells about the attempts up to that of its ``question``, and about the time when it was asked:
    one that was held up on its way must not be taken for an answer about a later attempt.
    """
    with record.lock.held():
        ready = await make_ready(record)
        row = await read_row(record, said.id)
        if row.status not in ASKABLE or (question and question.attempt != row.attempts):
            return None
        receiver = record.settings.receiver.get(row.receiver or "")
        if receiver is None:
            raise NotFound(f"there is no receiver {row.receiver}", receiver=row.receiver)
        now: str = (await ready.store.read([works.READ_NOW]))[0][0][0]
        found = terms(record, row.lane)
        change: Change
        if told is Told.NOT_FOUND and seconds_since(row.committed, now) >= found.window:
            told, change = Told.UNKNOWN, forgotten(row, said)
        else:
            wait = max(receiver.poll, said.retry_after or 0.0)
            if told is Told.NOT_FOUND and row.worker is not None and _is_over(record, row, idle):
                row = _ended(row, now)
            asked = now if question is None else question.asked
            over = row.worker is None
            change = after_answer(row, told, said, found, now, wait, over=over, asked=asked)
        identity = f"{row.id}/{told}/asked-{row.attempts}"
        return await apply(record, ready, row, change, None, identity)


def _is_over(record: Record, row: Work, idle: str | None) -> bool:
    """Whether an attempt is proven to have ended on our side: nobody can make its call any more."""
    worker = row.worker or ""
    return worker == idle or is_dead(worker) or is_of_earlier_boot(worker, record.settings)


def _ended(row: Work, now: str) -> Work:
    """The row of an attempt whose end was proven now.

    When it made its call is not known: it may have been stopped for long between its step and its
    call. So the receiver's time for it is counted from here.
    """
    return msgspec.structs.replace(row, worker=None, started=now)


def forgotten(row: Work, said: Reported) -> Change:
    """What follows when the receiver knows nothing of a release any more: its window is over.

    That proves nothing, so nobody asks on: it waits for its owner.
    """
    evidence = f"{said.evidence or 'not found'}: its window is over, which proves nothing"
    if row.status == Status.UNKNOWN:
        return Put(msgspec.structs.replace(row, due=None, last_error=note(evidence)))
    report = Report(
        release=row.id,
        worker=row.worker,
        execution=row.execution,
        evidence=note(evidence),
        maybe=True,
    )
    return Decide(f"{RELEASE_ACTIONS}unknown", report)


def worker_name(kind: str) -> str:
    """A name for this process as a worker, from which ``is_dead`` tells whether it still lives."""
    return f"{kind}:{place()}:{os.getpid()}"


def is_dead(worker: str) -> bool:
    """Whether the process that made an attempt is proven dead. A remote one never is."""
    parts = worker.rsplit(":", 2)
    if len(parts) != 3 or parts[1] != place() or not parts[2].isdigit():  # noqa: PLR2004 - kind:place:pid
        return False
    try:
        os.kill(int(parts[2]), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False


def is_of_earlier_boot(worker: str, settings: Settings) -> bool:
    """Whether a process ran before this machine's system was started.

    Known only where the store is a file: nothing but this system has that open, so what another one
    ran is over. On a server's store it may run elsewhere.
    """
    if scheme_of(settings.store) is not None or settings.allow_network_filesystem:
        return False
    parts = worker.rsplit(":", 2)
    where = parts[1].split("/") if len(parts) == 3 else []  # noqa: PLR2004 - kind:place:pid
    return len(where) == 3 and where[1] not in {"", _boot()}  # noqa: PLR2004 - host/boot/namespace


def place() -> str:
    """Where a process number means something: this host, its present run, its namespace.

    Machines may share a name, and containers that share one see different processes under one
    number.
    """
    host = os.uname().nodename.replace("/", "-")
    try:
        return f"{host}/{_boot()}/{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return host


@cache
def _boot() -> str:
    """The present run of this machine's system; empty where it does not say."""
    try:
        return _BOOT.read_text(encoding="ascii").strip()[:13]
    except (OSError, UnicodeDecodeError):
        return ""
