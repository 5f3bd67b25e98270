"""A writer of the old generation: `python -m api.drill.elder CONFIG OPERATION ENTITY ACTION`.

It judges one operation while the tenant is sound, lets go of the files without committing, and says
`prepared`. Told to go on by a line on stdin, after a recovery, it tries to commit and to append
what it has in hand, past every check that stands before the ports; one JSON object says what store
and journal answered.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from journal.acceptance import Context, Decision, Operation, View, judge
from journal.driving import drive
from journal.errors import EngineError
from journal.log import DECISIONS, Append
from journal.places import place_of_log, place_of_store
from journal.record import Record
from journal.settings import Settings, load
from journal.store import tables
from journal.writepath import Ready, make_ready

PREPARED = "prepared"


def prepare(settings: Settings, operation: Operation) -> tuple[Ready, Decision, Any]:
    """Judge an operation against the tenant as it is now; nothing is written."""
    record = Record(settings)
    drive(record.open(create=False))
    try:
        with record.lock.held():
            ready = drive(make_ready(record))
            statement = tables.read_heads([operation.entity])
            heads = tables.heads_of(drive(ready.store.read([statement]))[0])
        context = Context(record.rules, record.clock.now())
        judged = judge([operation], View(ready.tip, heads, {}), context)
    finally:
        drive(record.close())
    (decision,) = judged.decisions
    return ready, decision, judged.tip


def attempt(work: Callable[[], None]) -> str:
    """`written`, or how it was refused."""
    try:
        work()
    except EngineError as error:
        return f"refused: {type(error).__name__}"
    return "written"


def main(config: str, identity: str, entity: str, action: str) -> None:
    """Prepare, wait, try."""
    settings = load(config)
    ready, decision, tip = prepare(settings, Operation(identity, entity, action))
    print(PREPARED, flush=True)
    if not sys.stdin.readline():
        return  # whoever started this has ended

    def commit() -> None:
        store = place_of_store(settings).open()
        try:
            fence = tables.fence(ready.marker, tip, ready.tip.sequence)
            drive(store.batch([fence, *tables.write_decisions([decision])]))
        finally:
            drive(store.close())

    def append() -> None:
        log = place_of_log(settings).open()
        try:
            drive(log.append(Append(entries=[(DECISIONS, decision.entry)]), ready.look))
        finally:
            drive(log.close())

    told = {"store": attempt(commit), "journal": attempt(append), "digest": decision.entry.digest}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5])
