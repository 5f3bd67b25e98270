"""A connection that is lost at the commit: what became of it is settled, never guessed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import psycopg
import pytest
import sqlalchemy.exc
from django.db import OperationalError as DjangoError

from journal.errors import NotCommitted, OutcomeUnknown
from journal.inside import Inside, Tentative
from journal.settings import Settings
from tests.inside.apps import APPS, operation, put, rows_of
from tests.inside.cutting import Cutter, cutting

pytestmark = pytest.mark.engines
LOST = (psycopg.OperationalError, sqlalchemy.exc.OperationalError, DjangoError)
SECONDS = 30


@pytest.fixture(params=["postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def lost(
    settings: Settings, inside: Inside, how: str, name: str
) -> Iterator[tuple[Cutter, Tentative]]:
    """A decision whose application never hears of its commit."""
    where = psycopg.conninfo.conninfo_to_dict(settings.store or "")
    host, port = str(where["host"]), int(str(where["port"]))
    with cutting(host, port, how) as cutter:
        url = (settings.store or "").replace(f"{host}:{port}", f"127.0.0.1:{cutter.port}")
        app = APPS[name](msgspec.structs.replace(settings, store=url))
        decision, failed = None, False
        try:
            with app.transaction():
                decision = inside.decide_in(app.connection, operation("request"))
                put(app, "7", decision.state, decision.revision)
        except LOST:
            failed = True
        assert failed
        assert decision is not None
        yield cutter, decision
        app.close()


@pytest.mark.parametrize("name", list(APPS))
def test_p1_a_commit_that_arrived_is_confirmed(
    settings: Settings, inside: Inside, name: str
) -> None:
    with lost(settings, inside, "after", name) as (_, decision):
        assert inside.confirmed(decision).digest == decision.digest
        assert rows_of(settings) == [("7", "requested", 1)]


@pytest.mark.parametrize("name", list(APPS))
def test_a_commit_that_never_arrived_is_surely_none(
    settings: Settings, inside: Inside, name: str
) -> None:
    with lost(settings, inside, "before", name) as (_, decision):
        with pytest.raises(NotCommitted):
            inside.confirmed(decision, within=SECONDS)
        assert rows_of(settings) == []


@pytest.mark.parametrize("arrives", [True, False])
def test_a_commit_that_may_still_arrive_is_unknown_for_so_long(
    settings: Settings, inside: Inside, arrives: bool
) -> None:
    with lost(settings, inside, "held", "plain") as (cutter, decision):
        with pytest.raises(OutcomeUnknown, match="same operation ID"):
            inside.confirmed(decision, within=0.3)
        if arrives:
            cutter.pass_on()
            assert _settled(inside, decision) == 1
        else:
            cutter.give_up()
            assert _settled(inside, decision) == 0
        assert len(rows_of(settings)) == int(arrives)


def _settled(inside: Inside, decision: Tentative) -> int:
    until = time.monotonic() + SECONDS
    while True:
        try:
            return inside.confirmed(decision, within=1).revision
        except NotCommitted:
            return 0
        except OutcomeUnknown:
            assert time.monotonic() < until
