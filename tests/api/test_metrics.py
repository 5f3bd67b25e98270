"""Metrics: the text that Prometheus reads, with every count as the lanes have it."""

import math
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.alerts import Kind
from api.metrics import gather
from journal.control import Running
from journal.permits import Asked
from tests.api.servers import Server
from tests.support import handlers
from tests.support.dispatching import Scene, handled, lane, receiver, scene, settings_of
from tests.support.whole import verify_files

Samples = dict[tuple[str, ...], float]


@pytest.fixture(autouse=True)
def fresh() -> None:
    handlers.reset()


def parsed(text: bytes) -> dict[str, Samples]:
    """Each metric's samples, by the values of their labels."""
    found: dict[str, Samples] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
            assert family.documentation
    return found


async def measured(tenant: Scene) -> dict[str, Samples]:
    return parsed(await gather(tenant.journal, tenant.alerts))


async def test_every_count_is_what_the_lanes_hold(tmp_path: Path) -> None:
    lanes = {
        "mail": handled("tests.support.handlers:plain", attempts=1),
        "slow": handled("tests.support.handlers:plain", tolerance=5.0),
        "parcels": lane(concurrency=2),
    }
    settings = settings_of(
        tmp_path, lanes, {"courier": receiver("http://127.0.0.1:9/", "idempotent")}
    )
    async with scene(settings, runs=False) as tenant:
        found = await measured(tenant)
        assert found["unrewind_stage"][()] == 4
        assert found["unrewind_store_readable"][()] == 1
        assert found["unrewind_sequence"][()] == 0
        assert found["unrewind_generation"][()] == 1
        assert found["unrewind_sweep_age_seconds"][()] == math.inf
        assert found["unrewind_swept_total"][()] == 0
        assert found["unrewind_alerts_total"] == {(str(kind),): 0 for kind in Kind}
        assert "unrewind_lane_work" not in found
        assert {name for (name,) in found["unrewind_lane_on"]} == settings.lanes.keys()

        handlers.failures.append(ValueError("no"))
        dead = await tenant.command("mail")
        await tenant.start()
        await tenant.comes_to(dead, "dead")
        await tenant.comes_to(await tenant.command("mail"), "done")
        await tenant.stop()
        await tenant.lanes.set_lane("slow", Running.PAUSED, "a test")
        await tenant.lanes.enqueue("slow", "note", [("1", b"{}"), ("2", b"{}")])
        for _ in range(3):
            await tenant.permit("parcels")
        await tenant.lanes.claim(Asked("parcels", "w", "claim-1", 2))
        await tenant.lanes.sweep()
        tenant.alerts.raise_now(Kind.DEAD_LETTER, "a test")

        found = await measured(tenant)
        assert found["unrewind_lane_work"] == {
            ("mail", "dead"): 1,
            ("mail", "done"): 1,
            ("slow", "ready"): 2,
            ("parcels", "ready"): 1,
            ("parcels", "running"): 2,
        }
        assert found["unrewind_lane_waiting"] == {
            ("delivery",): 0, ("mail",): 0, ("slow",): 2, ("parcels",): 3,
        }  # fmt: skip
        drain = found["unrewind_lane_drain_seconds"]
        assert drain[("mail",)] == 0
        assert drain[("slow",)] > 5
        assert found["unrewind_lane_late"][("slow",)] == 1
        assert found["unrewind_lane_late"][("mail",)] == 0
        assert found["unrewind_lane_on"][("slow",)] == 0
        assert found["unrewind_lane_on"][("mail",)] == 1
        assert 0 <= found["unrewind_sweep_age_seconds"][()] < 60
        assert found["unrewind_alerts_total"][("dead-letter",)] == 1
        status = await tenant.journal.status()
        assert found["unrewind_sequence"][()] == status.sequence == 7


async def test_what_sweeps_have_moved_is_counted(tmp_path: Path) -> None:
    times = {"timeout": 0.01, "lease": 0.02, "sweep_after": 0.03, "expirations": 1}
    lanes = {"mail": handled("tests.support.handlers:plain", **times)}
    async with scene(settings_of(tmp_path, lanes), runs=False) as tenant:
        await tenant.command("mail")
        await tenant.lanes.claim(Asked("mail", "w", "claim-1"))

        async def swept() -> bool:
            await tenant.lanes.sweep()
            return (await measured(tenant))["unrewind_swept_total"][()] == 1

        await tenant.until(swept)
        await tenant.lanes.sweep()
        found = await measured(tenant)
        assert found["unrewind_swept_total"][()] == 1
        assert found["unrewind_lane_work"] == {("mail", "dead"): 1}


def test_a_closed_tenant_still_answers(tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    server.start()
    try:
        assert server.decide("op-1", "case/1", "note").status == 201
        reply = server.request("GET", "/metrics")
        assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert parsed(reply.body)["unrewind_stage"][()] == 4
        assert server.request("GET", "/metrics", token="").status == 401
        store = server.settings.store_file
        aside = store.with_name("aside.db")
        store.rename(aside)
        server.wait_for(lambda: server.decide("op-2", "case/1", "note").status == 503)
        found = parsed(server.request("GET", "/metrics").body)
        assert found["unrewind_stage"][()] == 0
        assert found["unrewind_alerts_total"][("dead-letter",)] == 0
        assert found["unrewind_gaps"][()] == 0
    finally:
        assert server.end() == 0
    assert "Traceback" not in server.errors
    assert verify_files(server.settings, store=False) == []
