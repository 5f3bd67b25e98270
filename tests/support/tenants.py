"""A tenant to test with: real files, driven in this thread, verified when the test ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Coroutine
from itertools import count
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from journal import Acceptance, Operation, Settings
from journal.clock import Clock
from journal.control import Authority, Control, Stage
from journal.entry import GENESIS, JSON_TYPE, Entry
from journal.errors import UnrewindError
from journal.intake import append_sealed
from journal.lifecycle import Kind, Lifecycle, Owner
from journal.log.sqlite import SqliteLog
from journal.record import Record
from journal.sealed import SealedAnswer
from journal.standing import change_control
from journal.store.sqlite import SqliteStore
from journal.worker import drive
from journal.writepath import Answer, settle, turn
from tests.support.sealing import Caller, items
from tests.support.whole import verify_files

T = TypeVar("T")

LIFECYCLES = {
    "case": Lifecycle(kind=Kind.FREE),
    "contract": Lifecycle(kind=Kind.FREE, owner=Owner.CALLER),
    "account": Lifecycle(
        kind=Kind.FREE, owner=Owner.EMBEDDED, projection="tests.support.ledger:Ledger"
    ),
}
"""Beside the shipped `document`: one entity type for each owner."""

_numbers = count(1)


def make_settings(folder: Path, **changes: Any) -> Settings:
    """Settings of a tenant under ``folder`` with every kind of entity type."""
    values = {"data": str(folder / "data"), "lock_timeout": 2.0, "lifecycle": LIFECYCLES}
    return Settings(**{**values, **changes})


def operation(
    entity: str = "document/7",
    action: str = "submit",
    body: Any = None,
    *,
    id: str | None = None,
    **fields: Any,
) -> Operation:
    """An operation with an ID of its own; ``body`` is made JSON."""
    data = b"" if body is None else msgspec.json.encode(body)
    if data:
        fields.setdefault("body_type", JSON_TYPE)
    return Operation(id or f"op-{next(_numbers):06}", entity, action, body=data, **fields)


class Tenant:
    """A ``Record`` over real files, whose coroutines are driven here and now.

    When the test ends every file is verified. A test whose store is left behind, ahead or closed on
    purpose calls ``diverged``; one that damages bytes on purpose calls ``damaged``.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock
        self.records: list[Record] = []
        self.check_store = True
        self.check_journal = True
        self.check_work = True
        self.open()

    # Opening and closing.

    @property
    def record(self) -> Record:
        return self.records[0]

    @property
    def log(self) -> SqliteLog:
        assert self.record.log is not None
        return cast("SqliteLog", self.record.log)

    @property
    def store(self) -> SqliteStore:
        assert self.record.store is not None
        return cast("SqliteStore", self.record.store)

    def open(self) -> Record:
        record = Record(self.settings, self.clock)
        drive(record.open())
        self.records.append(record)
        return record

    def companion(self) -> Record:
        """A second record over the same files, as another process has it."""
        return self.open()

    def close(self) -> None:
        while self.records:
            drive(self.records.pop().close())

    def crash(self) -> None:
        """Let go of the files as a killed process does: nothing is remembered of them."""
        while self.records:
            record = self.records.pop()
            record.distrust()
            drive(record.close())

    def reopen(self) -> None:
        """Close and open again, as a restart does."""
        self.close()
        self.open()

    # Work.

    def do(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any, **named: Any) -> T:
        """Drive ``function(record, …)``."""
        return drive(function(self.record, *args, **named))

    def turn(self, *operations: Operation) -> list[Answer]:
        return drive(turn(self.record, operations))

    def accept(self, wanted: Operation) -> Acceptance:
        """Accept one operation; raises its refusal."""
        return accepted(self.turn(wanted)[0])

    def decide(self, entity: str, *actions: str, body: Any = None) -> list[Acceptance]:
        """Accept actions in turn."""
        return [self.accept(operation(entity, action, body)) for action in actions]

    def append(self, *entries: Entry) -> list[SealedAnswer]:
        return drive(append_sealed(self.record, items(*entries)))

    def control(self) -> Control:
        return drive(self.record.read_control())

    def caller(self, *, sequenced: bool = False) -> Caller:
        """A caller in the history and generation in force."""
        force = self.control().authority
        return Caller(force.history, force.generation, sequenced=sequenced)

    def put_in_force(self, action: str = "stage", **changes: Any) -> Control:
        """Append a control entry that changes the authority."""

        def becomes(control: Control) -> Authority:
            return msgspec.structs.replace(control.authority, **changes)

        return drive(change_control(self.record, action, becomes, {"reason": "a test"}))

    def start_history(self, history: str, generation: int = 2) -> Control:
        """End the history in force and start another, as a recovery's control entry does."""

        def becomes(control: Control) -> Authority:
            return Authority(
                history, generation, Stage.OPEN, control.authority.first + 65_537, GENESIS
            )

        first = self.control().authority.first + 65_537
        facts = {"reason": "a test", "first": first, "digest": GENESIS}
        return drive(change_control(self.record, "history", becomes, facts))

    # Files.

    def snapshot(self, folder: Path) -> Path:
        """A consistent copy of the store, as a backup tool makes one."""
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / self.settings.store_file.name
        self.store.database.copy_to(target)
        return target

    def rewind(self, copy: Path) -> None:
        """Put a copy in the store's place by rename, side files gone, as a restore does."""
        file = self.settings.store_file
        aside = file.with_name("restored.db")
        shutil.copyfile(copy, aside)
        for suffix in ("-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        aside.replace(file)

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run SQL on the store's file, which nobody may have compared yet."""
        if self.record.guarded and not self.record.read_only:
            with self.record.lock.held():
                drive(self.record.open_for_writing())
        return self.store.database.connection.execute(statement, parameters).fetchall()

    def journal_sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Run SQL on the journal's file."""
        return self.log.database.connection.execute(statement, parameters).fetchall()

    # The end.

    def diverged(self) -> None:
        """The store is not what the journal says, on purpose: only the journal is verified."""
        self.check_store = False

    def spoiled(self) -> None:
        """Rows of work were changed on purpose: they are not what the decisions lead to."""
        self.check_work = False

    def damaged(self) -> None:
        """Bytes were changed on purpose: nothing is verified."""
        self.check_store = self.check_journal = False

    def finish(self) -> None:
        """Hand off what waits, let go of the files, and verify them whole."""
        if self.check_store:
            drive(settle(self.record))
        self.close()
        if self.check_journal:
            found = verify_files(self.settings, store=self.check_store, work=self.check_work)
            assert found == []


def accepted(answer: Answer) -> Acceptance:
    """The acceptance, or the refusal raised."""
    if isinstance(answer, UnrewindError):
        raise answer
    return answer
