"""What an operator is told: where the tenant stands, and what is not covered (P13)."""

from __future__ import annotations

import msgspec

import journal
from journal.record import Record
from journal.status import failure_scope, status
from journal.worker import drive
from tests.support.tenants import Tenant


def scope(settings: journal.Settings) -> str:
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        return "\n".join(failure_scope(record))
    finally:
        drive(record.close())


def test_p13_status_states_what_this_set_up_is_not_covered_against(tenant: Tenant) -> None:
    said = "\n".join(tenant.do(status).failure_scope)
    assert "one device" in said
    assert "no witness" in said
    assert "caller-owned types (contract)" in said


def test_p13_the_scope_follows_the_settings(tenant: Tenant) -> None:
    """What is not so is not said, and what an operator overrode is."""
    plain = msgspec.structs.replace(tenant.settings, lifecycle={})
    assert "caller-owned" not in scope(plain)
    assert "network" not in scope(plain)
    assert "network" in scope(msgspec.structs.replace(plain, allow_network_filesystem=True))


def test_a_stopped_tenant_says_why_and_since_when(tenant: Tenant) -> None:
    tenant.record.stop.put_up("a test of the stop", tenant.record.clock.now())
    said = tenant.do(status)
    assert (said.stage, said.detail) == ("closed", "a test of the stop")
    assert said.stopped is not None
    assert said.stopped["at"]
    tenant.record.stop.take_down()
    assert tenant.do(status).stage == "open"
