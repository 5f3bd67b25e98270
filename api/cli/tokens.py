"""`unrewind token`: who may call the HTTP service."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask, principal, writing
from api.output import print_json, print_line, print_rows
from journal.control import Role, Token
from journal.driving import drive
from journal.record import Record
from journal.settings import Settings
from journal.tokens import PREFIX, create_token, revoke_token


@main.group("token")
@common
def token() -> None:
    """Create, list and revoke bearer tokens.

    Tokens are control entries of the journal, so a revocation survives a rewind of the store. Only
    the hash of a token's secret is kept. They can be managed in any stage.
    """


@token.command(
    "create",
    epilog=examples(
        "unrewind token create --role operator",
        "TOKEN=$(unrewind token create --role writer --name billing)",
        "unrewind token create --role receiver --name bank",
    ),
)
@click.option(
    "--role",
    required=True,
    type=click.Choice([str(role) for role in reversed(Role)]),
    help="What the token may do: operator includes writer, writer includes reader. A receiver may "
    "call back about its own releases, and nothing else.",
)
@click.option(
    "--name",
    metavar="TEXT",
    help="Whose token it is, for `token list`; with --role receiver, which receiver's.",
)
@common
def create(role: str, name: str | None) -> None:
    """Print a new token, and nothing else, on stdout. It is told this once."""
    loaded = settings()
    if role == Role.RECEIVER:
        _check_receiver(name, loaded)
    with writing(loaded, create=True) as record:
        made = drive(create_token(record, Role(role), role if name is None else name, principal()))
    if flags().json:
        identity = made.removeprefix(PREFIX).partition("_")[0]
        print_json({"token": made, "id": identity, "role": role, "name": name or role})
    else:
        print_line(made)


def _check_receiver(name: str | None, loaded: Settings) -> None:
    """A receiver calls back under its own name: under another one it could never get in."""
    if name not in loaded.receiver:
        named = "--name is missing" if name is None else f"there is no receiver {name}"
        known = ", ".join(sorted(loaded.receiver)) or "none; declare it in unrewind.toml"
        raise click.UsageError(
            f"{named}: the token of a receiver has the receiver's name; declared: {known}"
        )


@token.command("list", epilog=examples("unrewind token list", "unrewind token list --json"))
@common
def list_tokens() -> None:
    """List tokens by ID, with role, name, age and whether they are revoked. No secrets."""
    tokens = ask(settings(), _tokens)
    if flags().json:
        shown = [
            {
                "id": item.id,
                "role": str(item.role),
                "name": item.name,
                "created": item.created,
                "revoked": item.revoked,
            }
            for item in tokens
        ]
        print_json({"tokens": shown})
        return
    print_rows(
        ("id", "role", "name", "created", "revoked"),
        [(item.id, item.role, item.name, item.created, item.revoked) for item in tokens],
    )


async def _tokens(record: Record) -> list[Token]:
    control = await record.read_control()
    return sorted(control.tokens.values(), key=lambda item: (item.created, item.id))


@token.command("revoke", epilog=examples("unrewind token revoke 5f0c1d2e3a4b"))
@click.argument("identity", metavar="ID")
@common
def revoke(identity: str) -> int:
    """Revoke the token with this ID (`token list` shows it). Revoking it again changes nothing."""
    with writing(settings()) as record:
        drive(revoke_token(record, identity, principal()))
    if flags().json:
        print_json({"id": identity, "revoked": True})
    else:
        print_line(f"revoked {identity}")
    return Code.FINE
