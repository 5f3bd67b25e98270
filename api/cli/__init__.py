"""The command line, `unrewind`. A command is imported when it runs, and what it needs with it.

Nothing here imports the web before `serve` or `dispatch` runs.
"""

from api.cli.program import main

__all__ = ["main"]
