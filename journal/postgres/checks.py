"""How a server is set up, and what that leaves of the promises."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from journal.errors import EngineError
from journal.postgres.database import PostgresDatabase
from journal.sql import Database

FSYNC_OFF = "postgres-fsync-off"
ASYNC_COMMIT = "postgres-async-commit"
OLDEST = 140_000
"""The oldest version: of 2021, the first with triggers that can be replaced."""
_SETTINGS = """
SELECT current_setting('server_version'), CAST(current_setting('server_version_num') AS bigint),
  current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
  current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
  pg_is_in_recovery(), CAST(current_user AS text), r.rolsuper,
  has_table_privilege(c.oid, 'UPDATE') OR has_table_privilege(c.oid, 'DELETE')
    OR has_table_privilege(c.oid, 'TRUNCATE'),
  pg_has_role(c.relowner, 'MEMBER')
FROM pg_catalog.pg_roles r LEFT JOIN pg_catalog.pg_class c ON c.oid = to_regclass('{landmark}')
WHERE r.rolname = current_user
"""


class Checks(Struct, frozen=True, array_like=True):
    """What was asked of the server, when it was opened.

    ``standbys`` are those that every commit waits for, in PostgreSQL's words. ``may_change`` says
    whether this role could change or delete rows of the landmark table, ``owner`` whether it could
    take the triggers away that refuse it; both None where there is no table yet.
    """

    server: str
    version: int
    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standbys: str
    standby: bool
    role: str
    superuser: bool
    may_change: bool | None
    owner: bool | None
    system: int
    timeline: int
    started: int

    @property
    def guarded_by(self) -> str:
        """What keeps this role from changing evidence."""
        apart = not (self.may_change or self.owner or self.superuser)
        return "by privilege and trigger" if apart else "by trigger"

    def weaker(self) -> dict[str, str]:
        """What this server promises less than ours, by the names that an operator accepts."""
        found: dict[str, str] = {}
        off = [
            name
            for name, on in (("fsync", self.fsync), ("full_page_writes", self.full_page_writes))
            if not on
        ]
        if off:
            found[FSYNC_OFF] = (
                f"{' and '.join(off)} {'is' if len(off) == 1 else 'are'} off: "
                "a crash of the server's machine can lose or tear what was acknowledged"
            )
        if self.synchronous_commit not in {"on", "remote_apply"}:
            found[ASYNC_COMMIT] = (
                f"synchronous_commit is {self.synchronous_commit}: "
                "a crash can lose what was acknowledged"
            )
        return found

    def facts(self) -> dict[str, Any]:
        """What `status` shows."""
        return {
            "engine": "postgresql",
            **msgspec.structs.asdict(self),
        }


def check(database: PostgresDatabase) -> Checks:
    """Ask the server. Raises EngineError for one that is too old."""
    sql = _SETTINGS.replace("{landmark}", database.landmark)
    row = database.ask(sql)[0]
    system, _, timeline, started = database.server
    found = msgspec.convert([*row, system, timeline, started], Checks)
    if found.version < OLDEST:
        raise EngineError(
            f"{database.label}: PostgreSQL {found.server} is too old, take version 14 or later"
        )
    return found


def same_server(store: Database, log: Database) -> bool:
    """Whether both stand on one server, or on a server and its standby: rewound together."""
    if not (isinstance(store, PostgresDatabase) and isinstance(log, PostgresDatabase)):
        return False
    known = (store.server[0], log.server[0])
    if all(known):
        return known[0] == known[1]
    return store.server == log.server
