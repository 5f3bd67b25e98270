"""Handlers for lanes of tests. What they were given and what they shall do is kept here."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from journal.permits import Permit

seen: list[Any] = []
"""What handlers were called with, in order: the ID of each, or a list of them."""

failures: list[BaseException] = []
"""What the next runs raise, one each."""

let_go = threading.Event()
"""Ends the runs that hang."""


def reset() -> None:
    seen.clear()
    failures.clear()
    let_go.clear()


def _next(permit: Permit | Sequence[Permit]) -> None:
    seen.append(permit.id if isinstance(permit, Permit) else [one.id for one in permit])
    if failures:
        raise failures.pop(0)


def plain(permit: Permit) -> dict[str, Any]:
    """Runs in a thread, and returns what it was given."""
    _next(permit)
    data = msgspec.json.decode(permit.data)
    return {"data": data, "thread": threading.current_thread().name}


async def suspending(permit: Permit) -> str:
    """Runs in the event loop."""
    _next(permit)
    await asyncio.sleep(0)
    return f"did {permit.name}"


def batch(permits: Sequence[Permit]) -> None:
    """Takes a list."""
    _next(permits)


def told(permit: Permit) -> str:
    """Fails where the data says so."""
    if msgspec.json.decode(permit.data).get("fail"):
        raise ValueError("told to fail")
    return f"told of {permit.name}"


def hanging(permit: Permit) -> None:
    """Runs until it is let go."""
    _next(permit)
    let_go.wait()


async def stubborn(permit: Permit) -> None:
    """Runs until it is let go, and takes no cancellation."""
    _next(permit)
    while not let_go.is_set():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue


async def blocking(permit: Permit) -> None:
    """Holds the whole event loop up for as many seconds as the data says."""
    _next(permit)
    time.sleep(msgspec.json.decode(permit.data)["seconds"])  # noqa: ASYNC251 - that is its fault


class Callable:
    """An object that is called like a coroutine function."""

    async def __call__(self, permit: Permit) -> str:
        _next(permit)
        await asyncio.sleep(0)
        return "by an object"


OBJECT = Callable()
NOT_CALLABLE = 7
