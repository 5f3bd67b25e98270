"""`unrewind migrate`: from data of an earlier release to this one."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask, check_known, principal, writing
from api.output import print_facts, print_json, print_rows
from journal import migrating
from journal.driving import drive


@main.command("migrate", epilog=examples("unrewind migrate", "unrewind migrate --contract"))
@click.option(
    "--contract",
    is_flag=True,
    help="Keep every earlier release from the data, for good. Needs every process stopped.",
)
@common
def migrate(contract: bool) -> int:
    """Say which releases may work on the data, and what this one does not know in it.

    Opening adds what is missing and changes nothing that is there, so an earlier release may go on
    beside this one until it is contracted. Ends with 1 when the data holds states or statuses that
    this version, with these lifecycles, gives no authority.
    """
    loaded = settings()
    if contract:
        check_known(loaded)
        migrating.check_alone(loaded)
        with writing(loaded) as record:
            found = drive(migrating.contract(record, principal()))
    else:
        found = ask(loaded, migrating.read_format)
    if flags().json:
        print_json(
            {
                "format": found.format,
                "needs": found.needs,
                "contracted": found.contracted,
                "states": list(found.states),
                "statuses": list(found.statuses),
            }
        )
    else:
        print_facts(
            [
                ("format of this version", found.format),
                ("format that the data needs", found.needs),
                ("earlier releases", "are refused" if found.contracted else "may work on it too"),
                ("unknown statuses of work", ", ".join(found.statuses) or "none"),
            ]
        )
        if found.states:
            print_rows(
                ("type", "state", "entities", "why"),
                [(each.type, each.state, each.entities, each.why) for each in found.states],
            )
    return Code.FINDINGS if found.strange else Code.FINE
