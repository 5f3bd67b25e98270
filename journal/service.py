"""A tenant inside an event loop: what a server, or an application of its own, holds open.

One thread writes, another reads; each has its own ``Record``. ``open`` gives a ``Journal``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from journal import feed, reading, tracing
from journal.acceptance import Acceptance, Operation, check_operation
from journal.control import Control, Role, Stage, Token
from journal.detection import Finding, Verdict
from journal.errors import (
    Damaged,
    FenceFailed,
    FileChanged,
    Invalid,
    JournalUnavailable,
    UnrewindError,
)
from journal.gate import Ruling
from journal.intake import append_sealed
from journal.lanework import LaneWork
from journal.leading import Leading, leading_of
from journal.record import Record
from journal.sealed import SealedAnswer
from journal.settings import Settings
from journal.standing import close_tenant, compare_heads, detect, examine
from journal.status import Status, status
from journal.tokens import authenticate, create_token, revoke_token
from journal.witness import Step
from journal.worker import Worker, drive
from journal.writepath import Answer, settle
from journal.writer import Writer

T = TypeVar("T")

LOGGER = logging.getLogger("unrewind")
MAX_ITEMS = 1000
_WRITE_TRIES = 5
_PENDING_TRIES = 200
_PENDING_PAUSE = 0.01


class Journal:
    """One tenant, open for decisions and questions. Made by ``journal.open``."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._writing = Record(settings)
        self._reading = Record(settings, read_only=True)
        self._write_thread = Worker()
        self._read_thread = Worker()
        self._writer = Writer(self._writing, self._write_thread)
        self._control: Control | None = None
        self._stopping = asyncio.Event()
        self._following: asyncio.Task[None] | None = None
        self._leading: Leading | None = None
        self.lanes = LaneWork(self._writer, self.write, self.read, self._differs)

    # Decisions.

    async def accept(self, operation: Operation) -> Acceptance:
        """Make an operation a decision, or give the first answer again.

        When this returns, the decision is committed in the store *and* the journal holds it and
        everything it rests on (P1). Raises a Refusal when it was judged and refused, Invalid when
        it could never be one, OperationReused when its ID belongs to another decision, and
        Recovering, JournalUnavailable or Overloaded when it is worth repeating with the same
        operation ID, whose fate is then told.
        """
        check_operation(operation, self.settings.lifecycles, self.settings.max_body)
        answer = (await self._writer.submit([operation]))[0]
        if isinstance(answer, UnrewindError):
            raise answer
        return answer

    async def accept_many(self, operations: Sequence[Operation]) -> list[Answer]:
        """Judge operations one by one, in order: an acceptance or the refusal for each."""
        if not 1 <= len(operations) <= MAX_ITEMS:
            raise Invalid(f"send 1 to {MAX_ITEMS} operations at once")
        answers: list[Answer | None] = [None] * len(operations)
        fit: list[int] = []
        for number, operation in enumerate(operations):
            try:
                check_operation(operation, self.settings.lifecycles, self.settings.max_body)
                fit.append(number)
            except Invalid as error:
                answers[number] = error
        if fit:
            judged = self._writer.submit([operations[number] for number in fit])
            for number, answer in zip(fit, await judged, strict=True):
                answers[number] = answer
        return [answer for answer in answers if answer is not None]

    async def append_entries(self, items: Sequence[tuple[bytes, bytes]]) -> list[SealedAnswer]:
        """Append sealed (envelope, body) pairs of caller-owned types. See ``append_sealed``."""
        return await self.write(append_sealed, items)

    # Questions.

    async def entity(self, entity: str, at: str | None = None) -> reading.EntityView:
        """An entity at its durable boundary, or ``at`` an earlier revision or time."""
        return await self.read(reading.read_entity, entity, at)

    async def entities(
        self, kind: str | None = None, after: str | None = None, limit: int | None = None
    ) -> feed.Page:
        """Entities by name."""
        return await self.read(reading.read_entities, kind, after, limit)

    async def history(
        self, entity: str, first: int = 1, limit: int | None = None
    ) -> tracing.HistoryView:
        """An entity's chain with its gaps marked."""
        return await self.read(tracing.read_history, entity, first, limit)

    async def gate(self, entity: str, revision: int | None = None) -> Ruling:
        """Whether the revision may have effects now."""
        return await self.read(reading.read_gate, entity, revision)

    async def gaps(self, after: str | None = None, limit: int | None = None) -> feed.Page:
        """Every reason why a history is incomplete."""
        return await self.read(reading.read_gaps, after, limit)

    async def operation(self, operation: str) -> Acceptance:
        """What became of an operation."""
        return await self.read(reading.read_operation, operation)

    async def operations(self, after: str | None = None, limit: int | None = None) -> feed.Page:
        """Operations in the order in which the journal took them."""
        return await self.read(reading.read_operations, after, limit)

    async def feed(self, after: str | None = None, limit: int | None = None) -> feed.Feed:
        """The journal's entries above a cursor."""
        return await self.read(feed.read_feed, after, limit)

    async def status(self) -> Status:
        """Where the tenant stands, and whether this process still decides."""
        stands = await self.read(status)
        reason = self._writing.poisoned
        if reason is None or not Stage(stands.stage).decides:
            return stands
        detail = f"this process takes no decisions until it is restarted: {reason}"
        return msgspec.structs.replace(stands, stage=str(Stage.READING), detail=detail)

    # Tokens.

    async def authenticate(self, presented: str) -> Token | None:
        """The token presented, or None. An unknown one makes control be read again first.

        Raises ControlUnreadable or JournalUnavailable: then nobody can be let in.
        """
        if self._control is not None:
            token = authenticate(self._control, presented)
            if token is not None:
                return token
        return authenticate(await self._look_at_control(), presented)

    async def _look_at_control(self) -> Control:
        try:
            self._control = await self.read(_current_control)
        except UnrewindError:
            self._control = None
            raise
        return self._control

    async def create_token(self, role: Role, name: str, principal: str | None = None) -> str:
        """Create a token; the only time that it is told."""
        return await self.write(create_token, role, name, principal)

    async def revoke_token(self, identity: str, principal: str | None = None) -> None:
        """Revoke a token."""
        await self.write(revoke_token, identity, principal)
        await self._look_at_control()

    # Upkeep.

    async def settle(self) -> None:
        """Hand off what a crash left and bring watermarks up to date; on a schedule."""
        try:
            await self.write(settle)
        except UnrewindError as error:
            LOGGER.debug("nothing to settle: %s", error)
        with contextlib.suppress(UnrewindError):
            await self._look_at_control()

    async def detect(self, *, deep: bool) -> Finding:
        """Compare store and journal now, closing the tenant where they disagree.

        The comparison of every head runs beside the writer, which goes on deciding meanwhile.
        """
        finding = await self.write(_detect)
        if not deep or finding.verdict is not Verdict.CLEAN:
            return finding
        found = await asyncio.to_thread(_compare_apart, self.settings)
        return finding if found.verdict.sound else await self.write(_close_for, found)

    async def write(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine over the writing record, between batches.

        Again where another process wrote between its reads and its commit: nothing was committed.
        """
        for _ in range(_WRITE_TRIES):
            try:
                return await self._write_thread.run(function, self._writing, *args)
            except FenceFailed as error:
                LOGGER.warning("another process was quicker: %s", error)
            except Damaged:
                # By what it read beside a turn: the next one compares the store whole.
                self._writing.distrust()
                raise
        raise JournalUnavailable("other processes are quicker again and again: repeat it")

    async def read(self, function: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run a coroutine over the reading record; waits for decisions under way."""
        for _ in range(_PENDING_TRIES):
            try:
                return await self._read_thread.run(_reopening, self._reading, function, args)
            except reading.Pending:
                await self._writer.turned()
                await asyncio.sleep(_PENDING_PAUSE)
        raise JournalUnavailable("the entity's newest decision is still not in the journal")

    # Among other processes.

    async def join(self, kind: str, *, schedules: bool) -> Leading:
        """Count among the processes that do the tenant's work, until ``stop``; once.

        Raises SettingsInvalid where a live one declares other lanes.
        """
        if self._leading is None:
            made = leading_of(self.settings, self.write, self.read, kind, schedules=schedules)
            await made.join()
            self._leading = made
        return self._leading

    async def _differs(self) -> str | None:
        return None if self._leading is None else await self._leading.differs()

    async def start(self) -> Finding:
        """Open the files, compare them, hand off what a crash left."""
        await self._write_thread
        await self._read_thread
        try:
            return await self._open()
        except BaseException:
            # Threads that nobody stops would keep the process from ending.
            await self._read_thread.run(Record.close, self._reading)
            await self._end()
            raise

    async def _open(self) -> Finding:
        await self.write(Record.open)
        await self._read_thread.run(Record.open, self._reading)
        stopped = await self._write_thread.run(_stopped_clean, self._writing)
        try:
            finding = await self.detect(deep=not stopped)
        except JournalUnavailable as error:
            if not self._writing.away:
                raise
            LOGGER.warning("%s; decisions are taken once it answers", error)
            finding = self._writing.finding
        if finding.verdict is Verdict.CLEAN:
            await self.write(_open_for_writing)
        if finding.verdict.sound:
            await self.settle()
        self._following = asyncio.create_task(self._follow())
        return finding

    async def _follow(self) -> None:
        """Let the witness follow the journal, beside the writer and beside readers.

        Where the journal contradicts the witness, somebody has put an older one in its place.
        """
        while not self._stopping.is_set():
            try:
                step = await self._read_thread.run(_reopening, self._reading, _next_witness, ())
                if step is not None:
                    await asyncio.to_thread(self._reading.witness.take, step)
            except (UnrewindError, OSError) as error:
                self._reading.witness_failed(error)
            verdict = self._reading.finding.verdict
            if verdict is Verdict.JOURNAL_REWOUND and self._writing.finding.verdict.sound:
                with contextlib.suppress(UnrewindError):
                    await self.detect(deep=False)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self.settings.witness_every)

    async def stop(self) -> None:
        """Answer what waits, compare once more, and let go of the files."""
        self._stopping.set()
        if self._leading is not None:
            await self._leading.leave()
        if self._following is not None:
            await asyncio.wait([self._following])
        await self._writer.drain()
        # The last connection to close clears the -wal away, without which no start trusts the file.
        await self._read_thread.run(Record.close, self._reading)
        with contextlib.suppress(UnrewindError):
            await self.write(settle)
        await self.write(Record.remember)
        with contextlib.suppress(UnrewindError):
            await self.write(_stop_clean)
        await self._end()

    async def _end(self) -> None:
        await self._write_thread.run(Record.close, self._writing)
        await self._read_thread.close()
        await self._write_thread.close()


