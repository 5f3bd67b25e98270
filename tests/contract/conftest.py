"""The engines that the contract suite runs against."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engines import ENGINES, Engine
from tests.support.postgres import PostgresServer

_WITH_SERVERS = {"postgresql"}
PARAMS = [
    pytest.param(name, marks=pytest.mark.engines) if name in _WITH_SERVERS else name
    for name in sorted(ENGINES)
]


@pytest.fixture(params=PARAMS)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """One engine with a place of its own."""

    def server() -> PostgresServer:
        found: PostgresServer = request.getfixturevalue("postgres_stores")
        return found

    return ENGINES[request.param](tmp_path, server)
