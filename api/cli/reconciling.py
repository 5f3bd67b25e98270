"""`unrewind recover reconcile` and `findings`: what became of every release, by evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, settings
from api.cli.recovering import recover
from api.opening import ask, principal, working
from api.output import plain, print_facts, print_json, print_line, print_rows
from api.progress import shown
from journal import feed
from journal.driving import drive
from journal.record import Record
from journal.store.reconciled import Found
from reconstruct import auditing
from reconstruct.auditing import Reconciled
from reconstruct.judging import Finding


@recover.command(
    "reconcile",
    epilog=examples(
        "unrewind recover reconcile",
        "unrewind recover reconcile --limit 20 --rate 5",
        "unrewind recover reconcile --record-incidents",
    ),
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Look at so many releases this time; run again for the next ones.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="N",
    help="Questions a second, over all receivers. Default: as each receiver's `rate` says.",
)
@click.option(
    "--record-incidents",
    is_flag=True,
    help="Record every release that was made without authority as an incident.",
)
@common
def reconcile(limit: int | None, rate: float, record_incidents: bool) -> int:
    """Ask receivers what became of every release that may have happened, and take that in.

    After `apply`, before `reopen`. A receipt is recorded and nothing is sent again; what nobody can
    tell is held, with an owner and a deadline. Interrupted anywhere, run it again: it goes on where
    it was. Once complete, again it asks about what is still unresolved. Ends with 1 when a receiver
    gave no usable answer, or when there is anything for a person to look at.
    """
    from api.reconciling import reconcile as run

    loaded = settings()
    with working(loaded) as record, shown() as show:
        done = asyncio.run(
            run(
                _runner(record),
                loaded,
                limit=limit,
                rate=rate,
                incidents=record_incidents,
                principal=principal(),
                show=show,
            )
        )
    if flags().json:
        print_json(done)
    else:
        _print(done)
    return Code.FINDINGS if done.exceptions or not done.complete else Code.FINE


def _runner(record: Record) -> Callable[..., Coroutine[Any, Any, Any]]:
    async def run(function: Callable[..., Coroutine[Any, Any, Any]], *args: Any) -> Any:
        return drive(function(record, *args))

    return run


def _print(done: Reconciled) -> None:
    counts = [f"{number} {kind}" for kind, number in done.counts.items()]
    print_facts(
        [
            ("generation", done.generation),
            ("complete", done.complete),
            ("found", counts),
            ("left", done.left),
            ("restored", done.restored),
            ("without authority", done.wrong),
            ("incidents recorded", done.incidents),
        ]
    )
    for receiver, number in done.unreachable.items():
        print_line(plain(f"unreachable: {receiver} gave no usable answer about {number}"))
    for item in done.anew:
        what = f"{item.action} of {item.entity}, version {plain(item.version)}"
        print_line(plain(f"ask for anew: {what}: only the store had it ({item.operation})"))
    for title, found in (
        ("unresolved", done.unresolved),
        ("authority", done.authority),
        ("strange", done.strange),
    ):
        for one in found:
            print_line(plain(f"{title}: {_said(one, title)}"))
    shown_, all_ = len(done.unresolved) + len(done.strange), sum(done.counts.values())
    if all_ > shown_:
        print_line("every finding: unrewind recover findings")
    again = "unrewind recover reconcile"
    print_line(f"next: {'unrewind recover reopen' if done.complete else again}")


def _said(one: Found, title: str) -> str:
    if title == "authority":
        return f"{one.id}: {one.authority}"
    owner = one.evidence.owner
    by = "" if owner is None else f"; {owner} answers by {one.evidence.deadline}"
    return f"{one.id} {one.found}: {one.evidence.why}{by}"


@recover.command(
    "findings",
    epilog=examples(
        "unrewind recover findings --found held",
        "unrewind recover findings --generation 3 --limit 1000 --json",
    ),
)
@click.option("--found", type=click.Choice([*map(str, Finding)]), help="Only these findings.")
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    metavar="N",
    help="Those of this generation's reconciliation. Default: of the one in force.",
)
@click.option("--after", metavar="CURSOR", help="Continue where a page ended: its `next`.")
@click.option(
    "--limit",
    type=click.IntRange(1, feed.MAX_PAGE),
    default=100,
    show_default=True,
    help="How many to list.",
)
@common
def findings(found: str | None, generation: int | None, after: str | None, limit: int) -> int:
    """List what a reconciliation found of each release, page by page.

    Ends with 1 when one that is listed is for a person to look at.
    """
    page = ask(settings(), auditing.read_findings, generation, found, after, limit)
    if flags().json:
        print_json(page)
    else:
        print_rows(
            ("release", "found", "entity", "receiver", "why", "owner", "deadline", "authority"),
            _rows(page.items),
        )
        if page.next is not None:
            print_line(f"more: --after {plain(page.next)}")
    return Code.FINDINGS if any(auditing.is_for_a_person(one) for one in page.items) else Code.FINE


def _rows(found: Iterable[Found]) -> Iterable[tuple[object, ...]]:
    for one in found:
        told = one.evidence
        yield (
            one.id,
            one.found,
            told.entity,
            told.receiver,
            told.why,
            told.owner,
            told.deadline,
            one.authority,
        )
