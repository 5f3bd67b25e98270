"""The engines that the contract suite runs against."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engines import ENGINES, Engine


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    """One engine with a place of its own."""
    return ENGINES[request.param](tmp_path)
