"""Tenants as they are before a thing is done to them, and what must hold of them afterwards."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec

from journal import Acceptance, Operation, Settings, load_settings
from journal.entry import JSON_TYPE
from journal.errors import UnrewindError, WriterStopped
from journal.log.sqlite import SqliteLog
from journal.permits import Asked, claim
from journal.record import Record
from journal.standing import detect
from journal.store.sqlite import SqliteStore
from journal.sweeping import sweep
from journal.worker import drive
from journal.writepath import settle, turn
from reconstruct import recovery
from reconstruct.verification import verify
from tests.faults.calls import Injected
from tests.faults.forking import CONFIG, RELEASE
from tests.support.faults import fail_log
from tests.support.releases import PAST
from tests.support.tenants import accepted
from tests.support.whole import rows_of

_CONFIG = """
[lifecycle.case]
kind = "free"
[lifecycle.order.actions]
post = {{ from = ["draft", "going"], to = "going", releases = ["post"] }}
push = {{ from = ["draft", "going"], to = "going", releases = ["push"] }}
[lane.post]
attempts = 5
[lane.push]
receiver = "courier"
attempts = 5
backoff = 0.01
backoff_cap = 0.02
[receiver.courier]
url = "{url}"
contract = "opaque"
timeout = 20.0
"""
JOURNALLED = "SELECT lower(hex(digest)) FROM entries WHERE stream = 'decisions'"
_NEW = Operation("new", "case/1", "set", b'{"n": 2}', JSON_TYPE)


class Scene:
    """A tenant made once, copied for each fault, and what was acknowledged of it by then."""

    def __init__(self, folder: Path, act: str, url: str) -> None:
        self.folder, self.act = folder, act
        folder.mkdir()
        (folder / CONFIG).write_text(_CONFIG.format(url=url))
        self.told: dict[Operation, str] = {}
        self.untold: list[Operation] = [_NEW] if act in {"accept", "handoff"} else []
        self.release = ""
        self.record = Record(self.settings(folder))
        drive(self.record.open())
        try:
            self._live()
        finally:
            drive(self.record.close())

    @staticmethod
    def settings(folder: Path) -> Settings:
        return load_settings(folder / CONFIG, {"data": str(folder / "data")}, {})

    def _live(self) -> None:
        for number in range(1, 4):
            self._accept(f"before-{number}", f"case/{number}", "set", {"n": number})
        if self.act in {"work", "push"}:
            lane = "post" if self.act == "work" else "push"
            (self.release,) = self._accept("release", "order/1", lane, version="v1").releases
            (self.folder / RELEASE).write_text(self.release)
        drive(settle(self.record))
        if self.act == "handoff":
            self._leave_pending()
        if self.act == "apply":
            self._rewind()

    def _accept(
        self, name: str, entity: str, action: str, body: Any = None, **more: Any
    ) -> Acceptance:
        data = b"" if body is None else msgspec.json.encode(body)
        wanted = Operation(name, entity, action, data, JSON_TYPE, **more)
        answer = accepted(drive(turn(self.record, [wanted]))[0])
        self.told[wanted] = answer.digest
        return answer

    def _leave_pending(self) -> None:
        """A decision that a crash left in the store alone, between commit and append."""
        left = Operation("left", "case/2", "set", b'{"n": 9}', JSON_TYPE)
        fail_log(self.record, before=[WriterStopped("crashed")])  # type: ignore[list-item]
        with suppress(UnrewindError):
            drive(turn(self.record, [left]))
        self.record.distrust()
        self.untold.append(left)

    def _rewind(self) -> None:
        """A store that was put back, and a recovery that has begun."""
        settings = self.record.settings
        copy = self.folder / "old.db"
        cast("SqliteStore", self.record.store).copy_to(copy)
        for number in range(3):
            self._accept(f"lost-{number}", f"case/{number}", "set", {"m": number})
        (self.release,) = self._accept("release", "order/1", "post", version="v1").releases
        drive(settle(self.record))
        drive(self.record.close())
        copy.replace(settings.store_file)
        recovery.stop(settings, "a test")
        drive(self.record.open())
        drive(recovery.begin(self.record, "a test"))

    # Afterwards.

    def copy(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)

    def check(self, folder: Path, injected: Injected, calls: Callable[[str], int]) -> bool:
        """Start again over what a fault left, and hold it against every promise.

        Whether the tenant had been closed, and was recovered for that.
        """
        ended = injected.ended
        closed = False
        settings = self.settings(folder)
        told = dict(self.told)
        if self.untold and ended.code == 0:
            told[_NEW] = msgspec.json.decode(ended.out)["digest"]
        self._journalled(settings.journal_file, {*told.values(), *ended.of("commitment")})
        record = Record(settings)
        drive(record.open())
        try:
            if self.act == "apply":
                self._finish(record)
            finding = drive(detect(record, deep=True))
            assert finding.verdict.sound, finding
            closed = record.stop.stands()
            if closed:
                self._recover(record)
            self._decisions(record, told)
            if self.release:
                self._releases(record, injected, calls)
            drive(settle(record))
        finally:
            drive(record.close())
        report = verify(settings)
        assert (report.verdict, report.findings) == ("clean", [])
        return closed

    @staticmethod
    def _journalled(file: Path, digests: set[str]) -> None:
        """P1, P3: what was acknowledged is in the journal, before a start hands anything off."""
        assert digests <= {digest for (digest,) in rows_of(file, JOURNALLED)}

    @staticmethod
    def _recover(record: Record) -> None:
        """As an operator does whose tenant was closed for what could not be read."""
        drive(recovery.begin(record, "a test"))
        drive(recovery.apply(record))
        drive(recovery.reopen(record, despite={"reconciled"}))

    def _finish(self, record: Record) -> None:
        """The recovery that failed is run again, to its end."""
        drive(recovery.apply(record))
        drive(recovery.reopen(record, despite={"reconciled"}))

    def _decisions(self, record: Record, told: dict[Operation, str]) -> None:
        wanted = [*self.told, *self.untold]
        answers = [accepted(answer) for answer in drive(turn(record, wanted))]
        for operation, answer in zip(wanted, answers, strict=True):
            if operation in told:
                assert (answer.outcome, answer.digest) == ("duplicate", told[operation])
        rows = cast("SqliteLog", record.log).database.connection.execute(
            "SELECT operation FROM entries WHERE stream = 'decisions'"
        )
        stands = Counter(name for (name,) in rows)
        assert all(stands[operation.operation] == 1 for operation in wanted)

    def _releases(self, record: Record, injected: Injected, calls: Callable[[str], int]) -> None:
        """P4: nothing that was perhaps sent is sent again, and nothing was sent unpermitted."""
        told = injected.ended
        sent = calls(self.release) if self.act == "push" else len(told.of("sent"))
        assert sent <= 1
        connection = cast("SqliteStore", record.store).database.connection
        status = connection.execute(
            "SELECT status FROM unrewind_work WHERE id = ?", (self.release,)
        ).fetchone()[0]
        if told.of("known"):
            assert (status, sent) == ("done", 1)
        connection.execute("UPDATE unrewind_work SET sweep_at = ? WHERE sweep_at > ''", (PAST,))
        connection.execute("UPDATE unrewind_work SET due = ? WHERE due > ''", (PAST,))
        drive(sweep(record))
        lane = "push" if self.act == "push" else "post"
        again = drive(claim(record, Asked(lane, "later", "later", 4))).permits
        assert not (sent and again), f"{self.release} would be sent again"
        assert not (status == "ready" and not again), f"{self.release} is never sent"
