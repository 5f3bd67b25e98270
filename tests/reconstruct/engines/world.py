"""Tenants whose store, journal or both are on servers, which are put back as operators do."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from journal import Operation, Settings
from journal.errors import EngineError, UnrewindError
from journal.log import Append, Look
from journal.log.engine import SqlLog
from journal.log.postgres import PostgresLog
from journal.worker import drive
from journal.writepath import turn
from reconstruct import verification
from tests.reconstruct.scenes import Scene
from tests.support.jetstream import NatsServer
from tests.support.tenants import make_settings

_names = itertools.count(1)
ALL = ("sqlite-postgres", "sqlite-nats", "postgres-sqlite", "postgres-postgres", "postgres-nats")
"""Store and journal, beside the embedded pair."""

STORED = tuple(name for name in ALL if name.startswith("postgres-"))
JOURNALLED = tuple(name for name in ALL if not name.endswith("-sqlite"))


class World:
    """Where one tenant's store and journal are."""

    def __init__(
        self, name: str, folder: Path, store: str | None, journal: str | None, **more: Any
    ) -> None:
        self.name = name
        self.folder = folder
        self.nats: NatsServer | None = None
        self.tenant = f"t{os.getpid()}-{next(_names)}" if journal and "nats:" in journal else "main"
        changes = {"store": store, "journal": journal, "tenant": self.tenant, **more}
        self.settings: Settings = make_settings(
            folder, **{key: value for key, value in changes.items() if value is not None}
        )
        self.store_url, self.journal_url = store, journal

    # The journal as of an earlier moment.

    def keep_journal(self, scene: Scene) -> Callable[[], None]:
        """Keep the journal as it is; what puts it back."""
        copy = self.folder / f"journal-{next(_names)}"
        if self.nats is not None:
            return self._keep_stream(self.nats, copy)
        if isinstance(scene.record.log, PostgresLog):
            scene.record.log.copy_to(copy)
            return lambda: self._put_rows_back(copy)
        scene.close()
        shutil.copyfile(self.settings.journal_file, copy)
        scene.open()

        def put_back() -> None:
            shutil.copyfile(copy, self.settings.journal_file)

        return put_back

    def _put_rows_back(self, copy: Path) -> None:
        log = PostgresLog(self.journal_url or "", self.tenant)
        log.put_back(copy)
        log.database.close()

    def _keep_stream(self, server: NatsServer, copy: Path) -> Callable[[], None]:
        server.stop()
        shutil.copytree(server.store, copy)
        server.start()

        def put_back() -> None:
            server.stop()
            shutil.rmtree(server.store)
            shutil.copytree(copy, server.store)
            server.start()

        return put_back

    def drop_journal(self) -> None:
        """Nothing is left of the journal, as after a disk that was lost."""
        if self.nats is not None:
            self.nats.stop()
            shutil.rmtree(self.nats.store)
            self.nats.start()
        elif self.journal_url is not None:
            self.sql(self.journal_url, f'DROP SCHEMA "unrewind_journal_{self.tenant}" CASCADE')
        else:
            self.settings.journal_file.unlink()

    def drop_store(self) -> None:
        """Nothing is left of unrewind's tables in the store."""
        if self.store_url is None:
            self.settings.store_file.unlink()
        else:
            self.sql(self.store_url, f'DROP SCHEMA "unrewind_{self.tenant}" CASCADE')

    def sql(self, url: str, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as a superuser; the rows of the last."""
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def entries(self, scene: Scene) -> list[tuple[Any, ...]]:
        """Every entry of the journal."""
        rows = drive(scene_log(scene).feed(0, 100_000))
        return [(row.position, row.stream, row.digest, row.text, row.body) for row in rows]


def scene_log(scene: Scene) -> SqlLog:
    assert scene.record.log is not None
    return scene.record.log


class ServerScene(Scene):
    """A scene over any engines."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(world.settings)

    @property
    def store(self) -> Any:
        """The store, whichever engine it has."""
        return self.record.store

    @property
    def log(self) -> Any:
        """The journal, whichever engine it has."""
        return self.record.log

    def local_only(self, *wanted: Operation) -> None:
        """Leave decisions in the store whose append fails."""
        log = scene_log(self)

        async def away(_append: Append, _expects: Look) -> None:
            raise EngineError("the journal is away")

        log.append = away  # type: ignore[assignment, method-assign]
        try:
            for each in wanted:
                drive(self._failing(each))
        finally:
            del log.append

    async def _failing(self, wanted: Operation) -> None:
        try:
            await turn(self.record, [wanted])
        except UnrewindError:
            return
        raise AssertionError("the append was to fail")

    def digest(self) -> str | None:
        return verification.verify(self.settings).state_digest

    def whole(self) -> None:
        """Nothing is wrong, bytes included."""
        self.settle()
        report = verification.verify(self.settings)
        assert (report.verdict, report.findings) == ("clean", [])


__all__ = ["ALL", "JOURNALLED", "STORED", "ServerScene", "World"]
