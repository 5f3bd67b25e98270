"""`unrewind releases` and `commands`: the work in the lanes, one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
import msgspec

from api.cli.failures import Code
from api.cli.holding import Holds, next_step, read_holds
from api.cli.program import Listing, common, examples, flags, main, settings
from api.opening import ask, principal, working
from api.output import print_facts, print_json, print_line, print_rows
from journal import feed, handling, inquiry
from journal.driving import drive
from journal.inquiry import Filter, WorkView
from journal.lanes import Effect
from journal.record import Record
from journal.reports import Reception
from journal.work import Status

F = TypeVar("F", bound=Callable[..., Any])

_RELEASES = (Effect.EXTERNAL,)
_COMMANDS = (Effect.INTERNAL, Effect.BEST_EFFORT)
_REASON = click.option(
    "--reason", required=True, metavar="TEXT", help="Why; it is journalled with the decision."
)


def _filters(function: F) -> F:
    """Give a listing the flags that choose what it shows."""
    for option in (
        click.option("--limit", type=click.IntRange(1, feed.MAX_PAGE), default=feed.MAX_PAGE),
        click.option("--after", metavar="CURSOR", help="Continue where a page ended: its `next`."),
        click.option("--entity", metavar="TYPE/ID", help="Only what follows from this entity."),
        click.option("--status", type=click.Choice([str(one) for one in Status]), help="Only it."),
        click.option("--lane", metavar="LANE", help="Only this lane."),
    ):
        function = option(function)
    return function


@main.group("releases", cls=Listing)
@common
def releases() -> None:
    """Show the effects that decisions permitted, and handle one of them.

    Without a command it lists. Listing and showing work beside a live server, a hung one, or none.
    """


@releases.command(
    "list",
    epilog=examples("unrewind releases", "unrewind releases --lane payout --status unknown"),
)
@_filters
@common
def list_releases(
    lane: str | None, status: str | None, entity: str | None, after: str | None, limit: int
) -> int:
    """List releases, lane by lane, in the order in which they were permitted.

    Ends with 1 when one that is listed is held, unknown or a dead letter.
    """
    return _list(_RELEASES, Filter(lane, status, entity), after, limit)


@main.command("commands", epilog=examples("unrewind commands", "unrewind commands --status dead"))
@_filters
@common
def commands(
    lane: str | None, status: str | None, entity: str | None, after: str | None, limit: int
) -> int:
    """List internal commands and best-effort items, lane by lane.

    Ends with 1 when one that is listed is held or a dead letter.
    """
    return _list(_COMMANDS, Filter(lane, status, entity), after, limit)


def _list(effects: Sequence[Effect], wanted: Filter, after: str | None, limit: int) -> int:
    page, holds = ask(settings(), _read_page, effects, wanted, after, limit)
    if flags().json:
        print_json(page)
    else:
        print_work(page, holds)
    return Code.FINDINGS if any(holds.finds(view) for view in page.items) else Code.FINE


async def _read_page(
    record: Record, effects: Sequence[Effect], wanted: Filter, after: str | None, limit: int
) -> tuple[feed.Page, Holds]:
    page = await inquiry.read_work(record, effects, wanted, after, limit)
    return page, await read_holds(record)


def print_work(page: feed.Page, holds: Holds) -> None:
    """A page of work as a table, and how to go on."""
    if not page.items and page.next is None:
        print_line("nothing to list")
        return
    print_rows(
        ("id", "lane", "kind", "status", "entity", "version", "attempts", "due", "step", "error"),
        [
            (
                view.id,
                view.lane,
                view.kind,
                view.status,
                view.entity,
                view.version,
                view.attempts,
                view.due,
                holds.reason(view) or view.step,
                view.last_error,
            )
            for view in page.items
        ],
    )
    if page.next is not None:
        print_line(f"more: --after {page.next}")


@releases.command("show", epilog=examples("unrewind releases show rel_3f2a…"))
@click.argument("identity", metavar="ID")
@common
def show(identity: str) -> int:
    """Show one release, command or item, and what happens to it next.

    Ends with 1 when it is held, unknown or a dead letter.
    """
    loaded = settings()
    view, holds = ask(loaded, _read_one, identity)
    if flags().json:
        print_json(view)
    else:
        facts = {
            name.replace("_", " "): value for name, value in msgspec.structs.asdict(view).items()
        }
        print_facts([*facts.items(), ("next", next_step(view, holds, loaded))])
    return Code.FINDINGS if holds.finds(view) else Code.FINE


async def _read_one(record: Record, identity: str) -> tuple[WorkView, Holds]:
    return await inquiry.read_one(record, identity), await read_holds(record)


@releases.command(
    "cancel", epilog=examples("unrewind releases cancel rel_3f2a… --reason 'wrong recipient'")
)
@click.argument("identity", metavar="ID")
@_REASON
@common
def cancel(identity: str, reason: str) -> int:
    """Cancel a release that nobody has committed to; afterwards, ask for its cancellation.

    `cancel-requested` is no cancellation: the effect may happen, and its outcome is still recorded.
    """
    with working(settings()) as record:
        reception = drive(handling.cancel(record, identity, reason, principal()))
    return _tell(reception)


@releases.command(
    "settle",
    epilog=examples(
        "unrewind releases settle rel_3f2a… --happened --evidence 'on the bank statement of 3 May' "
        "--receipt T-9041",
        "unrewind releases settle rel_3f2a… --did-not-happen --evidence 'their support, case 7'",
    ),
)
@click.argument("identity", metavar="ID")
@click.option("--happened/--did-not-happen", default=None, help="What became of it. Required.")
@click.option(
    "--evidence", required=True, metavar="TEXT", help="How you know; it is journalled with it."
)
@click.option("--receipt", metavar="TEXT", help="The receiver's own reference, where there is one.")
@click.option("--reason", metavar="TEXT", help="Why it is settled by hand; journalled with it.")
@click.option(
    "--expect", metavar="STATUS", help="Refuse unless its status is this one, such as unknown."
)
@common
def settle(
    identity: str,
    happened: bool | None,
    evidence: str,
    receipt: str | None,
    reason: str | None,
    expect: str | None,
) -> int:
    """Say what became of a release whose outcome is unknown, on evidence that you have.

    Nothing is sent. A release that did not happen ends as `refused`: to have it after all, decide
    anew, about a new version.
    """
    if happened is None:
        raise click.UsageError("say what became of it: --happened or --did-not-happen")
    with working(settings()) as record:
        reception = drive(
            handling.settle(
                record,
                identity,
                happened,
                evidence,
                receipt,
                principal(),
                reason=reason,
                expected=expect,
            )
        )
    return _tell(reception)


@releases.command(
    "incident", epilog=examples("unrewind releases incident rel_3f2a… --reason 'sent twice'")
)
@click.argument("identity", metavar="ID")
@_REASON
@common
def incident(identity: str, reason: str) -> int:
    """Record that a release should not have been, whatever became of it. Its status stays."""
    with working(settings()) as record:
        reception = drive(handling.record_incident(record, identity, reason, principal()))
    return _tell(reception)


def _tell(reception: Reception) -> int:
    if flags().json:
        print_json(reception)
        return Code.FINE
    facts: list[tuple[str, object]] = [("release", reception.id), ("status", reception.status)]
    if reception.acceptance is not None:
        facts += [
            ("entity", reception.acceptance.entity),
            ("state", reception.acceptance.state),
            ("revision", reception.acceptance.revision),
            ("sequence", reception.acceptance.sequence),
        ]
    print_facts(facts)
    return Code.FINE
