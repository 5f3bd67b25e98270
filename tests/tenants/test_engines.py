"""P2, P7, P11: a tenant moves between engines, and back."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from journal import Settings
from journal.errors import Recovering, Refused
from journal.record import Record
from journal.registry import Registry
from journal.worker import drive
from journal.writepath import settle
from reconstruct import moving
from reconstruct.copied import compare_journals, rows_digest
from reconstruct.moving import move
from reconstruct.verification import verify
from tests.support.tenants import LIFECYCLES, Tenant, make_settings, operation
from tests.support.whole import verify_files
from tests.tenants.test_moving import decide, fill

pytestmark = pytest.mark.engines

PLAIN = {name: lifecycle for name, lifecycle in LIFECYCLES.items() if name != "account"}


@pytest.fixture
def full(tmp_path: Path) -> Settings:
    """A tenant in files that holds something of everything but embedded types."""
    settings = make_settings(tmp_path, lifecycle=PLAIN)
    tenant = Tenant(settings)
    try:
        fill(tenant, embedded=False)
    finally:
        tenant.close()
    return settings


@pytest.fixture
def servers(full: Settings, store_url: str, journal_url: str) -> Settings:
    return msgspec.structs.replace(full, store=store_url, journal=journal_url)


def digests(settings: Settings) -> tuple[str, str | None]:
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        assert record.store is not None
        return rows_digest(record.store.database), verify(settings).state_digest
    finally:
        drive(record.close())


def test_p2_from_files_to_servers_and_back(full: Settings, servers: Settings) -> None:
    before, verdict = verify(full).state_digest, verify(full).verdict
    done = move(full, servers, "somebody")
    assert (done.stage, done.state_digest) == ("open", before)
    assert "password" not in Registry(full.home).path("main").read_text()
    decide(servers, "op-there")
    assert verify(servers).verdict == verdict
    with pytest.raises(Recovering, match="moved to"):
        decide(full, "op-late")
    state = verify(servers).state_digest
    back = msgspec.structs.replace(full, store=None, journal=None)
    assert move(servers, back).state_digest == state
    decide(back, "op-here")
    assert verify_files(back) == []
    with pytest.raises(Recovering, match="moved to"):
        decide(servers, "op-late")


def test_new_work_is_numbered_after_what_was_moved(full: Settings, servers: Settings) -> None:
    move(full, servers)
    tenant = Tenant(servers)
    tenant.damaged()  # as it was before: an entry, and a caller's history
    tenant.diverged()
    try:
        for action in ("submit", "approve", "release"):
            version = None if action == "submit" else "v1"
            tenant.accept(operation("document/new", action, version=version))
    finally:
        tenant.close()


@pytest.mark.parametrize("step", ["_arrive", "_register"])
def test_p11_a_move_to_servers_that_is_killed_goes_on(
    full: Settings, servers: Settings, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def killed(*_: object, **__: object) -> None:
        raise Killed

    before = verify(full).state_digest
    with monkeypatch.context() as patch:
        patch.setattr(moving, step, killed)
        with pytest.raises(Killed):
            move(full, servers)
    done = move(full, servers)
    assert done.stage == "open"
    assert verify(servers).state_digest == before
    decide(servers, "op-there")


def test_p7_whoever_has_the_servers_open_is_fenced_there(
    full: Settings, servers: Settings, tmp_path: Path
) -> None:
    move(full, servers)
    tenant = Tenant(servers)
    tenant.damaged()
    tenant.diverged()
    try:
        tenant.accept(operation("case/1", "note"))
        back = msgspec.structs.replace(
            full, store=str(tmp_path / "there/store"), journal=str(tmp_path / "there/journal")
        )
        move(servers, back)
        with pytest.raises(Recovering, match="moved to"):
            tenant.accept(operation("case/1", "note"))
        with pytest.raises(Recovering):
            tenant.do(settle)
    finally:
        tenant.close()
    decide(back, "op-here")
    assert verify_files(back) == []


def test_an_embedded_type_keeps_its_tenant_on_its_engine(full: Settings, servers: Settings) -> None:
    declared = msgspec.structs.replace(full, lifecycle=LIFECYCLES)
    target = msgspec.structs.replace(servers, lifecycle=LIFECYCLES)
    with pytest.raises(Refused, match="account"):
        move(declared, target)
    decide(declared, "op-new")


def test_the_journal_alone_goes_to_a_stream_and_back(
    full: Settings, nats_server: object, tmp_path: Path
) -> None:
    url = getattr(nats_server, "url")  # noqa: B009 - an optional engine
    monitor = getattr(nats_server, "monitor")  # noqa: B009
    settings = msgspec.structs.replace(full, accept=["nats-single-server", "nats-sync-interval"])
    target = msgspec.structs.replace(settings, journal=f"{url}?monitor={monitor}")
    before = verify(settings).state_digest
    assert move(settings, target).state_digest == before
    decide(target, "op-there")
    back = msgspec.structs.replace(
        settings, store=str(tmp_path / "there/store"), journal=str(tmp_path / "there/journal")
    )
    move(target, back)
    decide(back, "op-here")
    assert verify_files(back) == []
    assert compare_journals is not None
