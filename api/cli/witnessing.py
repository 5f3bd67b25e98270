"""`unrewind witness`: the witness that somebody has to answer for."""

from __future__ import annotations

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import check_known, writing
from api.output import print_facts, print_json
from journal.driving import drive
from journal.standing import renew_witness


@main.group("witness")
@common
def witness() -> None:
    """The witness, which notices that store and journal were rolled back together."""


@witness.command("renew", epilog=examples("unrewind status", "unrewind witness renew"))
@common
def renew() -> int:
    """Let the witness begin anew at the journal as it stands, where it is damaged or gone.

    It is never replaced otherwise: what it saw may be more than store and journal hold together.
    Look at what this prints before the service goes on: if the journal ends earlier than it should,
    both were rolled back. A damaged one is moved aside.
    """
    loaded = settings()
    check_known(loaded)
    with writing(loaded) as record:
        found, aside = drive(renew_witness(record))
    if flags().json:
        print_json({"witness": found, "damaged": None if aside is None else str(aside)})
    else:
        print_facts(
            [
                ("witness", f"{loaded.witness_file}: {found.position} entries at {found.at}"),
                ("last decision", f"sequence {found.sequence} of history {found.history}"),
                ("last control entry", found.control),
                ("the damaged one", aside),
            ]
        )
    return Code.FINE
