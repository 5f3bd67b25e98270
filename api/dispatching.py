"""`unrewind dispatch`: the dispatcher as a process of its own, beside a service or without one."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

from api.alerts import Alerts
from api.dispatcher import Dispatcher
from api.following import moved
from api.opening import is_known
from journal import Journal, Settings
from journal.agreement import agree
from journal.errors import Refused, UnrewindError
from journal.lanes import warnings

STOPPED = 1
REFUSED = 3
INTERRUPTED = 130


def dispatch(settings: Settings) -> int:
    """Carry out the work of push and handler lanes until SIGINT or SIGTERM; the exit code.

    Exits with 3 and one line on stderr when the tenant cannot be opened, and with 1 when the disk
    failed and nothing more can be written: a process manager may start it again.
    """
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s: %(message)s")
    try:
        return asyncio.run(_dispatch(settings))
    except UnrewindError as error:
        print(f"unrewind: {error.detail}", file=sys.stderr, flush=True)
        return REFUSED
    except OSError as error:
        print(f"unrewind: cannot open the tenant: {error}", file=sys.stderr, flush=True)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED


async def _dispatch(settings: Settings) -> int:
    if not is_known(settings):
        raise Refused(
            f"there is no tenant {settings.tenant} under {settings.data}; `unrewind serve` or "
            "`unrewind import` founds one"
        )
    lanes = sorted(name for name, lane in settings.lanes.items() if not lane.pulled)
    if not lanes:
        raise Refused(
            "no lane has a receiver or a handler: there is nothing to dispatch; workers pull the "
            "others"
        )
    for sentence in warnings(settings.lanes, settings.receiver):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, asked.set)
    while True:
        agreement = agree(settings)
        try:
            journal = Journal(settings)
            await journal.start()
            try:
                await journal.join("dispatch", schedules=False)
                there = await _run(journal, lanes, asked)
            finally:
                await journal.stop()
        finally:
            agreement.close()
        if there is None:
            return 0 if asked.is_set() else STOPPED
        settings = there


async def _run(journal: Journal, lanes: list[str], asked: asyncio.Event) -> Settings | None:
    """Dispatch until it is to end, or until the tenant has moved: where it is then."""
    alerts = Alerts(journal.settings)
    following = asyncio.create_task(moved(journal.settings))
    dispatcher = Dispatcher(journal, alerts)
    await dispatcher.start()
    try:
        print(f"unrewind dispatches {', '.join(lanes)}", flush=True)
        ends = [asyncio.create_task(asked.wait()), asyncio.create_task(dispatcher.ended())]
        await asyncio.wait([*ends, following], return_when=asyncio.FIRST_COMPLETED)
        there = following.result() if following.done() and not asked.is_set() else None
        for end in (*ends, following):
            end.cancel()
    finally:
        await dispatcher.stop()
        await alerts.close()
    return there
