"""`unrewind recover reopen`: in stages, as far as the tests of each hold."""

from __future__ import annotations

import time

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, settings
from api.cli.recovering import recover
from api.opening import principal, writing
from api.output import plain, print_facts, print_json, print_line
from journal.control import Opening, Stage
from journal.driving import drive
from journal.errors import Refused
from journal.record import Record
from reconstruct import recovery
from reconstruct.completion import WAIVABLE
from reconstruct.recovery import Reopened

_PAUSE = 0.2
_STAGES = [str(stage) for stage in Stage if stage is not Stage.CLOSED]


def names_of(text: str | None) -> tuple[str, ...]:
    """Names parted by commas; none where nothing was said."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


@recover.command(
    "reopen",
    epilog=examples(
        "unrewind recover reopen",
        "unrewind recover reopen --to internal",
        "unrewind recover reopen --to external --lanes payout --rate 0.5",
        "unrewind recover reopen --despite backlog --reason 'agreed with the bank, ticket 481'",
    ),
)
@click.option(
    "--to",
    type=click.Choice(_STAGES),
    help="Reach this stage or change nothing. Default: as far as the tests hold.",
)
@click.option(
    "--lanes", metavar="NAMES", help="The lanes that the stage external lets out; commas between."
)
@click.option(
    "--releases", metavar="IDS", help="The releases that the stage external lets out, by ID."
)
@click.option("--rate", type=float, metavar="N", help="Releases a second there, over all lanes.")
@click.option(
    "--despite",
    metavar="TESTS",
    help=f"Go on although these do not hold ({', '.join(WAIVABLE)}); needs --reason.",
)
@click.option(
    "--wait",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for what the stage external has let out to end.",
)
@click.option("--reason", metavar="TEXT", help="Why; it is journalled and shown by `status`.")
@common
def reopen(
    to: str | None,
    lanes: str | None,
    releases: str | None,
    rate: float | None,
    despite: str | None,
    wait: float,
    reason: str | None,
) -> int:
    """Let the tenant read, then decide, then have effects, as far as the tests of each stage hold.

    Reading needs the store to be what the journal says; internal work a write and an owner for
    whatever is unresolved; external effects reconciled releases; open a good end of what was let
    out first and a backlog that drains in time. Takes the stop down. Ends with 1 when less than
    was asked for is reached, saying what is missing.
    """
    waived = names_of(despite)
    if waived and reason is None:
        raise click.UsageError("--despite needs a --reason: who may answer for it, and why")
    opening = None
    if lanes is not None or releases is not None or rate is not None:
        if to not in {None, str(Stage.EXTERNAL)}:
            raise click.UsageError(
                "--lanes, --releases and --rate say what the stage external lets out: "
                "name it with --to external"
            )
        opening = Opening(names_of(lanes), names_of(releases), rate or 0.0)
    stage = None if to is None else Stage(to)
    loaded = settings()
    deadline = time.monotonic() + wait
    with writing(loaded) as record:
        while True:
            done, refused = _try(record, stage, opening, waived, reason or "reopened")
            soon = done.soon if done is not None else _soon(refused)
            if not soon or time.monotonic() >= deadline:
                break
            time.sleep(_PAUSE)
    if done is None:
        raise refused or Refused
    if flags().json:
        print_json(done)
    else:
        _show(done)
    return _code(done, stage if opening is None else Stage.EXTERNAL)


def _try(
    record: Record,
    to: Stage | None,
    opening: Opening | None,
    despite: tuple[str, ...],
    reason: str,
) -> tuple[Reopened | None, Refused | None]:
    try:
        step = recovery.reopen(
            record, principal(), to=to, opening=opening, despite=despite, reason=reason
        )
        return drive(step), None
    except Refused as error:
        return None, error


def _soon(refused: Refused | None) -> bool:
    return refused is not None and bool(refused.members.get("soon"))


def _show(done: Reopened) -> None:
    print_facts(
        [
            ("stage", done.stage),
            ("passed", done.passed),
            ("history", done.history),
            ("generation", done.generation),
        ]
    )
    for line in done.despite:
        print_line(plain(f"waived: {line}"))
    for line in done.missing:
        print_line(plain(f"missing: {line}"))
    if done.missing:
        print_line("next: mend what is missing, then: unrewind recover reopen")


def _code(done: Reopened, to: Stage | None) -> int:
    if done.stage == Stage.CLOSED:
        return Code.REFUSED
    return Code.FINE if done.stage in {Stage.OPEN, to} else Code.FINDINGS
