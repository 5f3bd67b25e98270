"""`unrewind snapshot` and `restore`: a copy of the store, and putting one back."""

from __future__ import annotations

from pathlib import Path

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask
from api.output import print_facts, print_json, print_line
from journal.errors import Invalid
from reconstruct import snapshots


@main.command("snapshot", epilog=examples("unrewind snapshot backups/2026-01-31"))
@click.argument("directory", metavar="DIR")
@common
def snapshot(directory: str) -> int:
    """Copy the store, as of one moment, into a new directory; beside a live server or with none.

    The journal is not in it: it is what a store that was put back is brought forward from. Of a
    store on a server it holds unrewind's own tables alone, not the application's.
    """
    taken = ask(settings(), snapshots.snapshot, _directory(directory))
    if flags().json:
        print_json(taken)
        return Code.FINE
    print_facts(
        [
            ("snapshot", directory),
            ("tenant", taken.tenant),
            ("history", taken.place.history),
            ("sequence", taken.place.sequence),
            ("bytes", taken.size),
            ("sha256", taken.sha256),
        ]
    )
    if taken.rows:
        print_line(
            "not in it: the application's own tables; back those up with the server's own means"
        )
    return Code.FINE


def _directory(text: str) -> Path:
    path = Path(text)
    if not text or (path.exists() and not path.is_dir()):
        raise Invalid(f"{text or 'an empty name'} is not a directory")
    return path


@main.command(
    "restore",
    epilog=examples(
        "unrewind restore backups/2026-01-31 --confirm-tenant main "
        "--confirm-history 0123456789abcdef0123456789abcdef"
    ),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--confirm-tenant", required=True, metavar="NAME", help="The tenant whose store is replaced."
)
@click.option(
    "--confirm-history",
    required=True,
    metavar="ID",
    help="Its history in force, as `unrewind status` shows it.",
)
@common
def restore(directory: str, confirm_tenant: str, confirm_history: str) -> int:
    """Put a snapshot in the store's place. What stood there is moved aside, not deleted.

    On a server unrewind's own tables are replaced, in one transaction, and a copy of what they held
    is kept in the data directory. Refused while any process has the tenant open. The tenant is
    rewound afterwards and stays closed until `unrewind recover` has brought it forward.
    """
    path = _directory(directory)
    if not path.exists():
        raise Invalid(f"there is no snapshot {directory}")
    done = snapshots.restore(settings(), path, confirm_tenant, confirm_history)
    if flags().json:
        print_json(done)
        return Code.FINE
    print_facts(
        [
            ("restored", directory),
            ("sequence", done.snapshot.place.sequence),
            ("replaced", done.replaced),
            ("next", "unrewind recover begin"),
        ]
    )
    if done.snapshot.rows:
        print_line(
            "as they were: the application's own tables; `recover apply` replays what projections "
            "keep there"
        )
    return Code.FINE
