"""P8: an old primary lives on beside its successor, and some process still reaches it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.opening import ask
from journal import Settings
from journal.acceptance import Acceptance
from journal.control import Stage
from journal.errors import JournalUnavailable, Recovering
from journal.postgres import newest
from journal.record import Record
from journal.status import status
from journal.worker import drive
from journal.writepath import turn
from tests.support.postgres import PostgresServer
from tests.support.servers import require_postgres
from tests.support.sessions import until
from tests.support.tenants import make_settings, operation

pytestmark = pytest.mark.engines

_ARRIVED = "SELECT 1 FROM unrewind_main.unrewind_entities WHERE entity = 'case/1'"


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    require_postgres()
    with PostgresServer() as made:
        yield made
    newest._chosen.clear()


class Machine:
    """One process of the tenant, on a machine of its own."""

    def __init__(self, folder: Path, store: str, journal: str) -> None:
        self.settings: Settings = make_settings(folder, store=store, journal=journal)
        self.record = Record(self.settings)
        drive(self.record.open())

    def decides(self, name: str) -> None:
        (answer,) = drive(turn(self.record, [operation("case/1", "note", id=name)]))
        assert isinstance(answer, Acceptance), answer

    def stage(self) -> Stage:
        return drive(self.record.read_control()).authority.stage

    def close(self) -> None:
        drive(self.record.close())


def both(primary: PostgresServer, standby: PostgresServer, database: str) -> str:
    """A URL that names the two, in this order."""
    places = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    return f"postgresql://postgres@{places}/{database}?target_session_attrs=primary"


def test_p8_a_process_on_the_old_primary_goes_over_to_the_new_one(
    primary: PostgresServer, journal_url: str, tmp_path: Path
) -> None:
    database = primary.create_database().rpartition("/")[2]
    with primary.standby(synchronous=True) as standby:
        late = Machine(tmp_path / "late", both(primary, standby, database), journal_url)
        late.decides("op-1")
        until("it arrives", lambda: standby.query(_ARRIVED, database=database))
        standby.promote()
        early = Machine(tmp_path / "early", standby.url(database), journal_url)
        early.decides("op-2")
        # The old primary lives, and has never heard of the second decision.
        late.decides("op-3")
        early.decides("op-4")
        late.decides("op-5")
        assert late.stage() is Stage.OPEN
        assert not late.record.stop.stands()
        newest._chosen.clear()  # as a process that comes new to it
        shown = ask(late.settings, status)
        assert (shown.stage, shown.verdict) == ("open", "clean"), shown.detail
        # Found again at the old one, while the new one does not answer, nothing is closed.
        standby.stop()
        for _ in range(2):
            with pytest.raises(JournalUnavailable, match="left behind by a promotion"):
                late.decides("op-6")
        assert late.stage() is Stage.OPEN
        standby.start()
        late.decides("op-6")
        for machine in (early, late):
            machine.close()


def test_p8_one_that_knows_of_no_other_place_closes_the_tenant(
    primary: PostgresServer, journal_url: str, tmp_path: Path
) -> None:
    url = primary.create_database()
    database = url.rpartition("/")[2]
    with primary.standby() as standby:
        late = Machine(tmp_path / "late", url, journal_url)
        late.decides("op-1")
        until("it arrives", lambda: standby.query(_ARRIVED, database=database))
        standby.promote()
        early = Machine(tmp_path / "early", standby.url(database), journal_url)
        early.decides("op-2")
        with pytest.raises(Recovering):
            late.decides("op-3")
        assert late.stage() is Stage.CLOSED
        for machine in (early, late):
            machine.close()


def test_p8_a_successor_that_lacks_decisions_is_rewound_all_the_same(
    primary: PostgresServer, journal_url: str, tmp_path: Path
) -> None:
    database = primary.create_database().rpartition("/")[2]
    with primary.standby() as standby:
        url = both(primary, standby, database)
        machine = Machine(tmp_path / "one", url, journal_url)
        machine.decides("op-1")
        until("it arrives", lambda: standby.query(_ARRIVED, database=database))
        standby.detach()
        machine.decides("op-2")
        standby.promote()
        machine.decides("op-3")  # who is on the old one is on the one that has everything
        primary.kill9()
        with pytest.raises((Recovering, JournalUnavailable)):
            machine.decides("op-4")
        with pytest.raises(Recovering, match="the store ends at sequence 1"):
            machine.decides("op-4")
        machine.close()
