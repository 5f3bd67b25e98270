"""A proxy before a PostgreSQL server that loses the connection when a COMMIT goes through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

_BYTES = 65_536
_SECONDS = 10
_COMMIT = b"COMMIT"


class Cutter:
    """Passes on everything until the client commits; then it does what ``how`` says.

    *before*: both sides are cut, and the server never hears of the commit. *after*: the server's
    answer is waited for, and the client is cut instead of getting it. *held*: the client is cut and
    the server's side kept open, until the test says ``give_up`` or ``pass_on``.
    """

    def __init__(self, host: str, port: int, how: str) -> None:
        self._target = (host, port)
        self._how = how
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._held: list[tuple[socket.socket, bytes]] = []
        self._cut = threading.Event()
        self._all: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._serve)

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                self._all += [client, server]
                self._start(self._answer, server, client)
                self._start(self._ask, client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_BYTES):
                if self._cut.is_set():
                    reset(client)
                    end(server)
                    return
                client.sendall(data)

    def _ask(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_BYTES):
                if _COMMIT not in data:
                    server.sendall(data)
                    continue
                if self._how == "after":
                    self._cut.set()
                    server.sendall(data)
                    return
                if self._how == "held":
                    self._held.append((server, data))
                else:
                    end(server)
                reset(client)
                return
            end(server)

    def give_up(self) -> None:
        """Cut the server's side too."""
        for server, _ in self._held:
            end(server)

    def pass_on(self) -> None:
        """Let the server have the commit after all."""
        for server, data in self._held:
            server.sendall(data)

    def close(self) -> None:
        end(self._listening)
        for each in self._all:
            end(each)
        for thread in self._threads:
            thread.join(_SECONDS)


def end(connection: socket.socket) -> None:
    """Close it for whoever waits for it in another thread too."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def reset(connection: socket.socket) -> None:
    """Close with a reset, as a network that is gone does."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    end(connection)


@contextlib.contextmanager
def cutting(host: str, port: int, how: str) -> Iterator[Cutter]:
    """A cutter, closed at the end."""
    made = Cutter(host, port, how)
    try:
        yield made
    finally:
        made.close()
