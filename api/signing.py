"""Signatures of Standard Webhooks: ours on what we send, a receiver's on its callback.

The format is that of the Standard Webhooks specification 1.0.0: HMAC-SHA256 over
``<id>.<timestamp>.<body>``. The library `standardwebhooks` computes it. Its own check is not used:
it takes timestamps such as ``1e9``, ``nan`` or ``0017``, base64 with other characters in it, and
answers bytes that are not UTF-8 with whatever Python raises.
"""

from __future__ import annotations

import base64
import hmac
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from math import floor

from standardwebhooks import Webhook

from journal.errors import Invalid, SettingsInvalid, Unauthenticated

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

TOLERANCE = 300
"""Seconds that a callback's timestamp may be away from this clock, in both directions."""

MAX_SIGNATURES = 2048
"""Characters of the signature header: about twenty signatures, for secrets that are replaced."""

_LEAST_KEY = 24
_PREFIX = "whsec_"

# Visible ASCII without the full stop, which separates the three parts that are signed: with one in
# it, the same signature would also fit another split into ID, timestamp and body.
_IDENTITY = re.compile(r"[!-\-/-~]{1,128}")
_SECONDS = re.compile(r"[1-9][0-9]{0,11}")


class CallbackRefused(Unauthenticated):
    """The callback is not one that its receiver signed just now."""


def check_secret(name: str, value: str) -> None:
    """Check the signing secret that the environment variable ``name`` holds.

    It is base64 of at least 24 bytes, with or without ``whsec_`` before it. Raises SettingsInvalid,
    which names the variable and never its value.
    """
    try:
        key = _key(value)
    except ValueError:
        raise SettingsInvalid(
            f"{name}: a signing secret is whsec_ and base64 (A-Z, a-z, 0-9, + and /)"
        ) from None
    if len(key) < _LEAST_KEY:
        raise SettingsInvalid(
            f"{name}: a signing secret has at least {_LEAST_KEY} bytes, this one {len(key)}; "
            'make one with: echo "whsec_$(openssl rand -base64 32)"'
        )


def check_identity(identity: str) -> None:
    """Check an ID that is signed and sent in a header. Raises Invalid."""
    if not _IDENTITY.fullmatch(identity):
        raise Invalid(f"{ID} must be 1 to 128 visible ASCII characters, none a full stop")


def sign(secret: str, identity: str, at: datetime, content: bytes) -> dict[str, str]:
    """The three headers for these exact bytes, signed for the whole second of ``at``.

    Raises Invalid when the ID or the time cannot be signed unambiguously, or the bytes are not
    UTF-8.
    """
    check_identity(identity)
    if at.tzinfo is None:
        raise Invalid("a signature's time needs its zone")
    seconds = floor(at.timestamp())
    return {
        ID: identity,
        TIMESTAMP: str(seconds),
        SIGNATURE: _signature(secret, identity, seconds, content),
    }


def verify_callback(
    secret: str, headers: Mapping[str, str], content: bytes, *, now: datetime | None = None
) -> str:
    """The ``webhook-id`` of a callback that its receiver signed over these raw bytes just now.

    One of the signatures must be right, compared in constant time. Raises CallbackRefused with the
    reason. It does not remember IDs: a caller that must not take one twice keeps them for longer
    than ``TOLERANCE`` on both sides.
    """
    given = _headers(headers)
    identity, stamp, signatures = given[ID], given[TIMESTAMP], given[SIGNATURE]
    try:
        check_identity(identity)
    except Invalid as error:
        raise CallbackRefused(error.detail) from None
    # Only the one spelling that is signed: no sign, fraction, exponent or leading zero.
    if not _SECONDS.fullmatch(stamp):
        raise CallbackRefused(f"{TIMESTAMP} must be whole seconds since 1970, in decimal digits")
    if len(signatures) > MAX_SIGNATURES:
        raise CallbackRefused(f"{SIGNATURE} is longer than {MAX_SIGNATURES} characters")
    away = int(stamp) - (now or datetime.now(UTC)).timestamp()
    if abs(away) > TOLERANCE:
        raise CallbackRefused(
            f"{TIMESTAMP} is more than {TOLERANCE} s {'ahead of' if away > 0 else 'behind'} this "
            "clock; sign each attempt anew, and compare the clocks"
        )
    try:
        expected = _signature(secret, identity, int(stamp), content).encode()
    except Invalid as error:
        raise CallbackRefused(error.detail) from None
    # The text is compared, not the bytes it stands for: base64 has several spellings for them.
    if not any(
        hmac.compare_digest(expected, signature.encode(errors="replace"))
        for signature in signatures.split(" ")
    ):
        raise CallbackRefused(
            f"no {SIGNATURE} is v1 of these bytes under this receiver's callback secret"
        )
    return identity


def _headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The three headers, each of which must be there exactly once."""
    given: dict[str, str] = {}
    for name, value in headers.items():
        known = name.lower()
        if known not in {ID, TIMESTAMP, SIGNATURE}:
            continue
        if known in given:
            raise CallbackRefused(f"{known} was sent twice")
        given[known] = value
    for name in (ID, TIMESTAMP, SIGNATURE):
        if not given.get(name):
            raise CallbackRefused(f"{name} is missing: a callback is signed")
    return given


def _signature(secret: str, identity: str, seconds: int, content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise Invalid("only bytes that are UTF-8 can be signed") from None
    try:
        webhook = Webhook(_key(secret))
    except ValueError:
        raise SettingsInvalid("the signing secret is not base64") from None
    # In UTC: the library drops the zone of a time instead of converting it.
    return webhook.sign(identity, datetime.fromtimestamp(seconds, UTC), text)


def _key(secret: str) -> bytes:
    """The key that a secret stands for. Raises ValueError where it stands for none.

    The library's own reading skips characters that are not base64, and so takes another key.
    """
    text = secret.removeprefix(_PREFIX).rstrip("=")
    key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    if not key:
        raise ValueError("an empty secret")
    return key
