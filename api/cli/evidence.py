"""`unrewind evidence`: what was kept when recoveries began."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask
from api.output import plain, print_json, print_line, print_rows
from journal.errors import UnrewindError
from journal.settings import Settings
from reconstruct.bundles import Bundle, journalled, list_bundles


@main.command(
    "evidence",
    epilog=examples("unrewind evidence", "unrewind evidence --verify", "unrewind evidence DIR"),
)
@click.argument("directory", metavar="DIR", required=False)
@click.option("--verify", is_flag=True, help="Hash every file anew.")
@common
def evidence(directory: str | None, verify: bool) -> int:
    """List the evidence that recoveries kept: the store's files as found, and what was known then.

    Without DIR every bundle of the tenant, oldest first. Ends with 1 when a file is not what the
    manifest says. A bundle is never changed; delete it when the incident is closed.
    """
    loaded = settings()
    named = None if directory is None else Path(directory)
    found = list_bundles(loaded, _journalled(loaded), named, verify=verify)
    if flags().json:
        print_json({"bundles": found})
    else:
        _show(found, verify=verify)
    return Code.FINDINGS if any(bundle.findings for bundle in found) else Code.FINE


def _journalled(loaded: Settings) -> list[str] | None:
    """The hashes that the journal names; None when it cannot be read."""
    try:
        return ask(loaded, journalled)
    except UnrewindError:
        return None


def _show(found: list[Bundle], *, verify: bool) -> None:
    if not found:
        print_line("no evidence: no recovery has begun here")
        return
    print_rows(
        ("directory", "taken", "files", "bytes", "whole", "journalled", "reason"),
        [
            (
                bundle.directory,
                bundle.taken,
                bundle.pieces,
                bundle.size,
                bundle.whole,
                bundle.journalled,
                bundle.reason,
            )
            for bundle in found
        ],
    )
    for bundle in found:
        for name, why in bundle.missing.items():
            print_line(plain(f"{bundle.directory}: without {name}: {why}"))
        for finding in bundle.findings:
            print_line(plain(f"{bundle.directory}: {finding}"))
    if verify and not any(bundle.findings for bundle in found):
        print_line("every file is what was kept")
