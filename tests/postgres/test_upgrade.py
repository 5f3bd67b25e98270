"""A schema that another version of unrewind made."""

from __future__ import annotations

from hashlib import sha256

import pytest

from journal.errors import EngineError
from journal.log.postgres import PostgresLog
from journal.log.postgres import tables as tables_of_log
from journal.postgres import ddl
from journal.postgres.ddl import functions_in, lacking, names_in
from journal.sql import Projected
from journal.store import tables
from journal.store.postgres import PostgresStore
from journal.store.postgres import tables as tables_of_store
from journal.worker import drive
from tests.support.engines import Postgres
from tests.support.postgres import PostgresServer
from tests.support.sessions import FENCE, MARKER, marker_of

_REVISIONS = {1: "da3f315ad967ea2f"}
"""What the functions are in each revision. A new body is a new revision: add it here."""
_EARLIER = """
CREATE OR REPLACE FUNCTION {schema}.unrewind_guard(key bigint, place bigint, node bigint)
  RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'an earlier body'; END $$"""


def test_a_changed_function_is_a_new_revision() -> None:
    whole = sorted(
        {
            *functions_in(tables_of_store('"s"').ddl),
            *functions_in(tables_of_log('"s"').ddl),
        }
    )
    assert len({name for name, _ in whole}) > 10
    digest = sha256(repr(whole).encode()).hexdigest()[:16]
    assert _REVISIONS.get(ddl.REVISION) == digest, (
        f"the functions have changed to {digest}: raise REVISION in journal/postgres/ddl.py, and "
        "add it to _REVISIONS here"
    )


def test_a_later_version_is_left_as_it_is() -> None:
    whole = tables_of_store('"s"').ddl
    later = ("unrewind_guard", "another body", f"unrewind {ddl.REVISION + 1}")
    found = [(name, None, None) for name in names_in(whole)]
    assert lacking(whole, [*found, later]) == []
    with pytest.raises(EngineError, match="made by a later version"):
        lacking(whole, [later])
    # The functions alone are missing where only their names are known.
    assert set(lacking(whole, found)) == {name for name, _ in functions_in(whole)}


@pytest.mark.engines
def test_a_function_of_an_earlier_version_is_replaced(postgres_stores: PostgresServer) -> None:
    engine = Postgres(postgres_stores)
    store, log = engine.store(MARKER), drive(engine.log())
    for port in (store, log):
        schema = port.database.where.quoted  # type: ignore[attr-defined]
        engine.server.query(_EARLIER.format(schema=schema))
        port.database.close()
    for opened in (
        PostgresStore(engine.url, engine.tenant),
        PostgresLog(engine.url, engine.tenant),
    ):
        if isinstance(opened, PostgresStore):
            opened.create_tables()
            drive(opened.batch([FENCE]))
            assert marker_of(opened) != MARKER
        opened.database.batch([Projected("SELECT 1")])
        opened.database.close()


@pytest.mark.engines
def test_who_may_not_replace_it_says_who_may(postgres_stores: PostgresServer) -> None:
    engine = Postgres(postgres_stores)
    log = drive(engine.log())
    schema = log.database.where.quoted  # type: ignore[attr-defined]
    engine.server.query(_EARLIER.format(schema=schema))
    log.database.close()
    reader = f"reader_{engine.tenant.replace('-', '_')}"
    engine.server.query(f"CREATE ROLE {reader} LOGIN")
    engine.server.query(f"GRANT USAGE ON SCHEMA {schema} TO {reader}")
    url = engine.server.url(user=reader)
    with pytest.raises(EngineError, match=r"lacks unrewind_guard .* `unrewind engine ddl`"):
        PostgresLog(url, engine.tenant)
    # Who only looks needs none of them.
    PostgresLog(url, engine.tenant, read_only=True).database.close()


@pytest.mark.engines
def test_one_that_is_whole_is_written_nothing(postgres_stores: PostgresServer) -> None:
    engine = Postgres(postgres_stores)
    store = engine.store(MARKER)
    named = (
        "SELECT proname, xmin::text FROM pg_proc WHERE pronamespace = %s::regnamespace"
        " ORDER BY proname, 2"
    )
    schema = store.database.where.quoted  # type: ignore[attr-defined]
    before = engine.server.query(named, schema)
    store.create_tables()
    assert engine.server.query(named, schema) == before
    assert drive(store.read([tables.READ_MARKER]))[0]
    store.database.close()
