"""`unrewind where` and `observations`: how far something came, and what was only seen."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.holding import Holds, next_step, read_holds
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask
from api.output import plain, print_json, print_line, print_rows
from journal import feed, inquiry
from journal.inquiry import Where
from journal.record import Record
from journal.settings import Settings


@main.command("where", epilog=examples("unrewind where op-2041", "unrewind where op-2041 --json"))
@click.argument("operation", metavar="OPERATION")
@common
def where(operation: str) -> int:
    """Say which boundaries an operation has passed: acceptance, journal, lane, attempt, outcome.

    One line for each, then what happens next. Ends with 1 when something that follows from the
    operation is held, unknown or a dead letter.
    """
    loaded = settings()
    found, holds = ask(loaded, _read_where, operation)
    if flags().json:
        print_json(found)
    else:
        _show(found, holds, loaded)
    return Code.FINDINGS if any(holds.finds(view) for view in found.work) else Code.FINE


async def _read_where(record: Record, operation: str) -> tuple[Where, Holds]:
    return await inquiry.read_where(record, operation), await read_holds(record)


def _show(found: Where, holds: Holds, loaded: Settings) -> None:
    for one in found.boundaries:
        print_line(plain(f"{one.boundary}: {'passed' if one.passed else 'not yet'}, {one.detail}"))
    for seen in found.observations:
        print_line(
            plain(
                f"observed: {seen.release} {seen.outcome}, by {seen.worker or 'a worker'}; no "
                f"decision, because {seen.why}"
            )
        )
    for view in found.work:
        print_line(plain(f"next for {view.id}: {next_step(view, holds, loaded)}"))
    if not all(one.passed for one in found.boundaries[:2]):
        print_line("next: look with `unrewind status`; the store does not hold it")
    elif not found.work:
        print_line("next: nothing is left to do")


@main.command(
    "observations", epilog=examples("unrewind observations", "unrewind observations --json")
)
@click.option("--limit", type=click.IntRange(1, feed.MAX_PAGE), default=feed.MAX_PAGE)
@click.option("--after", metavar="CURSOR", help="Continue where a page ended: its `next`.")
@common
def observations(limit: int, after: str | None) -> int:
    """List reports that could be no decision when they came, in the order in which they came.

    One on a release that the store has never heard of is an `orphan`: evidence, neither dropped nor
    acted upon. Ends with 1 when an orphan is listed.
    """
    page = ask(settings(), inquiry.read_observations, after, limit)
    if flags().json:
        print_json(page)
    elif not page.items:
        print_line("no observations: every report became a decision")
    else:
        print_rows(
            ("sequence", "release", "outcome", "status", "worker", "receipt", "recorded", "why"),
            [
                (
                    view.sequence,
                    view.observed.release,
                    view.observed.outcome,
                    view.status or "orphan",
                    view.observed.worker,
                    view.observed.receipt,
                    view.recorded,
                    view.observed.why,
                )
                for view in page.items
            ],
        )
    if not flags().json and page.next is not None:
        print_line(f"more: --after {page.next}")
    return Code.FINDINGS if any(view.status is None for view in page.items) else Code.FINE
