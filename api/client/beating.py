"""Signs of life for a permit, from a thread of its own.

A blocked event loop or a busy main thread must not look like a dead worker. What holds the
interpreter's lock itself, or stops the process, stops the heart too: then the claim is lost.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import httpx

from api.client.attempts import Problem, Steps, say
from api.client.calls import Beat, Grant
from api.client.core import Core
from api.client.wire import Address, blocking, drive

T = TypeVar("T")

LOGGER = logging.getLogger("unrewind.client")

_BEATS = 3
"""Beats in a lease."""

_SOONER = 0.2
"""The share of a beat after which one that failed is tried again."""

_ENDED = frozenset({"lease-lost", "stale-generation", "not-found"})
"""Refusals that say that a claim holds no more."""


class _Stopped(Exception):
    """The permit has ended while its heart was waiting."""


class Heart:
    """Beats for one permit from ``start`` to ``stop``, and says when its claim is lost.

    A lease is counted from before the request that began or renewed it was sent, by this process's
    own clock: whatever the server's clock says, it ends here no later than there.
    """

    def __init__(self, grant: Grant, began: float, beat: Callable[[Heart], object]) -> None:
        self._grant = grant
        self._beat = beat
        self._ends = began + grant.beat_every * _BEATS
        self._until = grant.until
        self._why: str | None = None
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._quiet = False
        self._first = 0.0
        name = f"unrewind-heart-{grant.id[:12]}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # Its standing.

    @property
    def until(self) -> str:
        """When the lease ends unless it is renewed, in the server's time."""
        return self._until

    @property
    def why_lost(self) -> str | None:
        """Why the claim is to be taken for lost; None: it holds. Once lost, it stays lost."""
        over = self._stop.is_set() or self._quiet
        if self._why is None and not over and time.monotonic() >= self._ends:
            self._lose("it could not be renewed in time")
        return self._why

    def _lose(self, why: str) -> None:
        with self._guard:
            if self._why is not None:
                return
            self._why = why
        LOGGER.warning(
            "the claim of %s no longer holds: %s. Begin nothing more on the strength of it, and "
            "report what was done",
            self._grant.id,
            why,
        )

    # Its thread.

    def start(self, *, at_once: bool) -> None:
        """Start beating; ``at_once`` when the lease may have begun long ago."""
        self._first = 0.0 if at_once else self._grant.beat_every
        self._thread.start()

    def stop(self) -> None:
        """Beat no more. Does not wait for a beat that is under way."""
        self._stop.set()

    @property
    def alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait for its thread."""
        self._thread.join()

    def hush(self, quiet: bool) -> None:
        """While a report is under way, an ended claim may be its own doing: do not say so."""
        self._quiet = quiet

    def pause(self, seconds: float) -> None:
        """Wait, unless it is over."""
        if self._stop.wait(seconds):
            raise _Stopped

    def _run(self) -> None:
        wait = self._first
        try:
            while True:
                self.pause(wait)
                began, quiet = time.monotonic(), self._quiet
                answer = self._beat(self)
                if self._stop.is_set() or self._took(answer, began, quiet or self._quiet):
                    return
                # A lease that could not be renewed is tried again sooner.
                share = 1.0 if isinstance(answer, Beat) else _SOONER
                wait = max(began + self._grant.beat_every * share - time.monotonic(), 0.0)
        except _Stopped:
            return

    def _took(self, answer: object, began: float, quiet: bool) -> bool:
        """Take note of an answer; whether the claim has ended."""
        if isinstance(answer, Beat) and answer.holds:
            # Asked first: a lease that is renewed after its end was lost all the same.
            if self.why_lost is None:
                self._ends = began + self._grant.beat_every * _BEATS
            self._until = answer.until
            return False
        if isinstance(answer, Beat):
            self._lose("the server says so")
            return True
        if isinstance(answer, Problem) and answer.name in _ENDED and not quiet:
            self._lose(say(answer.document))
            return True
        return False


class Hearts:
    """The hearts of one client, and a transport for what must go on when its own cannot."""

    def __init__(self, core: Core, address: Address) -> None:
        self._core = core
        self._address = address
        self._guard = threading.Lock()
        self._transport: httpx.HTTPTransport | None = None
        self._hearts: list[Heart] = []
        self._threads: list[threading.Thread] = []

    def start(self, grant: Grant, began: float, *, at_once: bool) -> Heart:
        """A heart that beats."""

        def beat(heart: Heart) -> object:
            return drive(self._core.beat(grant), self._address, self._wire(), heart.pause)

        heart = Heart(grant, began, beat)
        with self._guard:
            self._hearts = [one for one in self._hearts if one.alive]
            self._hearts.append(heart)
            heart.start(at_once=at_once)
        return heart

    def drive(self, steps: Steps[T]) -> T:
        """Bring a generator to its end, in this thread."""
        return drive(steps, self._address, self._wire())

    def drive_apart(self, steps: Steps[T]) -> Future[T]:
        """Bring a generator to its end in a thread that the interpreter waits for."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(self.drive(steps))
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                future.set_exception(error)

        thread = threading.Thread(target=run, name="unrewind-last-report")
        with self._guard:
            self._threads = [one for one in self._threads if one.is_alive()]
            self._threads.append(thread)
        thread.start()
        return future

    def _wire(self) -> httpx.HTTPTransport:
        with self._guard:
            if self._transport is None:
                self._transport = blocking(self._address)
            return self._transport

    def close(self) -> None:
        """Stop the hearts; wait for beats and reports under way, each of which has its deadline."""
        with self._guard:
            hearts, self._hearts = self._hearts, []
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        for heart in hearts:
            heart.stop()
        for heart in hearts:
            heart.join()
        with self._guard:
            if self._transport is not None:
                self._transport.close()
                self._transport = None
