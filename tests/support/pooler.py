"""A pooler before PostgreSQL, as small as one can be: of sessions, or of transactions."""

from __future__ import annotations

import os
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType
from typing import Self

SECONDS = 30.0
_ENCRYPT = {80877103, 80877104}


class Pooler:
    """Listens on ``port`` for the server at ``target``.

    ``transactions``: all clients share one session of the server, each for a transaction at a time.
    As poolers do it tells each client of a session that there is none of.
    """

    def __init__(self, target: int, *, transactions: bool) -> None:
        self.target = target
        self._transactions = transactions
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._shared: tuple[socket.socket, list[bytes]] | None = None
        self._mine = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._listen)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        for one in (self._listening, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(SECONDS)

    def before(self, url: str) -> str:
        """The URL of a database, by way of this pooler."""
        return url.replace(f":{self.target}/", f":{self.port}/")

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._sockets.append(client)
                thread = threading.Thread(target=self._serve, args=(client,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError, EOFError), client:
            begun = _begin(client)
            with self._mine:
                if self._shared is None or not self._transactions:
                    self._shared = self._connect(begun)
                server, greeting = self._shared
            client.sendall(b"".join(greeting))
            self._pass(client, server)
            if not self._transactions:
                server.close()

    def _connect(self, begun: bytes) -> tuple[socket.socket, list[bytes]]:
        """A session of the server, and what it greets with, but for who it is."""
        server = socket.create_connection(("127.0.0.1", self.target))
        self._sockets.append(server)
        server.sendall(begun)
        greeting: list[bytes] = []
        while not greeting or greeting[-1][:1] != b"Z":
            message = _message(server)
            greeting.append(message[:5] + os.urandom(8) if message[:1] == b"K" else message)
        return server, greeting

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        """What the client sends up to the end of a transaction, and what the server answers."""
        while True:
            sent = [_message(client)]
            if sent[0][:1] == b"X":
                return
            with self._mine:
                status = b"T"
                while status != b"I":
                    while sent[-1][:1] not in {b"S", b"Q"}:
                        sent.append(_message(client))
                    server.sendall(b"".join(sent))
                    answer = b""
                    while answer[:1] != b"Z":
                        answer = _message(server)
                        client.sendall(answer)
                    status = answer[-1:]
                    if status != b"I":
                        sent = [_message(client)]


def _begin(client: socket.socket) -> bytes:
    """How a client begins, once it was told that nothing is encrypted here."""
    while True:
        head = _read(client, 8)
        length, code = struct.unpack("!II", head)
        rest = _read(client, length - 8)
        if code not in _ENCRYPT:
            return head + rest
        client.sendall(b"N")


def _message(source: socket.socket) -> bytes:
    head = _read(source, 5)
    return head + _read(source, struct.unpack("!I", head[1:])[0] - 4)


def _read(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        block = source.recv(size - len(found))
        if not block:
            raise EOFError
        found += block
    return found
