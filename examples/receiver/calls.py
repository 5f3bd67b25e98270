"""What a call brings, what it has to keep to, and whether the receiver has seen it before."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import StrEnum
from hashlib import sha256
from typing import Any

import msgspec
from msgspec import Struct
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from examples.receiver.memory import Held, digest_of
from examples.receiver.record import Line
from examples.receiver.wire import Answer, Request, answer_json, problem


class Contract(StrEnum):
    """What the receiver promises about an ID that it sees again; see docs/receivers.md."""

    IDEMPOTENT = "idempotent"
    QUERYABLE = "queryable"
    OPAQUE = "opaque"


class Terms(Struct, frozen=True):
    """What callers have to keep to. Without ``token`` or ``webhook`` that check is left out."""

    contract: Contract = Contract.IDEMPOTENT
    token: str | None = None
    webhook: Webhook | None = None


class Call(Struct, frozen=True):
    """One call as it came. ``content`` is None where the body is no JSON.

    ``release`` is empty where the body names none; such a call is refused.
    """

    release: str
    attempt: int | None
    idempotency_key: str | None
    body_sha256: str
    content: Any

    @property
    def digest(self) -> str | None:
        return digest_of(self.content)


class Known(Struct, frozen=True):
    """What the record calls a call whose ID is held, and the answer that is true for it."""

    outcome: str
    answer: Answer


def read_call(request: Request) -> Call:
    """The call in a request."""
    try:
        content = msgspec.json.decode(request.body)
    except (msgspec.DecodeError, ValueError):
        content = None
    release = content.get("release") if isinstance(content, dict) else None
    return Call(
        release=release if isinstance(release, str) else "",
        attempt=attempt_of(request),
        idempotency_key=request.headers.get("idempotency-key"),
        body_sha256=sha256(request.body).hexdigest(),
        content=content,
    )


def attempt_of(request: Request) -> int | None:
    """The number of the attempt, if the request tells it."""
    text = request.headers.get("unrewind-attempt", "")
    return int(text) if text.isascii() and text.isdigit() else None


def without_token(request: Request, terms: Terms) -> Answer | None:
    """Why whoever calls or asks is turned away; None when it may go on."""
    bearer = request.headers.get("authorization", "").encode()
    if terms.token is not None and not hmac.compare_digest(
        bearer, f"Bearer {terms.token}".encode()
    ):
        return problem(401, "send Authorization: Bearer with the token of this receiver")
    return None


def unauthorised(request: Request, terms: Terms) -> Answer | None:
    """Why a call is not believed; None when it is."""
    if (answer := without_token(request, terms)) is not None:
        return answer
    if terms.webhook is not None:
        try:
            terms.webhook.verify(request.body, request.headers, json_parse=False)
        except (WebhookVerificationError, ValueError) as error:
            return problem(401, f"the webhook signature does not hold: {error}")
    return None


def malformed(call: Call, request: Request, terms: Terms) -> Answer | None:
    """Why a call cannot be judged; None when it can."""
    if not call.release:
        return problem(400, "the body must be a JSON object with a string `release`")
    for name in ("idempotency-key", "webhook-id"):
        if request.headers.get(name, call.release) != call.release:
            return problem(400, f"{name} is not the release in the body")
    if terms.contract is Contract.IDEMPOTENT and call.idempotency_key is None:
        return problem(400, "send the release as Idempotency-Key, or a repeat cannot be known")
    return None


def known(call: Call, held: Held | None, working: Sequence[Line]) -> Known | None:
    """What is true for an ID that is held or at work; None when the call is new.

    An attempt after those that were given up is new.
    """
    bodies = {line.body_sha256 for line in working} | {held.body_sha256 if held else None}
    if bodies - {None, call.body_sha256}:
        return Known("refused", problem(422, "this release was sent with other content before"))
    if held is not None and held.state == "void":
        if given_up(call.attempt, held):
            return Known("voided", GIVEN_UP)
        held = None
    if held is not None and held.state == "refused":
        return Known("repeated", problem(held.status or 400, held.detail or "refused"))
    if held is not None and held.state == "done":
        answer = told(200, call.release, "done", held.digest, held.receipt)
        return Known("repeated", answer)
    if held is not None or working:
        return Known("repeated", told(202, call.release, "pending", call.digest))
    return None


# Not taken, but another attempt may be: to the caller, 409 would be the end of the release.
GIVEN_UP = problem(429, "this attempt was given up and is not executed")


def given_up(attempt: int | None, held: Held) -> bool:
    """Whether an attempt is among those that will never be executed. One without a number is."""
    return held.state == "void" and (attempt is None or attempt <= held.through)


def told(
    status: int, release: str, state: str, digest: str | None, receipt: str | None = None
) -> Answer:
    """What the receiver says of a release, in answers to calls and to lookups alike."""
    content = {"release": release, "state": state, "digest": digest, "receipt": receipt}
    return answer_json(status, content)
