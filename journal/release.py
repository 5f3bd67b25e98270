"""Releases: what a decision permits, and which reports on it are taken.

Pure. A release is derived from decisions: the action that permits it, then `release.committed`
before the first attempt, then what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct

from journal.entry import MAX_INTEGER, MAX_STRING, Release, parse_time
from journal.errors import Invalid, LeaseLost, NotFound, TransitionRefused
from journal.lanes import Effect, Lane
from journal.lifecycle import RELEASE_ACTIONS, Action, Lifecycle
from journal.work import COMMITTED, Status, Work

REPORT_TYPE = "application/vnd.unrewind.release+json"
"""Media type of the bodies of `release.*` decisions; not JSON, so it merges into no data."""


class Rules(Struct, frozen=True):
    """What decisions are turned into work by."""

    tenant: str
    lifecycles: Mapping[str, Lifecycle]
    lanes: Mapping[str, Lane]


# What a decision permits.


def release_id(
    tenant: str,
    entity: str,
    version: str | None,
    action: str,
    lane: str,
    receiver: str | None,
    recipient: str | None,
) -> str:
    """The stable ID of a release: the same in every attempt, process and recovery.

    `rel_` and 160 bits of SHA-256 over the JSON array of its parts.
    """
    parts = [tenant, entity, version, action, lane, receiver, recipient]
    return "rel_" + sha256(msgspec.json.encode(parts)).hexdigest()[:40]


def command_id(tenant: str, operation: str, place: int, name: str) -> str:
    """The stable ID of a command that an operation asks for."""
    text = msgspec.json.encode([tenant, operation, place, name])
    return "cmd_" + sha256(text).hexdigest()[:40]


def permitted(
    rules: Rules,
    action: Action,
    name: str,
    entity: str,
    version: str | None,
    data: bytes,
    body: bytes,
) -> tuple[Release, ...]:
    """The releases that a decision permits, for its envelope. Raises Invalid.

    Recipient and digest are fields of the entity's ``data`` after the decision; what a corrective
    action corrects is named by its own ``body``.
    """
    if not action.releases:
        return ()
    fields: dict[str, Any] = msgspec.json.decode(data)
    corrects = _corrected(body) if action.corrects else None
    return tuple(
        _release(rules, lane, name, entity, version, fields, corrects) for lane in action.releases
    )


def _release(
    rules: Rules,
    name: str,
    action: str,
    entity: str,
    version: str | None,
    fields: dict[str, Any],
    corrects: str | None,
) -> Release:
    lane = rules.lanes[name]
    recipient = _text(fields, lane.recipient)
    read_due(fields, lane.due)
    read_weight(fields, lane.weight)
    identity = release_id(rules.tenant, entity, version, action, name, lane.receiver, recipient)
    return Release(
        corrects=corrects,
        digest=_hex(fields, lane.digest),
        id=identity,
        lane=name,
        receiver=lane.receiver,
        recipient=recipient,
        version=version,
    )


def _corrected(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        found = None
    corrects = found.get("corrects") if isinstance(found, dict) else None
    if not isinstance(corrects, str):
        raise Invalid(
            'a corrective action names the release that it corrects: {"corrects": "rel_…"}',
            field="body.corrects",
        )
    return corrects


def _text(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or (isinstance(value, str) and len(value.encode()) <= MAX_STRING):
        return value
    raise Invalid(f"{name} is not a string of at most {MAX_STRING} bytes", field=f"data.{name}")


def _hex(fields: dict[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is None or (
        isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")  # noqa: PLR2004 - SHA-256
    ):
        return value
    raise Invalid(f"{name} is not a SHA-256 in lowercase hex", field=f"data.{name}")


def read_due(fields: dict[str, Any], name: str) -> str | None:
    """When a release is due, as the entity's data says. Raises Invalid."""
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        raise Invalid(f"{name} is not an RFC 3339 time", field=f"data.{name}")
    return parse_time(f"data.{name}", value)


