"""A stream that promises less than a journal is refused, or accepted by name and told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from journal.errors import SettingsInvalid, Unreachable
from journal.nats.promises import (
    SINGLE,
    SYNC,
    Server,
    faults_of,
    server_at,
    settings_of,
    weaker_of,
)
from journal.nats.stream import Config, Group, Info, Peer, State
from tests.support.jetstream import NatsServer
from tests.support.servers import require_nats
from tests.support.streams import Journal, call


def config(**changes: Any) -> Config:
    return msgspec.convert({"subjects": ["unrewind.main"], **settings_of(3), **changes}, Config)


WRONG: dict[str, Any] = {
    "storage": "memory",
    "retention": "workqueue",
    "discard": "old",
    "max_msgs": 10,
    "max_bytes": 10,
    "max_age": 1,
    "max_msgs_per_subject": 1,
    "max_msg_size": 1000,
    "deny_delete": False,
    "deny_purge": False,
    "allow_rollup_hdrs": True,
    "allow_msg_ttl": True,
    "allow_msg_counter": True,
    "allow_msg_schedules": True,
    "allow_direct": False,
    "persist_mode": "async",
    "no_ack": True,
    "sealed": True,
    "subjects": ["unrewind.>"],
    "mirror": {"name": "x"},
    "sources": [{"name": "x"}],
}


@pytest.mark.parametrize("field", WRONG)
def test_settings_that_no_journal_may_have_are_faults(field: str) -> None:
    assert faults_of(config(), "unrewind.main") == []
    assert len(faults_of(config(**{field: WRONG[field]}), "unrewind.main")) == 1


def info(replicas: int = 3) -> Info:
    peers = [Peer(f"n{number}") for number in range(2, replicas + 1)]
    return Info(config(num_replicas=replicas), "now", State(0, 0, 0), Group("n1", peers))


def servers(*syncs: bool | None) -> list[Server]:
    """Servers n1, n2 … that sync always or not; None does not answer."""
    return [
        msgspec.convert(
            {
                "server_name": f"n{number}",
                "jetstream": {"config": {"sync_always": sync, "sync_interval": 120 * 10**9}},
            },
            Server,
        )
        for number, sync in enumerate(syncs, 1)
        if sync is not None
    ]


def test_syncing_is_proven_by_a_majority_and_refuted_by_one() -> None:
    assert weaker_of(info(), servers(True, True, True), 3) == {}
    assert weaker_of(info(), servers(True, None, True), 3) == {}
    assert "1 of 3 servers" in weaker_of(info(), servers(None, None, True), 3)[SYNC]
    assert "monitor=" in weaker_of(info(), [], 3)[SYNC]
    assert "n2 syncs every 120 s" in weaker_of(info(), servers(True, False, True), 3)[SYNC]
    # One that does not hold the stream says nothing about it.
    assert weaker_of(info(1), servers(True, False, False), 1) == {}
    assert SYNC in weaker_of(info(1), servers(None, True, True), 1)
    assert "once, not 3 times" in weaker_of(info(1), servers(True), 3)[SINGLE]
    assert "2 times, not 3 times" in weaker_of(info(2), servers(True, True), 3)[SINGLE]


def test_a_monitor_that_does_not_answer_proves_nothing() -> None:
    assert server_at("http://127.0.0.1:1") is None
    assert server_at("http://[") is None


@pytest.fixture
def lazy() -> Iterator[NatsServer]:
    """A server that syncs when it thinks fit."""
    require_nats()
    with NatsServer(sync='"2m"') as made:
        yield made


@pytest.mark.engines
async def test_a_server_that_does_not_sync_is_refused_unless_accepted(
    lazy: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(lazy, tmp_path)
    with pytest.raises(SettingsInvalid, match=r'n1 syncs every 120 s.*\["nats-sync-interval"\]'):
        journal.open(create=True)
    log = journal.open(create=True, accept=[SINGLE, SYNC])
    assert set(log.weaker) == {SINGLE, SYNC}
    assert log.facts()["sync"] == "not proven"
    await log.close()


@pytest.mark.engines
async def test_a_single_server_is_refused_unless_accepted(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(nats_server, tmp_path)
    with pytest.raises(SettingsInvalid, match=r'once, not 3 times.*\["nats-single-server"\]'):
        journal.open(create=True, accept=[])
    assert not journal.exists()
    log = await journal.founded()
    assert set(log.weaker) == {SINGLE}
    assert log.facts()["sync"] == "always"
    await log.close()
    with pytest.raises(SettingsInvalid, match="once, not 3 times"):
        journal.open(accept=[])
    with pytest.raises(SettingsInvalid, match="is proven of 0 of 1 servers"):
        journal.open(url=nats_server.url)


@pytest.mark.engines
async def test_a_stream_that_was_weakened_is_refused_and_stops_a_running_log(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    journal = Journal(nats_server, tmp_path)
    log = await journal.founded()
    look = await log.look()
    good = journal.call("STREAM.INFO")["config"]
    assert "error" not in journal.call("STREAM.UPDATE", **{**good, "max_age": 3600 * 10**9})
    with pytest.raises(Unreachable, match="max_age"):
        await log.look()
    with pytest.raises(SettingsInvalid, match="max_age"):
        journal.open()
    assert "error" not in journal.call("STREAM.UPDATE", **good)
    assert await log.look() == look
    await log.close()


@pytest.mark.engines
def test_a_stream_of_somebody_else_is_no_journal(nats_server: NatsServer, tmp_path: Path) -> None:
    journal = Journal(nats_server, tmp_path)
    made = {"name": journal.stream, "subjects": [f"unrewind.{journal.tenant}"], "storage": "memory"}
    assert "error" not in call(nats_server.url, f"STREAM.CREATE.{journal.stream}", made)
    with pytest.raises(SettingsInvalid, match=r"storage is not file.*deny_purge is off"):
        journal.open(create=True)
    assert not journal.copy.exists()


@pytest.mark.engines
def test_a_server_that_is_too_old_is_refused(
    nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("journal.nats.log.OLDEST", (99, 0))
    with pytest.raises(SettingsInvalid, match=r"nats-server 99\.0 or later"):
        Journal(nats_server, tmp_path).open(create=True)
