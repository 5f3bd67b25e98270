"""Fixtures of the tests of the record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.releases import Yard, lane_settings


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    """A founded tenant with lanes, driven in this thread and verified when the test ends."""
    made = Yard(lane_settings(tmp_path))
    try:
        yield made
        made.finish()
    finally:
        made.close()
