"""`unrewind engine`: what a server's administrator has to do."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.output import print_json
from journal.errors import SettingsInvalid
from journal.places import POSTGRES
from journal.settings import scheme_of


@main.group("engine")
@common
def engine() -> None:
    """The servers that hold store and journal."""


@engine.command(
    "ddl",
    epilog=examples(
        "unrewind engine ddl --journal --owner unrewind_owner --writer unrewind | psql",
        "unrewind engine ddl --store --owner app_owner --writer app > store.sql",
    ),
)
@click.option("--store", "which", flag_value="store", help="The store's tables.")
@click.option("--journal", "which", flag_value="journal", help="The journal's tables.")
@click.option("--owner", required=True, metavar="ROLE", help="The role that is to own them.")
@click.option("--writer", required=True, metavar="ROLE", help="The role that unrewind connects as.")
@common
def ddl(which: str | None, owner: str, writer: str) -> int:
    """Print the SQL that makes the tenant's schema on PostgreSQL, for an administrator to run.

    The writer may add journal entries and read them; it can neither change nor delete them, nor
    take the triggers away that forbid it. Nothing is connected to and nothing is changed.
    """
    if which is None:
        raise click.UsageError("say whose tables: --store or --journal")
    loaded = settings()
    url = loaded.store if which == "store" else loaded.journal
    if scheme_of(url) not in POSTGRES:
        raise SettingsInvalid(
            f"the {which} is not on PostgreSQL: set {which} to a URL postgresql://..., in the "
            f"configuration or as UNREWIND_{which.upper()}"
        )
    sql = _sql(which, loaded.tenant, owner, writer)
    if flags().json:
        print_json({"for": which, "tenant": loaded.tenant, "sql": sql})
    else:
        click.echo(sql, nl=False)
    return Code.FINE


def _sql(which: str, tenant: str, owner: str, writer: str) -> str:
    if which == "store":
        from journal.store.postgres import PostgresStore

        return PostgresStore.ddl(tenant, owner, writer)
    from journal.log.postgres import PostgresLog

    return PostgresLog.ddl(tenant, owner, writer)
