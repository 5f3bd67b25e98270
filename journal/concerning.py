"""The work that a batch of operations has to do with: what is read before it is judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from journal.acceptance import Operation
from journal.lifecycle import Lifecycle
from journal.release import is_report, report_of
from journal.sql import Result, Statement
from journal.store import work as works
from journal.work import Work


def work_wanted(
    lifecycles: Mapping[str, Lifecycle], operations: Sequence[Operation]
) -> list[Statement]:
    """The reads for what work a batch may change; none where no operation has to do with any."""
    concerned: list[Operation] = []
    named: list[str] = []
    for operation in operations:
        lifecycle = lifecycles.get(operation.entity.partition("/")[0])
        if is_report(operation.action, operation.body_type):
            concerned.append(operation)
            named.append(report_of(operation.body).release)
        elif lifecycle is not None and lifecycle.actions and lifecycle.works:
            concerned.append(operation)
            action = lifecycle.actions.get(operation.action)
            if action is not None and action.corrects:
                named += _named_in(operation.body)
    if not concerned:
        return []
    versions = [(each.entity, each.version) for each in concerned if each.version is not None]
    wanted = [works.read_of_entities([each.entity for each in concerned], versions)]
    return [*wanted, works.read_work(named)] if named else wanted


def by_entity(
    operations: Sequence[Operation], results: Sequence[Result]
) -> dict[str, Mapping[str, Work]]:
    """The rows that ``work_wanted`` found, by entity and ID."""
    grouped: dict[str, dict[str, Work]] = {operation.entity: {} for operation in operations}
    for result in results:
        for row in works.rows_of(result):
            if row.entity in grouped:
                grouped[row.entity][row.id] = row
    return dict(grouped)


def _named_in(body: bytes) -> list[str]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, RecursionError):
        return []
    corrects = found.get("corrects") if isinstance(found, dict) else None
    return [corrects] if isinstance(corrects, str) else []
