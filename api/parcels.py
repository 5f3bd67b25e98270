"""Parcels: what is sent for a permit, and what a reply says of its release. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from api.replies import Parcel, Reply, Result
from journal.outcomes import Outcome, Reported, Told
from journal.permits import Permit

_OUTCOMES: Mapping[Result, Outcome] = {
    Result.DONE: Outcome.CONFIRMED,
    Result.PENDING: Outcome.PENDING,
    Result.REFUSED: Outcome.REFUSED,
    Result.NOT_SENT: Outcome.FAILED,
    Result.LIMITED: Outcome.FAILED,
}
"""What a call's result says of its attempt; everything else may have happened."""

_TOLD: Mapping[Result, Told] = {
    Result.DONE: Told.DONE,
    Result.REFUSED: Told.REFUSED,
    Result.PENDING: Told.PENDING,
    Result.NOT_FOUND: Told.NOT_FOUND,
    Result.VOID: Told.VOID,
}
"""What the answer to a question says; everything else tells nothing."""


class Content(Struct, frozen=True):
    """The body of a call, the same bytes in every attempt of one release."""

    release: str
    tenant: str
    entity: str | None
    action: str
    operation: str | None
    version: str | None
    lane: str
    recipient: str | None
    digest: str | None
    corrects: str | None
    revision: int | None
    data: msgspec.Raw


def parcel_of(permit: Permit, tenant: str) -> Parcel:
    """What is sent for a permit."""
    content = Content(
        release=permit.id,
        tenant=tenant,
        entity=permit.entity,
        action=permit.name,
        operation=permit.operation,
        version=permit.version,
        lane=permit.lane,
        recipient=permit.recipient,
        digest=permit.digest,
        corrects=permit.corrects,
        revision=permit.revision,
        data=permit.data,
    )
    return Parcel(permit.id, permit.attempt, msgspec.json.encode(content), permit.digest)


def report_of(permit: Permit, reply: Reply, poll: float, worker: str) -> Reported:
    """The report on an attempt. A receiver at work that names no time is asked after ``poll``."""
    outcome = _OUTCOMES.get(reply.result, Outcome.UNKNOWN)
    wait = reply.retry_after
    if outcome is Outcome.PENDING and wait is None:
        wait = poll
    return Reported(
        id=permit.id,
        outcome=outcome,
        lease=permit.lease,
        evidence=reply.evidence,
        receipt=reply.receipt,
        digest=reply.digest,
        retry_after=wait,
        worker=worker,
    )


def answer_of(release: str, reply: Reply) -> tuple[Told, Reported]:
    """What a receiver that was asked about a release said of it."""
    said = Reported(
        id=release,
        outcome=Outcome.UNKNOWN,
        evidence=reply.evidence,
        receipt=reply.receipt,
        digest=reply.digest,
        retry_after=reply.retry_after,
    )
    return _TOLD.get(reply.result, Told.UNKNOWN), said
