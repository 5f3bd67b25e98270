"""`unrewind adopt`: take over the rows of an application that was there before."""

from __future__ import annotations

from typing import Any

import click
import msgspec
from msgspec import Struct

from api.cli.failures import Code
from api.cli.program import common, examples, existing_file, flags, main, settings
from api.opening import ask, deciding, principal
from api.output import print_facts, print_json, print_rows
from api.progress import Show, shown
from journal.control import Stage
from journal.errors import Recovering
from journal.inside import adopting
from journal.inside.adopting import Adopted, Compared
from journal.inside.beside import found_beside
from journal.inside.querying import opened
from journal.inside.shadow import Shadow
from journal.record import Record
from journal.settings import Settings

_SHOWN = 20


class Shadowed(Struct):
    """What shadow mode noted, by kind; ``last`` has the newest lines."""

    noted: int = 0
    kinds: dict[str, int] = {}
    last: list[Any] = []


@main.command(
    "adopt",
    epilog=examples(
        "unrewind adopt --query-file baseline.sql",
        "unrewind adopt --query-file baseline.sql --compare",
        "unrewind adopt --query \"SELECT 'payout/' || id, state, NULL, "
        "json_object('amount', amount) FROM payouts\"",
    ),
)
@click.option(
    "--query",
    metavar="SQL",
    help="Gives entity, state, version, data of each row; the last two may be NULL.",
)
@click.option("--query-file", metavar="FILE", help="The same from a file.")
@click.option(
    "--compare",
    is_flag=True,
    help="Change nothing: list where the rows and unrewind differ, and what shadow mode noted.",
)
@click.option(
    "--again",
    is_flag=True,
    help="Take each entity that differs as its row stands, by a decision that says so.",
)
@common
def adopt(query: str | None, query_file: str | None, compare: bool, again: bool) -> int:
    """Take a baseline decision of every entity that the application's rows tell of.

    Puts unrewind's tables into the application's database where they are missing. Interrupted, it
    is run again: an entity has one baseline. Ends with 1 when rows were refused or differ.
    """
    if query is not None and query_file is not None:
        raise click.UsageError("give --query or --query-file, not both")
    if compare and again:
        raise click.UsageError("--compare changes nothing: give --again without it")
    if query_file is not None:
        query = existing_file(query_file).read_text(encoding="utf-8")
    if query is None and (compare or again):
        raise click.UsageError("name the application's rows with --query or --query-file")
    loaded = settings()
    if compare:
        return _compare(loaded, query or "")
    founded = found_beside(loaded)
    with deciding(loaded) as record:
        _check_open(record)
        done = Adopted() if query is None else _adopt(record, query, again=again)
    if flags().json:
        print_json({"founded": founded, **msgspec.to_builtins(done)})
    else:
        _show_adopted(done, founded=founded)
    return Code.FINDINGS if done.refused else Code.FINE


def _check_open(record: Record) -> None:
    """A tenant that the first comparison closed takes no baseline."""
    control = record.control
    if record.stop.stands() or (control is not None and control.authority.stage is Stage.CLOSED):
        raise Recovering(f"the tenant is closed: {record.finding.detail}")


def _adopt(record: Record, query: str, *, again: bool) -> Adopted:
    with shown() as show, opened(record, query) as found:
        return adopting.adopt(
            record, found.pairs(), again=again, principal=principal(), show=_progress(show)
        )


def _progress(show: Show) -> Any:
    def told(done: Adopted | Compared) -> None:
        show(done.rows, 0, f"{done.rows} rows")

    return told


def _show_adopted(done: Adopted, *, founded: bool) -> None:
    print_facts(
        [
            ("tables of unrewind's", "added" if founded else "were there"),
            ("rows", done.rows),
            ("baselines taken", done.baselines),
            ("taken again", done.rebaselines),
            ("known before", done.known),
            ("refused", done.refused),
        ]
    )
    if done.unfit:
        print_rows(("entity", "why"), [(each.entity, each.detail) for each in done.unfit])


def _compare(loaded: Settings, query: str) -> int:
    limit = None if flags().json else _SHOWN
    with shown() as show:
        done = ask(loaded, _compared, query, limit, _progress(show))
    shadow = _shadowed(loaded)
    if flags().json:
        print_json({**msgspec.to_builtins(done), "shadow": msgspec.to_builtins(shadow)})
    else:
        _show_compared(done, shadow)
    return Code.FINDINGS if done.differing or shadow.noted else Code.FINE


async def _compared(record: Record, query: str, limit: int | None, told: Any) -> Compared:
    with opened(record, query) as found:
        return adopting.compare(found.pairs(), found.extra(), limit=limit, show=told)


def _shadowed(loaded: Settings) -> Shadowed:
    found = Shadowed()
    for line in Shadow(loaded.beside("shadow.jsonl")).read():
        found.noted += 1
        found.kinds[line.kind] = found.kinds.get(line.kind, 0) + 1
        found.last = [*found.last[-(_SHOWN - 1) :], line]
    return found


def _show_compared(done: Compared, shadow: Shadowed) -> None:
    print_facts(
        [
            ("rows", done.rows),
            ("agree", done.agreeing),
            ("differences", _counted(done.differing, done.kinds)),
            ("noted in shadow mode", _counted(shadow.noted, shadow.kinds)),
        ]
    )
    if done.differences:
        print_rows(
            ("entity", "differs", "row", "unrewind"),
            [(each.entity, each.kind, each.row, each.unrewind) for each in done.differences],
        )
    if shadow.last:
        print_rows(
            ("at", "operation", "kind", "why"),
            [(each.at, each.operation, each.kind, each.detail) for each in shadow.last],
        )


def _counted(total: int, kinds: dict[str, int]) -> str:
    named = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{total} ({named})" if total else "none"
