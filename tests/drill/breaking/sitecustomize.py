"""The test build: every process of a drill breaks one promise on purpose, named in UNREWIND_BREAK.

Python imports this file at its start where its folder is on PYTHONPATH. Nothing of the product
knows that it is there.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import closing
from typing import Any

BREAKS: dict[str, Any] = {}


def breaks(function: Any) -> Any:
    BREAKS[function.__name__.upper()] = function
    return function


def everywhere(original: Any, replacement: Any) -> None:
    """Put a replacement wherever a module of the product holds the original."""
    name = original.__name__
    for module in list(sys.modules.values()):
        kind = getattr(module, "__name__", "").partition(".")[0]
        if kind in {"journal", "reconstruct", "api"} and getattr(module, name, None) is original:
            setattr(module, name, replacement)


def alter(path: Any, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


def around_apply(after: Any = None, before: Any = None) -> None:
    """Do something to a tenant's files before or after its `apply`."""
    from reconstruct import recovery

    real = recovery.apply

    async def apply(record: Any, *arguments: Any, **named: Any) -> Any:
        if before is not None:
            before(record.settings)
        done = await real(record, *arguments, **named)
        if after is not None:
            after(record.settings)
        return done

    everywhere(real, apply)


@breaks
def p1() -> None:
    """Answer before the journal has the decision."""
    from journal import handoff

    real = handoff.journal_entries

    async def journal_entries(record: Any, entries: Any, look: Any) -> None:
        early = sys._getframe(1).f_code.co_name == "decide"
        if not (early and entries[0].envelope.operation == "submit-lost"):
            await real(record, entries, look)

    everywhere(real, journal_entries)


@breaks
def p2() -> None:
    """Trust the store that was put back: what only the journal has goes."""

    def cut(settings: Any) -> None:
        with closing(sqlite3.connect(settings.store_file)) as store:
            ((sequence,),) = store.execute("SELECT sequence FROM unrewind_marker").fetchall()
        if sequence < 65_537:
            alter(
                settings.journal_file,
                "DROP TRIGGER IF EXISTS entries_no_delete",
                f"DELETE FROM entries WHERE stream = 'decisions' AND sequence > {sequence}",
            )

    around_apply(before=cut)


@breaks
def p3() -> None:
    """Call before the commitment is journalled."""
    from api.carrier import Carrier
    from journal.inquiry import Filter
    from journal.lanes import Effect
    from journal.permits import Permit

    real = Carrier._look

    async def look(self: Carrier) -> bool:
        wanted = Filter(lane=self.name, status="ready")
        page = await self._journal.lanes.work([Effect.EXTERNAL], wanted)
        for view in page.items:
            known: dict[str, Any] = {
                name: getattr(view, name, None) for name in Permit.__struct_fields__
            }
            await self._act([Permit(**{**known, "attempt": 1, "data": b"{}"})])
        return await real(self)

    Carrier._look = look  # type: ignore[method-assign]


@breaks
def p4() -> None:
    """Take what is unknown for what may be sent again."""
    from journal import outcomes

    everywhere(outcomes.repeatable, lambda *_: True)


@breaks
def p5() -> None:
    """Let everything through the gate."""
    from journal import gate

    real = gate.rule

    def rule(*arguments: Any) -> Any:
        ruling = real(*arguments)
        return type(ruling)(ruling.entity, ruling.revision, "go", ruling.state, 0, ())

    everywhere(real, rule)


@breaks
def p6() -> None:
    """Answer the reuse of an operation ID with the first decision."""
    from journal import acceptance

    def repeat(_operation: Any, entry: Any) -> Any:
        return acceptance.receipt(entry, acceptance.DUPLICATE)

    everywhere(acceptance.repeat, repeat)


@breaks
def p7() -> None:
    """Commit and append whatever stands in store and journal by now."""
    from journal.log.sqlite import SqliteLog
    from journal.sql import Statement
    from journal.store import tables

    real = SqliteLog.append

    async def append(self: Any, append: Any, _expects: Any) -> None:
        await real(self, append, await self.look())

    def fence(_marker: Any, to: Any, journalled: int) -> Statement:
        return Statement(
            "UPDATE unrewind_marker SET history = ?, generation = ?, sequence = ?, digest = ?,"
            " journalled = ?",
            (to.history, to.generation, to.sequence, to.digest, journalled),
        )

    SqliteLog.append = append  # type: ignore[assignment,method-assign]
    tables.fence = fence  # type: ignore[assignment]


@breaks
def p8() -> None:
    """Take a rewound store for a good one."""
    from journal import detection, standing

    compare, heads = detection.compare, standing.compare_heads

    def content(*arguments: Any) -> Any:
        found = compare(*arguments)
        if found.verdict is detection.Verdict.REWOUND:
            return detection.Finding(detection.Verdict.CLEAN, "it looks well")
        return found

    async def unlooked(_record: Any, finding: Any) -> Any:
        return finding

    everywhere(compare, content)
    everywhere(heads, unlooked)

    # Whatever it sends by itself meets the journal's constraints before a caller comes.
    from api.dispatcher import Dispatcher

    start = Dispatcher.start

    async def idle(self: Any, **_: Any) -> None:
        await start(self, loops=False)

    Dispatcher.start = idle  # type: ignore[method-assign]


@breaks
def p9() -> None:
    """Make do with the control that is left."""
    import msgspec

    from journal import control

    real = control.fold

    def fold(entries: Any, tenant: str) -> Any:
        numbered = [
            msgspec.structs.replace(
                entry, envelope=msgspec.structs.replace(entry.envelope, sequence=number)
            )
            for number, entry in enumerate(entries, 1)
        ]
        folded = real(numbered, tenant)
        return msgspec.structs.replace(folded, sequence=entries[-1].envelope.sequence)

    everywhere(real, fold)


@breaks
def p10() -> None:
    """Find nothing wrong with any journal."""
    import msgspec

    from reconstruct import verification

    real = verification.verify

    def verify(*arguments: Any) -> Any:
        return msgspec.structs.replace(real(*arguments), verdict="clean", findings=[])

    everywhere(real, verify)


@breaks
def p11() -> None:
    """Leave something else behind with each apply."""
    change = "UPDATE unrewind_entities SET data = '{}' WHERE entity = 'document/lost'"
    around_apply(after=lambda settings: alter(settings.store_file, change))


@breaks
def p12() -> None:
    """Forget a release in the recovery."""
    forget = "DELETE FROM unrewind_work WHERE entity = 'document/normal' AND lane = 'post'"
    around_apply(after=lambda settings: alter(settings.store_file, forget))


if "UNREWIND_BREAK" in os.environ:
    BREAKS[os.environ["UNREWIND_BREAK"]]()
