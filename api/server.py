"""The server: one process, one tenant, uvicorn."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from api.app import create_app
from api.routes_tokens import current_control
from journal import Journal, Settings
from journal.agreement import agree
from journal.control import Role, Stage
from journal.errors import UnrewindError
from journal.lanes import warnings

REFUSED = 3
INTERRUPTED = 130
BACKLOG = 2048
STOP_SECONDS = 45
"""How long a stop waits for answers: above the time that a body may take to arrive."""


def uvicorn_options() -> dict[str, Any]:
    """The keyword arguments of ``uvicorn.Config``, without the application."""
    return {
        "access_log": False,
        "log_config": None,
        "log_level": "warning",
        "lifespan": "on",
        "ws": "none",
        "server_header": False,
        "proxy_headers": False,
        "backlog": BACKLOG,
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
    agreement = agree(settings)
    try:
        return await _serve_tenant(settings, listening)
    finally:
        agreement.close()


async def _serve_tenant(settings: Settings, listening: socket.socket) -> int:
    journal = Journal(settings)
    # Before the tenant is opened, or founded: handlers and secrets that are missing end it here.
    app = create_app(settings, journal)
    await journal.start()
    try:
        await journal.join("serve", schedules=True)
        await _first_token(journal)
        await _say_when_closed(journal)
        config = uvicorn.Config(app, **uvicorn_options())
        await _Server(config, settings, listening).serve(sockets=[listening])
    finally:
        await journal.stop()
    return 0


class _Server(uvicorn.Server):
    """Says when it is ready, and lets the tenant close after a signal."""

    def __init__(
        self, config: uvicorn.Config, settings: Settings, listening: socket.socket
    ) -> None:
        super().__init__(config)
        self._settings = settings
        self._listening = listening

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        address = _address(self._listening, self._settings.host)
        await super().startup(sockets)
        print(f"unrewind serves tenant {self._settings.tenant} on {address}", flush=True)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Ask the server to stop; uvicorn's own way ends the process before the tenant closes."""
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        for number in caught:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)


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
