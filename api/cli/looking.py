"""`unrewind status`, `gaps`, `history`, `verify`: questions, answered from the files alone."""

from __future__ import annotations

import click
import msgspec

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import ask, check_known
from api.output import plain, print_facts, print_json, print_line, print_rows
from api.progress import shown
from journal import feed, reading, tracing
from journal.control import Stage
from journal.leading import Alive
from journal.registry import Registry
from journal.status import Status
from journal.status import status as look_at

_SOUND = {"clean", "crashed"}


@main.command("status", epilog=examples("unrewind status", "unrewind status --json | jq .stage"))
@common
def status() -> int:
    """Say where the tenant stands, and which failures it is not covered against.

    Ends with 0 when store and journal agree (`clean`, or `crashed` with a handoff still to do), the
    stage is open and no history has a gap; else with 1.
    """
    loaded = settings()
    found = ask(loaded, look_at)
    beside = len(set(Registry(loaded.home).names()) - {found.tenant})
    if flags().json:
        print_json({**msgspec.to_builtins(found), "tenants": beside})
    else:
        _show_status(found, beside)
    fine = found.verdict in _SOUND and found.stage == Stage.OPEN and not found.gaps
    return Code.FINE if fine else Code.FINDINGS


def _show_status(found: Status, beside: int) -> None:
    facts: list[tuple[str, object]] = [
        ("tenant", f"{found.tenant}, instance {found.instance}"),
        ("stage", found.stage),
        ("verdict", f"{found.verdict}: {found.detail}" if found.detail else found.verdict),
        ("history", found.history),
        ("parent", found.parent),
        ("generation", found.generation),
        ("sequence", found.sequence),
        ("entities", found.entities),
        ("gaps", found.gaps),
        ("pending", found.pending),
    ]
    if found.witness is not None:
        saw = found.witness
        facts.append(("witness", f"{saw.position} entries at {saw.at}, {saw.behind} behind"))
    if found.stopped is not None:
        facts.append(("stopped", f"{found.stopped.get('reason')}, at {found.stopped.get('at')}"))
    if beside:
        facts.append(("tenants", f"{beside} more are registered here; see unrewind tenant list"))
    facts += [("process", _say_alive(process)) for process in found.processes]
    facts += [("not covered", sentence) for sentence in found.failure_scope]
    print_facts(facts)


def _say_alive(process: Alive) -> str:
    age = "" if process.age is None else f", {process.age:.0f} s ago"
    return f"{process.name}{age}{', leads' if process.leads else ''}"


@main.command("gaps", epilog=examples("unrewind gaps", "unrewind gaps --json"))
@click.option("--limit", type=click.IntRange(1, feed.MAX_PAGE), default=feed.MAX_PAGE)
@click.option("--after", metavar="CURSOR", help="Continue where a page ended: its `next`.")
@common
def gaps(limit: int, after: str | None) -> int:
    """List every incomplete history: what is missing or contradicts itself, and what it holds up.

    Ends with 1 when there are any.
    """
    page = ask(settings(), reading.read_gaps, after, limit)
    if flags().json:
        print_json(page)
        return Code.FINDINGS if page.items else Code.FINE
    if not page.items:
        print_line("no gaps: every history is complete")
        return Code.FINE
    print_rows(
        ("entity", "kind", "first", "last", "durable through", "holds", "since", "detail"),
        [
            (
                item.entity,
                item.flaw,
                item.first,
                item.last,
                item.durable_through,
                item.holds,
                item.since,
                item.detail,
            )
            for item in page.items
        ],
    )
    if page.next is not None:
        print_line(f"more: --after {page.next}")
    return Code.FINDINGS


@main.command(
    "history",
    epilog=examples("unrewind history document/inv-2041", "unrewind history case/17 --first 1001"),
)
@click.argument("entity", metavar="TYPE/ID")
@click.option(
    "--first", type=click.IntRange(1), default=1, metavar="N", help="Begin with this revision."
)
@click.option("--limit", type=click.IntRange(1, feed.MAX_PAGE), default=feed.MAX_PAGE)
@common
def history(entity: str, first: int, limit: int) -> int:
    """Show an entity's decisions from the journal, in order, with its gaps marked.

    Works in any stage. Ends with 1 when the history is incomplete.
    """
    view = ask(settings(), tracing.read_history, entity, first, limit)
    if flags().json:
        print_json(view)
    else:
        print_rows(
            ("revision", "action", "state", "at", "actor", "operation", "digest", "flaw"),
            [
                (
                    step.revision,
                    step.action,
                    step.state,
                    step.at,
                    step.actor,
                    step.operation,
                    step.digest[:12],
                    step.flaw,
                )
                for step in view.revisions
            ],
        )
        for flaw in view.flaws:
            print_line(f"incomplete: {flaw.detail}; durable through {flaw.durable_through}")
        if view.next is not None:
            print_line(f"more: --first {view.next}")
        for cut in view.abandoned:
            print_line(plain(f"abandoned above revision {cut.through}, {cut.since}: {cut.reason}"))
    known = {None, reading.ABANDONED}
    whole = view.complete and all(step.flaw in known for step in view.revisions)
    return Code.FINE if whole else Code.FINDINGS


@main.command("verify", epilog=examples("unrewind verify", "unrewind verify --json"))
@common
def verify() -> int:
    """Hash every byte of the journal anew, walk every chain, and compare the store with it.

    Ends with 1 when anything is found. `state_digest` is over the store's rows: a recovered store
    has the digest of the one that was lost.
    """
    from reconstruct import verification  # it brings what starts processes

    loaded = settings()
    check_known(loaded)
    with shown() as show:
        report = verification.verify(loaded, show)
    if flags().json:
        print_json(report)
    else:
        print_facts(
            [
                ("verdict", report.verdict),
                ("entries", report.entries),
                ("entities", report.entities),
                ("findings", len(report.findings)),
                ("state digest", report.state_digest),
            ]
        )
        for item in report.findings:
            print_line(f"{item.kind}: {item.detail}")
        for cut in report.abandoned:
            print_line(plain(f"abandoned: {cut.detail}"))
    return Code.FINDINGS if report.findings or report.verdict not in _SOUND else Code.FINE
