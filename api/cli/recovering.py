"""`unrewind recover`: from a store that was rewound to a tenant that decides again."""

from __future__ import annotations

import msgspec
import rich_click as click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask, check_known, principal, writing
from api.output import plain, print_facts, print_json, print_line
from api.progress import shown
from journal.errors import LockHeld
from journal.worker import drive
from reconstruct import planning, recovery


@main.group("recover")
@common
def recover() -> None:
    """Bring a rewound, replaced or forked store to what the journal holds.

    `begin`, then restore the store by your own means (or before), then `plan`, `apply`, `reopen`.
    Each step can be interrupted anywhere and run again.
    """


@recover.command(
    "begin", epilog=examples("unrewind recover begin --reason 'restored to 09:00 after ticket 481'")
)
@click.option("--reason", metavar="TEXT", help="Why; it is journalled and shown by `status`.")
@common
def begin(reason: str | None) -> int:
    """Close the tenant and raise its generation, so that nothing older can decide any more.

    Puts the stop file up first, which works beside a hung server and with none, and keeps a copy of
    the store's files as evidence. With exit code 3 the tenant is stopped but not fenced: do not
    restore then.
    """
    loaded = settings()
    check_known(loaded)
    why = reason or "an operator began a recovery"
    try:
        stopped = recovery.stop(loaded, why)
        with writing(loaded) as record:
            begun = drive(recovery.begin(record, why, principal()))
    except LockHeld as error:
        raise LockHeld(
            f"stopped, not fenced: do not restore. {error.detail}", **error.members
        ) from None
    evidence = None if stopped.evidence is None else stopped.evidence.directory
    if flags().json:
        print_json({**msgspec.to_builtins(begun), "evidence": evidence})
        return Code.FINE
    print_facts(
        [
            ("generation", begun.generation),
            ("history", begun.history),
            ("verdict", f"{begun.verdict}: {begun.detail}" if begun.detail else begun.verdict),
            ("resumed", begun.resumed),
            ("evidence", evidence),
            ("safe to restore", begun.safe_to_restore),
            ("next", "restore the store if you have not, then: unrewind recover plan"),
        ]
    )
    return Code.FINE


@recover.command("plan", epilog=examples("unrewind recover plan", "unrewind recover plan --json"))
@common
def plan() -> int:
    """Show what `apply` would do; changes nothing.

    Ends with 1 when there are exceptions that a person should look at first: entities to rebuild,
    decisions that only the store has, histories that stay incomplete.
    """
    loaded = settings()
    found = ask(loaded, recovery.plan)
    if flags().json:
        print_json({**msgspec.to_builtins(found), "exceptions": found.exceptions})
    else:
        print_facts([("plan", found.plan), ("verdict", f"{found.verdict}: {found.detail}")])
        for line in planning.describe(found):
            print_line(plain(line))
        print_line(f"next: unrewind recover apply --plan {found.plan}")
    return Code.FINDINGS if found.exceptions else Code.FINE


@recover.command("apply", epilog=examples("unrewind recover apply --plan 3f2a9c0d1e4b5a68"))
@click.option("--plan", "plan_id", metavar="ID", help="Refuse unless this is still the plan.")
@common
def apply(plan_id: str | None) -> int:
    """Replay what the store lacks, undo what only it has, and start a new history.

    Without --plan it makes a plan and does it. Run again it ends in the same state.
    """
    loaded = settings()
    with writing(loaded) as record, shown() as show:
        done = drive(recovery.apply(record, plan_id, principal(), show))
    if flags().json:
        print_json(done)
        return Code.FINE
    print_facts(
        [
            ("replayed", done.replayed),
            ("rebuilt", done.rebuilt),
            ("undone", done.undone),
            ("incomplete", done.incomplete),
            ("history", f"{done.history}, from sequence {done.first_sequence}"),
            ("parent", done.parent),
            ("generation", done.generation),
            ("next", "unrewind recover reopen"),
        ]
    )
    return Code.FINE


@recover.command("reopen", epilog=examples("unrewind recover reopen"))
@common
def reopen() -> int:
    """Let the tenant decide again, once the store is what the journal says. Takes the stop down."""
    loaded = settings()
    with writing(loaded) as record:
        done = drive(recovery.reopen(record, principal()))
    if flags().json:
        print_json(done)
    else:
        print_facts(
            [("stage", done.stage), ("history", done.history), ("generation", done.generation)]
        )
    return Code.FINE
