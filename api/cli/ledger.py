"""`unrewind operations`: every accepted operation, and what became of it."""

from __future__ import annotations

from typing import Any

import click
from msgspec import Struct

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask
from api.output import print_json, print_line, print_rows
from journal import accounts, feed, inquiry
from journal.accounts import Account
from journal.entry import check_entity
from journal.feed import Page
from journal.inquiry import ObservationView
from journal.record import Record

_MOST_ORPHANS = 1000


class Listed(Struct, frozen=True):
    """What `unrewind operations --json` prints. ``orphans`` are reports on no known release."""

    items: list[Account]
    next: str | None
    orphans: list[ObservationView]


@main.command(
    "operations",
    epilog=examples(
        "unrewind operations --unresolved",
        "unrewind operations --entity document/inv-2041",
        "unrewind operations --unresolved --json | jq '.items[].fate.owner'",
    ),
)
@click.option(
    "--unresolved",
    is_flag=True,
    help="Only what has not ended or is not known to have happened, the oldest first.",
)
@click.option("--entity", metavar="TYPE/ID", help="Only the operations of this entity.")
@click.option(
    "--limit",
    type=click.IntRange(1, feed.MAX_PAGE),
    help="A page of this size. Without it everything is listed.",
)
@click.option("--after", metavar="CURSOR", help="Continue where a page ended: its `next`.")
@common
def operations(unresolved: bool, entity: str | None, limit: int | None, after: str | None) -> int:
    """List accepted operations: completed, cancelled, rejected, or unresolved with an owner.

    Ends with 1 when the deadline of something that it lists has passed.
    """
    if entity is not None:
        check_entity(entity)
    found = ask(settings(), _read, unresolved, entity, limit, after)
    if flags().json:
        print_json(found)
    else:
        _show(found, unresolved=unresolved)
    return Code.FINDINGS if any(item.fate.overdue for item in found.items) else Code.FINE


async def _read(
    record: Record, unresolved: bool, entity: str | None, limit: int | None, after: str | None
) -> Listed:
    read = accounts.read_unresolved if unresolved else accounts.read_ledger
    items: list[Account] = []
    while True:
        page = await read(record, entity=entity, after=after, limit=limit or feed.MAX_PAGE)
        items += page.items
        after = page.next
        if after is None or limit is not None:
            break
    orphans = await _orphans(record) if unresolved and entity is None else []
    return Listed(items, after, orphans)


async def _orphans(record: Record) -> list[ObservationView]:
    """Reports on releases that the store has never heard of; none where it cannot be read."""
    found: list[ObservationView] = []
    after: str | None = None
    while record.store is not None and len(found) < _MOST_ORPHANS:
        page: Page = await inquiry.read_observations(record, after, feed.MAX_PAGE)
        found += [view for view in page.items if view.status is None]
        after = page.next
        if after is None:
            break
    return found[:_MOST_ORPHANS]


def _show(found: Listed, *, unresolved: bool) -> None:
    if not found.items:
        print_line("nothing is unresolved" if unresolved else "no operations")
    else:
        print_rows(
            ("operation", "entity", "action", "accepted", "fate", "owner", "deadline", "why"),
            [_row(item) for item in found.items],
        )
    for orphan in found.orphans:
        print_line(
            f"orphan: {orphan.observed.release} {orphan.observed.outcome}, observed at "
            f"{orphan.recorded}: no release that the store knows"
        )
    if found.next is not None:
        print_line(f"more: --after {found.next}")


def _row(item: Account) -> tuple[Any, ...]:
    fate = item.fate
    return (
        item.operation,
        item.entity,
        item.action,
        item.recorded,
        f"{fate.fate}, overdue" if fate.overdue else str(fate.fate),
        fate.owner,
        fate.deadline,
        fate.why,
    )
