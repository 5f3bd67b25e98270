"""The unrewind side of every measure. Nothing else in this package knows unrewind's code.

Functions that are timed return seconds of `time.perf_counter` around the work itself: what comes
before it (imports, opening a tenant, converting a `Decision` to unrewind's own type) and after it
(closing) stays outside, as it does on the other side. Each runs in a fresh process with no running
event loop, so it calls `asyncio.run` itself, and leaves no thread, lock or open file behind.
"""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

import journal
from api.app import build
from api.auth import NEEDS
from api.calls import STRAIGHT
from api.opening import deciding
from benchmarks.measure import MeasureError
from benchmarks.usage import Meter, Spent
from benchmarks.workload import TYPE, Decision
from journal import Acceptance, Journal, Operation, Settings
from journal.acceptance import ACCEPTED
from journal.control import Role
from journal.entry import JSON_TYPE
from journal.places import place_of_log
from journal.record import Record
from journal.settings import load
from journal.worker import drive
from journal.writepath import Answer, turn
from reconstruct.applying import walk
from reconstruct.planning import PAGE
from reconstruct.replay import Replay
from reconstruct.walking import verify_journal

BATCH_ROWS = 8000
"""Rows that `unrewind import` puts into one turn."""

Where = Mapping[str, str]
"""The settings `store` and `journal`, where they are not directories."""
EMBEDDED: Where = MappingProxyType({})

CONFIG = f'[lifecycle.{TYPE}]\nkind = "free"\n'
"""The settings of every data directory here. Written beside it as `<data>.toml`."""

DECISIONS = "/v1/main/decisions"
HEALTH = "/health/ready"

AS_WRITER = {NEEDS: Role.WRITER}
"""What a baseline's route declares so that it asks for the role that `POST decisions` asks for."""

AS_STRAIGHT = {**AS_WRITER, STRAIGHT: True}
"""The same for a route that is answered past the router too, as `POST decisions` is."""

ENTRY_BYTES = "SELECT envelope, body FROM entries"
"""Reads from the journal's file the bytes of every entry, two blobs or texts a row."""


# S1, S2: over HTTP


