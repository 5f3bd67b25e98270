"""`unrewind serve`."""

from __future__ import annotations

import click

from api.cli.program import common, examples, main, settings


@main.command(
    "serve",
    epilog=examples(
        "unrewind serve",
        "unrewind serve --data /var/lib/unrewind --host 0.0.0.0 --port 8420",
    ),
)
@click.option("--host", metavar="ADDRESS", help="Where to listen. Default `127.0.0.1`.")
@click.option("--port", type=click.IntRange(0, 65535), help="Default 8420; 0 takes a free one.")
@common
def serve(host: str | None, port: int | None) -> int:
    """Run the HTTP service until it is told to stop.

    The first start founds the tenant. Authentication is always on: make a token with
    `unrewind token create`. A tenant whose store and journal disagree is served closed.
    """
    from api.server import serve as run

    return run(settings(host=host, port=port))
