"""Metrics in the Prometheus text format, gathered when they are asked for.

Everything comes from counters and the last comparison: a scrape costs a few reads, however much
there is.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api.alerts import Alerts
from api.metrics_many import of_many
from api.rounds import Many
from journal import Journal
from journal.control import Stage
from journal.errors import UnrewindError
from journal.inquiry import LaneView
from journal.status import Status
from journal.sweeping import LastSweep

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_STAGES = list(Stage)


async def gather(journal: Journal, alerts: Alerts, many: Many | None = None) -> bytes:
    """The tenant's metrics, and totals over those beside it.

    A store that cannot be read leaves its own out, and says so.
    """
    status = await journal.status()
    lanes: list[LaneView] = []
    swept: LastSweep | None = None
    readable = True
    try:
        lanes = await journal.lanes.lanes()
        swept = await journal.lanes.last_sweep()
    except UnrewindError:
        readable = False
    registry = CollectorRegistry(auto_describe=False)
    found = [*_of_status(status, readable), *_of_alerts(alerts)]
    if readable:
        found += _of_lanes(lanes, swept)
    if many is not None:
        found += of_many(many)
    registry.register(_Gathered(found))
    return generate_latest(registry)


class _Gathered(Collector):
    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = [*metrics]

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _gauge(name: str, about: str, value: float | None) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"unrewind_{name}", about, value=value)


def _of_status(status: Status, readable: bool) -> Iterable[Metric]:
    stage = _STAGES.index(Stage(status.stage))
    yield _gauge(
        "stage", "Stage in force: 0 closed, 1 reading, 2 internal, 3 external, 4 open", stage
    )
    yield _gauge("store_readable", "Whether the store's tables can be read", float(readable))
    yield _gauge("pending_decisions", "Decisions not yet in the journal", status.pending)
    yield _gauge("gaps", "Reasons why a history is incomplete", status.gaps)
    if status.generation is not None:
        yield _gauge("generation", "Generation in force", status.generation)
    if status.sequence is not None:
        yield _gauge("sequence", "Last sequence in the journal", status.sequence)


def _of_lanes(lanes: Iterable[LaneView], swept: LastSweep | None) -> Iterable[Metric]:
    work = GaugeMetricFamily(
        "unrewind_lane_work", "Rows of a lane by status", labels=["lane", "status"]
    )
    waiting = GaugeMetricFamily(
        "unrewind_lane_waiting", "Weight of what is outstanding in a lane", labels=["lane"]
    )
    drain = GaugeMetricFamily(
        "unrewind_lane_drain_seconds",
        "Seconds until what waits is done; infinite where it never is",
        labels=["lane"],
    )
    late = GaugeMetricFamily(
        "unrewind_lane_late", "Whether a lane is past its tolerance", labels=["lane"]
    )
    running = GaugeMetricFamily(
        "unrewind_lane_on", "Whether a lane gives out its work", labels=["lane"]
    )
    for lane in lanes:
        for status, items in lane.counts.items():
            work.add_metric([lane.lane, status], items)
        waiting.add_metric([lane.lane], lane.waiting)
        drain.add_metric([lane.lane], float("inf") if lane.drain is None else lane.drain)
        late.add_metric([lane.lane], float(lane.late))
        running.add_metric([lane.lane], float(lane.running == "on"))
    yield from (work, waiting, drain, late, running)
    age = float("inf") if swept is None else swept.age
    yield _gauge("sweep_age_seconds", "Seconds since the last good sweep; infinite: none yet", age)
    yield CounterMetricFamily(
        "unrewind_swept", "Rows that sweeps have moved", value=0 if swept is None else swept.total
    )


def _of_alerts(alerts: Alerts) -> Iterable[Metric]:
    raised = CounterMetricFamily("unrewind_alerts", "Alerts raised", labels=["kind"])
    for kind, count in alerts.raised.items():
        raised.add_metric([kind], count)
    yield raised
