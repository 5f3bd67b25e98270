"""Handlers: the application's own functions that run internal and best-effort work.

A handler is `module:function`. With ``batch = 1`` it takes one ``Permit``, else a list of them; it
may be a coroutine function. What it returns is kept as the receipt, what it raises is a failure.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from journal.errors import SettingsInvalid
from journal.lanes import Lane
from journal.outcomes import Outcome, Reported
from journal.permits import Permit
from journal.work import note

MAX_HANGING = 32
"""Runs of one handler that may hang beyond their time before it is run no more."""


class Ended(Struct, frozen=True):
    """How a run ended: with a result, or ``why`` not."""

    result: Any = None
    why: str | None = None


class Handler:
    """One lane's function.

    A run that takes longer than the lane's timeout has failed. A coroutine is cancelled; a thread
    cannot be ended, so it may still come to its end while the work is run again: at least once.
    Threads are daemons, so that one that hangs keeps no process from ending.
    """

    def __init__(self, function: Callable[..., Any], lane: Lane) -> None:
        self._function = function
        self._lane = lane
        call = getattr(function, "__call__", None)  # noqa: B004 - an object may be called like one
        self._suspends = any(map(inspect.iscoroutinefunction, (function, call)))
        self._hanging: set[asyncio.Future[Ended]] = set()

    async def run(self, permits: Sequence[Permit]) -> list[Reported]:
        """Run it over a batch; what became of each. Raises nothing but a cancellation."""
        if len(self._hanging) >= MAX_HANGING:
            ended = Ended(
                why=f"{MAX_HANGING} earlier runs of its handler hang; a restart ends them"
            )
        else:
            ended = await self._bounded(permits[0] if self._lane.batch == 1 else list(permits))
        if ended.why is not None:
            why = note(ended.why)
            return [
                Reported(permit.id, Outcome.FAILED, permit.lease, evidence=why)
                for permit in permits
            ]
        receipt = None if ended.result is None else note(_text(ended.result))
        return [
            Reported(permit.id, Outcome.CONFIRMED, permit.lease, receipt=receipt)
            for permit in permits
        ]

    async def _bounded(self, argument: Any) -> Ended:
        work = asyncio.ensure_future(self._call(argument))
        try:
            done, _ = await asyncio.wait({work}, timeout=self._lane.timeout)
        except asyncio.CancelledError:
            work.cancel()
            raise
        if done:
            return Ended(why="it was cancelled") if work.cancelled() else work.result()
        self._hanging.add(work)
        work.add_done_callback(self._hanging.discard)
        if self._suspends:
            work.cancel()
        return Ended(why=f"it ran longer than {self._lane.timeout:g} s")

    async def _call(self, argument: Any) -> Ended:
        try:
            if self._suspends:
                return Ended(await self._function(argument))
            return await _in_thread(self._function, argument)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - what it raises must not end the process
            return Ended(why=_said(error))


async def _in_thread(function: Callable[..., Any], argument: Any) -> Ended:
    """Call a function in a thread of its own: a process waits at its end for those of a pool."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Ended] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(ended: Ended) -> None:
        if not future.done():
            future.set_result(ended)

    def run() -> None:
        try:
            ended = Ended(context.run(function, argument))
        except BaseException as error:  # noqa: BLE001 - told to who waits
            ended = Ended(why=_said(error))
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(deliver, ended)

    threading.Thread(target=run, name="handler", daemon=True).start()
    return await future


def load_handlers(lanes: Mapping[str, Lane]) -> dict[str, Handler]:
    """Import the handlers that the lanes name. Raises SettingsInvalid."""
    return {
        name: Handler(_load(f'[lane.{name}]: handler = "{lane.handler}"', lane.handler), lane)
        for name, lane in lanes.items()
        if lane.handler is not None
    }


def _load(setting: str, path: str) -> Callable[..., Any]:
    module, _, name = path.partition(":")
    if not module or not name:
        raise SettingsInvalid(f'{setting}: write it as "module:function"')
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        advice = ""
        if isinstance(error, ModuleNotFoundError):
            advice = "; install it, or name the folder that holds it in PYTHONPATH"
        raise SettingsInvalid(f"{setting}: {type(error).__name__}: {error}{advice}") from error
    if not callable(function):
        raise SettingsInvalid(f"{setting}: it is no function")
    loaded: Callable[..., Any] = function
    return loaded


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception that cannot be printed
        return type(error).__name__


def _text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result).decode()
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        return f"a {type(result).__name__}"
