"""A journal in a PostgreSQL database, on another server than the store's: one schema a tenant."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from journal.log import Append, HeadPage, JournalHead, Look, Moved
from journal.log.engine import DROPPED, SqlLog
from journal.log.writing import statements_of
from journal.postgres.checks import Checks, check
from journal.postgres.copies import copy_to, put_back
from journal.postgres.database import PostgresDatabase, Tables
from journal.postgres.ddl import filled, granted
from journal.postgres.where import JOURNAL, schema_of, where

LANDMARK = "entries"
_HEADS = f"""
WITH RECURSIVE named (entity) AS (
  SELECT min(entity) FROM entries WHERE entity > ?
  UNION ALL
  SELECT (SELECT min(entity) FROM entries WHERE entity > named.entity)
    FROM named WHERE named.entity IS NOT NULL
)
SELECT n.entity, e.revision, lower(hex(e.digest)), e.envelope, e.stream
FROM (SELECT entity FROM named WHERE entity IS NOT NULL LIMIT ?) n
LEFT JOIN LATERAL (
  SELECT revision, digest, envelope, stream FROM entries
  WHERE entity = n.entity AND NOT {DROPPED}
  ORDER BY revision DESC, position DESC LIMIT 1) e ON true
ORDER BY n.entity
"""


class _Outcome(msgspec.Struct):
    data: str | None = None


class _Envelope(msgspec.Struct):
    outcome: _Outcome


_decode = msgspec.json.Decoder(_Envelope).decode


def schema() -> str:
    """The journal's tables, with ``{schema}`` for the schema's name."""
    return files("journal.log").joinpath("postgres.sql").read_text(encoding="utf-8")


def tables(quoted: str) -> Tables:
    """What stands in the schema of a journal."""
    return Tables(filled(schema(), quoted, LANDMARK), LANDMARK, "")


class PostgresLog(SqlLog):
    """One schema of a server.

    With ``create`` its tables are made with the first entries, in one transaction. Raises
    SettingsInvalid for a URL that is none, Unreachable when the server does not answer or has no
    such schema.
    """

    database: PostgresDatabase

    def __init__(
        self, url: str, tenant: str, *, create: bool = False, read_only: bool = False
    ) -> None:
        place = where(url, JOURNAL, tenant)
        super().__init__(
            PostgresDatabase(place, tables(place.quoted), create=create, read_only=read_only)
        )
        self._checks: Checks | None = None

    @classmethod
    def exists(cls, url: str, tenant: str) -> bool:
        """Whether there is such a journal. Raises Unreachable when the server does not answer."""
        place = where(url, JOURNAL, tenant)
        return PostgresDatabase.is_made(place, tables(place.quoted))

    @classmethod
    def ddl(cls, tenant: str, owner: str, writer: str) -> str:
        """The SQL by which an administrator makes a journal's schema, with its owner kept apart."""
        schema = f'"{schema_of(JOURNAL, tenant)}"'
        return granted(tables(schema).ddl, schema, owner, writer)

    @property
    def checks(self) -> Checks:
        """How the server is set up, as it was when this was first asked."""
        if self._checks is None:
            self._checks = check(self.database)
        return self._checks

    @property
    def weaker(self) -> Mapping[str, str]:  # type: ignore[override]
        """See ``SqlLog.weaker``."""
        return self.checks.weaker()

    def facts(self) -> dict[str, Any]:
        """See ``SqlLog.facts``."""
        return {**self.checks.facts(), "append_only": self.checks.guarded_by}

    async def append(self, append: Append, expects: Look) -> None:
        """See ``Log.append``. In one round trip."""
        if self.database.unmade:
            await super().append(append, expects)
            return
        force, last = expects.authority, expects.last
        call = self.database.call(
            "unrewind_expect",
            expects.position,
            *(
                (None,) * 5
                if force is None
                else (force.history, force.generation, str(force.stage), force.first, force.digest)
            ),
            *((None,) * 3 if last is None else (last.history, last.sequence, last.digest)),
            expects.control,
            int(expects.flawed),
        )
        try:
            self.database.write(call, statements_of(append, expects.position))
        except Moved:
            # It says where the journal stands; and a stage that this code takes for another one.
            await super().append(append, expects)

    async def heads(self, after: str, limit: int) -> HeadPage:
        """See ``Log.heads``. Envelopes are read here, since a damaged one need not be text."""
        rows = self._query(_HEADS, after, limit)
        heads = [
            JournalHead(entity, revision, digest, _data_in(envelope))
            for entity, revision, digest, envelope, stream in rows
            if stream == "decisions"
        ]
        return HeadPage(heads, rows[-1][0] if len(rows) == limit else None)

    def copy_to(self, target: Path) -> None:
        """A consistent copy of the tables: a directory with a text file for each."""
        copy_to(self.database, target)

    def put_back(self, source: Path) -> None:
        """Replace every row by those of such a copy, in one transaction. For rehearsals alone."""
        put_back(self.database, source)


def _data_in(envelope: bytes) -> str | None:
    try:
        return _decode(envelope).outcome.data
    except msgspec.MsgspecError:
        return None
