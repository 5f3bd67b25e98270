"""What long runs leave for the report: figures, and the command that gives them again."""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir

import journal
from benchmarks.machine import facts

ROOT = Path(journal.__file__).resolve().parents[1]
Figure = int | float | str | list[str]


def folder() -> Path:
    """Where evidence lies: `UNREWIND_PROOF`, or `.proof` of the checkout."""
    named = os.environ.get("UNREWIND_PROOF")
    return Path(named) if named else ROOT / ".proof"


def record(name: str, command: str, **figures: Figure) -> None:
    """Keep the figures of a run as `<name>.json`, with date, commit and machine.

    The newest takes the place of the older one, except of one that covered more: with a greater
    ``scope``, an int such as the seeds that were run.
    """
    path = folder() / f"{name}.json"
    if _scope(path) > int(figures.get("scope", 0)):  # type: ignore[arg-type]
        return
    content = {
        "name": name,
        "command": command,
        "at": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "commit": commit(),
        "machine": facts(Path(gettempdir())),
        "figures": figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(content, indent=2) + "\n")
    aside.replace(path)


def commit() -> str:
    """The commit that is checked out, with `+` where tracked files differ from it."""
    with suppress(OSError, subprocess.CalledProcessError):
        return _git("rev-parse", "--short=12", "HEAD") + ("+" if _git("diff", "HEAD") else "")
    return "unknown"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def _scope(path: Path) -> int:
    """What the run covered that is there, -1 where there is none that can be read."""
    try:
        return int(json.loads(path.read_bytes())["figures"].get("scope", 0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return -1