async def _reopening(
    record: Record, function: Callable[..., Coroutine[Any, Any, T]], args: Sequence[Any]
) -> T:
    if record.store is None or record.log is None:
        await record.open_files()
    try:
        return await function(record, *args)
    except FileChanged:
        await record.open_files()
        return await function(record, *args)


async def _next_witness(record: Record) -> Step | None:
    if await record.witness.stands_at(record.journal(), await record.look()):
        return None
    return await record.next_witness()


async def _detect(record: Record) -> Finding:
    return await detect(record, deep=False)


def _compare_apart(settings: Settings) -> Finding:
    """Compare every head through a record of its own, in whatever thread this is called."""
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        with record.lock.held():
            finding, _ = drive(examine(record))
        if finding.verdict is Verdict.CLEAN:
            finding = drive(compare_heads(record, finding))
        return finding
    finally:
        drive(record.close())


async def _close_for(record: Record, finding: Finding) -> Finding:
    with record.lock.held():
        record.distrust()
        record.finding = finding
        if not record.stop.stands():
            await close_tenant(record, finding)
    return finding


async def _current_control(record: Record) -> Control:
    return await record.current_control(await record.look())


async def _open_for_writing(record: Record) -> None:
    with record.lock.held():
        await record.open_for_writing()


async def _stopped_clean(record: Record) -> bool:
    return record.stopped_clean()


async def _stop_clean(record: Record) -> None:
    record.stamp = None
    finding = await detect(record, deep=True)
    if finding.verdict.sound and record.poisoned is None:
        await record.close_and_mark()


@asynccontextmanager
async def open_journal(settings: Settings) -> AsyncIterator[Journal]:
    """Open a tenant in this process; founds it at the first start. Exported as ``journal.open``.

    Raises Refused (network filesystem, or the files are being replaced) or SettingsInvalid. A
    tenant whose store and journal disagree opens closed: decisions raise Recovering.
    """
    journal = Journal(settings)
    await journal.start()
    try:
        yield journal
    finally:
        await journal.stop()
