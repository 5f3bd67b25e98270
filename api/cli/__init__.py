"""The command line, `unrewind`. Nothing here imports the web before `serve` runs."""

from api.cli import deciding, looking, recovering, serving, tokens
from api.cli.program import main

__all__ = ["deciding", "looking", "main", "recovering", "serving", "tokens"]
