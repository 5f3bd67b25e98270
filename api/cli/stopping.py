"""`unrewind stop`, `resume` and `stops`: one type, one action or one lane alone."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.lanes import tell_lane
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask, principal, writing
from api.output import print_json, print_line, print_rows
from journal import handling, stopping
from journal.control import Control, Hold, LaneState, Running, hold_name
from journal.driving import drive
from journal.record import Record

_NAME = click.argument("name", metavar="TYPE[/ACTION]", required=False)
_LANE = click.option("--lane", metavar="NAME", help="A lane instead, as `unrewind lanes` does it.")
_REASON = click.option(
    "--reason", required=True, metavar="TEXT", help="Why; it is journalled and shown."
)


@main.command(
    "stop",
    epilog=examples(
        "unrewind stop payment/approve --reason 'approvals without a second look'",
        "unrewind stop payment --reason 'incident 12'",
        "unrewind stop --lane payout --reason 'bank maintenance'",
    ),
)
@_NAME
@_LANE
@_REASON
@common
def stop(name: str | None, lane: str | None, reason: str) -> int:
    """Stop one entity type, one of its actions, or one lane; everything else goes on.

    Operations of it are refused as `held`, and nothing that it permitted begins, from this moment
    on. What is under way is reported as ever. A stop survives a rewind.
    """
    kind, action = _named(name, lane)
    with writing(settings()) as record:
        if lane is not None:
            state = drive(handling.set_lane(record, lane, Running.PAUSED, reason, principal()))
            return tell_lane(lane, state)
        hold = drive(stopping.stop_action(record, kind, action, reason, principal()))
    if flags().json:
        print_json(_shown(hold))
    else:
        print_line(f"{_name(hold)} is stopped since {hold.since}: {hold.reason}")
    return Code.FINE


@main.command(
    "resume",
    epilog=examples("unrewind resume payment/approve --reason 'fixed in 2.1'"),
)
@_NAME
@_LANE
@_REASON
@common
def resume(name: str | None, lane: str | None, reason: str) -> int:
    """Let a type, an action or a lane go on. Again, it changes nothing.

    Ends with 1 when something else of this type is still stopped.
    """
    kind, action = _named(name, lane)
    with writing(settings()) as record:
        if lane is not None:
            state = drive(handling.set_lane(record, lane, Running.ON, reason, principal()))
            return tell_lane(lane, state)
        left = drive(stopping.resume_action(record, kind, action, reason, principal()))
    named = hold_name(kind, action)
    if flags().json:
        print_json({"resumed": named, "stopped": [_shown(hold) for hold in left]})
    else:
        print_line(f"{named} goes on")
        for hold in left:
            print_line(f"{_name(hold)} is still stopped since {hold.since}: {hold.reason}")
    return Code.FINDINGS if left else Code.FINE


@main.command("stops", epilog=examples("unrewind stops", "unrewind stops --json"))
@common
def list_stops() -> int:
    """List what is stopped: types, actions and lanes. Ends with 1 when anything is."""
    holds, lanes = ask(settings(), _standing)
    if flags().json:
        print_json({"items": [_shown(hold) for hold in holds], "lanes": lanes})
    else:
        rows = [(_name(hold), hold.reason, hold.since, hold.principal) for hold in holds]
        rows += [(f"lane {name}", state.reason, state.since, None) for name, state in lanes.items()]
        print_rows(("stopped", "reason", "since", "by"), rows)
    return Code.FINDINGS if holds or lanes else Code.FINE


async def _standing(record: Record) -> tuple[list[Hold], dict[str, LaneState]]:
    control: Control = await record.current_control(await record.look())
    lanes = {
        name: control.lanes[name]
        for name in sorted(control.lanes)
        if control.lanes[name].running is not Running.ON
    }
    return await stopping.stops(record), lanes


def _named(name: str | None, lane: str | None) -> tuple[str, str | None]:
    if (name is None) == (lane is None):
        raise click.UsageError("name a type, TYPE/ACTION or --lane NAME")
    kind, action = stopping.name_of(name or "")
    if name is not None and not (kind and action != ""):
        raise click.UsageError(f"{name} is no TYPE or TYPE/ACTION")
    return kind, action


def _name(hold: Hold) -> str:
    return hold_name(hold.kind, hold.action)


def _shown(hold: Hold) -> dict[str, str | None]:
    return {
        "type": hold.kind,
        "action": hold.action,
        "reason": hold.reason,
        "since": hold.since,
        "principal": hold.principal,
    }
