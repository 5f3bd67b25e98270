"""The unrewind side of every measure. Nothing else in this package knows unrewind's code.

Until a function is filled in, it raises `NotBuiltError` and its rows read "not measured".

Functions that are timed return seconds of `time.perf_counter` around the work itself: what comes
before it (imports, opening a tenant, converting a `Decision` to unrewind's own type) and after it
(closing) stays outside, as it does on the other side. Each runs in a fresh process with no running
event loop, so it calls `asyncio.run` itself, and leaves no thread, lock or open file behind.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from litestar import Litestar
from litestar.handlers import HTTPRouteHandler

from benchmarks.measure import NotBuiltError
from benchmarks.workload import TYPE, Decision

CONFIG = f'[lifecycle.{TYPE}]\nkind = "free"\n'
"""The settings of every data directory here. Written beside it as `<data>.toml`."""

DECISIONS = "/v1/main/decisions"
HEALTH = "/health/live"

ENTRY_BYTES = "SELECT envelope, body FROM entry"
"""Reads from the journal's file the bytes of every entry, two blobs or texts a row."""


# S1, S2: over HTTP


def new_tenant(data: Path) -> str:
    """Make `data` ready for `serve_command` and return a writer's token.

    Writes `CONFIG`, founds control, makes one token. Raises NotBuiltError.
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
        raise NotBuiltError(f"`unrewind token create` failed: {_last_line(made.stderr)}")
    return made.stdout.strip()


def serve_command(data: Path, port: int) -> list[str]:
    """The command of a real server over `data`: what a user starts, with no flag to make it fast.

    It answers `HEALTH` once it can accept decisions. Raises NotBuiltError.
    """
    return [*_command(), "serve", *_place(data), "--port", str(port)]


def same_stack(handlers: Sequence[HTTPRouteHandler], data: Path) -> tuple[Litestar, str]:
    """unrewind's own application with these handlers instead of its own, and a writer's token.

    Everything that a request passes on its way to `POST decisions` MUST be there: the same
    authentication middleware over the tokens of `data` (made by `new_tenant`, this process is the
    only one on it), body limit, exception handlers, telemetry. Nothing that a request does not
    pass, such as the writer, needs to run. Raises NotBuiltError.
    """
    del handlers, data
    raise NotBuiltError("ours.same_stack is not filled in")


def uvicorn_options() -> dict[str, Any]:
    """The keyword arguments of `uvicorn.Config` in `unrewind serve`, without host, port and app."""
    return {"access_log": False, "log_level": "warning"}


# S3, S4: writing in process


def accept_in_flight(
    data: Path, warm_up: Sequence[Decision], decisions: Sequence[Decision], in_flight: int
) -> float:
    """Seconds until `accept` has answered all of `decisions`, `in_flight` unanswered at a time.

    `data` holds earlier decisions on the same entities. `warm_up` is accepted first, in the same
    way and on the same open tenant, before the clock starts (the write-ahead logs reach their size
    meanwhile). Every answer MUST be an acceptance, else MeasureError. Raises NotBuiltError.
    """
    del data, warm_up, decisions, in_flight
    raise NotBuiltError("ours.accept_in_flight is not filled in")


def import_decisions(data: Path, decisions: Sequence[Decision]) -> float:
    """Seconds for the batch accept behind `unrewind import`, known operations looked up.

    `data` may be absent, or hold earlier decisions. Afterwards the files are closed and
    checkpointed. Every decision MUST have been accepted. Also fills the directories that S3, S5
    and S6 then measure. Raises NotBuiltError.
    """
    del data, decisions
    raise NotBuiltError("ours.import_decisions is not filled in")


def database_files(data: Path) -> tuple[Path, Path]:
    """The SQLite files of the store and of the journal of tenant `main`. Raises NotBuiltError."""
    del data
    raise NotBuiltError("ours.database_files is not filled in")


# S5, S6: reading in process


def verify(data: Path) -> float:
    """Seconds for what `unrewind verify` does with every entry; MUST end without a finding.

    May use processes of its own; the baseline uses one. Raises NotBuiltError.
    """
    del data
    raise NotBuiltError("ours.verify is not filled in")


def replay(data: Path, target: Path) -> float:
    """Seconds to replay the journal of `data` into the rows of a new store in `target`.

    With all checks of a recovery; durable at the end. Raises NotBuiltError.
    """
    del data, target
    raise NotBuiltError("ours.replay is not filled in")


def replay_in_memory(data: Path) -> float:
    """Seconds to replay the journal of `data` into entities in memory. Raises NotBuiltError."""
    del data
    raise NotBuiltError("ours.replay_in_memory is not filled in")


def _command() -> list[str]:
    """The `unrewind` of this interpreter's environment."""
    found = shutil.which("unrewind", path=str(Path(sys.executable).parent))
    if found is None:
        raise NotBuiltError("there is no `unrewind` command in this Python environment")
    return [found]


def _place(data: Path) -> list[str]:
    return ["--data", str(data), "--config", str(data.with_suffix(".toml"))]


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2] or "it said nothing"
