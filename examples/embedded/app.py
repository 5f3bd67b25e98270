"""A small application that decides about documents: `python -m examples.embedded.app --help`."""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

import journal
from journal.entry import JSON_TYPE
from journal.errors import UnrewindError

CONFIG = Path(__file__).with_name("unrewind.toml")
DATA = Path("data/embedded")
ACTIONS = ("submit", "approve", "cancel", "revoke", "release")
TABLES = {
    "documents": "SELECT id, folder, title, state, version, revision FROM documents ORDER BY id",
    "audit": "SELECT document, revision, action, actor, at, digest FROM audit"
    " ORDER BY document, revision",
}

Rows = dict[str, list[tuple[Any, ...]]]


def settings_for(data: Path) -> journal.Settings:
    """The example's settings, with the data directory that the caller chose."""
    return journal.load_settings(CONFIG, {"data": str(data)})


def intention(
    action: str,
    document: str,
    *,
    actor: str,
    operation: str | None = None,
    version: str | None = None,
    **fields: Any,
) -> journal.Operation:
    """What somebody wants done. Whoever may have to repeat it keeps the operation ID."""
    return journal.Operation(
        operation=operation or str(uuid.uuid4()),
        entity=f"document/{document}",
        action=action,
        body=msgspec.json.encode(fields) if fields else b"",
        body_type=JSON_TYPE,
        version=version,
        actor=actor,
    )


def read_tables(settings: journal.Settings) -> Rows:
    """The application's tables, in one transaction of an ordinary read-only connection.

    The connection is opened for this reading alone: one that stays open goes on showing the old
    file after another was put in its place.
    """
    uri = f"{settings.store_file.resolve().as_uri()}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
        database.execute("BEGIN")
        return {name: database.execute(sql).fetchall() for name, sql in TABLES.items()}


def show(rows: Rows) -> None:
    """Print the documents, each with its trail of decisions."""
    trails: dict[str, list[str]] = {}
    for document, _, action, actor, *_ in rows["audit"]:
        trails.setdefault(document, []).append(f"{action} by {actor}")
    for name, folder, title, state, _, revision in rows["documents"]:
        print(f"  {name:<9} {folder + '/' + title:<19} {state:<10} rev {revision}", end="")
        print(f"  {', '.join(trails[name])}")


async def decide(settings: journal.Settings, operation: journal.Operation) -> str:
    """Make one decision and say what came of it."""
    async with journal.open(settings) as tenant:
        accepted = await tenant.accept(operation)
    return f"{accepted.outcome}: {accepted.entity} is {accepted.state}, rev {accepted.revision}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    given = _parser().parse_args(arguments)
    try:
        if given.command == "story":
            return _story(given.data)
        settings = settings_for(given.data or DATA)
        if given.command == "list":
            if settings.store_file.exists():
                show(read_tables(settings))
            return 0
        fields = {name: getattr(given, name) for name in ("folder", "title") if name in given}
        operation = intention(
            given.command,
            given.document,
            actor=given.actor,
            operation=given.operation,
            version=given.version,
            **fields,
        )
        print(asyncio.run(decide(settings, operation)))
    except UnrewindError as error:
        print(f"{type(error).__name__}: {error.detail}", file=sys.stderr)
        return 1
    return 0


def _story(data: Path | None) -> int:
    from examples.embedded.story import tell  # noqa: PLC0415 - the story imports this module

    if data is not None:
        return asyncio.run(tell(data))
    with tempfile.TemporaryDirectory(prefix="unrewind-embedded-") as folder:
        return asyncio.run(tell(Path(folder)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m examples.embedded.app")
    parser.add_argument("--data", type=Path, metavar="DIR", help=f"default: {DATA}; story: its own")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("story", help="decide, rewind, recover, and compare every row")
    commands.add_parser("list", help="the documents with their decisions")
    for action in ACTIONS:
        command = commands.add_parser(action, help=f"{action} a document")
        command.add_argument("document")
        if action == "submit":
            command.add_argument("folder")
            command.add_argument("title")
        command.add_argument("--actor", default="somebody")
        command.add_argument("--version", help="the version of the content that is decided on")
        command.add_argument("--operation", metavar="ID", help="name it to be able to repeat it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
