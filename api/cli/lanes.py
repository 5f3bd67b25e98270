"""`unrewind lanes`, `dead-letters` and `sweep`: the lanes as a whole, and what is stuck there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import click

from api.cli.failures import Code
from api.cli.holding import Holds, read_holds
from api.cli.program import Listing, common, examples, flags, main, settings
from api.cli.working import print_work
from api.opening import ask, check_known, principal, working, writing
from api.output import plain, print_facts, print_json, print_line, print_rows
from journal import feed, handling, inquiry, sweeping
from journal.control import LaneState, Running
from journal.driving import drive
from journal.errors import UnrewindError
from journal.handling import Handled
from journal.inquiry import Filter, LaneView
from journal.lanes import Effect
from journal.record import Record
from journal.settings import Settings
from journal.sweeping import LastSweep, Swept
from journal.work import Status

F = TypeVar("F", bound=Callable[..., Any])

_ALL = tuple(Effect)
_MOST = 100_000

_REASON = click.option(
    "--reason", required=True, metavar="TEXT", help="Why; it is journalled and shown."
)


@main.group("lanes", cls=Listing)
@common
def lanes() -> None:
    """Show the lanes; pause one, let it go on, or switch it off.

    Without a command it lists. What is said about a lane is journalled and survives a rewind.
    """


@lanes.command("list", epilog=examples("unrewind lanes", "unrewind lanes --json"))
@common
def list_lanes() -> int:
    """List the lanes: what waits, what runs, what is stuck, and when all of it will be done.

    Ends with 1 when a lane has dead letters or unknowns, is late or never done, or does not run
    while something waits in it.
    """
    views = ask(settings(), inquiry.read_lanes)
    if flags().json:
        print_json({"items": views})
    else:
        print_rows(
            (
                "lane",
                "effect",
                "mode",
                "runs",
                "waiting",
                "running",
                "unknown",
                "dead",
                "refused",
                "done in",
                "oldest due",
                "reason",
            ),
            [
                (
                    view.lane,
                    view.effect,
                    view.mode,
                    view.running,
                    f"{view.waiting:g}",
                    view.counts.get(Status.RUNNING, 0),
                    view.counts.get(Status.UNKNOWN, 0),
                    view.counts.get(Status.DEAD, 0),
                    view.counts.get(Status.REFUSED, 0),
                    _done_in(view),
                    view.oldest_due,
                    view.reason,
                )
                for view in views
            ],
        )
    return Code.FINDINGS if any(_finds(view) for view in views) else Code.FINE


def _done_in(view: LaneView) -> str:
    stands = view.running != Running.ON and view.waiting > 0
    if view.drain is None or stands:
        return "never"
    return f"{view.drain:.0f} s" + (", late" if view.late else "")


def _finds(view: LaneView) -> bool:
    # What was refused is over: it must not raise the same finding for ever.
    stuck = view.counts.get(Status.DEAD, 0) + view.counts.get(Status.UNKNOWN, 0)
    return stuck > 0 or view.late or _done_in(view) == "never"


@lanes.command("pause", epilog=examples("unrewind lanes pause payout --reason 'bank maintenance'"))
@click.argument("lane", metavar="LANE")
@_REASON
@common
def pause(lane: str, reason: str) -> int:
    """Give out nothing more of a lane. What is under way goes on to its end."""
    with writing(settings()) as record:
        state = drive(handling.set_lane(record, lane, Running.PAUSED, reason, principal()))
    return tell_lane(lane, state)


@lanes.command("resume", epilog=examples("unrewind lanes resume payout"))
@click.argument("lane", metavar="LANE")
@click.option(
    "--reason", default="resumed by an operator", metavar="TEXT", help="Why; it is journalled."
)
@common
def resume(lane: str, reason: str) -> int:
    """Let a lane go on that was paused or switched off."""
    with writing(settings()) as record:
        state = drive(handling.set_lane(record, lane, Running.ON, reason, principal()))
    return tell_lane(lane, state)


@lanes.command(
    "off", epilog=examples("unrewind lanes off previews --discard --reason 'costs too much'")
)
@click.argument("lane", metavar="LANE")
@click.option("--discard", is_flag=True, help="Say that what waits, and what comes, is discarded.")
@_REASON
@common
def off(lane: str, discard: bool, reason: str) -> int:
    """Switch a best-effort lane off: what waits in it and what comes is discarded, and counted.

    Other lanes can be paused; their work may wait, never be discarded.
    """
    with working(settings()) as record:
        state = drive(
            handling.set_lane(record, lane, Running.OFF, reason, principal(), discard=discard)
        )
    return tell_lane(lane, state)


def tell_lane(lane: str, state: LaneState) -> int:
    """Print what was said about a lane last."""
    if flags().json:
        print_json(state)
    else:
        print_facts(
            [
                ("lane", lane),
                ("runs", state.running),
                ("since", state.since),
                ("reason", state.reason),
            ]
        )
    return Code.FINE


# Dead letters.


@main.group("dead-letters", cls=Listing)
@common
def dead_letters() -> None:
    """Show what was given up, put it back into its lane, or put it aside for good.

    Without a command it lists.
    """


@dead_letters.command("list", epilog=examples("unrewind dead-letters --lane payout"))
@click.option("--lane", metavar="LANE", help="Only this lane.")
@click.option("--after", metavar="CURSOR", help="Continue where a page ended: its `next`.")
@click.option("--limit", type=click.IntRange(1, feed.MAX_PAGE), default=feed.MAX_PAGE)
@common
def list_dead_letters(lane: str | None, after: str | None, limit: int) -> int:
    """List dead letters: work whose budget is spent, and what a receiver refused.

    Ends with 1 when there are any whose budget is spent; what was refused is over.
    """
    page, holds = ask(settings(), _read_dead, lane, after, limit)
    if flags().json:
        print_json(page)
    else:
        print_work(page, holds)
    return Code.FINDINGS if any(holds.finds(view) for view in page.items) else Code.FINE


async def _read_dead(
    record: Record, lane: str | None, after: str | None, limit: int
) -> tuple[feed.Page, Holds]:
    wanted = Filter(lane=lane, dead=True)
    page = await inquiry.read_work(record, _ALL, wanted, after, limit)
    return page, await read_holds(record)


def _chosen(function: F) -> F:
    """Give a command on dead letters the flags that choose them."""
    for option in (
        _REASON,
        click.option(
            "--limit",
            type=click.IntRange(1, handling.MAX_HANDLED),
            default=handling.MAX_HANDLED,
            help="How many of the lane's at most.",
        ),
        click.option("--id", "ids", multiple=True, metavar="ID", help="This one; may be repeated."),
        click.option("--lane", metavar="LANE", help="Those of this lane, oldest first."),
    ):
        function = option(function)
    return function


@dead_letters.command(
    "replay",
    epilog=examples(
        "unrewind dead-letters replay --id rel_3f2a… --reason 'the bank is back'",
        "unrewind dead-letters replay --lane payout --reason 'the bank is back'",
    ),
)
@_chosen
@common
def replay(lane: str | None, ids: tuple[str, ...], limit: int, reason: str) -> int:
    """Put dead letters back into their lane, each with its whole budget. Done twice, it acts once.

    A release goes back only where a repeat is safe. Ends with 1 when some stay, each with the
    reason.
    """
    return _handle("replay", handling.replay, lane, ids, limit, reason)


@dead_letters.command(
    "drain",
    epilog=examples("unrewind dead-letters drain --id cmd_9b1c… --reason 'mailed by hand'"),
)
@_chosen
@common
def drain(lane: str | None, ids: tuple[str, ...], limit: int, reason: str) -> int:
    """Put dead letters aside for good. Ends with 1 when some stay, each with the reason."""
    return _handle("drain", handling.drain, lane, ids, limit, reason)


def _handle(
    what: str,
    function: Callable[..., Coroutine[Any, Any, Handled]],
    lane: str | None,
    ids: Sequence[str],
    limit: int,
    reason: str,
) -> int:
    if lane is None and not ids:
        raise click.UsageError(
            f"say what to {what}: --lane LANE or --id ID. There is no way to {what} everything: "
            "dead letters were given up for different reasons, and a person looks at each kind"
        )
    if lane is not None and ids:
        raise click.UsageError("--lane and --id exclude each other")
    more = False
    with working(settings()) as record:
        if lane is not None:
            wanted = Filter(lane=lane, status=Status.DEAD)
            page = drive(inquiry.read_work(record, _ALL, wanted, None, limit))
            ids = [view.id for view in page.items]
            more = page.next is not None
        named = list(dict.fromkeys(ids))
        done = Handled([], {})
        if named:
            done = drive(function(record, named, reason, principal()))
    if flags().json:
        print_json({"done": done.done, "left": done.left, "more": more})
    else:
        for identity in done.done:
            print_line(plain(f"done: {identity}"))
        for identity, why in done.left.items():
            print_line(plain(f"left: {identity}: {why}"))
        if not named:
            print_line(f"lane {lane} has no dead letters")
        if more:
            print_line("more: run the same command again")
    return Code.FINDINGS if done.left else Code.FINE


# Sweeping.


@main.command("sweep", epilog=examples("unrewind sweep", "unrewind sweep --json"))
@click.option(
    "--limit",
    type=click.IntRange(1, _MOST),
    default=_MOST,
    help="How many rows to move at most; the rest waits for the next sweep.",
)
@common
def sweep(limit: int) -> int:
    """Move on what has been in progress beyond its time, with nobody else alive.

    For cron or a timer: it needs the files and the clock, and shares nothing with a server or a
    worker. Ends with 1 when a row could not be moved, with 3 when none could: the tenant is closed,
    or a process hangs with its lock and is named.
    """
    loaded = settings()
    check_known(loaded)
    before = _last_sweep(loaded)
    try:
        with working(loaded) as record:
            swept = drive(sweeping.sweep(record, limit))
    except UnrewindError as error:
        error.members["last_sweep"] = before
        raise
    _tell_swept(swept, limit, before)
    if swept.failed:
        click.echo(
            f"unrewind: {swept.failed} rows could not be moved and stay as they are", err=True
        )
    return Code.FINDINGS if swept.failed else Code.FINE


def _last_sweep(loaded: Settings) -> LastSweep | None:
    """The last good sweep before this one; None: there was none, or it cannot be told."""
    try:
        return ask(loaded, sweeping.last_sweep)
    except UnrewindError:
        return None


def _tell_swept(swept: Swept, limit: int, before: LastSweep | None) -> None:
    counted = Counter((row.lane, row.step, row.status) for row in swept.moved)
    more = swept.count >= limit
    if flags().json:
        rows = [
            {"lane": lane, "step": step, "status": status, "rows": number}
            for (lane, step, status), number in sorted(counted.items())
        ]
        print_json(
            {
                "moved": swept.count,
                "failed": swept.failed,
                "more": more,
                "rows": rows,
                "last_sweep": before,
            }
        )
        return
    if counted:
        print_rows(
            ("lane", "step", "status", "rows"),
            [(*key, number) for key, number in sorted(counted.items())],
        )
    when = "never" if before is None else f"at {before.succeeded}, {before.age:.0f} s before"
    print_facts(
        [("moved", swept.count), ("failed", swept.failed), ("the sweep before succeeded", when)]
    )
    if more:
        print_line("the limit was reached: run it again for the rest")
