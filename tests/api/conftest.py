"""Servers for the tests of this folder, each verified whole when it has ended."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.servers import Server
from tests.support.whole import verify_files


def _served(folder: Path) -> Iterator[Server]:
    running = Server(folder)
    running.start()
    try:
        yield running
    finally:
        assert running.end() == 0
        assert "Traceback" not in running.errors, running.errors
    assert verify_files(running.settings) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test."""
    yield from _served(tmp_path / "server")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for all tests of a file."""
    yield from _served(tmp_path_factory.mktemp("shared") / "server")
