"""What the tests of reconstruction share: a tenant that is rewound and recovered over and over."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec

from journal import Acceptance, Operation, Settings
from journal.detection import Verdict
from journal.errors import EngineError, UnrewindError
from journal.log.engine import SqlLog
from journal.log.sqlite import SqliteLog
from journal.record import Record
from journal.sqlite import Database
from journal.standing import detect
from journal.store.engine import SqlStore
from journal.worker import drive
from journal.writepath import settle
from reconstruct import recovery, snapshots, verification
from reconstruct.planning import Plan
from reconstruct.recovery import Applied
from tests.support.faults import fail_log
from tests.support.tenants import Tenant, operation
from tests.support.whole import verify_files

GAP = 65_537


def facts(answer: Acceptance) -> dict[str, Any]:
    """An answer without the fields in which a repeat may differ.

    Which releases a decision made anew, and for which commands it asked, is told once.
    """
    fields: dict[str, Any] = msgspec.to_builtins(answer)
    for field in ("outcome", "existing", "commands"):
        del fields[field]
    return fields


class Scene(Tenant):
    """A tenant that remembers what it was told, so that every answer can be asked for again."""

    def __init__(self, settings: Settings) -> None:
        self.told: dict[str, tuple[Operation, Acceptance]] = {}
        super().__init__(settings)

    # Work.

    def submit(self, wanted: Operation) -> Acceptance:
        answer = self.accept(wanted)
        self.told[wanted.operation] = (wanted, answer)
        return answer

    def put(self, entity: str, value: Any, action: str = "set") -> Acceptance:
        """Decide a new value for a free entity."""
        return self.submit(operation(entity, action, {"value": value, "balance": 1}))

    def fill(self, count: int = 6, entities: int = 3, kind: str = "case") -> None:
        for number in range(count):
            self.put(f"{kind}/{number % entities}", f"{len(self.told)}-{number}")

    def local_only(self, *wanted: Operation) -> None:
        """Leave decisions in the store whose append fails."""
        for each in wanted:
            fail_log(self.record, before=[EngineError("the journal is away")])
            drive(self._turn_failing(each))
            fresh_log(self.record)

    async def _turn_failing(self, wanted: Operation) -> None:
        from journal.writepath import turn

        try:
            await turn(self.record, [wanted])
        except UnrewindError:
            return
        raise AssertionError("the append was to fail")

    def settle(self) -> None:
        drive(settle(self.record))

    def digest(self) -> str | None:
        return verification.verify(self.settings).state_digest

    def repeats(self) -> None:
        """Every acknowledged operation gets its first answer again."""
        for wanted, first in self.told.values():
            again = self.accept(wanted)
            assert again.outcome == "duplicate"
            assert facts(again) == facts(first)

    # Rewinding.

    def keep(self, folder: Path) -> Path:
        self.do(snapshots.snapshot, folder)
        return folder

    def restore(self, folder: Path) -> snapshots.Restored:
        """Stop, put the snapshot back, start."""
        history = self.control().authority.history
        self.close()
        restored = snapshots.restore(self.settings, folder, self.settings.tenant, history)
        self.open()
        return restored

    def detect(self, *, deep: bool = True) -> Verdict:
        return drive(detect(self.record, deep=deep)).verdict

    def recover(self) -> Applied:
        """Every step of a recovery, as the command line takes them."""
        recovery.stop(self.settings, "a test")
        self.do(recovery.begin, "a test")
        applied = self.do(recovery.apply)
        self.do(recovery.reopen, despite={"reconciled"})
        return applied

    def plan(self) -> Plan:
        return self.do(recovery.plan)

    # The end.

    def whole(self) -> None:
        """Both files are whole, by two independent checks."""
        report = verification.verify(self.settings)
        assert (report.verdict, report.findings) == ("clean", [])
        self.settle()
        assert verify_files(self.settings) == []


def fresh_log(record: Record) -> None:
    """An ordinary journal again, in the place of a faulty one."""
    assert record.log is not None
    record.log.database.close()
    record.log = SqliteLog(record.settings.journal_file)


class Killed(Exception):
    """The process ends here."""


class Fuse:
    """Counts calls and kills at the n-th, before or after it has done its work."""

    def __init__(self, at: int, *, after: bool) -> None:
        self.left = at
        self.after = after
        self.blown = False
        self.within = False

    def before_call(self) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            self.blown = True
            raise Killed

    def after_call(self) -> None:
        if self.left == 0 and self.after:
            self.blown = True
            raise Killed


@contextmanager
def fused(at: int, *, after: bool) -> Iterator[Fuse]:
    """Every batch of any store and every append of any journal burns one fuse."""
    fuse = Fuse(at, after=after)
    with ExitStack() as stack:
        for port, name in ((SqlStore, "batch"), (SqlLog, "append")):
            for owner in (port, *port.__subclasses__()):
                if name in vars(owner):
                    stack.enter_context(_burning(owner, name, fuse))
        yield fuse


@contextmanager
def _burning(owner: type, name: str, fuse: Fuse) -> Iterator[None]:
    real = vars(owner)[name]

    async def burning(*given: Any) -> None:
        if fuse.within:  # an engine's own way, which goes on to the one that all share
            await real(*given)
            return
        fuse.before_call()
        fuse.within = True
        try:
            await real(*given)
        finally:
            fuse.within = False
        fuse.after_call()

    setattr(owner, name, burning)
    try:
        yield
    finally:
        setattr(owner, name, real)


def kill(record: Record) -> None:
    """Let go of a record's files as a killed process does: nothing is checkpointed or removed."""
    for port in (record.store, record.log):
        if port is not None and isinstance(port.database, Database):
            port.database.connection.execute("PRAGMA query_only=ON")
    # Another connection keeps each write-ahead log alive while the record's own one closes.
    keepers = [
        sqlite3.connect(path)
        for path in (record.settings.store_file, record.settings.journal_file)
        if path.exists()
    ]
    saved = {}
    for path in (record.settings.store_file, record.settings.journal_file):
        for suffix in ("", "-wal"):
            file = path.with_name(path.name + suffix)
            if file.exists():
                saved[file] = file.read_bytes()
    drive(record.close())
    for keeper in keepers:
        keeper.close()
    for path in (record.settings.store_file, record.settings.journal_file):
        path.with_name(path.name + "-shm").unlink(missing_ok=True)
    for file, content in saved.items():
        file.write_bytes(content)


def raw(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> None:
    """Change a database behind unrewind's back, triggers dropped; one file when this returns."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        triggers = database.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in triggers:
            database.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            sql, parameters = (statement, ()) if isinstance(statement, str) else statement
            database.execute(sql, parameters)
        for _, sql in triggers:
            database.execute(sql)
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def query(path: Path, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
    """Rows, read with nothing of the project."""
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        return database.execute(sql, parameters).fetchall()


def checkpoint(path: Path) -> None:
    """Everything into the main file; the log is empty."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        busy, *_ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        assert not busy


def tree(*folders: Path) -> dict[str, Any]:
    """Every file with its bytes and what the system says of it.

    Without the two files that SQLite makes for a reader: its index in memory and an empty log.
    """
    found: dict[str, Any] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            stat = path.stat()
            name = str(path)
            if path.is_dir():
                found[name] = "directory"
            elif not name.endswith("-shm") and not (name.endswith("-wal") and not stat.st_size):
                found[name] = (stat.st_ino, stat.st_size, stat.st_mtime_ns, path.read_bytes())
    return found


def overwrite(path: Path, content: bytes) -> None:
    """Write over a file in place: the same inode."""
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(handle, content)
        os.fsync(handle)
    finally:
        os.close(handle)
