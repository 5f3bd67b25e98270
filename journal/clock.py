"""Time and chance, passed in so that rules stay pure and a simulation can hold the clock."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Protocol

from journal.entry import time_of


class Clock(Protocol):
    """Where the present and fresh identities come from."""

    def now(self) -> str:
        """The present in the entry format's form."""

    def fresh(self) -> str:
        """128 random bits as 32 lowercase hex digits."""


class SystemClock:
    """The machine's clock and its random numbers."""

    def now(self) -> str:
        """See ``Clock.now``."""
        return time_of(datetime.now(UTC))

    def fresh(self) -> str:
        """See ``Clock.fresh``."""
        return secrets.token_hex(16)
