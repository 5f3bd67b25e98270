"""Fixtures that every folder of tests shares: a tenant over real files, verified when it ends."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import hypothesis
import pytest

import journal
from tests.support.tenants import Tenant, make_settings
from tests.support.whole import verify_files

# The servers that tests share.
pytest_plugins = ["tests.support.servers"]

# Tests start hundreds of processes: without it, each of them compiles the packages anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A machine that is busy with other tests is no finding.
hypothesis.settings.register_profile(
    "unrewind", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unrewind")


@pytest.fixture
def settings(tmp_path: Path) -> journal.Settings:
    """Settings with a lifecycle for each owner: document, case, account, contract."""
    return make_settings(tmp_path)


@pytest.fixture
def tenant(settings: journal.Settings) -> Iterator[Tenant]:
    """A founded tenant, driven in this thread."""
    made = Tenant(settings)
    try:
        yield made
        made.finish()
    finally:
        made.close()


@pytest.fixture
async def service(settings: journal.Settings) -> AsyncIterator[journal.Journal]:
    """A founded tenant inside the event loop, as a server has it."""
    async with journal.open(settings) as made:
        yield made
    assert verify_files(settings) == []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests that share an ID one each: run on several cores, all but one would be left out.

    schemathesis makes one test for each call of the API, and all have the name of their function.
    """
    seen: Counter[str] = Counter()
    for item in items:
        seen[item.nodeid] += 1
        if seen[item.nodeid] > 1:
            item._nodeid = f"{item.nodeid}[{seen[item.nodeid]}]"  # type: ignore[attr-defined]
    # The long ones first, so that no core ends up alone with one of them.
    first = ("tests/soak/", "tests/drill/", "tests/engines/", "tests/test_runbook.py")
    items.sort(key=lambda item: not item.nodeid.startswith(first))
