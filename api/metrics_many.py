"""Metrics over the tenants of a service beside its own: totals, and the names of unsound ones."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from api.rounds import Many

NAMED = 100
"""Tenants that may be named by a label: a series for each of thousands is of use to nobody."""

_COUNTED = {
    "opened": "Tenants opened, for a request or for work that was due",
    "closed": "Tenants let go of again",
    "visited": "Visits of tenants that were not open",
    "failed": "Openings of tenants that failed",
}


def of_many(many: Many) -> Iterable[Metric]:
    """The tenants beside the service's own, and what the process holds for all of them."""
    tenants, last = many.tenants, many.rounds.last
    names = [name for name in tenants.registry.names() if name != tenants.own.name]
    yield _gauge("tenants", "Tenants registered beside the service's own", len(names))
    yield _gauge("tenants_open", "Tenants open beside the service's own", tenants.held)
    yield _gauge("tenants_open_most", "Tenants that may be open", tenants.base.tenants_open)
    for name, about in _COUNTED.items():
        yield CounterMetricFamily(f"unrewind_tenants_{name}", about, value=tenants.counts[name])
    about = "Rounds of visits that have ended"
    yield CounterMetricFamily("unrewind_tenants_rounds", about, value=many.rounds.ended)
    about = "Seconds that the last round of visits took"
    yield _gauge("tenants_round_seconds", about, 0 if last is None else last.seconds)
    about = "Tenants that the last round opened for their work"
    yield _gauge("tenants_round_opened", about, 0 if last is None else last.opened)
    unsound = many.rounds.unsound
    yield _gauge("tenants_unsound", "Tenants closed by a verdict, or not opened", len(unsound))
    named = GaugeMetricFamily(
        "unrewind_tenant_unsound",
        f"Tenants closed by a verdict, or not opened; {NAMED} of them at most",
        labels=["tenant", "verdict"],
    )
    for name, verdict in sorted(unsound.items())[:NAMED]:
        named.add_metric([name, verdict], 1.0)
    yield named
    yield _gauge("process_threads", "Threads of the process", threading.active_count())
    handles = _handles()
    if handles is not None:
        yield _gauge("process_handles", "Files and sockets that the process has open", handles)


def _handles() -> int | None:
    try:
        return len(os.listdir(Path("/proc/self/fd")))  # noqa: PTH208 - names, and no paths
    except OSError:
        return None


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"unrewind_{name}", about, value=value)
