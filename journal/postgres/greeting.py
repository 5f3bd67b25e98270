"""What a new connection begins with: which server it is, and whether what it shows is kept.

A commit is shown to others when the synchronous standby has it, but after a restart it is shown at
once. So each new connection to a journal makes an empty commit before its first look: that ends
when the standby has everything that was written before it.
"""

from __future__ import annotations

from journal.errors import Unreachable
from journal.postgres.pooling import SESSION, check_sessions
from journal.postgres.wire import Failed, Sent, Wire

_SERVER = """
SELECT {system}, (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database()),
  CASE WHEN pg_is_in_recovery() THEN {checkpoint}
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END,
  CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint),
  set_config('synchronous_commit', CASE current_setting('synchronous_commit')
    WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false),
  {session}, pg_is_in_recovery()
"""
_KNOWN = _SERVER.format(
    system="(SELECT system_identifier FROM pg_control_system())",
    checkpoint="(SELECT timeline_id FROM pg_control_checkpoint())",
    session=SESSION,
)
_HIDDEN = _SERVER.format(system="0", checkpoint="0", session=SESSION)
"""Where the role may not ask for the system's identifier."""
WITHIN = 5.0
"""Seconds for which the standbys are waited for."""
_NOTHING = Sent(
    "SELECT pg_logical_emit_message(true, 'unrewind', '')"
    " WHERE current_setting('synchronous_standby_names') <> ''"
)
"""It reaches the standby as any commit does; where none has to confirm, nothing is committed."""


def greet(wire: Wire, conninfo: str) -> tuple[int, ...]:
    """What is constant while a connection lasts: system, database, timeline, start of the server.

    Its commits are durable from now on. ``conninfo`` is what it was made from. Raises Unreachable
    for a standby, SettingsInvalid for a pooler of transactions, or Failed.
    """
    try:
        row = wire.send([Sent(_KNOWN, plain=True)])[0][0]
    except Failed:
        row = wire.send([Sent(_HIDDEN, plain=True)])[0][0]
    if row[-1]:
        raise Unreachable(
            f"{wire.label}: this server is a standby, or still being recovered, and may lack "
            "what its primary has; name the primary"
        )
    check_sessions(wire, row[-2], conninfo)
    return tuple(int(value) for value in row[:4])


def confirm(wire: Wire) -> None:
    """Wait until the standbys have what this server has written so far. Raises Unreachable."""
    try:
        wire.attempt(_NOTHING, WITHIN)
    except (Failed, Unreachable) as error:
        words = error.message if isinstance(error, Failed) else error.detail
        raise Unreachable(
            f"{wire.label}: its synchronous standby does not confirm, so nobody knows whether what "
            f"it shows is kept: {words}"
        ) from None
