"""`unrewind drill`: rehearse the failures that the design claims to survive."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from api.cli.failures import Code
from api.cli.program import common, examples, flags, main, settings
from api.opening import check_known
from api.output import plain, print_facts, print_json, print_line
from journal.errors import Invalid, Refused

if TYPE_CHECKING:
    from api.drill.own import Source
    from api.drill.report import Report
    from journal.settings import Settings


@main.command(
    "drill",
    epilog=examples(
        "unrewind drill",
        "unrewind drill --dir rehearsals/2026-02 --json",
        "unrewind drill --from /var/lib/unrewind --config /etc/unrewind.toml --back 500",
    ),
)
@click.option("--dir", "directory", metavar="DIR", help="Keep everything in this new directory.")
@click.option("--only", metavar="P3,P4", help="Only what these promises need.")
@click.option(
    "--from", "source", metavar="DIR", help="Rehearse with a copy of this data directory."
)
@click.option("--snapshot", metavar="DIR", help="With --from: rewind the copy to this snapshot.")
@click.option("--store", metavar="URL", help="Put the drill's own store on this server.")
@click.option("--journal", metavar="URL", help="Put the drill's own journal on this server.")
@click.option(
    "--accept",
    metavar="WORD",
    multiple=True,
    help="A weaker promise of these servers that is accepted. May be given several times.",
)
@click.option(
    "--back",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="With --from: rewind the copy by so many decisions.",
)
@common
def drill(
    directory: str | None,
    only: str | None,
    source: str | None,
    snapshot: str | None,
    store: str | None,
    journal: str | None,
    accept: tuple[str, ...],
    back: int,
) -> int:
    """Rehearse a rewind with real processes, and say of each promise whether it held.

    Runs on data of its own, in a directory of its own, with a receiver of its own. With `--from` it
    rehearses with a copy of your data and configuration, of which every receiver has become the
    drill's: nothing of yours is written to, and nothing leaves. On servers that `--store` and
    `--journal` name it has a tenant of its own, which goes when all is well. Ends with 0 when every
    promise held and with 1 naming what broke. The directory goes when all is well, unless `--dir`
    names it.
    """
    from api.drill.run import rehearse, rehearse_own
    from api.drill.town import Servers

    if source is None and snapshot is not None:
        raise click.UsageError(
            "--snapshot is rewound to in a copy of your data: name it with --from"
        )
    if source is not None and (store or journal or accept):
        raise click.UsageError("a copy of your data is rehearsed with as files: leave servers out")
    wanted = _promises(only)
    loaded = settings(data=source) if source is not None else settings()
    if source is not None:
        check_known(loaded)
    folder = _new(directory)
    report: Report | None = None
    good = False
    # Ended from outside, too, it ends what it has started.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if source is None:
            servers = Servers(store, journal, accept)
            report = rehearse(folder, wanted, loaded.objective, _say, servers)
        else:
            report = rehearse_own(folder, _source(loaded, snapshot, back), wanted, _say)
        good = report.held and not report.missed
        _show(report, gone=good and directory is None)
    finally:
        signal.signal(signal.SIGTERM, before)
        if directory is None and (good or report is None):
            shutil.rmtree(folder, ignore_errors=True)
    return Code.FINE if good else Code.FINDINGS


def _source(loaded: Settings, snapshot: str | None, back: int) -> Source:
    from api.drill.own import Source

    path = None if snapshot is None else Path(snapshot).resolve()
    if path is not None and not path.is_dir():
        raise Invalid(f"there is no snapshot {snapshot}")
    return Source(loaded, path, back)


def _promises(only: str | None) -> list[str]:
    from api.drill.story import PROMISES

    if only is None:
        return list(PROMISES)
    wanted = [name.strip().upper() for name in only.split(",") if name.strip()]
    strange = [name for name in wanted if name not in PROMISES]
    if strange or not wanted:
        raise Invalid(
            f"--only takes promises, P1 to P{len(PROMISES)}, parted by commas; "
            f"{', '.join(strange) or 'none'} is not one"
        )
    return wanted


def _new(directory: str | None) -> Path:
    """The directory of the drill. Raises Refused where something is in it already."""
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="unrewind-drill-"))
    path = Path(directory)
    if not directory or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise Refused(f"{directory or 'an empty name'}: a drill needs a new or empty directory")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def _say(what: str) -> None:
    """One line for each step, on a terminal."""
    if sys.stderr.isatty():
        click.echo(plain(what), err=True)


def _show(report: Report, *, gone: bool) -> None:
    from api.drill.report import PAGE, sentences

    if flags().json:
        print_json(report)
        return
    for step in report.steps:
        print_line(f"{step.seconds:6.1f} s  {plain(step.what)}")
    print_line()
    for kept in report.promises:
        print_line(f"{kept.promise:4} {kept.state:12} {len(kept.checks):3} checks  {kept.text}")
    print_line()
    print_facts(
        [
            *((time.what, _time(time.seconds, time.within)) for time in report.times),
            ("took", f"{report.seconds:g} s"),
            ("report", "removed; `--dir` keeps it" if gone else f"{report.directory}/{PAGE}"),
        ]
    )
    for line in sentences(report):
        print_line(plain(line))


def _time(seconds: float | None, within: float) -> str:
    found = "not reached" if seconds is None else f"{seconds:.1f} s"
    return f"{found}, objective {within:g} s" if within else f"{found}, no objective is set"
