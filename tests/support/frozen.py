"""A relay before a server that can stand still: it takes connections and passes nothing on."""

from __future__ import annotations

import select
import socket
import threading
from types import TracebackType
from typing import Self

SECONDS = 30.0
_STEP = 0.02
_BLOCK = 1 << 16


class Frozen:
    """Listens on ``port`` for the server at ``target``; ``freeze`` and ``thaw`` it at any time.

    ``accepted`` counts connections. What arrived while it stood still is passed on afterwards.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.accepted = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._still = threading.Event()
        self._over = threading.Event()
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
        self._over.set()
        for thread in self._threads:
            thread.join(SECONDS)
        self._listening.close()

    def before(self, url: str) -> str:
        """The URL of a database, by way of this relay."""
        return url.replace(f":{self.target}/", f":{self.port}/")

    def freeze(self) -> None:
        """From now on nothing passes."""
        self._still.set()

    def thaw(self) -> None:
        """Let everything pass again."""
        self._still.clear()

    def _listen(self) -> None:
        while not self._over.is_set():
            if not select.select([self._listening], [], [], _STEP)[0]:
                continue
            client, _ = self._listening.accept()
            self.accepted += 1
            thread = threading.Thread(target=self._pass, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _pass(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.target)) as server:
            other = {client: server, server: client}
            while not self._over.is_set():
                if self._still.is_set():
                    self._over.wait(_STEP)
                    continue
                for ready in select.select([client, server], [], [], _STEP)[0]:
                    try:
                        block = ready.recv(_BLOCK)
                        other[ready].sendall(block)
                    except OSError:
                        return
                    if not block:
                        return
