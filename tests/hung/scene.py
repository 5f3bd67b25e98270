"""What tests of hung, stopped and replaced servers share."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any

from journal.locks import TurnLock
from tests.soak.clients import Client
from tests.soak.ledger import Ledger
from tests.soak.processes import SECONDS, Ran, Server, Site, item

Told = tuple[int, Any] | None

_TABLES = {
    "journal": ("entries", "authority", "chains", "flaws", "rivals"),
    "store": ("unrewind_marker", "unrewind_decisions", "unrewind_entities", "unrewind_control"),
}


def decide_some(
    server: Server, ledger: Ledger, name: str, count: int = 6, entities: int = 3, size: int = 1
) -> None:
    """Decisions of a few entities, acknowledged one by one; ``size`` is that of their data."""
    for number in range(count):
        body = {"name": name, "n": number, "text": "x" * size}
        made = ledger.send(item(f"{name}-{number}", f"case/{number % entities}", body=body))
        ledger.hear(made["operation"], *server.ask("POST", "/v1/main/decisions", made))
        assert made["operation"] in ledger.told


def whole(site: Site, server: Server, ledger: Ledger) -> None:
    """Everything acknowledged is answered as at first, the rest is settled, the files agree."""
    ledger.repeat(server, ledger.told)
    ledger.repeat(server, ledger.unsettled)
    assert not ledger.unsettled
    ledger.check_journal(site.journal)
    report = site.do("verify")
    assert (report["verdict"], report["findings"]) == ("clean", [])


def content(site: Site) -> dict[str, list[Any]]:
    """Every row of both files, as another process reads them."""
    found: dict[str, list[Any]] = {}
    for side, tables in _TABLES.items():
        file: Path = getattr(site, side)
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            for table in tables:
                found[table] = database.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()
    return found


@contextmanager
def turn_held(site: Site) -> Iterator[None]:
    """Keep every turn of the tenant waiting, as a process inside one does."""
    lock = TurnLock(site.settings.beside("lock"), SECONDS)
    try:
        with lock.held():
            yield
    finally:
        lock.close()


class InFlight:
    """Decisions that were sent and not answered yet, each on a connection of its own."""

    def __init__(self, server: Server, ledger: Ledger, items: Sequence[dict[str, Any]]) -> None:
        self.ledger = ledger
        self.items = [ledger.send(made) for made in items]
        self._clients = [Client(server.port, server.site.token) for _ in items]
        for client, made in zip(self._clients, self.items, strict=True):
            client.send("POST", "/v1/main/decisions", made)
        self._pool = ThreadPoolExecutor(len(items))
        server.site.open.callback(self.close)
        self._answers: list[Future[Told]] = [
            self._pool.submit(_receive, client) for client in self._clients
        ]

    def answers(self) -> list[Told]:
        """What each was told in the end; None for a connection that was cut."""
        told = [answer.result(SECONDS) for answer in self._answers]
        for made, answer in zip(self.items, told, strict=True):
            if answer is not None:
                self.ledger.hear(made["operation"], *answer)
        self.close()
        return told

    @property
    def answered(self) -> int:
        return sum(answer.done() for answer in self._answers)

    def close(self) -> None:
        for client in self._clients:
            client.connection.close()
        self._pool.shutdown()


def _receive(client: Client) -> Told:
    try:
        return client.receive()
    except (OSError, HTTPException):
        return None


def arrived(server: Server) -> None:
    """Wait until the server has read everything that was sent before."""
    assert server.ask("GET", "/health/live")[0] == 200


def named(ran: Ran) -> int:
    """The process that a refused command says to end."""
    assert ran.code == 3, ran
    assert len(ran.err.strip().splitlines()) == 1, ran
    found = re.search(r"kill -9 (\d+)", ran.err)
    assert found, ran
    return int(found[1])
