"""A JetStream journal under test: the contract engine, and what tests do behind its back."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from journal.control import fold
from journal.decrees import founding
from journal.entry import Entry
from journal.log import CONTROL, DECISIONS, Append, Look
from journal.log.engine import SqlLog
from journal.nats.address import address_of
from journal.nats.log import NatsLog
from journal.nats.wire import Wire
from journal.sqlite import Database
from journal.store.engine import SqlStore
from tests.support.engines import NO_LOOK, Sqlite, _replace
from tests.support.jetstream import NatsServer
from tests.support.sealing import HISTORY, MOMENT

ALONE = ("nats-single-server",)
_names = itertools.count(1)


def new_tenant() -> str:
    """A tenant that no other test has: its stream is made once."""
    return f"t{os.getpid()}-{next(_names)}"


class Journal:
    """One tenant's stream on a server, and where its copy is."""

    def __init__(self, server: NatsServer, folder: Path, *, accept: Sequence[str] = ALONE) -> None:
        self.server = server
        self.url = f"{server.url}?monitor={server.monitor}"
        self.tenant = new_tenant()
        self.copy = folder / "copies" / "main.db"
        self.accept = accept

    def open(self, **options: Any) -> NatsLog:
        options.setdefault("accept", self.accept)
        return NatsLog(options.pop("url", self.url), self.tenant, self.copy, **options)

    async def founded(self) -> NatsLog:
        log = self.open(create=True)
        await found(log)
        return log

    def exists(self) -> bool:
        return NatsLog.exists(self.url, self.tenant)

    @property
    def stream(self) -> str:
        return f"unrewind-{self.tenant}"

    def call(self, what: str, **body: Any) -> dict[str, Any]:
        """A call of JetStream's own interface, as anybody with the right to it can make."""
        return call(self.server.url, f"{what}.{self.stream}", body)

    def publish(self, payload: bytes) -> None:
        """A message that no journal wrote."""
        wire = Wire.to(address_of(self.server.url))
        try:
            wire.request(f"unrewind.{self.tenant}", payload)
        finally:
            wire.close()

    def asides(self) -> list[str]:
        """The copies that were put aside, by name."""
        return sorted(
            path.name
            for path in self.copy.parent.glob(f"{self.copy.stem}-*")
            if not path.name.endswith(("-wal", "-shm"))
        )


def call(url: str, what: str, body: dict[str, Any]) -> dict[str, Any]:
    wire = Wire.to(address_of(url))
    try:
        answer = wire.request(f"$JS.API.{what}", json.dumps(body).encode() if body else b"")
    finally:
        wire.close()
    told: dict[str, Any] = json.loads(answer)
    return told


async def found(log: NatsLog) -> None:
    """Put the founding of a tenant in."""
    entry = founding("main", "production", "j" * 32, HISTORY, "control-1", MOMENT)
    force = fold([entry], "main").authority
    await log.append(Append(entries=[(CONTROL, entry)], becomes=force), NO_LOOK)


async def add(log: NatsLog, entries: Sequence[Entry]) -> Look:
    """Append decisions; where the log stands then."""
    append = Append(entries=[(DECISIONS, entry) for entry in entries])
    await log.append(append, await log.look())
    return await log.look()


class Nats(Sqlite):
    """A JetStream log, which says of its copy what another engine says of its journal."""

    def __init__(self, folder: Path, server: NatsServer) -> None:
        super().__init__(folder)
        self.journal = Journal(server, folder)
        self.log_file = self.journal.copy

    async def log(self) -> Any:
        return await self.journal.founded()

    def same_log(self, *, read_only: bool = False) -> Any:
        return self.journal.open(read_only=read_only)

    def replace_log(self) -> None:
        _replace(self.log_file)

    def run(self, port: SqlStore | SqlLog, sql: str, *parameters: Any) -> list[Any]:
        assert isinstance(port.database, Database)
        return port.database.connection.execute(sql, parameters).fetchall()
