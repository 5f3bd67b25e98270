"""The count by which `plan` finds decisions that went from the journal's middle."""

from __future__ import annotations

from journal.log.engine import SqlLog
from journal.worker import drive
from tests.support.tenants import Tenant


def test_p2_decisions_are_counted_alike_by_rows_and_by_what_is_left_out(tenant: Tenant) -> None:
    for number in range(9):
        tenant.decide(f"document/{number}", "submit")
    for through in range(12):
        by_rows = drive(SqlLog.count_decisions(tenant.log, through))
        assert drive(tenant.log.count_decisions(through)) == by_rows
    assert by_rows == 9
