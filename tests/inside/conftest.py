"""A tenant whose store is an application's database, on each engine, and verified whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from journal.driving import drive
from journal.inside import Inside
from journal.lifecycle import Action, Lifecycle
from journal.record import Record
from journal.settings import Settings
from journal.writepath import settle
from reconstruct.verification import verify
from tests.inside.apps import APPS, TABLES, App, Plain
from tests.support.tenants import LIFECYCLES
from tests.support.whole import verify_files

PAYOUT = Lifecycle(
    initial="draft",
    actions={
        "request": Action(("draft",), "requested"),
        "approve": Action(("requested",), "approved"),
        "reject": Action(("requested", "approved"), "rejected"),
    },
)
POSTGRES = pytest.param("postgres", marks=pytest.mark.engines)


def settings_of(folder: Path, store: str | None = None, **changes: object) -> Settings:
    values: dict[str, object] = {
        "data": str(folder / "data"),
        "store": store,
        "lock_timeout": 2.0,
        "lifecycle": {**LIFECYCLES, "payout": PAYOUT},
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture(params=["sqlite", POSTGRES])
def engine(request: pytest.FixtureRequest) -> str:
    """Which database the application has."""
    return str(request.param)


@pytest.fixture
def settings(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Settings]:
    """A founded tenant beside the application's empty tables; all is verified at the end."""
    store = request.getfixturevalue("store_url") if engine == "postgres" else None
    made = settings_of(tmp_path, store)
    found(made)
    with closing(Plain(made)) as app, app.transaction():
        for ddl in TABLES:
            app.run(ddl)
    yield made
    finish(made)


def found(settings: Settings) -> None:
    record = Record(settings)
    try:
        drive(record.open())
    finally:
        drive(record.close())


def finish(settings: Settings) -> None:
    """Settle as an idle service does, and verify every byte."""
    record = Record(settings)
    try:
        drive(record.open())
        drive(settle(record))
    finally:
        drive(record.close())
    report = verify(settings)
    assert (report.verdict, report.findings) == ("clean", [])
    if settings.store is None:
        assert verify_files(settings) == []


@pytest.fixture
def inside(settings: Settings) -> Iterator[Inside]:
    """The tenant inside this process."""
    made = Inside(settings)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(params=list(APPS))
def app(request: pytest.FixtureRequest, settings: Settings) -> Iterator[App]:
    """An application over that database, by every way."""
    made: App = APPS[request.param](settings)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def plain(settings: Settings) -> Iterator[Plain]:
    """The application with the driver alone."""
    made = Plain(settings)
    try:
        yield made
    finally:
        made.close()
