"""A proxy before a PostgreSQL server that loses the connection when a COMMIT goes through it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

_BYTES = 65_536
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
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                threading.Thread(target=self._answer, args=(server, client), daemon=True).start()
                threading.Thread(target=self._ask, args=(client, server), daemon=True).start()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_BYTES):
                if self._cut.is_set():
                    reset(client)
                    server.close()
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
                    server.close()
                reset(client)
                return
            server.close()

    def give_up(self) -> None:
        """Cut the server's side too."""
        for server, _ in self._held:
            server.shutdown(socket.SHUT_RDWR)

    def pass_on(self) -> None:
        """Let the server have the commit after all."""
        for server, data in self._held:
            server.sendall(data)

    def close(self) -> None:
        self._listening.close()
        for server, _ in self._held:
            server.close()


def reset(connection: socket.socket) -> None:
    """Close with a reset, as a network that is gone does."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


@contextlib.contextmanager
def cutting(host: str, port: int, how: str) -> Iterator[Cutter]:
    """A cutter, closed at the end."""
    made = Cutter(host, port, how)
    try:
        yield made
    finally:
        made.close()
