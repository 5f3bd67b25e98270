"""A process that has a tenant open follows it to where it moved."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from contextlib import suppress
from http.client import RemoteDisconnected
from pathlib import Path

import msgspec
import pytest

from api import following
from journal import Settings
from journal.registry import Earlier, Registered, Registry
from tests.api.servers import SECONDS
from tests.support.tenants import make_settings
from tests.tenants.many import HANDLED, Service

NEW = ("new-store", "new-journal")


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path / "service", HANDLED)


def go(service: Service, *where: str) -> None:
    """Move the service's own tenant by the command, beside whoever has it open."""
    places = [word for pair in zip(("--store", "--journal"), where, strict=True) for word in pair]
    moved = service.command("move", *places)
    assert moved.returncode == 0, moved.stderr


def again(service: Service, operation: str) -> None:
    """Repeat it until it is accepted, as a client does: also where its connection was closed."""

    def accepted() -> bool:
        with suppress(RemoteDisconnected, ConnectionResetError):
            return service.decide(operation, "case/1", "note").status in {200, 201}
        return False

    service.wait_for(accepted)


def test_p2_a_running_server_follows_its_own_tenant_there_and_back(
    service: Service, tmp_path: Path
) -> None:
    service.start()
    assert service.process is not None
    try:
        assert service.decide("op-1", "case/1", "note").status == 201
        for number, where in enumerate((NEW, ("data/store", "data/journal"))):
            go(service, *where)
            again(service, f"op-next-{number}")
            assert service.decide("op-1", "case/1", "note").status == 200
            assert service.get("entities/case/1").json["revision"] == number + 2
            assert service.process.poll() is None
    finally:
        assert service.end() == 0, service.errors
    assert "Traceback" not in service.errors, service.errors
    service.whole("main")


def test_p2_a_server_that_is_asked_to_stop_while_it_follows_stops(service: Service) -> None:
    service.start()
    assert service.process is not None
    head = (
        f"POST /v1/main/decisions HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {service.token}"
    )
    with socket.create_connection(("127.0.0.1", service.port), SECONDS) as under_way:
        # A body that is not whole yet keeps the server from leaving where it was.
        under_way.sendall(f"{head}\r\nContent-Length: 100\r\n\r\n{{".encode())
        go(service, *NEW)
        service.wait_for(lambda: "has moved to" in service.errors)
        service.process.send_signal(signal.SIGTERM)
    assert service.end() == 0, service.errors
    service.whole("main")


def test_a_dispatcher_of_its_own_follows_too(service: Service, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    traces.mkdir()
    service.environment["TRACES"] = str(traces)
    service.environment["UNREWIND_DISPATCH_EVERY"] = "0.05"

    def accept(name: str) -> None:
        done = service.command(
            "accept", "--entity", f"parcel/{name}", "--action", "pack", "--operation", name
        )
        assert done.returncode == 0, done.stderr
        service.wait_for(lambda: name in {path.read_text()[7:] for path in traces.iterdir()})

    assert service.command("token", "create", "--role", "operator").returncode == 0
    with (service.folder / "stderr").open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "api.cli", "dispatch"],
            cwd=service.folder,
            env=service.environment,
            stderr=errors,
        )
    try:
        accept("one")
        go(service, *NEW)
        accept("two")
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0, service.errors
    assert "Traceback" not in service.errors, service.errors


def test_only_a_place_that_the_tenant_left_is_followed_from(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    assert following.now_at(settings) is None
    left = Earlier(settings.store, settings.journal, "2026-11-30T12:00:00.000000Z", 1)
    here = Registered("main", "/there/store", "/there/journal", None, left.until, earlier=[left])
    registry = Registry(settings.home)
    registry.write(here)
    found = following.now_at(settings)
    assert isinstance(found, Settings)
    assert (found.store, found.journal) == ("/there/store", "/there/journal")
    assert following.now_at(found) is None
    # One that somebody names by hand, and that the tenant never was at.
    assert following.now_at(msgspec.structs.replace(settings, store="/elsewhere")) is None
    back = msgspec.structs.replace(here, store=settings.store, journal=settings.journal)
    registry.write(back)
    assert following.now_at(settings) is None
