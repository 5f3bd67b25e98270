"""`unrewind tenant`: the tenants that a service has beside its own."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import principal
from api.output import plain, print_facts, print_json, print_line, print_rows
from journal.control import Stage
from journal.entry import check_tenant
from journal.errors import Invalid

_SOUND = {"clean", "crashed"}


@main.group("tenant")
@common
def tenant() -> None:
    """Create, list and close the tenants of a service beside its own.

    Each has a store, a journal, tokens and a stage of its own, and is served under
    `/v1/<name>/`. They are kept in the directory `tenants` of the data directory; a service that
    runs takes a new one up by itself.
    """


@tenant.command(
    "create",
    epilog=examples(
        "unrewind tenant create acme",
        "unrewind tenant create acme --store /fast/acme --journal /other-disk/acme",
        "TOKEN=$(unrewind tenant create acme --json | jq -r .token)",
    ),
)
@click.argument("name", metavar="NAME")
@click.option("--store", metavar="DIR|URL", help="Where its store is to be.")
@click.option("--journal", metavar="DIR|URL", help="Where its journal is to be.")
@click.option("--witness", metavar="DIR", help="Where its witness is to be.")
@common
def create(name: str, store: str | None, journal: str | None, witness: str | None) -> None:
    """Found a tenant, register it, and print its first operator token, once.

    A place that is not named is where the service's own tenant has it, in a file or schema of the
    new tenant's name. Killed in between, the same command finishes it.
    """
    from api.registering import Place, create

    for option, value in (("--store", store), ("--journal", journal), ("--witness", witness)):
        if value == "":
            raise click.UsageError(f"{option} is empty; name a place, or leave it out")
    made = create(settings(), _named(name), Place(store, journal, witness), principal())
    if flags().json:
        print_json(made)
        return
    print_facts(
        [
            ("tenant", made.tenant),
            ("store", made.store),
            ("journal", made.journal),
            ("witness", made.witness),
            ("operator token (shown once)", made.token),
        ]
    )


@tenant.command("list", epilog=examples("unrewind tenant list", "unrewind tenant list --json"))
@common
def list_tenants() -> int:
    """List every tenant: its stage and verdict, where it is, and whether it is open to decisions.

    The service's own comes first. Ends with 1 when one of them does not stand as it should.
    """
    from api.registering import names_of, view

    base = settings()
    found = [view(base, name) for name in names_of(base)]
    if flags().json:
        print_json({"tenants": found})
    else:
        print_rows(
            ("tenant", "stage", "verdict", "store", "journal", "detail"),
            [
                (one.tenant, one.stage, one.verdict, one.store, one.journal, one.detail)
                for one in found
            ],
        )
    return Code.FINE if all(one.verdict in _SOUND for one in found) else Code.FINDINGS


@tenant.command("show", epilog=examples("unrewind tenant show acme"))
@click.argument("name", metavar="NAME")
@common
def show(name: str) -> int:
    """Show one tenant, and where it was before it moved. Ends with 1 unless it is sound and open.

    `unrewind status --tenant NAME` says more.
    """
    from api.registering import view

    found = view(settings(), _named(name))
    if flags().json:
        print_json(found)
    else:
        facts: list[tuple[str, object]] = [
            ("tenant", f"{found.tenant}, the service's own" if found.own else found.tenant),
            ("stage", found.stage),
            ("verdict", f"{found.verdict}: {found.detail}"),
            ("store", found.store),
            ("journal", found.journal),
            ("witness", found.witness),
            ("created", found.created),
        ]
        facts += [
            ("before", f"{one.store} and {one.journal}, until {one.until}") for one in found.earlier
        ]
        print_facts(facts)
    fine = found.verdict in _SOUND and found.stage == Stage.OPEN
    return Code.FINE if fine else Code.FINDINGS


@tenant.command("close", epilog=examples('unrewind tenant close acme --reason "contract ended"'))
@click.argument("name", metavar="NAME")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it is journalled.")
@common
def close(name: str, reason: str) -> None:
    """Close a tenant to decisions and effects, for good or until it is reopened.

    A control entry does it, so that it survives a rewind. Nothing is removed: status, history and
    gaps can still be looked at, and `unrewind recover reopen --tenant NAME` opens it again.
    """
    from api.registering import close, settings_of

    changed = close(settings_of(settings(), _named(name)), reason, principal())
    if flags().json:
        print_json({"tenant": name, "stage": str(Stage.CLOSED), "changed": changed})
    else:
        print_line(plain(f"{name} is closed" if changed else f"{name} was closed already"))


def _named(name: str) -> str:
    try:
        return check_tenant(name)
    except Invalid as error:
        raise click.UsageError(error.detail) from None
