"""Errors of PostgreSQL as the project's own, by their SQLSTATE."""

from __future__ import annotations

from journal.errors import (
    ConstraintFailed,
    Damaged,
    EngineError,
    FenceFailed,
    FileChanged,
    Invalid,
    Unreachable,
)
from journal.log import Moved

FENCE = "UR001"
TOO_OLD = "UR002"
ELSEWHERE = "UR003"
MOVED = "UR004"
"""Raised by our own functions in the schema; see the .sql files."""

_OURS: dict[str, type[EngineError]] = {
    FENCE: FenceFailed,
    TOO_OLD: FenceFailed,
    ELSEWHERE: FileChanged,
    MOVED: Moved,
}
_CLASHES = frozenset({"40001", "40P01"})
_NO_TEXT = frozenset({"22021", "22P05"})
_DAMAGED = ("42P01", "3F000", "42883", "XX001", "XX002")
_AWAY = ("08", "53", "57", "58", "25", "55", "28", "3D", "40", "XX")
_WRONG_COUNT = "08P01"
"""Of parameters: of all violations of the protocol the one that a statement can be to blame for."""
_OF_STATEMENTS = (_WRONG_COUNT, "42", "22", "0A", "21", "54", "P0", "2F", "38", "39", "44")
"""Classes of what is wrong with a statement itself, or raised by the application's triggers."""
_ADVICE = {
    "53100": "the server's disk is full",
    "53300": "the server has no connection left: raise max_connections",
    "25006": "this server takes no writes, as a standby does not",
    "42501": "grant it to this role, as the SQL of `unrewind engine ddl` does",
    "55P03": "another transaction holds what this one waited for",
}

NO_NUL = "PostgreSQL keeps no text that holds the character U+0000 or is no Unicode"


def error_of(
    label: str,
    state: str | None,
    message: str,
    *,
    projected: bool = False,
    fenced: bool = False,
    write: bool = False,
) -> EngineError | Invalid:
    """The error for an SQLSTATE; None is a connection that broke.

    ``projected``: the statement was the application's. ``fenced``: the batch had a fence, so its
    sender looks again. ``write``: it was one that writes.
    """
    words = " ".join(message.split())
    advice = _ADVICE.get(state or "")
    told = f"{label}: {words}" + ("" if advice is None else f" ({advice})")
    if state is None:
        return Unreachable(told)
    if state in _OURS:
        return _OURS[state](told)
    if state.startswith("23"):
        return ConstraintFailed(words)
    if projected and state.startswith(_OF_STATEMENTS):
        return ConstraintFailed(words, projection=True)
    if state in _NO_TEXT:
        return ConstraintFailed(NO_NUL, text=True) if write else Invalid(NO_NUL)
    if fenced and state in _CLASHES:
        return FenceFailed(told)
    if state.startswith(_DAMAGED):
        return Damaged(told, file=label)
    away = state.startswith(_AWAY) and state != _WRONG_COUNT
    return Unreachable(told) if away else EngineError(told)
