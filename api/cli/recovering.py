"""`unrewind recover`: from a store that was rewound to a tenant that decides again."""

from __future__ import annotations

import time

import click
import msgspec

from api.cli.failures import Code
from api.cli.program import common, configuration, examples, existing_file, flags, main, settings
from api.opening import ask, check_known, principal, writing
from api.output import plain, print_facts, print_json, print_line
from api.progress import shown
from journal.driving import drive
from journal.errors import LockHeld
from journal.settings import Settings
from reconstruct import inflight, recovery
from reconstruct.beginning import NOT_FENCED
from reconstruct.describing import MOST, describe
from reconstruct.evidence import Given
from reconstruct.inflight import InFlight
from reconstruct.planning import Plan

_LOOK_EVERY = 0.25


@main.group("recover")
@common
def recover() -> None:
    """Bring a rewound, replaced or forked store to what the journal holds.

    `begin`, then restore the store by your own means (or before), then `plan`, `apply`, `reopen`.
    Each step can be interrupted anywhere and run again.
    """


@recover.command(
    "begin",
    epilog=examples(
        "unrewind recover begin --reason 'restored to 09:00 after ticket 481'",
        "unrewind recover begin --note 'bookmark 0000-8f' --attach workflows.json --wait 120",
    ),
)
@click.option("--reason", metavar="TEXT", help="Why; it is journalled and shown by `status`.")
@click.option("--note", metavar="TEXT", help="Kept with the evidence: a restore bookmark, say.")
@click.option(
    "--attach",
    "attached",
    multiple=True,
    metavar="FILE",
    help="Kept with the evidence, as it is: an export of running workflows, say. Repeatable.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Wait so long for calls in flight to end. Default: as long as one may last, at most 60.",
)
@common
def begin(
    reason: str | None, note: str | None, attached: tuple[str, ...], wait: float | None
) -> int:
    """Close the tenant and raise its generation, so that nothing older can decide any more.

    Puts the stop file up first, which works beside a hung server and with none, keeps the store's
    files and what was known as evidence, and tells which calls are in flight. With exit code 3 the
    tenant is stopped but not fenced: do not restore then.
    """
    loaded = settings()
    check_known(loaded)
    given = Given(note, tuple(existing_file(path) for path in attached), configuration())
    why = reason or "an operator began a recovery"
    try:
        stopped = recovery.stop(loaded, why, given)
        with writing(loaded) as record:
            begun = drive(recovery.begin(record, why, principal(), stopped.evidence))
    except LockHeld as error:
        raise LockHeld(f"{NOT_FENCED}. {error.detail}", **error.members) from None
    begun = msgspec.structs.replace(begun, in_flight=_wait(loaded, begun.in_flight, wait))
    if flags().json:
        print_json(begun)
        return Code.FINE
    print_facts(
        [
            ("generation", begun.generation),
            ("history", begun.history),
            ("verdict", f"{begun.verdict}: {begun.detail}" if begun.detail else begun.verdict),
            ("resumed", begun.resumed),
            ("evidence", begun.evidence),
            ("in flight", len(begun.in_flight)),
            ("safe to restore", begun.safe_to_restore),
        ]
    )
    for call in begun.in_flight:
        print_line(plain(inflight.describe(call)))
    if inflight.pending(begun.in_flight):
        print_line("what they report is kept; they are asked about by: unrewind recover reconcile")
    print_line("next: restore the store if you have not, then: unrewind recover plan")
    return Code.FINE


def _wait(loaded: Settings, calls: list[InFlight], seconds: float | None) -> list[InFlight]:
    """Wait for calls in flight to end; how each stands then."""
    wait = inflight.default_wait(loaded, calls) if seconds is None else seconds
    until = time.monotonic() + wait
    with shown() as show:
        while (left := len(inflight.pending(calls))) and time.monotonic() < until:
            show(len(calls) - left, len(calls), "calls ended")
            time.sleep(min(_LOOK_EVERY, max(0.0, until - time.monotonic())))
            calls = ask(loaded, inflight.follow, calls)
    return calls


@recover.command("plan", epilog=examples("unrewind recover plan", "unrewind recover plan --json"))
@common
def plan() -> int:
    """Show what `apply` would do; changes nothing.

    Ends with 1 when there are exceptions that a person should look at first: entities to rebuild,
    decisions that only the store has, histories that stay incomplete, a journal that was rewound.
    Long lists are cut; --json has them whole.
    """
    loaded = settings()
    found = ask(loaded, recovery.plan)
    if flags().json:
        print_json({**msgspec.to_builtins(found), "exceptions": found.exceptions})
    else:
        print_facts([("plan", found.plan), ("verdict", f"{found.verdict}: {found.detail}")])
        for line in describe(found):
            print_line(plain(line))
        print_line(f"next: unrewind recover apply --plan {found.plan}{needed(found, loaded)}")
    return Code.FINDINGS if found.exceptions else Code.FINE


@recover.command("apply", epilog=examples("unrewind recover apply --plan 3f2a9c0d1e4b5a68"))
@click.option("--plan", "plan_id", metavar="ID", help="Refuse unless this is still the plan.")
@click.option(
    "--max-undo",
    type=click.IntRange(min=0),
    metavar="N",
    help="Undo up to N decisions that only the store has, when that is more than `max_undo`.",
)
@click.option("--confirm-tenant", metavar="NAME", help="The tenant in which so much may be undone.")
@click.option(
    "--confirm-history",
    metavar="ID",
    help="Its history in force, as `unrewind status` shows it.",
)
@click.option(
    "--accept-loss",
    metavar="NAME",
    help="Heal a rewound journal although decisions are lost; the plan gives the loss its name.",
)
@common
def apply(
    plan_id: str | None,
    max_undo: int | None,
    confirm_tenant: str | None,
    confirm_history: str | None,
    accept_loss: str | None,
) -> int:
    """Replay what the store lacks, undo what only it has, and start a new history.

    Without --plan it makes a plan and does it. Run again it ends in the same state. More than
    `max_undo` decisions are undone only with --max-undo, --confirm-tenant and --confirm-history.
    """
    loaded = settings()
    consent = recovery.Consent(max_undo, confirm_tenant, confirm_history)
    with writing(loaded) as record, shown() as show:
        done = drive(recovery.apply(record, plan_id, principal(), show, consent, accept_loss))
    if flags().json:
        print_json(done)
        return Code.FINE
    if done.healed is not None:
        healed = done.healed
        others = "unknown" if healed.others is None else healed.others
        print_facts(
            [
                ("healed", f"{healed.decisions} decisions, {healed.control} control entries"),
                ("lost of other entries", others),
                ("the old journal", healed.replaced),
            ]
        )
    print_facts(
        [
            ("replayed", done.replayed),
            ("rebuilt", done.rebuilt),
            ("undone", done.undone),
            ("undone operations", _some([item.operation for item in done.undone_operations])),
            ("incomplete", done.incomplete),
            ("history", f"{done.history}, from sequence {done.first_sequence}"),
            ("parent", done.parent),
            ("generation", done.generation),
            ("next", "unrewind recover reconcile"),
        ]
    )
    return Code.FINE


def needed(found: Plan, loaded: Settings) -> str:
    """The further flags that applying a plan takes."""
    words = ""
    if found.undo > loaded.max_undo:
        words += (
            f" --max-undo {found.undo} --confirm-tenant {loaded.tenant}"
            f" --confirm-history {found.history}"
        )
    if found.healing is not None and found.healing.loss is not None:
        words += f" --accept-loss {found.healing.loss.name}"
    return words


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return plain(names[:MOST]) + more