def new_tenant(data: Path) -> str:
    """Make `data` ready for `serve_command` and return a writer's token.

    Writes `CONFIG`, founds control, makes one token.
    """
    config = data.with_suffix(".toml")
    config.write_text(CONFIG)
    made = subprocess.run(
        [*_command(), "token", "create", "--role", "writer", *_place(data)],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        raise MeasureError(f"`unrewind token create` failed: {_last_line(made.stderr)}")
    return made.stdout.strip()


def serve_command(data: Path, port: int) -> list[str]:
    """The command of a real server over `data`: what a user starts, with no flag to make it fast.

    It answers `HEALTH` once it can accept decisions.
    """
    return [*_command(), "serve", *_place(data), "--port", str(port)]


def same_stack(handlers: Sequence[HTTPRouteHandler], data: Path) -> tuple[Litestar, str]:
    """unrewind's own application with these handlers instead of its own, and a writer's token.

    Everything that a request passes on its way to `POST decisions` MUST be there: the same
    authentication middleware over the tokens of `data` (made by `new_tenant`, this process is the
    only one on it), body limit, exception handlers, telemetry. Nothing that a request does not
    pass, such as the writer, needs to run.
    """
    token = new_tenant(data)
    tenant = Journal(settings_of(data))

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        await tenant.start()
        try:
            yield
        finally:
            await tenant.stop()

    return build(tenant, handlers, [lifespan]), token


# S3, S4: writing in process


def accept_in_flight(
    data: Path,
    warm_up: Sequence[Decision],
    decisions: Sequence[Decision],
    in_flight: int,
    where: Where = EMBEDDED,
    servers: Sequence[int] = (),
) -> Spent:
    """What it takes until `accept` has answered all `decisions`, `in_flight` unanswered at a time.

    `data` holds earlier decisions on the same entities. `warm_up` is accepted first, in the same
    way and on the same open tenant, before the clock starts (the write-ahead logs reach their size
    meanwhile). Every answer MUST be an acceptance, else MeasureError.
    """
    earlier = [_operation(decision) for decision in warm_up]
    operations = [_operation(decision) for decision in decisions]
    settings = settings_of(data, where)
    return asyncio.run(_accept_all(settings, earlier, operations, in_flight, servers))


def import_decisions(data: Path, decisions: Sequence[Decision], where: Where = EMBEDDED) -> float:
    """Seconds for the batch accept behind `unrewind import`, known operations looked up.

    `data` may be absent, or hold earlier decisions. Afterwards the files are closed and
    checkpointed. Every decision MUST have been accepted. Also fills the directories that S3, S5
    and S6 then measure.
    """
    operations = [_operation(decision) for decision in decisions]
    with deciding(settings_of(data, where)) as record:
        started = perf_counter()
        for start in range(0, len(operations), BATCH_ROWS):
            answers = drive(turn(record, operations[start : start + BATCH_ROWS]))
            _require_accepted(answers)
        return perf_counter() - started


def database_files(data: Path) -> tuple[Path, Path]:
    """The SQLite files of the store and of the journal of tenant `main`."""
    settings = settings_of(data)
    return settings.store_file, settings.journal_file


# S5, S6: reading in process


def verify(data: Path) -> float:
    """Seconds for what `unrewind verify` does with every entry; MUST end without a finding.

    May use processes of its own; the baseline uses one.
    """
    settings = settings_of(data)
    started = perf_counter()
    walked = verify_journal(place_of_log(settings), settings.tenant)
    seconds = perf_counter() - started
    if walked.findings:
        raise MeasureError(f"verify found {walked.findings[0].detail}")
    return seconds


def replay(data: Path, target: Path) -> float:
    """Seconds to replay the journal of `data` into the rows of a new store in `target`.

    With all checks of a recovery; durable at the end.
    """
    settings = settings_of(data)
    aside = load(None, {**_values(target), "journal": str(settings.journal_file.parent)}, {})
    record = Record(aside)
    try:
        drive(record.open_files())
        drive(record.create_store())
        started = perf_counter()
        drive(walk(record, 0, set(), Replay(record.lifecycles)))
        return perf_counter() - started
    finally:
        drive(record.close())


def replay_in_memory(data: Path) -> float:
    """Seconds to replay the journal of `data` into entities in memory."""
    record = Record(settings_of(data), read_only=True)
    try:
        drive(record.open())
        started = perf_counter()
        replay_all = Replay(record.lifecycles)
        after = 0
        while rows := drive(record.journal().decisions(after, PAGE)):
            replay_all.run(rows)
            after = rows[-1].sequence or after
        return perf_counter() - started
    finally:
        drive(record.close())


def _values(data: Path) -> dict[str, Any]:
    return {"data": str(data), "lifecycle": {TYPE: {"kind": "free"}}}


def settings_of(data: Path, where: Where = EMBEDDED) -> Settings:
    """The settings of a data directory, as every function here uses them."""
    return load(None, {**_values(data), **where}, {})


def _operation(decision: Decision) -> Operation:
    return Operation(decision.operation, decision.entity, decision.action, decision.body, JSON_TYPE)


def _require_accepted(answers: Sequence[Answer]) -> None:
    for answer in answers:
        if not isinstance(answer, Acceptance) or answer.outcome != ACCEPTED:
            raise MeasureError(f"not accepted: {answer}")


async def _accept_all(
    settings: Settings,
    earlier: list[Operation],
    operations: list[Operation],
    in_flight: int,
    servers: Sequence[int],
) -> Spent:
    async with journal.open(settings) as tenant:

        async def client(mine: list[Operation]) -> None:
            for operation in mine:
                _require_accepted([await tenant.accept(operation)])

        async def run(part: list[Operation]) -> Spent:
            meter = Meter(servers)
            await asyncio.gather(*(client(part[i::in_flight]) for i in range(in_flight)))
            return meter.read()

        await run(earlier)
        return await run(operations)


def _command() -> list[str]:
    """The `unrewind` of this interpreter's environment."""
    found = shutil.which("unrewind", path=str(Path(sys.executable).parent))
    if found is None:
        raise MeasureError("there is no `unrewind` command in this Python environment")
    return [found]


def _place(data: Path) -> list[str]:
    return ["--data", str(data), "--config", str(data.with_suffix(".toml"))]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "it said nothing"
