"""Formats: what this code writes and understands, and which code the data needs.

A journal says in control what the oldest format is whose code may work on the tenant. Old data is
opened by new code as it is: tables are only added, and an earlier release may go on beside it. The
first control entry that an earlier release would not heed raises what is needed, before it.

    1  decisions, releases, recoveries in one step
    2  stops of a type or an action, an opening of the stage *external*, abandoned histories
"""

from __future__ import annotations

from typing import Any

import msgspec

from journal.entry import Entry
from journal.errors import NewerFormat

FORMAT = 2
FIRST = 1
FORMAT_ENTITY = "control/format"

_UNHEEDED = ("control/hold-", "control/abandoned-")
_BEYOND = frozenset({"begin", "move", "arrive"})
_TENANT = "control/tenant"


def check_needs(needs: int) -> None:
    """Refuse data that only newer code understands. Raises NewerFormat."""
    if needs > FORMAT:
        raise NewerFormat(
            f"the data needs unrewind of format {needs} or later, and this is format {FORMAT}: "
            "install the newer version here; nothing was changed",
            needs=needs,
            format=FORMAT,
        )


def needs_of(entry: Entry) -> int:
    """Which format's code a control entry needs: an earlier one would not heed it.

    A recovery needs it as well, since it may end in any of these, and a move, which ends a place.
    """
    envelope = entry.envelope
    if envelope.entity.startswith(_UNHEEDED):
        return FORMAT
    if envelope.entity == _TENANT:
        facts: dict[str, Any] = msgspec.json.decode(entry.body)
        if envelope.action in _BEYOND or facts.get("opening") is not None:
            return FORMAT
    return FIRST


def fence_of(needs: int) -> tuple[str, str]:
    """A trigger's name, and the trigger by which the store refuses writers of earlier formats.

    A writer names its format in the row that it offers the marker. One from before that was so
    offers what stands there, which is 1.
    """
    name = f"unrewind_needs_{needs}"
    return name, (
        f"CREATE TRIGGER IF NOT EXISTS {name} BEFORE INSERT ON unrewind_marker"
        f" WHEN new.format < {needs} BEGIN"
        f" SELECT RAISE(ABORT, 'this data needs unrewind of format {needs} or later'); END"
    )
