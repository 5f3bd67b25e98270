"""What an operator is told: where the tenant stands, and what is not covered (P13)."""

from __future__ import annotations

import msgspec
import pytest

import journal
from journal.errors import Recovering
from journal.record import Record
from journal.status import status
from journal.worker import drive
from reconstruct import recovery
from tests.support.tenants import Tenant, operation


def scope(settings: journal.Settings) -> str:
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        return "\n".join(drive(status(record)).failure_scope)
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


def test_p8_an_emptied_store_closes_the_tenant_with_the_next_decision(tenant: Tenant) -> None:
    """The file is damaged under an open connection: closed as replaced, not "try again later"."""
    for number in range(50):
        tenant.decide(f"document/{number}", "submit")
    tenant.settings.store_file.write_bytes(b"")
    with pytest.raises(Recovering):
        tenant.turn(operation("document/7", "approve"))
    assert tenant.record.stop.stands()
    said = tenant.do(status)
    assert (said.stage, said.verdict) == ("closed", "replaced")
    tenant.diverged()


def test_r10_a_journal_that_was_put_back_is_seen_to_be_the_right_one(tenant: Tenant) -> None:
    tenant.decide("document/7", "submit")
    tenant.close()
    away = tenant.settings.journal_file.with_suffix(".away")
    tenant.settings.journal_file.rename(away)
    tenant.open()
    with pytest.raises(Recovering):
        tenant.turn(operation("document/7", "approve"))
    assert tenant.do(status).verdict == "journal-rewound"
    tenant.close()
    away.rename(tenant.settings.journal_file)
    tenant.open()
    said = tenant.do(status)
    assert (said.stage, said.verdict) == ("closed", "clean")
    assert tenant.do(recovery.reopen).stage == "open"
    assert tenant.turn(operation("document/7", "approve"))[0]
