"""Embedded types: the application's rows and the decision commit together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

import journal
from journal.errors import (
    JournalUnavailable,
    Recovering,
    SettingsInvalid,
    TransitionRefused,
    Unreachable,
    UnrewindError,
)
from journal.lifecycle import Kind, Lifecycle, Owner
from journal.projection import load_projections
from journal.store import tables
from journal.worker import drive
from tests.support.faults import fail_log, fail_store
from tests.support.ledger import Ledger
from tests.support.tenants import Tenant, accepted, operation


def ledger(tenant: Tenant) -> list[tuple[str, str, int, int]]:
    rows = tenant.sql("SELECT entity, state, revision, balance FROM ledger ORDER BY entity")
    return [(entity, state, revision, balance) for entity, state, revision, balance in rows]


def decisions(tenant: Tenant) -> int:
    count: int = tenant.sql("SELECT count(*) FROM unrewind_decisions")[0][0]
    return count


def open_account(number: int, balance: int) -> journal.Operation:
    return operation(f"account/{number}", "open", {"balance": balance})


def test_the_projection_runs_in_the_batch_that_accepts(tenant: Tenant) -> None:
    tenant.accept(open_account(1, 10))
    tenant.decide("account/1", "credit", body={"balance": 25})
    assert ledger(tenant) == [("account/1", "credit", 2, 25)]


def test_a_constraint_of_the_application_leaves_neither_row_nor_decision(tenant: Tenant) -> None:
    with pytest.raises(TransitionRefused, match="CHECK constraint failed") as refused:
        tenant.accept(open_account(1, -1))
    assert refused.value.members["entity"] == "account/1"
    assert (ledger(tenant), decisions(tenant)) == ([], 0)
    marker = drive(tenant.record.marker())
    assert marker is not None
    assert marker.place.sequence == 0
    assert not tenant.record.stop.stands()
    assert tenant.accept(open_account(1, 1)).sequence == 1


def test_h4_the_one_at_fault_is_refused_and_its_batch_mates_are_spared(tenant: Tenant) -> None:
    wanted = [open_account(number, -1 if number in {2, 4} else number) for number in range(6)]
    answers = tenant.turn(*wanted, operation("document/1"), wanted[0])
    for number in (2, 4):
        assert isinstance(answers[number], TransitionRefused)
    fine = [accepted(answers[number]) for number in (0, 1, 3, 5, 6)]
    assert [answer.sequence for answer in fine] == [1, 2, 3, 4, 5]
    assert accepted(answers[7]).outcome == "duplicate"
    assert [row[0] for row in ledger(tenant)] == [
        "account/0",
        "account/1",
        "account/3",
        "account/5",
    ]


def test_a_later_decision_of_the_one_at_fault_is_judged_without_it(tenant: Tenant) -> None:
    answers = tenant.turn(open_account(1, -1), open_account(1, 5))
    assert isinstance(answers[0], TransitionRefused)
    assert accepted(answers[1]).revision == 1
    assert ledger(tenant) == [("account/1", "open", 1, 5)]


class Broken(Ledger):
    """A projection that fails for accounts named so."""

    def apply(self, decision: journal.Decided) -> Sequence[Any]:
        if decision.entity == "account/raises":
            raise KeyError("balance")
        if decision.entity == "account/no-table":
            return [journal.Statement("INSERT INTO nowhere VALUES (1)")]
        if decision.entity == "account/reads":
            return [journal.Statement("SELECT 1")]
        if decision.entity == "account/commits":
            return [journal.Statement("COMMIT")]
        if decision.entity == "account/text":
            return ["INSERT INTO ledger VALUES (1)"]
        if decision.entity == "account/few":
            return [journal.Statement("DELETE FROM ledger WHERE entity = ?")]
        if decision.entity == "account/odd":
            return [journal.Statement("DELETE FROM ledger WHERE entity = ?", (object(),))]
        return super().apply(decision)


@pytest.mark.parametrize("name", ["raises", "no-table", "reads", "commits", "text", "few", "odd"])
def test_a_projection_that_fails_refuses_its_own_operation_alone(tenant: Tenant, name: str) -> None:
    tenant.record.projections["account"] = Broken()
    answers = tenant.turn(
        open_account(1, 1), operation(f"account/{name}", "open"), operation("document/1")
    )
    assert isinstance(answers[1], UnrewindError)
    assert [accepted(answers[n]).sequence for n in (0, 2)] == [1, 2]
    assert [row[0] for row in ledger(tenant)] == ["account/1"]
    assert not tenant.record.stop.stands()


def test_p1_the_rows_of_a_pending_decision_stand_and_are_not_applied_twice(
    tenant: Tenant,
) -> None:
    wanted = open_account(1, 5)
    fail_log(tenant.record, before=[Unreachable("busy")])
    with pytest.raises(JournalUnavailable):
        tenant.turn(wanted)
    assert tenant.accept(wanted).outcome == "duplicate"
    assert ledger(tenant) == [("account/1", "open", 1, 5)]


def test_a_store_that_refuses_the_batch_leaves_no_row_of_the_application(tenant: Tenant) -> None:
    fail_store(tenant.record, before=[Unreachable("busy")])
    with pytest.raises(JournalUnavailable):
        tenant.turn(open_account(1, 5))
    assert ledger(tenant) == []


def test_the_applications_tables_rewind_and_return_with_the_store(
    settings: journal.Settings,
) -> None:
    tenant = Tenant(settings)
    tenant.accept(open_account(1, 5))
    tenant.reopen()
    assert ledger(tenant) == [("account/1", "open", 1, 5)]
    assert isinstance(tenant.record.projections["account"], Ledger)
    tenant.finish()


def test_a_managed_type_whose_store_contradicts_itself_closes_the_tenant(tenant: Tenant) -> None:
    tenant.decide("document/1", "submit")
    tenant.sql("INSERT INTO unrewind_decisions VALUES (2, x'00', '{}', x'')")
    with pytest.raises(Recovering):
        tenant.turn(operation("document/1"))
    assert tenant.record.stop.facts()["verdict"] == "replaced"
    tenant.diverged()


def test_clearing_removes_the_rows_of_one_entity(tenant: Tenant) -> None:
    tenant.turn(open_account(1, 5), open_account(2, 6))
    drive(tenant.store.read([tables.READ_MARKER]))
    for statement in Ledger().clear("account/1"):
        tenant.store.database.run(statement)
    assert [row[0] for row in ledger(tenant)] == ["account/2"]
    tenant.diverged()


@pytest.mark.parametrize(
    "named",
    [
        "tests.support.nowhere:Ledger",
        "tests.support.ledger:Nothing",
        "tests.support.ledger",
        "",
        ":",
        "tests.support.sealing:Caller",
    ],
)
def test_a_projection_that_cannot_be_loaded_is_named(named: str) -> None:
    lifecycle = Lifecycle(kind=Kind.FREE, owner=Owner.EMBEDDED, projection=named)
    with pytest.raises((SettingsInvalid, TypeError)) as refused:
        load_projections({"account": lifecycle})
    assert isinstance(refused.value, SettingsInvalid)
    assert "lifecycle.account" in refused.value.detail


def test_a_decision_as_a_projection_sees_it(tenant: Tenant) -> None:
    seen = []

    class Watching(Ledger):
        def apply(self, decision: journal.Decided):
            seen.append(decision)
            return super().apply(decision)

    tenant.record.projections["account"] = Watching()
    wanted = msgspec.structs.replace(open_account(1, 5), actor="A", version="7")
    answer = tenant.accept(wanted)
    tenant.accept(operation("account/1", "rename", {"name": "x"}))
    first, second = seen
    assert (first.entity, first.revision, first.action, first.state) == (
        "account/1",
        1,
        "open",
        "open",
    )
    assert (first.operation, first.version, first.actor) == (wanted.operation, "7", "A")
    assert (first.digest, first.body) == (answer.digest, wanted.body)
    assert second.data == {"balance": 5, "name": "x"}
