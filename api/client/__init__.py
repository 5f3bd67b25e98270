"""The client: decisions and permits over HTTP, with results that cannot be mistaken for success.

`Client` blocks, `AsyncClient` is awaited; both have one surface. docs/client.md shows its use.
"""

from __future__ import annotations

from api.client.calls import Grant, Item
from api.client.clients import AsyncClient, Client
from api.client.ids import time_ordered
from api.client.permits import Permit
from api.client.results import (
    Abandoned,
    ClaimLost,
    ClientError,
    Kept,
    NotReported,
    Outcome,
    Reception,
    Refused,
    Result,
)

__all__ = [
    "Abandoned",
    "AsyncClient",
    "ClaimLost",
    "Client",
    "ClientError",
    "Grant",
    "Item",
    "Kept",
    "NotReported",
    "Outcome",
    "Permit",
    "Reception",
    "Refused",
    "Result",
    "time_ordered",
]
