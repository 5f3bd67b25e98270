"""`unrewind recover report`: what a recovery did, how long it took, and what is left."""

from __future__ import annotations

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, settings
from api.cli.recovering import recover
from api.opening import ask
from api.output import plain, print_facts, print_json, print_line
from reconstruct import reporting
from reconstruct.reporting import Measured, RecoveryReport


@recover.command(
    "report",
    epilog=examples("unrewind recover report", "unrewind recover report --generation 2 --json"),
)
@click.option(
    "--generation",
    type=click.IntRange(min=1),
    metavar="N",
    help="The recovery that gave this generation. Default: the newest.",
)
@common
def report(generation: int | None) -> int:
    """Say what a recovery did, step by step, how long it took, and what is still unresolved.

    May be asked for while it runs. Ends with 0 when the tenant is open, its objectives were met and
    no deadline has passed; else with 1.
    """
    found = ask(settings(), reporting.report, generation)
    if flags().json:
        print_json(found)
    else:
        _show(found)
    return Code.FINE if found.fine else Code.FINDINGS


def _show(found: RecoveryReport) -> None:
    print_facts(
        [
            ("tenant", found.tenant),
            ("generation", found.generation),
            ("history", found.history),
            ("parent", found.parent),
            ("reason", found.reason),
            ("verdict", found.verdict),
            ("since", found.started),
            ("stage", found.stage),
            ("evidence", [item.get("directory") for item in found.evidence]),
            ("plan", found.plan),
            ("replayed", found.replayed),
            ("undone", found.undone),
            ("incomplete", found.incomplete),
            ("decides again", _measured(found.safe)),
            ("backlog gone", _backlog(found)),
            ("decisions lost", "not known" if found.lost is None else found.lost),
            ("findings", [f"{kind} {count}" for kind, count in found.findings.items()]),
            ("unresolved", f"{found.unresolved}, {found.overdue} past their deadline"),
        ]
    )
    for step in found.steps:
        who = f", by {step.principal}" if step.principal else ""
        line = f"{step.at} +{step.seconds:g} s: {step.action}, stage {step.stage}{who}: "
        print_line(plain(line + step.reason))
        for key in ("despite", "missing"):
            for sentence in _sentences(step.facts.get(key)):
                print_line(plain(f"  {'waived' if key == 'despite' else key}: {sentence}"))
    for operation in found.undone_operations:
        print_line(plain(f"undone: {operation}, which only the store had"))
    for item in found.abandoned:
        dropped = ", ".join(item.dropped) or "nothing"
        print_line(
            plain(f"abandoned: {item.entity} after revision {item.through}, dropped {dropped}")
        )
    for one in found.to_look_at:
        print_line(plain(f"{one.found}: {one.id}: {one.evidence.why}"))
    for one in found.wrong:
        print_line(plain(f"authority: {one.id}: {one.authority}"))
    for account in found.oldest:
        fate = account.fate
        late = ", overdue" if fate.overdue else ""
        print_line(
            plain(
                f"unresolved: {account.operation} of {account.entity}: {fate.owner} until "
                f"{fate.deadline}{late}: {fate.why}"
            )
        )
    if found.unresolved > len(found.oldest):
        print_line("more: unrewind operations --unresolved")


def _sentences(value: object) -> list[str]:
    """The sentences of a step; a count that has the same name is none."""
    return [str(item) for item in value] if isinstance(value, list) else []


def _measured(found: Measured) -> str:
    took = "not yet" if found.seconds is None else f"after {found.seconds:g} s"
    if not found.objective:
        return took
    met = {True: "met", False: "not met", None: "not met yet"}[found.met]
    return f"{took}; objective {found.objective:g} s, {met}"


def _backlog(found: RecoveryReport) -> str:
    said = _measured(found.drained)
    if found.backlog is None:
        return said
    return (
        f"{said}; {found.backlog.waited} waited, {found.backlog.left} are left, "
        f"{found.backlog.with_people} wait for people"
    )
