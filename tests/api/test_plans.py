"""L9: whatever is asked of the work is answered from an index, however many rows there are.

By SQLite's own plan, not by timing: none of the statements may read the table, or a lane, whole.
"""

import inspect
from collections.abc import Iterable, Mapping

import pytest

from journal.lanes import Effect
from journal.sql import Rows, Statement
from journal.store import work as works
from journal.work import Work
from tests.support.tenants import Tenant

ROW = Work(
    "rel_1", "delivery", "external", "release", "ready", "document/1", 1, 1, 0, "op-1", "v1",
    None, None, None, None, "{}", 1.0, "now", "now",
)  # fmt: skip
CLAIMS = [("rel_1", 1)]

STATEMENTS: Mapping[str, Statement | Iterable[Statement]] = {
    "beat": works.beat(CLAIMS, 60.0),
    "delete_derived": works.delete_derived(["document/1"], 3),
    "discard_waiting": works.discard_waiting("delivery"),
    "forget": works.forget(60.0, 100),
    "hold": works.hold("rel_1", "held", 15.0),
    "let_go": works.let_go("held: stopped"),
    "park": works.park("rel_1", "spoiled", 5, 1.0),
    "postpone": works.postpone(["rel_1"], 15.0),
    "put_while": works.put_while(ROW, ROW),
    "read_all_of": works.read_all_of(["document/1"]),
    "read_askable": works.read_askable("delivery", 64),
    "read_budgets": works.read_budgets(["lane/delivery"]),
    "read_claim": works.read_claim("claim-1"),
    "read_claimable": [
        works.read_claimable("delivery", 64, "now"),
        works.read_claimable("delivery", 1, "now", ("cmd_1",)),
        works.read_claimable("delivery", 64, "now", (), ("rel_1",)),
    ],
    "read_claims": works.read_claims(CLAIMS),
    "read_due": works.read_due(["delivery"]),
    "read_expired": works.read_expired(200),
    "read_flow": works.read_flow(60),
    "read_of_entities": works.read_of_entities(["document/1"], [("document/1", "v1")]),
    "read_of_operation": works.read_of_operation("op-1", "document/1"),
    "read_oldest": works.read_oldest("delivery"),
    "read_open": [works.read_open(None, "", 200), works.read_open(Effect.EXTERNAL, "", 200)],
    "read_running": works.read_running("", 200),
    "select_numbered": works.select_numbered("id = ?", "", "rel_1"),
    "read_page": [
        works.read_page("delivery", status, entity, 100, 100)
        for status in (None, "dead")
        for entity in (None, "document/1")
    ],
    "read_work": works.read_work(["rel_1"]),
    "remember_callback": works.remember_callback("courier", "msg_1"),
    "set_step": works.set_step(CLAIMS, "calling"),
    "wake": works.wake(["rel_1"]),
    "write_budget": works.write_budget("lane/delivery", 1.0, 0.0),
    "write_sweep": works.write_sweep(1, 1, 1),
}
CONSTANTS = {name: value for name, value in vars(works).items() if isinstance(value, Statement)}


def plan(tenant: Tenant, statement: Statement) -> list[str]:
    rows = tenant.sql(f"EXPLAIN QUERY PLAN {statement.sql}", *statement.parameters)
    return [str(row[3]) for row in rows]


def test_every_statement_is_looked_at() -> None:
    made = {
        name
        for name, function in inspect.getmembers(works, inspect.isfunction)
        if not name.startswith("_")
        and "Statement" in str(inspect.signature(function).return_annotation)
    }
    assert made == STATEMENTS.keys()
    rows = works.write_work([ROW])
    assert isinstance(rows, Rows)


@pytest.mark.parametrize("name", [*STATEMENTS, *CONSTANTS])
def test_l9_no_statement_reads_the_work_or_a_lane_whole(tenant: Tenant, name: str) -> None:
    found = {**STATEMENTS, **CONSTANTS}[name]
    for statement in [found] if isinstance(found, Statement) else found:
        steps = plan(tenant, statement)
        scans = [step for step in steps if step.startswith("SCAN unrewind_work")]
        # What is let go again is looked for among all that waits, by an operator, once.
        assert not scans or (name, scans[0].split()[-1]) == ("let_go", "unrewind_work_due"), steps
        # A lane may hold a million rows: it is read by something else too, or in an index's order.
        whole = [step for step in steps if step.endswith(("(lane=?)", "(effect=?)"))]
        assert name == "read_oldest" or not whole, steps
