"""A pooler that gives each transaction another session is refused; one of sessions is none."""

from __future__ import annotations

import pytest

from journal.errors import SettingsInvalid
from journal.log.postgres import PostgresLog
from journal.store.postgres import PostgresStore
from journal.worker import drive
from tests.support.engines import Postgres
from tests.support.pooler import Pooler
from tests.support.postgres import PostgresServer
from tests.support.sessions import FENCE, MARKER, marker_of

pytestmark = pytest.mark.engines


@pytest.fixture
def engine(postgres_stores: PostgresServer) -> Postgres:
    made = Postgres(postgres_stores)
    made.store(MARKER).database.close()
    return made


def test_a_pooler_of_transactions_is_refused_with_what_to_do(engine: Postgres) -> None:
    with Pooler(engine.server.port, transactions=True) as pooler:
        url = pooler.before(engine.url)
        for port in (PostgresStore, PostgresLog):
            for _ in range(2):  # the second one comes to a session that others have used
                with pytest.raises(SettingsInvalid, match="pool_mode = session"):
                    port(url, engine.tenant)


def test_a_pooler_of_sessions_is_as_good_as_none(engine: Postgres) -> None:
    with Pooler(engine.server.port, transactions=False) as pooler:
        for number in range(2):
            store = PostgresStore(pooler.before(engine.url), engine.tenant)
            assert (marker_of(store) == MARKER) == (number == 0)
            if number == 0:
                drive(store.batch([FENCE]))
            store.database.close()
