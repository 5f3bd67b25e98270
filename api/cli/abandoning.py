"""`unrewind recover abandon`: let an entity go on whose history can never be made whole."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, settings
from api.cli.recovering import recover
from api.opening import principal, writing
from api.output import plain, print_facts, print_json, print_line
from journal.driving import drive
from reconstruct.abandoning import Named
from reconstruct.abandoning import abandon as abandon_entity


@recover.command(
    "abandon",
    epilog=examples(
        "unrewind recover abandon document/inv-2041 --reason 'revision 41 is lost, ticket 481' "
        "--evidence 'both disks searched' --drop op-2042 --confirm-tenant main "
        "--confirm-history 0123456789abcdef0123456789abcdef"
    ),
)
@click.argument("entity", metavar="TYPE/ID")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is journalled.")
@click.option(
    "--evidence",
    required=True,
    metavar="TEXT",
    help="What shows that the missing part will never come; it is journalled.",
)
@click.option(
    "--drop",
    multiple=True,
    metavar="OPERATION",
    help="A decision that is dropped by this, by operation ID or digest. Once for each of them.",
)
@click.option("--confirm-tenant", required=True, metavar="NAME", help="The tenant, as a safeguard.")
@click.option(
    "--confirm-history",
    required=True,
    metavar="ID",
    help="The history in force, as `unrewind status` shows it.",
)
@common
def abandon(
    entity: str,
    reason: str,
    evidence: str,
    drop: tuple[str, ...],
    confirm_tenant: str,
    confirm_history: str,
) -> int:
    """Cut an entity's history off at its last continuous revision; it goes on from there.

    For a gap that will never be filled, damage, and a fork. What was decided above the cut is
    evidence from then on: each decision that can be read has to be named with --drop, and without
    it the command says which. A release that may have been committed there is held as unknown. Call
    it after `recover apply`; run again it says what was done.
    """
    loaded = settings()
    named = Named(confirm_tenant, confirm_history)
    with writing(loaded) as record:
        done = drive(abandon_entity(record, entity, reason, evidence, drop, principal(), named))
    if flags().json:
        print_json(done)
        return Code.FINE
    print_facts(
        [
            ("entity", done.entity),
            ("goes on from revision", done.through),
            ("dropped", len(done.dropped)),
            ("damaged", done.unreadable),
            ("missing", done.missing),
            ("held as unknown", len(done.doubtful)),
            ("stay taken back", len(done.withdrawn)),
            ("since", done.since),
        ]
    )
    for each in done.dropped:
        print_line(plain(f"dropped: {each.operation} ({each.action}, revision {each.revision})"))
    for release in done.doubtful:
        print_line(plain(f"unknown: {release}; look at it with `unrewind releases show {release}`"))
    return Code.FINE
