"""One recovery at a time, also from machines that share no file: a lock at a server."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from journal.errors import Refused, Unreachable
from journal.postgres.where import JOURNAL, STORE, key_of, where
from journal.postgres.wire import Failed, Sent, Wire

LOGGER = logging.getLogger("unrewind.lock")
_SESSION = {
    "statement_timeout": 0,
    "idle_session_timeout": 0,
    "tcp_keepalives_idle": 10,
    "tcp_keepalives_interval": 5,
    "tcp_keepalives_count": 3,
}
"""A step may take hours; a machine that is gone holds the lock for less than a minute."""
PATIENCE = 5.0
"""Seconds that a session has to end in after its process was killed: the server notices later."""
_PAUSE = 0.05
_TRY = "SELECT pg_try_advisory_lock($1)"
_HOLDER = """
SELECT l.pid, coalesce(host(a.client_addr), 'this server')
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND ((l.classid::bigint << 32) | l.objid::bigint) = $1
"""


@contextmanager
def recovering_alone(url: str, tenant: str, *, of_store: bool) -> Iterator[None]:
    """Hold the lock of a tenant's recoveries at one server, for one step.

    It decides nothing: a server that does not answer gives none, and the step goes on. Raises
    Refused while another session holds it, and goes on holding it for PATIENCE seconds.
    """
    place = where(url, STORE if of_store else JOURNAL, tenant)
    key = key_of(f"recovery of {place.schema}")
    wire: Wire | None = None
    try:
        try:
            wire = Wire(place.connecting(**_SESSION), place.label)
            taken = _take(wire, key)
            holders = [] if taken else wire.send([Sent(_HOLDER, (key,))])[0]
        except (Failed, Unreachable) as error:
            LOGGER.debug("no lock of recoveries: %s", error)
        else:
            if not taken:
                raise _held(place.label, [*holders])
        yield
    finally:
        if wire is not None:
            wire.close()


def _take(wire: Wire, key: int) -> bool:
    until = time.monotonic() + PATIENCE
    while not wire.send([Sent(_TRY, (key,))])[0][0][0]:
        if time.monotonic() > until:
            return False
        time.sleep(_PAUSE)
    return True


def _held(label: str, holders: list[tuple[Any, ...]]) -> Refused:
    told = "another recovery of this tenant is at work right now"
    if not holders:
        return Refused(f"{told}: wait until it has ended")
    pid, host = holders[0]
    return Refused(
        f"{told}, from {host}: wait until it has ended; one that hangs is cut off by "
        f"SELECT pg_terminate_backend({pid}) at {label.partition(' schema ')[0]}",
        pid=pid,
    )
