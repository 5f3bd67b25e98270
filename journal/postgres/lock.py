"""The turn lock on a server: for processes that share no file system."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from journal.errors import LockHeld, Unreachable
from journal.postgres import newest
from journal.postgres.where import STORE, where
from journal.postgres.wire import Failed, Sent, Wire

LOGGER = logging.getLogger("unrewind.lock")
_TIMED_OUT = "55P03"
_PATIENCE = "SELECT set_config('lock_timeout', $1, false)"
_TAKE = """
SELECT CASE WHEN pg_try_advisory_lock($1) THEN false
  ELSE (SELECT true FROM pg_advisory_lock($1)) END
"""
"""Takes it; whether it had to be waited for."""
_FREE = "SELECT pg_advisory_unlock_all()"
_HOLDER = """
SELECT l.pid, l.pid = pg_backend_pid(), CAST(CASE WHEN a.state = 'idle'
    THEN extract(epoch FROM clock_timestamp() - a.state_change) ELSE 0 END AS double precision)
  FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
  WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
  AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND ((l.classid::bigint << 32) | l.objid::bigint) = $1
"""
"""Who holds it, and for how many seconds: such a session is idle from when it got the lock."""
_END = "SELECT pg_terminate_backend($1, 2000)"
_WAITS = (1, 2, 4)
"""For how many times ``timeout`` one waits, and again: where turns are short and many wait, who
gives up loses its place among them.
"""

_ANSWERED = 5.0
"""Seconds within which an answer is here, beyond what the lock may be waited for."""

_NEARLY = 0.9


class ServerLock:
    """The tenant's turn lock, held by a session of the store's server. Reentrant in one object.

    It saves work and lost races; it decides nothing. A session that holds it for longer than
    ``timeout`` seconds is ended by whoever waits, and where the server does not answer there is no
    lock: the store's fence and the journal's comparison let one writer through all the same.
    """

    def __init__(self, url: str, tenant: str, timeout: float) -> None:
        self._where = where(url, STORE, tenant)
        self._conninfo = self._where.connecting(statement_timeout=0)
        self._timeout = timeout
        self._wire: Wire | None = None
        self._chosen: newest.Chosen | None = None
        self._patience: str | None = None
        self._depth = 0
        self._locked = False
        self.waited = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock. Raises LockHeld when its holder cannot be ended."""
        if self._depth == 0:
            self._take()
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._free()

    def _take(self) -> None:
        """Take the lock, where there is a server to have it from."""
        again = self._wire is not None  # it may have ended while nobody looked
        try:
            self._locked = self._lock(self._connected())
        except Unreachable as error:
            LOGGER.debug("no turn lock: %s", error)
            if self._wire is not None:
                self._wire.close()
                self._wire = None
            if again:
                self._take()

    def _connected(self) -> Wire:
        chosen = newest.chosen(self._conninfo)
        if self._wire is not None and chosen != self._chosen:
            self._wire.close()
            self._wire = None
        if self._wire is None:
            self._chosen = chosen
            limit = max(_WAITS) * self._timeout + _ANSWERED
            self._wire = Wire(self._conninfo, self._where.label, limit=limit)
            self._patience = None
        return self._wire

    def _lock(self, wire: Wire) -> bool:
        key = self._where.turns
        holders: list[tuple[int, bool, float]] = []
        for wait in _WAITS:
            patience = str(max(1, int(wait * self._timeout * 1000)))
            sent = [] if patience == self._patience else [Sent(_PATIENCE, (patience,))]
            self._patience = None
            try:
                self.waited = wire.send([*sent, Sent(_TAKE, (key,))])[-1][0][0] or wait > _WAITS[0]
            except Failed as error:
                if error.state != _TIMED_OUT:
                    raise Unreachable(f"{self._where.label}: {error.message}") from None
            else:
                self._patience = patience
                return True
            self.waited = True
            holders = self._holders(wire)
            if any(ours for _, ours, _ in holders):
                return True  # it came at the moment in which the wait was over, and is ours
            for pid, _, seconds in holders:
                # One of many that take short turns is let be.
                if seconds >= self._timeout * _NEARLY:
                    self._end(wire, pid)
        named = ", ".join(str(pid) for pid, *_ in holders) or "another one"
        raise LockHeld(
            f"session {named} of the store's server holds the tenant's lock, and more wait for it "
            f"than had their turn in {sum(_WAITS) * self._timeout:g} s",
            pid=holders[0][0] if holders else None,
        )

    def _holders(self, wire: Wire) -> list[tuple[int, bool, float]]:
        try:
            return [*wire.send([Sent(_HOLDER, (self._where.turns,))])[0]]
        except Failed as error:
            raise Unreachable(f"{self._where.label}: {error.message}") from None

    def _end(self, wire: Wire, pid: int) -> None:
        LOGGER.warning(
            "session %s held the turn lock for over %g s; it is ended", pid, self._timeout
        )
        try:
            wire.send([Sent(_END, (pid,))])
        except Failed as error:
            raise LockHeld(
                f"session {pid} of the store's server has held the tenant's lock for over "
                f"{self._timeout:g} s, and this role may not end it: {error.message}",
                pid=pid,
            ) from None

    def _free(self) -> None:
        locked, self._locked = self._locked, False
        if not locked or self._wire is None:
            return
        with suppress(Unreachable):  # whose connection is gone, and the lock with it
            self._wire.start([Sent(_FREE)])

    def close(self) -> None:
        """Let go of the connection, and so of the lock."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
