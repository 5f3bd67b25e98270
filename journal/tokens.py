"""Bearer tokens: `unr_<id>_<secret>`, kept as control entities that hold only the secret's hash.

A revocation is a control entry too, so that it survives a rewind of the store.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256

from journal import decrees
from journal.control import Authority, Control, Role, Token
from journal.detection import Verdict
from journal.entry import Entry, check_name
from journal.errors import NotFound, Refused
from journal.record import Record
from journal.standing import append_control

PREFIX = "unr_"
_ID_BYTES = 6
_SECRET_BYTES = 24
_MAX_NAME = 128


def _split(presented: str) -> tuple[str, str] | None:
    if not presented.startswith(PREFIX):
        return None
    identity, separator, secret = presented.removeprefix(PREFIX).partition("_")
    return (identity, secret) if separator and secret else None


def authenticate(control: Control, presented: str) -> Token | None:
    """The token that was presented, or None. Compares hashes in constant time."""
    parts = _split(presented)
    token = control.tokens.get(parts[0]) if parts else None
    secret = parts[1] if parts else ""
    expected = token.sha256 if token else "0" * 64
    same = hmac.compare_digest(sha256(secret.encode()).hexdigest(), expected)
    return token if token is not None and same and not token.revoked else None


async def create_token(record: Record, role: Role, name: str, principal: str | None = None) -> str:
    """Create a token and return it; only its hash is kept. Works in any stage.

    Raises Refused when the journal was rewound, LockHeld, or JournalUnavailable.
    """
    check_name("name", name, _MAX_NAME)
    identity, secret = secrets.token_hex(_ID_BYTES), secrets.token_urlsafe(_SECRET_BYTES)
    now = record.clock.now()
    token = Token(identity, role, sha256(secret.encode()).hexdigest(), name, now)
    await _append(record, "create", token, principal)
    return f"{PREFIX}{identity}_{secret}"


async def revoke_token(record: Record, identity: str, principal: str | None = None) -> None:
    """Revoke a token by its ID; revoking it again changes nothing. Raises NotFound."""
    control = await record.read_control()
    token = control.tokens.get(identity)
    if token is None:
        raise NotFound(f"there is no token {identity}", token=identity)
    if not token.revoked:
        await _append(record, "revoke", token, principal)


async def _append(record: Record, action: str, token: Token, principal: str | None) -> None:
    def build(control: Control) -> tuple[Entry, Authority]:
        operation = f"control-{record.clock.fresh()}"
        entry = decrees.token_entry(
            control, action, token, operation, record.clock.now(), principal
        )
        return entry, control.authority

    with record.lock.held():
        finding, _ = await record.examine()
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
            raise Refused(f"nothing is written to this journal: {finding.detail}")
        await append_control(record, build)
