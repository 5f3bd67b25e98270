"""A copy of a schema's rows, and putting it back: for evidence, snapshots and rehearsals."""

from __future__ import annotations

from pathlib import Path

import pytest

from journal.acceptance import Place
from journal.entry import GENESIS
from journal.errors import ConstraintFailed, Damaged, EngineError, FileChanged, Refused
from journal.log import DECISIONS, Append
from journal.log.postgres import PostgresLog
from journal.postgres.copies import manifest_of
from journal.sql import Statement
from journal.store import tables
from journal.store import work as works
from journal.store.postgres import PostgresStore
from journal.store.tables import FORMAT, Marker
from journal.worker import drive
from tests.support.engines import Postgres
from tests.support.postgres import PostgresServer
from tests.support.releases import row_of_work
from tests.support.sealing import HISTORY, sealed

pytestmark = pytest.mark.engines

MARKER = Marker(FORMAT, "main", "production", Place(HISTORY, 1, 0, GENESIS), 0)
NEXT = Place(HISTORY, 1, 1, "1" * 64)
ODD = 'a\ttab, a \\ and a\nline, \\N, \U0001f4c4 and "'


@pytest.fixture
def engine(postgres_stores: PostgresServer) -> Postgres:
    return Postgres(postgres_stores)


def rows_of(engine: Postgres, store: PostgresStore) -> list[object]:
    return [
        engine.run(store, f"SELECT * FROM unrewind_{table} ORDER BY 1")
        for table in ("marker", "decisions", "entities", "work", "counts")
    ]


def test_a_store_that_is_put_back_is_as_it_was_and_has_another_stamp(
    engine: Postgres, tmp_path: Path
) -> None:
    store = engine.store(MARKER)
    assert isinstance(store, PostgresStore)
    entry = sealed(b"\x00\xff\\", sequence=1)
    work = [row_of_work(id="rel_1", last_error=ODD), row_of_work(id="rel_2", weight=2.5)]
    fence = tables.fence(MARKER, NEXT, 0)
    drive(store.batch([fence, tables.insert_decisions([entry]), works.write_work(work)]))
    before, stamp = rows_of(engine, store), store.stamp()

    store.copy_to(tmp_path / "copy")
    other = engine.same_store()
    marker = tables.marker_of(drive(other.read([tables.READ_MARKER]))[0])
    assert marker is not None
    more = works.write_work([row_of_work(id="rel_3"), row_of_work(id="rel_1", status="done")])
    drive(other.batch([tables.fence(marker, Place(HISTORY, 1, 2, "2" * 64), 0), more]))
    assert rows_of(engine, store) != before

    store.put_back(tmp_path / "copy")
    assert rows_of(engine, store) == before
    # Whoever had it open looks again before it writes: the tables are the same, their files not.
    late = tables.fence(marker, Place(HISTORY, 1, 2, "3" * 64), 0)
    with pytest.raises(FileChanged):
        drive(other.batch([late]))
    assert tables.marker_of(drive(other.read([tables.READ_MARKER]))[0]) == marker
    assert other.stamp() != stamp
    drive(other.batch([late, works.write_work([row_of_work(id="rel_9")])]))
    numbers = engine.run(store, "SELECT number FROM unrewind_work ORDER BY 1")
    assert len(numbers) == 3
    for one in (store, other):
        one.database.close()


def test_a_copy_is_of_one_moment(engine: Postgres, tmp_path: Path) -> None:
    store = engine.store(MARKER)
    marker = MARKER
    store.copy_to(tmp_path / "first")
    for number in range(1, 4):
        place = Place(HISTORY, 1, number, f"{number:064}")
        drive(store.batch([tables.fence(marker, place, 0)]))
        found = tables.marker_of(drive(store.read([tables.READ_MARKER]))[0])
        assert found is not None
        marker = found
    first = manifest_of(tmp_path / "first")
    assert first.schema == f"unrewind_{engine.tenant}"
    assert first.tables["unrewind_marker"].rows == 1
    assert "unrewind_work" in first.tables
    store.database.close()


def test_a_journal_is_put_back_though_its_rows_are_never_changed_otherwise(
    engine: Postgres, tmp_path: Path
) -> None:
    log = drive(engine.log())
    assert isinstance(log, PostgresLog)
    entry = sealed(b"\x00\\x", entity="case/1", operation="op-1", sequence=1)
    drive(log.append(Append(entries=[(DECISIONS, entry)]), drive(log.look())))
    look = drive(log.look())
    log.copy_to(tmp_path / "copy")
    second = sealed(b"", entity="case/2", operation="op-2", sequence=2)
    drive(log.append(Append(entries=[(DECISIONS, second)]), look))
    log.put_back(tmp_path / "copy")
    assert drive(log.look()) == look
    assert [row.entry() for row in drive(log.decisions(0, 9))] == [entry]
    with pytest.raises(ConstraintFailed, match="never changed"):
        log.database.batch([Statement("UPDATE entries SET body = ''")])
    log.database.close()


def test_a_copy_is_put_back_where_there_is_no_schema_any_more(
    engine: Postgres, tmp_path: Path
) -> None:
    store = engine.store(MARKER)
    store.copy_to(tmp_path / "copy")
    engine.server.query(f'DROP SCHEMA "unrewind_{engine.tenant}" CASCADE')
    store.database.close()
    assert not PostgresStore.exists(engine.url, engine.tenant)
    fresh = PostgresStore(engine.url, engine.tenant, create=True)
    fresh.put_back(tmp_path / "copy")
    fresh.database.close()
    again = engine.same_store()
    assert tables.marker_of(drive(again.read([tables.READ_MARKER]))[0]) == MARKER
    again.database.close()


def test_a_copy_that_is_not_whole_is_refused_and_nothing_changes(
    engine: Postgres, tmp_path: Path
) -> None:
    store = engine.store(MARKER)
    assert isinstance(store, PostgresStore)
    before = rows_of(engine, store)
    copy = tmp_path / "copy"
    store.copy_to(copy)
    with pytest.raises(Refused):
        store.copy_to(copy)
    file = copy / "unrewind_marker.copy"
    kept = file.read_bytes()
    file.write_bytes(kept[:-2] + b"9\n")
    with pytest.raises(Damaged, match=r"unrewind_marker\.copy"):
        store.put_back(copy)
    file.write_bytes(kept)
    (copy / "copy.json").unlink()
    with pytest.raises(Damaged, match="no whole copy"):
        store.put_back(copy)
    assert rows_of(engine, store) == before
    store.database.close()


def test_only_the_owner_puts_back(engine: Postgres, tmp_path: Path) -> None:
    store = engine.store(MARKER)
    store.copy_to(tmp_path / "copy")
    store.database.close()
    role = f"stranger_{engine.tenant.replace('-', '_')}"
    engine.server.query(f"CREATE ROLE {role} LOGIN")
    schema = f'"unrewind_{engine.tenant}"'
    engine.server.query(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    engine.server.query(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    stranger = PostgresStore(engine.server.url(user=role), engine.tenant)
    with pytest.raises(EngineError, match=r"permission denied|must be owner"):
        stranger.put_back(tmp_path / "copy")
    stranger.database.close()