def read_weight(fields: dict[str, Any], name: str | None) -> float:
    """What a release weighs, as the entity's data says. Raises Invalid."""
    value = 1.0 if name is None else fields.get(name, 1.0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < MAX_INTEGER:
        raise Invalid(f"{name} is not a number above 0", field=f"data.{name}")
    return float(value)


# What became of it.


class Report(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The body of a `release.*` decision: which release, which claim, and on what evidence.

    ``lease`` is the claim that reports, None where unrewind itself learned it from the receiver or
    an operator decided. ``maybe`` says whether the attempt may have had its effect all the same,
    ``ask`` whether the receiver can be asked about it, ``ended`` whether the attempt has ended on
    our side because who made it says so. A repair gives its ``reason``, and the status that it
    ``expected`` to find: in any other it is refused.
    """

    release: str
    lease: int | None = None
    worker: str | None = None
    execution: str | None = None
    evidence: str | None = None
    receipt: str | None = None
    digest: str | None = None
    dead: bool = False
    maybe: bool = False
    ask: bool = False
    ended: bool = False
    reason: str | None = None
    expected: str | None = None


_encode_report = msgspec.json.Encoder().encode
_decode_report = msgspec.json.Decoder(Report).decode


def body_of(report: Report) -> bytes:
    """The report as a decision's body."""
    return _encode_report(report)


def report_of(body: bytes) -> Report:
    """The report of a `release.*` decision. Raises Invalid."""
    try:
        return _decode_report(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Invalid(f"not a report on a release: {error}", field="body") from None


def is_report(action: str, body_type: str) -> bool:
    """Whether a decision says what became of a release."""
    return body_type == REPORT_TYPE and action.startswith(RELEASE_ACTIONS)


_FROM: Mapping[str, frozenset[Status]] = {
    "committed": frozenset({Status.READY, Status.RETRY}),
    "confirmed": COMMITTED,
    "refused": COMMITTED,
    # From ready only where a commitment may be lost: a reconciliation after an accepted loss.
    "unknown": frozenset(
        {Status.READY, Status.RUNNING, Status.RETRY, Status.PENDING, Status.UNKNOWN}
    ),
    "cancelled": frozenset(
        {Status.READY, Status.RUNNING, Status.RETRY, Status.PENDING, Status.UNKNOWN}
    ),
    "replayed": frozenset({Status.DEAD, Status.UNKNOWN}),
    "drained": frozenset({Status.DEAD}),
    "cancel-requested": COMMITTED,
    "incident": frozenset(Status),
}
"""From which statuses a release can come to each outcome."""


def check_report(action: str, report: Report, row: Work | None, withdrawn: bool) -> Work:
    """Refuse a report that the release's row contradicts; the row.

    ``withdrawn`` says that the entity's state holds everything back. Raises NotFound,
    TransitionRefused, or LeaseLost when another claim has been made since.
    """
    what = action.removeprefix(RELEASE_ACTIONS)
    if row is None or row.effect != Effect.EXTERNAL:
        raise NotFound(f"there is no release {report.release}", release=report.release)
    if report.expected is not None and row.status != report.expected:
        raise TransitionRefused(
            f"release {row.id} is {row.status}, not {report.expected} as this repair expects: look "
            "at it again",
            release=row.id,
            work_status=row.status,
        )
    allowed = _FROM.get(what)
    if allowed is None:
        raise Invalid(f"a release knows no {action}", field="action")
    if row.status not in allowed:
        raise TransitionRefused(
            f"release {row.id} is {row.status}, from which nothing leads to {what}",
            release=row.id,
            work_status=row.status,
        )
    if what == "committed":
        if withdrawn or row.cancel_requested:
            raise TransitionRefused(
                f"release {row.id}: its entity is withdrawn, or its cancellation was requested",
                release=row.id,
                work_status=row.status,
            )
    elif report.lease is not None and report.lease != row.lease:
        raise LeaseLost(
            f"release {row.id}: claim {report.lease} has ended, the newest is {row.lease}",
            release=row.id,
            work_status=row.status,
        )
    if what == "cancelled" and row.status != Status.READY and report.maybe:
        raise TransitionRefused(
            f"release {row.id} may have happened: it cannot be cancelled",
            release=row.id,
            work_status=row.status,
        )
    return row
