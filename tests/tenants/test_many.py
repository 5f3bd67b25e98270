"""Many tenants in one process: what it holds for them does not grow with their number."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.tenants.many import Service

OPEN = 4
EVERY = {
    "UNREWIND_TENANTS_OPEN": str(OPEN),
    "UNREWIND_TENANTS_EVERY": "0.5",
}
THREADS_EACH = 3
"""A tenant that is open has one thread that writes, one that reads, and one that beats."""

HANDLES_EACH = 12
"""Store and journal, each with its side files, twice; lock, presence and agreement."""


def held(service: Service) -> tuple[float, float, float]:
    return (
        service.metric("unrewind_tenants_open"),
        service.metric("unrewind_process_threads"),
        service.metric("unrewind_process_handles"),
    )


def run(folder: Path, count: int) -> None:
    service = Service(folder / "service", **EVERY)
    names = [f"t{number}" for number in range(count)]
    for name in names:
        service.create(name)
    service.start()
    try:
        _, threads, handles = held(service)
        assert threads < 30
        for name in names:
            assert service.note(name, "op-1").status == 201
            opened, more_threads, more_handles = held(service)
            assert opened <= OPEN
            # Beside those that are open, one may be on its way in and one on its way out.
            assert more_threads <= threads + 2 * (OPEN + 1) * THREADS_EACH + 16
            assert more_handles <= handles + 3 * (OPEN + 1) * HANDLES_EACH
        rounds = service.metric("unrewind_tenants_rounds_total")
        until = time.monotonic() + 60 + count
        while service.metric("unrewind_tenants_rounds_total") <= rounds + 1:
            assert time.monotonic() < until
            time.sleep(0.1)
        assert service.metric("unrewind_tenants_unsound") == 0
        assert service.metric("unrewind_tenants_failed_total") == 0
        for name in names[:: max(1, count // 20)]:
            items = service.ask(name, "operations").json["items"]
            assert [item["operation"] for item in items] == ["op-1"]
    finally:
        assert service.end() == 0
    assert "Traceback" not in service.errors
    service.whole(*names[:: max(1, count // 20)])
    assert threading.active_count() < 20


def test_sixty_tenants_need_no_more_than_those_that_are_open(tmp_path: Path) -> None:
    run(tmp_path, 60)


@pytest.mark.soak
def test_a_thousand_tenants_need_no_more_than_those_that_are_open(tmp_path: Path) -> None:
    run(tmp_path, 1000)
