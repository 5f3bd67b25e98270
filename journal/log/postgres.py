"""A journal in a PostgreSQL database, on another server than the store's: one schema a tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from journal.log import Append, HeadPage, JournalHead, Look, Moved, Row
from journal.log.engine import DROPPED, LOOK, SqlLog, look_of, row_of
from journal.log.writing import statements_of
from journal.postgres.ahead import EagerDatabase
from journal.postgres.checks import Checks, check
from journal.postgres.copies import copy_to, put_back
from journal.postgres.database import Tables
from journal.postgres.ddl import filled, granted
from journal.postgres.where import JOURNAL, schema_of, where
from journal.postgres.wire import Sent
from journal.sql import Result

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
    such schema, EngineError for a schema of an earlier version that this role may not change.
    """

    database: EagerDatabase

    def __init__(
        self, url: str, tenant: str, *, create: bool = False, read_only: bool = False
    ) -> None:
        place = where(url, JOURNAL, tenant)
        super().__init__(
            EagerDatabase(
                place,
                tables(place.quoted),
                create=create,
                read_only=read_only,
                confirmed=True,
            )
        )
        if not read_only:
            try:
                self.database.complete()
            except BaseException:
                self.database.close()
                raise
        self._checks: Checks | None = None
        self._asked: tuple[str, ...] = ()
        self._found: Result | None = None
        self._prepared: tuple[Append, Look] | None = None

    @classmethod
    def exists(cls, url: str, tenant: str) -> bool:
        """Whether there is such a journal. Raises Unreachable when the server does not answer."""
        place = where(url, JOURNAL, tenant)
        return EagerDatabase.is_made(place, tables(place.quoted))

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

    # Ahead of being waited for.

    def ask_ahead(self, ids: Sequence[str]) -> bool:
        """See ``SqlLog.ask_ahead``.

        The look comes first: what is appended after it makes an append fail, so the operations are
        at least those that stood there then.
        """
        self.forget()
        coming = self.database.ask_ahead([LOOK, self._named(ids)])
        self._asked = tuple(ids) if coming else ()
        return coming

    async def look(self) -> Look:
        """See ``Log.look``."""
        self._found = None
        answers = self.database.answers() if self._asked else None
        if answers is None:
            self._asked = ()
            return await super().look()
        looked, self._found = answers
        return look_of(looked)

    async def operations(self, ids: Sequence[str]) -> list[Row]:
        """See ``Log.operations``."""
        found, self._found = self._found, None
        asked, self._asked = self._asked, ()
        if found is None or asked != tuple(ids):
            return await super().operations(ids)
        return [row_of(row) for row in found]

    def prepare(self, append: Append, expects: Look) -> None:
        """See ``SqlLog.prepare``: everything but the commit is on its way.

        Others who append wait for it meanwhile.
        """
        self.forget()
        statements = statements_of(append, expects.position)
        if not self.database.unmade and self.database.begin(self._expect(expects), statements):
            self._prepared = append, expects

    def forget(self) -> None:
        """See ``SqlLog.forget``."""
        self._asked, self._found, self._prepared = (), None, None
        self.database.forget()

    async def append(self, append: Append, expects: Look) -> None:
        """See ``Log.append``. In one round trip, which is the commit alone where it is prepared."""
        self._found = None
        prepared, self._prepared = self._prepared, None
        if self.database.unmade:
            await super().append(append, expects)
            return
        try:
            if prepared == (append, expects) and self.database.commit():
                return
            call = self._expect(expects)
            self.database.write(call, statements_of(append, expects.position))
        except Moved:
            # It says where the journal stands; and a stage that this code takes for another one.
            await super().append(append, expects)

    def _expect(self, expects: Look) -> Sent:
        """What an append begins with: it fails where the journal stands elsewhere."""
        force, last = expects.authority, expects.last
        return self.database.call(
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
