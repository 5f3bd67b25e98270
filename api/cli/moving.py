"""`unrewind move`: a tenant to another place, or to another engine."""

from __future__ import annotations

import click

from api.cli.program import common, examples, flags, main, settings
from api.opening import check_known, principal
from api.output import print_facts, print_json


@main.command(
    "move",
    epilog=examples(
        "unrewind move --tenant acme --store /fast/acme --journal /other-disk/acme",
        "unrewind move --tenant acme --store postgresql://db1/app --journal postgresql://db2/app",
        "unrewind move --tenant acme --back",
    ),
)
@click.option("--store", metavar="DIR|URL", help="Where its store is to be. Default: where it is.")
@click.option(
    "--journal", metavar="DIR|URL", help="Where its journal is to be. Default: where it is."
)
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=60.0,
    metavar="SECONDS",
    show_default=True,
    help="How long calls that are under way may take to end.",
)
@click.option("--back", is_flag=True, help="Give up a move that has not ended.")
@common
def move(store: str | None, journal: str | None, wait: float, back: bool) -> None:
    """Move a tenant to another place or engine: copy, compare everything, switch.

    The tenant takes no decisions meanwhile. Every entry is copied byte for byte, every row is
    compared, and whoever still has the old place open is refused there from then on. Killed
    anywhere, the same command goes on. The old place is kept, closed, and says where the tenant
    went.
    """
    import msgspec

    from api.progress import shown
    from journal.registry import lasting
    from reconstruct.moving import go_back
    from reconstruct.moving import move as run

    if back:
        if store is not None or journal is not None:
            raise click.UsageError("--back gives a move up: it takes no --store and no --journal")
        moved = go_back(settings(), principal())
    else:
        if not (store or journal) or store == "" or journal == "":
            raise click.UsageError("name where to: --store, --journal, or both")
        loaded = settings()
        check_known(loaded)
        target = msgspec.structs.replace(
            loaded,
            store=lasting(store) or loaded.store,
            journal=lasting(journal) or loaded.journal,
        )
        with shown() as show:
            moved = run(loaded, target, principal(), wait=wait, progress=show)
    if flags().json:
        print_json(moved)
        return
    print_facts(
        [
            ("tenant", moved.tenant),
            ("moved", "yes" if moved.changed else "no, it is there already"),
            ("store", moved.store),
            ("journal", moved.journal),
            ("stage", moved.stage),
            ("generation", moved.generation),
            ("entries", moved.entries),
            ("state digest", moved.state_digest),
            ("before", moved.before),
        ]
    )
