"""The server: one process, uvicorn; where its own tenant moves to another place, it follows."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from api.app import create_app
from api.connections import Connection, Keeper, limit_of
from api.following import moved
from api.routes_tokens import current_control
from journal import Journal, Settings
from journal.agreement import agree
from journal.control import Role, Stage
from journal.errors import UnrewindError
from journal.lanes import warnings

REFUSED = 3
INTERRUPTED = 130
BACKLOG = 2048
ACCEPTED = 32
"""Connections that the loop takes at once, before it gets to ending those that are too many."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_SECONDS = 45
"""How long a stop waits for answers: above the time that a body may take to arrive."""


def uvicorn_options() -> dict[str, Any]:
    """The keyword arguments of ``uvicorn.Config``, without the application."""
    return {
        "http": Connection,
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
        "lifespan": "on",
        "ws": "none",
        "server_header": False,
        "proxy_headers": False,
        "backlog": ACCEPTED,
        # uvicorn's 5 s close idle connections under clients that pool them.
        "timeout_keep_alive": 75,
        "timeout_graceful_shutdown": STOP_SECONDS,
    }


def serve(settings: Settings) -> int:
    """Serve until SIGINT or SIGTERM; the exit code. Says on stdout where, once it answers.

    Exits with 3 and one line on stderr when the tenant cannot be opened or the port is taken.
    """
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s: %(message)s")
    try:
        listening = _listen(settings)
    except OSError as error:
        return _refuse(f"cannot listen on {settings.host}:{settings.port}: {_why(error)}")
    try:
        return asyncio.run(_serve(settings, listening))
    except UnrewindError as error:
        return _refuse(error.detail)
    except OSError as error:
        return _refuse(f"cannot open the tenant: {error}")
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        listening.close()


async def _serve(settings: Settings, listening: socket.socket) -> int:
    for sentence in warnings(settings.lanes, settings.receiver):
        print(f"warning: {sentence}", file=sys.stderr, flush=True)
    at: Settings | None = settings
    while at is not None:
        agreement = agree(at)
        try:
            at = await _serve_tenant(at, listening)
        finally:
            agreement.close()
    return 0


async def _serve_tenant(settings: Settings, listening: socket.socket) -> Settings | None:
    """Serve until a signal, or until the tenant moves away: where it is then.

    Callers that come between the two wait in the socket, which stays.
    """
    journal = Journal(settings)
    # Before the tenant is opened, or founded: handlers and secrets that are missing end it here.
    app = create_app(settings, journal)
    await journal.start()
    try:
        await journal.join("serve", schedules=True)
        await _first_token(journal)
        await _say_when_closed(journal)
        config = uvicorn.Config(app, **uvicorn_options())
        server = _Server(config, settings, listening)
        following = asyncio.create_task(server.follow(), name="following")
        keeper = Connection.keeper = Keeper(limit_of(settings.max_connections))
        keeping = asyncio.create_task(keeper.run(server.server_state.connections), name="keeping")
        try:
            await server.serve(sockets=[listening.dup()])  # which it closes at its end
        finally:
            following.cancel()
            keeping.cancel()
    finally:
        await journal.stop()
    server.let_go()
    return server.there


class _Server(uvicorn.Server):
    """Says when it is ready, and lets the tenant close after a signal."""

    def __init__(
        self, config: uvicorn.Config, settings: Settings, listening: socket.socket
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._listening = listening
        self.there: Settings | None = None

    async def follow(self) -> None:
        """Stop when the tenant has moved; ``there`` says where to."""
        there = await moved(self._settings)
        if not self.should_exit:
            self.there, self.should_exit = there, True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop for a signal, which also ends following: who asks to stop is not served on."""
        self.there = None
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        address = _address(self._listening, self._settings.host)
        await super().startup(sockets)
        self._listening.listen(BACKLOG)  # asyncio has one number for both
        print(f"unrewind serves tenant {self._settings.tenant} on {address}", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ask the server to stop; uvicorn's own way ends the process before the tenant closes.

        A server that follows its tenant listens on until that is closed: no signal gets lost.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            if self.there is None:
                self.let_go()

    def let_go(self) -> None:
        """Leave signals to whoever comes next."""
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)


def _listen(settings: Settings) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    # The protocol is named because asyncio sets TCP_NODELAY only where it is.
    listening = socket.socket(family, kind, protocol or socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening


def _address(listening: socket.socket, host: str) -> str:
    port = listening.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _first_token(journal: Journal) -> None:
    """Create the first token of a tenant that has none, and tell it."""
    try:
        control = await journal.read(current_control)
        if control.tokens:
            return
        token = await journal.create_token(Role.OPERATOR, "first start")
    except UnrewindError as error:
        print(f"no token could be looked for: {error.detail}", file=sys.stderr, flush=True)
        return
    print(f"operator token (shown once): {token}", flush=True)


async def _say_when_closed(journal: Journal) -> None:
    """One line on stderr for a tenant that is not open: it is served all the same."""
    status = await journal.status()
    if status.stage != Stage.OPEN:
        print(
            f"tenant {status.tenant} is {status.stage}, verdict {status.verdict}: {status.detail}; "
            "status, gaps and history are served, `unrewind recover` leads on",
            file=sys.stderr,
            flush=True,
        )


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _refuse(line: str) -> int:
    print(f"unrewind: {line}", file=sys.stderr, flush=True)
    return REFUSED


def main() -> None:
    """Serve with the settings of file and environment; `unrewind serve` is the usual way."""
    from journal import load_settings

    try:
        settings = load_settings()
    except UnrewindError as error:
        sys.exit(_refuse(error.detail))
    sys.exit(serve(settings))


if __name__ == "__main__":
    main()
