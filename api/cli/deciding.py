"""`unrewind accept` and `unrewind import`: decisions made on the files, in this process."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import click

from api.cli.failures import Code, Interrupted
from api.cli.program import common, examples, existing_file, flags, main, settings
from api.importer import Importer, Tally
from api.opening import deciding, principal
from api.output import print_facts, print_json, print_line
from api.progress import Show, shown
from api.rows import CSV, JSON_LINES, STDIN, Mapping, Row, Source, read_rows, zone_of
from journal.acceptance import Operation, check_operation
from journal.data import parse
from journal.driving import drive
from journal.entry import JSON_TYPE, NO_BODY_TYPE, check_type, parse_time
from journal.errors import Invalid, UnrewindError
from journal.settings import Settings
from journal.writepath import turn

_LINE_FACTOR = 2


@main.command(
    "accept",
    epilog=examples(
        "unrewind accept --operation op-1 --entity document/inv-2041 --action submit "
        """--body '{"amount": 120}'""",
        "unrewind accept --operation op-2 --entity document/inv-2041 --action approve "
        "--expected-revision 1 --actor ines",
    ),
)
@click.option(
    "--operation", required=True, metavar="ID", help="Your ID of this intention; keep it to repeat."
)
@click.option("--entity", required=True, metavar="TYPE/ID", help="What the decision is about.")
@click.option("--action", required=True, metavar="NAME", help="An action of the type's lifecycle.")
@click.option("--body", metavar="JSON", help="The content decided on; an object is merged.")
@click.option("--body-file", metavar="FILE", help="The same from a file; `-` is stdin.")
@click.option(
    "--body-type",
    metavar="MEDIA",
    default=JSON_TYPE,
    show_default=True,
    help="The media type of --body-file. Anything but JSON is kept and not merged.",
)
@click.option("--version", metavar="TEXT", help="The version of the content decided on.")
@click.option(
    "--expected-revision",
    type=click.IntRange(0),
    metavar="N",
    help="Refuse unless the entity is at this revision; 0 means that it is new.",
)
@click.option("--actor", metavar="TEXT", help="Who decided.")
@click.option("--at", metavar="TIME", help="When it was decided, RFC 3339; default now.")
@common
def accept(
    operation: str,
    entity: str,
    action: str,
    body: str | None,
    body_file: str | None,
    body_type: str,
    version: str | None,
    expected_revision: int | None,
    actor: str | None,
    at: str | None,
) -> int:
    """Make one operation a decision, on the files, beside a server or without.

    When this ends with 0 the decision is in the store *and* in the journal. Repeating it under the
    same operation ID gives the first answer again, as `duplicate`.
    """
    loaded = settings()
    content, media = _body(body, body_file, body_type, loaded.max_body)
    made = Operation(
        operation,
        entity,
        action,
        content,
        media,
        version,
        expected_revision,
        actor,
        principal(),
        None if at is None else parse_time("at", at),
    )
    check_operation(made, loaded.lifecycles, loaded.max_body)
    with deciding(loaded) as record:
        answer = drive(turn(record, [made]))[0]
    if isinstance(answer, UnrewindError):
        raise answer
    if flags().json:
        print_json(answer)
        return Code.FINE
    print_facts(
        [
            ("outcome", answer.outcome),
            ("entity", answer.entity),
            ("revision", answer.revision),
            ("state", answer.state),
            ("sequence", answer.sequence),
            ("digest", answer.digest),
        ]
    )
    return Code.FINE


def _body(text: str | None, file: str | None, media: str, limit: int) -> tuple[bytes, str]:
    """The body's bytes, kept as they came, and their media type."""
    if text is not None and file is not None:
        raise click.UsageError("--body and --body-file exclude each other")
    if text is not None:
        content, media = text.encode(), JSON_TYPE
    elif file == STDIN:
        content = sys.stdin.buffer.read(limit + 1)
    elif file is not None:
        with existing_file(file).open("rb") as opened:
            content = opened.read(limit + 1)
    else:
        return b"", NO_BODY_TYPE
    if len(content) > limit:
        raise Invalid(f"the body is larger than the {limit} bytes of max_body", field="body")
    if media == JSON_TYPE:
        parse(content)
    return content, media


