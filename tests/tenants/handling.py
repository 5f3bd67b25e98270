"""A handler that leaves a trace on disk, so that nobody has to ask the server."""

from __future__ import annotations

import os
from pathlib import Path

from journal.permits import Permit


def note(permit: Permit) -> str:
    """Write down which command ran."""
    folder = Path(os.environ["TRACES"])
    (folder / permit.id).write_text(permit.entity or "")
    return "noted"
