"""Where store and journal are: what is refused, what is accepted by name, what is shown."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

import journal
from journal.errors import SettingsInvalid
from journal.places import masked
from journal.record import Record
from journal.worker import drive
from tests.support.postgres import PostgresServer


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:secret@db:5432/shop?sslmode=require", "postgresql://me@db:5432/shop"),
        ("postgresql://db/shop", "postgresql://db/shop"),
        ("nats://me:secret@a:4222,me:secret@b:4222", "nats://me@a:4222,me@b:4222"),
        ("postgresql://me:pa,ss@db/shop", "postgresql://me@db/shop"),
        ("nats://me:pa,ss@a:4222", "nats://...,a:4222"),
        ("nats://token@a:4222?monitor=http://a:8222", "nats://a:4222"),
    ],
)
def test_no_secret_of_a_url_is_shown(url: str, shown: str) -> None:
    assert masked(url) == shown


def test_an_unknown_engine_is_refused_by_its_name(tmp_path: Path) -> None:
    settings = journal.Settings(data=str(tmp_path), store="mysql://db/shop")
    with pytest.raises(SettingsInvalid, match="mysql:// is no store engine"):
        journal.Journal(settings)


def test_a_missing_driver_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "journal.store.postgres", None)
    settings = journal.Settings(data=str(tmp_path), store="postgresql://db/shop")
    with pytest.raises(SettingsInvalid, match=r"pip install 'unrewind\[postgres\]'"):
        journal.Journal(settings)


def test_a_weaker_promise_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsInvalid, match="none of the weaker promises"):
        journal.load_settings(None, {"data": str(tmp_path), "accept": ["anything"]}, {})


@pytest.mark.engines
def test_what_was_refused_at_the_first_turn_is_refused_at_the_next(
    store_url: str, tmp_path: Path
) -> None:
    settings = journal.Settings(
        data=str(tmp_path), store=store_url, journal=f"{store_url}?connect_timeout=5"
    )
    accepting = Record(msgspec.structs.replace(settings, accept=["same-server"]))
    drive(accepting.open())
    drive(accepting.close())
    record = Record(settings)
    for _ in range(2):
        with pytest.raises(SettingsInvalid, match="same-server"):
            drive(record.open_files())
        assert (record.store, record.log) == (None, None)


@pytest.mark.engines
async def test_store_and_journal_on_one_server_are_refused_unless_that_is_accepted(
    postgres_stores: PostgresServer, store_url: str, tmp_path: Path
) -> None:
    settings = journal.Settings(
        data=str(tmp_path / "refused"), store=store_url, journal=f"{store_url}?connect_timeout=5"
    )
    with pytest.raises(SettingsInvalid, match="same-server"):
        async with journal.open(settings):
            pass
    accepted = journal.Settings(
        data=str(tmp_path / "accepted"),
        store=store_url,
        journal=settings.journal,
        accept=["same-server"],
    )
    async with journal.open(accepted) as opened:
        status = await opened.status()
    assert (status.stage, status.verdict) == ("open", "clean")
    assert any("same-server" in line for line in status.failure_scope)
