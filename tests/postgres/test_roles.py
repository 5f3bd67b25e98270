"""An owner and a writer apart: what the writer may do, and what nobody lets it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from journal.acceptance import Place
from journal.entry import GENESIS
from journal.errors import ConstraintFailed, EngineError
from journal.log import DECISIONS, Append
from journal.log.postgres import PostgresLog
from journal.postgres.checks import same_server
from journal.sql import Statement
from journal.store import tables
from journal.store import work as works
from journal.store.postgres import PostgresStore
from journal.store.tables import FORMAT, Marker
from journal.worker import drive
from tests.support.engines import Postgres, found
from tests.support.postgres import PostgresServer
from tests.support.releases import row_of_work
from tests.support.sealing import HISTORY, sealed

pytestmark = pytest.mark.engines

MARKER = Marker(FORMAT, "main", "production", Place(HISTORY, 1, 0, GENESIS), 0)
NEXT = Place(HISTORY, 1, 1, "1" * 64)


class Apart:
    """Schemas that an administrator made, and the URL of the role that unrewind is given."""

    def __init__(self, server: PostgresServer) -> None:
        self.engine = Postgres(server)
        self.tenant = self.engine.tenant
        name = self.tenant.replace("-", "_")
        owner, writer = f"owner_{name}", f"writer_{name}"
        server.query(f"CREATE ROLE {owner}")
        server.query(f"CREATE ROLE {writer} LOGIN")
        server.query(f"GRANT CREATE ON DATABASE postgres TO {owner}")
        self.url = server.url(user=writer)
        for port in (PostgresStore, PostgresLog):
            with server.connect() as connection:
                connection.execute(port.ddl(self.tenant, owner, writer).encode())


@pytest.fixture
def apart(postgres_stores: PostgresServer) -> Apart:
    return Apart(postgres_stores)


@pytest.fixture
def log(apart: Apart) -> Iterator[PostgresLog]:
    assert not PostgresLog.exists(apart.url, apart.tenant)
    made = PostgresLog(apart.url, apart.tenant, create=True)
    drive(found(made))
    yield made
    made.database.close()


def test_a_writer_founds_and_works_without_owning_anything(apart: Apart, log: PostgresLog) -> None:
    assert not PostgresStore.exists(apart.url, apart.tenant)
    store = PostgresStore(apart.url, apart.tenant, create=True)
    store.database.batch([tables.found(MARKER)])
    store.create_tables()
    store.require(2)
    work = works.write_work([row_of_work(id="rel_1"), row_of_work(id="rel_2")])
    drive(store.batch([tables.fence(MARKER, NEXT, 0), work, *works.forget(1.0, 9)]))
    entry = sealed(b"", entity="case/1", operation="op-1", sequence=1)
    drive(log.append(Append(entries=[(DECISIONS, entry)]), drive(log.look())))
    assert PostgresStore.exists(apart.url, apart.tenant)
    assert PostgresLog.exists(apart.url, apart.tenant)
    assert same_server(store.database, log.database)
    store.database.close()


@pytest.mark.parametrize("table", ["entries", "rivals"])
@pytest.mark.parametrize(
    "attempt",
    [
        "UPDATE {table} SET body = ''",
        "DELETE FROM {table}",
        "TRUNCATE {schema}.{table}",
        "ALTER TABLE {schema}.{table} DISABLE TRIGGER ALL",
        "DROP TABLE {schema}.{table}",
        "DROP TRIGGER {table}_no_change ON {schema}.{table}",
        "ALTER FUNCTION {schema}.unrewind_refuse() OWNER TO CURRENT_USER",
        "SET session_replication_role = replica",
    ],
)
def test_p10_a_writer_cannot_change_evidence_nor_take_its_guard_away(
    log: PostgresLog, table: str, attempt: str
) -> None:
    before = drive(log.feed(0, 9))
    statement = attempt.format(table=table, schema=log.database.where.quoted)
    with pytest.raises(EngineError, match=r"permission denied|must be owner") as refused:
        log.database.batch([Statement(statement)])
    assert not isinstance(refused.value, ConstraintFailed)
    assert drive(log.feed(0, 9)) == before


def test_status_tells_what_guards_the_evidence(apart: Apart, log: PostgresLog) -> None:
    assert log.facts()["append_only"] == "by privilege and trigger"
    owned = drive(apart.engine.__class__(apart.engine.server).log())
    assert owned.facts()["append_only"] == "by trigger"
    owned.database.close()


def test_a_schema_that_lacks_something_names_it_and_who_can_add_it(apart: Apart) -> None:
    store = PostgresStore(apart.url, apart.tenant, create=True)
    store.database.batch([tables.found(MARKER)])
    schema = store.database.where.quoted
    apart.engine.server.query(f"DROP TABLE {schema}.unrewind_sweeps")
    with pytest.raises(EngineError, match=r"lacks unrewind_sweeps.*`unrewind engine ddl`"):
        store.create_tables()
    store.database.close()


def test_two_servers_are_told_apart(
    postgres_stores: PostgresServer, postgres_journals: PostgresServer
) -> None:
    store = Postgres(postgres_stores).store(MARKER)
    log = drive(Postgres(postgres_journals).log())
    assert not same_server(store.database, log.database)
    for one in (store, log):
        one.database.close()
