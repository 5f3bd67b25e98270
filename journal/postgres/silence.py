"""Servers that take connections and answer nothing: told from those that are only slow.

Nothing else tells the two apart on a connection that is open. Whoever has waited for a while asks
with another connection; where that gets no answer either, the server counts as gone, and is
remembered as such for a moment, so that one turn does not wait for it again and again.
"""

from __future__ import annotations

from contextlib import suppress
from time import monotonic

import psycopg
from psycopg.conninfo import conninfo_to_dict

REMEMBERED = 1.0
"""Seconds for which a server that did not answer is not asked again."""

_silent: dict[str, float] = {}
"""By server, until when it is not asked. Shared by the threads; each access is one step."""


def server_of(conninfo: str) -> str:
    """The server, or the servers, that this leads to."""
    given = conninfo_to_dict(conninfo)
    return f"{given.get('host')} {given.get('hostaddr')} {given.get('port')}"


def note(server: str) -> None:
    """It did not answer just now."""
    _silent[server] = monotonic() + REMEMBERED


def is_noted(server: str) -> bool:
    """Whether it did not answer a moment ago."""
    if not _silent:
        return False
    until = _silent.get(server)
    if until is None:
        return False
    if monotonic() < until:
        return True
    _silent.pop(server, None)
    return False


def answers(conninfo: str, server: str) -> bool:
    """Whether anything is heard of the server on a new connection, be it a refusal.

    Waits for as long as a connection may take to be made.
    """
    if is_noted(server):
        return False
    try:
        connection = psycopg.connect(conninfo, autocommit=True)
    except psycopg.errors.ConnectionTimeout:
        note(server)
        return False
    except psycopg.Error:
        return True
    with suppress(psycopg.Error, OSError):
        connection.close()
    return True
