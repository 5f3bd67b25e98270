"""Fixtures of the tests of reconstruction."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import journal
from tests.reconstruct.scenes import Scene


@pytest.fixture
def scene(settings: journal.Settings) -> Iterator[Scene]:
    """A founded tenant that remembers every answer; the test itself says when it is whole."""
    made = Scene(settings)
    try:
        yield made
    finally:
        made.close()
