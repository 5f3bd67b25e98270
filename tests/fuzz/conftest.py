"""What the long rounds of this folder leave for the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.mutating import EXAMPLES
from tests.soak.processes import LONG
from tests.support.proof import record


@pytest.fixture(scope="session", autouse=True)
def proof(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if LONG and not request.session.testsfailed:
        mine = [
            item for item in request.session.items if Path(__file__).parent in item.path.parents
        ]
        examples = sum(EXAMPLES for item in mine if _drawn(item))
        command = "UNREWIND_SOAK=1 python -m pytest -m soak tests/fuzz"
        record("fuzz", command, scope=examples, tests=len(mine))


def _drawn(item: pytest.Item) -> bool:
    return hasattr(getattr(item, "function", None), "hypothesis")
