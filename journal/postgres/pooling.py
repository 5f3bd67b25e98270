"""A pooler between here and the server that gives each transaction another session.

Nothing of a session lasts there: no turn lock, no setting, no prepared statement. What pools whole
sessions does no harm. Which of the two it is nobody says, so it is tried: two connections that are
open at once and have one session of the server.
"""

from __future__ import annotations

from journal.errors import SettingsInvalid, Unreachable
from journal.postgres.wire import Failed, Sent, Wire

SESSION = "pg_backend_pid()"
"""What of a connection tells whether there is a pooler: who made it says so itself, or another."""
_ASK = Sent(f"SELECT {SESSION}", plain=True)
_TRIES = 5
_PATIENCE = 2.0
_sound: set[str] = set()
"""Where sessions were found to last; asked once in a process."""


def check_sessions(wire: Wire, session: int, other: str) -> None:
    """Refuse a pooler of transactions. ``other`` is what a second connection is made from.

    ``session`` is the server's on this one. Raises SettingsInvalid; Failed or Unreachable when the
    connection broke.
    """
    if wire.connection.info.backend_pid == session or other in _sound:
        return
    if _is_shared(wire, session, other):
        raise SettingsInvalid(
            f"{wire.label}: a pooler there gives each transaction another session, and the turn "
            "lock is one of a session: let it pool sessions (pool_mode = session), or name the "
            "server itself"
        )
    _sound.add(other)


def _is_shared(wire: Wire, session: int, conninfo: str) -> bool:
    try:
        other = Wire(conninfo, wire.label, limit=_PATIENCE)
    except Unreachable:
        return False  # it has no session left for a second connection, so this one has its own
    try:
        for _ in range(_TRIES):
            if session in {row[0] for row in other.send([_ASK])[0]}:
                return True
            if wire.send([_ASK])[0][0][0] != session:
                return True
    except Unreachable:
        if wire.closed:
            raise
    except Failed:
        return False
    finally:
        other.close()
    return False
