"""The command line, `unrewind`. Nothing here imports the web before `serve` or `dispatch` runs."""

from api.cli import (
    deciding,
    dispatching,
    lanes,
    looking,
    recovering,
    serving,
    snapshots,
    tokens,
    tracing,
    working,
)
from api.cli.program import main

__all__ = [
    "deciding",
    "dispatching",
    "lanes",
    "looking",
    "main",
    "recovering",
    "serving",
    "snapshots",
    "tokens",
    "tracing",
    "working",
]