@main.command(
    "import",
    epilog=examples(
        "unrewind import examples/decisions.csv --entity-type document --entity document "
        "--action action --at at --actor actor --operation operation --version version",
        "zcat log.jsonl.gz | unrewind import - --format jsonl --entity-type case --entity case "
        "--action activity --at time --timezone Europe/Amsterdam",
    ),
)
@click.argument("file", metavar="FILE")
@click.option("--entity-type", required=True, metavar="TYPE", help="The type of every entity.")
@click.option("--entity", required=True, metavar="COLUMN", help="The column of the entity's ID.")
@click.option("--action", required=True, metavar="COLUMN", help="The column of the action.")
@click.option("--at", metavar="COLUMN", help="The column that says when it was decided.")
@click.option("--actor", metavar="COLUMN", help="The column that says who decided.")
@click.option(
    "--operation",
    metavar="COLUMN",
    help="The column of the operation ID. Without it, IDs are derived from each row's content.",
)
@click.option("--version", metavar="COLUMN", help="The column of the content's version.")
@click.option(
    "--timezone",
    metavar="ZONE",
    help="What times without an offset mean: `Europe/Amsterdam`, `+01:00`. Else they are refused.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice([CSV, JSON_LINES]),
    help="What the file holds, where its name does not say it.",
)
@click.option("--delimiter", default=",", show_default=True, metavar="CHAR", help="CSV's.")
@click.option("--strict", is_flag=True, help="Stop at the first refused row; one commit a row.")
@common
def import_(
    file: str,
    entity_type: str,
    entity: str,
    action: str,
    at: str | None,
    actor: str | None,
    operation: str | None,
    version: str | None,
    timezone: str | None,
    format_: str | None,
    delimiter: str,
    strict: bool,
) -> int:
    """Make every row of a decision log a decision: CSV or JSON lines, `.gz` too, `-` for stdin.

    Columns that no flag names become the JSON body of the decision. A row that cannot be one is
    refused by its line number, and the others go on. Interrupted in whatever way, the same command
    again takes up where it was: known operations are counted as `duplicate`.
    """
    loaded = settings()
    check_type(entity_type)
    check_operation(Operation("x", f"{entity_type}/x", "x"), loaded.lifecycles, 0)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise click.UsageError("--delimiter is one character, and neither a quote nor a line's end")
    zone = None if timezone is None else zone_of(timezone)
    mapping = Mapping(entity_type, entity, action, at, actor, operation, version, zone)
    if file != STDIN:
        existing_file(file)
    source = Source(file, format_)
    try:
        rows = read_rows(source, mapping, _LINE_FACTOR * loaded.max_body, principal(), delimiter)
        tally = _decide_all(loaded, rows, source, strict=strict)
    finally:
        source.close()
    _summarise(tally)
    return Code.FINDINGS if tally.refused else Code.FINE


def _decide_all(loaded: Settings, rows: Iterator[Row], source: Source, *, strict: bool) -> Tally:
    shield = _Shield()
    try:
        with deciding(loaded) as record, shown() as show:
            importer = Importer(
                record, strict=strict, shield=shield, after_batch=_reporting(source, show)
            )
            try:
                return importer.run(rows)
            except UnrewindError as error:
                error.members.update(_counts(importer.tally))
                raise
            except KeyboardInterrupt:
                raise Interrupted(
                    f"interrupted after {importer.tally.rows} rows; run the same command again to "
                    "go on",
                    **_counts(importer.tally),
                ) from None
    finally:
        shield.lower()


def _counts(tally: Tally) -> dict[str, Any]:
    return {
        "accepted": tally.accepted,
        "duplicate": tally.duplicate,
        "refused": tally.refused,
        "rows": tally.rows,
    }


def _summarise(tally: Tally) -> None:
    if flags().json:
        print_json({**_counts(tally), "errors": tally.errors})
        return
    print_line(
        f"{tally.rows} rows: {tally.accepted} accepted, {tally.duplicate} duplicate, "
        f"{tally.refused} refused"
    )
    for fault in tally.errors:
        print_line(f"line {fault.line}: {fault.detail}")
    if tally.refused > len(tally.errors):
        print_line(f"and {tally.refused - len(tally.errors)} more")


def _reporting(source: Source, show: Show) -> Callable[[Tally], None]:
    started = time.monotonic()

    def report(tally: Tally) -> None:
        rate = tally.rows / max(time.monotonic() - started, 1e-9)
        what = (
            f"{rate:,.0f} rows/s, {tally.accepted:,} accepted, "
            f"{tally.duplicate:,} duplicate, {tally.refused:,} refused"
        )
        show(source.read, source.size or 0, what)

    return report


class _Shield:
    """Lets ctrl-C wait for the end of a turn; a second one does not wait."""

    def __init__(self) -> None:
        self._inside = self._asked = False
        self._before = signal.signal(signal.SIGINT, self._ask)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        if not self._inside or self._asked:
            raise KeyboardInterrupt
        self._asked = True

    def __enter__(self) -> None:
        self._inside = True

    def __exit__(self, *_: object) -> None:
        self._inside = False
        if self._asked:
            raise KeyboardInterrupt

    def lower(self) -> None:
        """Let ctrl-C be what it was."""
        signal.signal(signal.SIGINT, self._before)
