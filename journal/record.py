"""The record: one tenant's store and journal, opened together in one thread.

A ``Record`` is what the write path, detection and recovery work on. It belongs to one thread; its
methods are coroutines over the ports and never suspend on SQLite.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping

import msgspec

from journal import ahead
from journal import control as controls
from journal.clock import Clock, SystemClock
from journal.control import Control, ControlUnreadable
from journal.detection import Finding, Seen, Verdict, compare
from journal.errors import (
    ConstraintFailed,
    Damaged,
    EngineError,
    FileChanged,
    Invalid,
    JournalUnavailable,
    LockHeld,
    SettingsInvalid,
    Unreachable,
    UnrewindError,
)
from journal.files import SeenFile, someone_has
from journal.filesystem import check_filesystem
from journal.founding import check_may_found, found_journal, found_store, is_missing
from journal.lifecycle import Lifecycle
from journal.locks import Presence, StopFile
from journal.log import Look
from journal.log.engine import SqlLog
from journal.places import LogPlace, StorePlace, check_apart, lock_of, place_of_log, place_of_store
from journal.projection import Projection, load_projections
from journal.release import Rules
from journal.settings import Settings
from journal.sql import Projected, Stamp
from journal.store import tables
from journal.store.engine import SqlStore
from journal.store.tables import Marker
from journal.witness import Step, WitnessFile

LOGGER = logging.getLogger("unrewind")
_LEFT_OPEN: list[object] = []
_LOOKS = 20
_NOT_OURS = frozenset({Verdict.JOURNAL_REWOUND, Verdict.CLOSED})


class Record:
    """One tenant's store and journal with their locks, control and projections.

    ``store`` and ``log`` are None while their database is missing or unreadable, or, which ``away``
    says, on a server that does not answer; ``finding`` says what the last comparison found,
    ``doubtful`` that steps of work in the store may be older than its
    marker tells, which they do not move.
    """

    def __init__(
        self, settings: Settings, clock: Clock | None = None, *, read_only: bool = False
    ) -> None:
        self.settings = settings
        self.read_only = read_only
        self.clock = clock or SystemClock()
        self.lifecycles: Mapping[str, Lifecycle] = settings.lifecycles
        self.rules = Rules(settings.tenant, settings.lifecycles, settings.lanes)
        self.projections: dict[str, Projection] = load_projections(settings.lifecycles)
        self.store_place: StorePlace = place_of_store(settings)
        self.log_place: LogPlace = place_of_log(settings)
        self.lock = lock_of(settings)
        self.stop = StopFile(settings.beside("stop"))
        self.seen = SeenFile(settings.seen_file)
        self.witness = WitnessFile(settings.witness_file, settings.beside("witnessed"))
        self.store: SqlStore | None = None
        self.log: SqlLog | None = None
        self.away: dict[str, Unreachable] = {}
        self.control: Control | None = None
        self.finding = Finding(Verdict.CLOSED, "not looked at yet")
        self.poisoned: str | None = None
        self.stamp: Stamp | None = None
        self.doubtful = False
        self.recovering = False
        self.asked: ahead.Asked | None = None
        self._trusted = False
        self._copied = 0
        self._unwitnessed = True
        self._presence: Presence | None = None
        self._founded = settings.beside("founded")

    # Opening and closing.

    async def open(self, *, create: bool = True) -> None:
        """Open store and journal, founding the tenant when neither exists and ``create`` allows it.

        Raises Refused on a network filesystem or when there is no tenant to open. A database that
        is missing or unreadable is left None for detection to judge; a server that does not answer
        is looked for again at each turn.
        """
        settings = self.settings
        for place in (self.store_place, self.log_place):
            if place.file is not None and not settings.allow_network_filesystem:
                check_filesystem(place.file.parent)
        companion = someone_has(settings.beside("presence"))
        if self.read_only:
            await self.open_files(companion=companion)
            return
        self._presence = Presence(settings.beside("presence"))
        with self.lock.held():
            if is_missing(self.log_place, self.store_place):
                check_may_found(settings, self.witness, create=create)
                self.witness.forget()
                await found_journal(self.log_place, settings, self.clock)
            await self.open_files(companion=companion)
            await self._finish_founding()
            if not self._founded.exists() and not self.away:
                self._founded.write_text(self.clock.now(), encoding="ascii")

    async def open_files(self, *, companion: bool = False) -> None:
        """Open what is there, letting go of what was open before.

        ``companion`` says that another process has the tenant open and watches its files. A store
        that is not known to be the journal's is opened for reading alone, so that its bytes are
        still those that were found when the evidence of a recovery is copied (R24).
        """
        await self.close_files()
        found = self._stamp_now()
        settled = companion or self.store_place.settled()
        self._trusted = settled and self.seen.names(found)
        self.doubtful = not (self._trusted and self.seen.watched())
        self._unwitnessed = True
        self.away.clear()
        with self._noting(self.log_place):
            if self.log_place.exists():
                self.log = self.log_place.open(read_only=self.read_only)
        with self._noting(self.store_place):
            if self.store_place.exists():
                self.store = self.store_place.open(read_only=True)
        try:
            check_apart(self.store, self.log, self.settings.accept)
        except SettingsInvalid:
            await self.close_files()
            raise
        self.control = None
        if self._trusted and not self.read_only and await self._agrees():
            await self.open_for_writing()
        # Opening may itself write to the file; what was trusted before it still is.
        self.stamp = self._stamp_now() if self._trusted else None

    @contextlib.contextmanager
    def _noting(self, place: StorePlace | LogPlace) -> Iterator[None]:
        """Note which server does not answer. A file that nobody can read is judged as missing."""
        try:
            yield
        except Damaged:
            return
        except Unreachable as error:
            if place.file is None:
                self.away[place.label] = error

    def _stamp_now(self) -> Stamp | None:
        try:
            return self.store_place.stamp()
        except (Unreachable, Damaged):
            return None

    async def _agrees(self) -> bool:
        """Whether the store's marker says that it is the journal's newest, or ahead of it."""
        try:
            return (await self.examine())[0].verdict.sound
        except (EngineError, JournalUnavailable):
            self.control = None
            return False

    @property
    def guarded(self) -> bool:
        """Whether the store may only be read until somebody has compared it or kept its bytes."""
        return not self.read_only and (self.store is None or self.store.database.read_only)

    def _check_away(self, place: StorePlace | LogPlace) -> None:
        """Raises Unreachable where this place's server did not answer when it was opened."""
        if place.label in self.away:
            error = self.away[place.label]
            raise Unreachable(error.detail, **error.members)

    async def open_for_writing(self) -> None:
        """Open the store for writing, where it was open for reading alone. Under the turn lock.

        Only for whoever has found that it agrees with the journal, or has kept a copy of its bytes.
        Raises FileChanged when another file has taken its place since.
        """
        if not self.guarded or not self.store_place.exists():
            return
        known = self.stamp is not None and not self.touched()
        looked_at, store = self.store, None
        try:
            with contextlib.suppress(Unreachable, Damaged):
                store = self.store_place.open()
                if looked_at is not None:
                    looked_at.stamp()
                self._create_tables(store)
        except BaseException:
            if store is not None:
                await store.close()
            raise
        if store is None:
            return
        self.store = store
        if looked_at is not None:
            await looked_at.close()
        if known:
            self.saw()

    def _create_tables(self, store: SqlStore) -> None:
        """The tables that this version of unrewind, or a projection, has and the store lacks."""
        store.create_tables()
        for kind, projection in self.projections.items():
            for ddl in projection.tables:
                try:
                    store.database.batch([Projected(ddl)])
                except ConstraintFailed as error:
                    raise SettingsInvalid(
                        f"[lifecycle.{kind}]: the tables of its projection: {error}"
                    ) from error

    async def _finish_founding(self) -> None:
        """Create the store of a journal that holds its founding entry and nothing else."""
        if self.log is None or self.store is not None or self.store_place.label in self.away:
            return
        if self.store_place.file is not None and self.store_place.file.exists():
            return
        look = await self.log.look()
        if look.position > 1 or look.authority is None:
            return
        witness = self.witness.read()
        if witness is not None and witness.position > look.position:
            return  # no founding that was interrupted: this journal was rolled back
        await self.create_store()

    async def create_store(self) -> None:
        """A new, empty store that stands at the beginning of the tenant's first history."""
        found_store(self.store_place, await self.read_control())
        self.store = self.store_place.open()
        self._create_tables(self.store)

    async def close_files(self) -> None:
        """Let go of both files. Closing may checkpoint, so this needs the turn lock."""
        store, log = self.store, self.log
        self.store = self.log = None
        for port in (store, log):
            if port is not None:
                with contextlib.suppress(EngineError):
                    await port.close()

    async def close_and_mark(self) -> None:
        """Close after a clean comparison and note the file, so that the next start may trust it.

        Only the last process to leave can tell: another one may write after this.
        """
        with self.lock.held():
            touched = self._replaced() or self.touched()  # since that comparison, and not by us
            await self.close_files()
            stamp = self._stamp_now()
            if stamp is not None and not touched:
                self.seen.note(stamp, watched=not self.doubtful)

    async def remember(self) -> None:
        """Let the witness follow the journal, unless that was rolled back or cannot be judged."""
        try:
            step = await self.next_witness()
            if step is not None:
                self.witness.take(step)
        except (UnrewindError, OSError) as error:
            self.witness_failed(error)

    async def next_witness(self) -> Step | None:
        """The witness's next step, for ``WitnessFile.take``; None when there is none to take.

        Raises EngineError, JournalUnavailable or WitnessUnreadable.
        """
        if self.log is None or self.poisoned is not None:
            return None
        self.finding, seen = await self.examine(witness=True)
        if self.finding.verdict in _NOT_OURS or self.control is None:
            return None
        return await self.witness.step(self.log, self.control, seen.look, self.clock.now())

    def witness_failed(self, error: Exception) -> None:
        """Say once that the witness does not follow; decisions go on, and `status` says it."""
        if self.witness.failed is None:
            LOGGER.warning("the witness does not follow the journal: %s", error)
        self.witness.failed = str(error)

    async def close(self) -> None:
        """Let go of everything. A lock that cannot be had leaves the files to the next opener."""
        if not self.read_only:
            await self.remember()
        if self.read_only or (self.store is None and self.log is None):
            # With nothing to close there is no lock to wait for, perhaps a second time.
            await self.close_files()
        else:
            try:
                with self.lock.held():
                    if self.stamp is None or self.poisoned is not None or self._replaced():
                        await self.close_files()
                    else:
                        # Nobody else wrote, and closing may: what was trusted still is.
                        await self.close_and_mark()
            except LockHeld:
                # Kept, for a connection that nothing refers to closes itself, and checkpoints.
                _LEFT_OPEN.extend((self.store, self.log))
                self.store = self.log = None
        if self._presence is not None:
            self._presence.close()
            self._presence = None
        self.lock.close()

    # Looking.

    def journal(self) -> SqlLog:
        """The journal. Raises JournalUnavailable."""
        if self.log is None:
            try:
                self._check_away(self.log_place)
            except Unreachable as error:
                raise JournalUnavailable(f"the journal cannot be reached: {error}") from None
            raise JournalUnavailable(f"the journal {self.log_place.label} is not there")
        return self.log

    async def look(self) -> Look:
        """Where the journal stands. Raises JournalUnavailable."""
        log = self.journal()
        try:
            return await log.look()
        except FileChanged:
            raise
        except EngineError as error:
            raise JournalUnavailable(f"the journal cannot be read: {error}") from error

    async def read_control(self) -> Control:
        """Control as the journal has it now. Raises ControlUnreadable or JournalUnavailable."""
        log = self.journal()
        try:
            rows = await log.control()
            entries = [row.entry() for row in rows]
        except Invalid as error:
            raise ControlUnreadable(f"a control entry is damaged: {error}") from None
        except FileChanged:
            raise
        except EngineError as error:
            raise ControlUnreadable(f"control cannot be read: {error}") from error
        self.control = controls.fold(entries, self.settings.tenant)
        return self.control

    async def current_control(self, look: Look) -> Control:
        """Control as of ``look``; read again only when it has changed."""
        control = self.control
        if control is None or control.sequence != look.control:
            control = await self.read_control()
        if control.authority != look.authority:
            now = await self.look()  # another process may have changed it between the two
            if now == look or control.authority != now.authority:
                raise ControlUnreadable("what the journal has in force is not what its entries say")
        return control

    async def marker(self) -> Marker | None:
        """The store's marker; None when there is no readable store. Raises Unreachable."""
        if self.store is None:
            self._check_away(self.store_place)
            return None
        try:
            return tables.marker_of((await self.store.read([tables.READ_MARKER]))[0])
        except Damaged:
            return None

    async def examine(self, *, witness: bool = False) -> tuple[Finding, Seen]:
        """Look at the journal's head, then the store, then the journal for what the store names.

        The witness is looked at when ``witness`` says so, and until it agrees once after an
        opening. Control that cannot be read is the verdict `closed`. Where another process moved
        the journal on meanwhile, it is looked at once more before a verdict closes anything. Raises
        JournalUnavailable when the journal is there and cannot be read, or keeps moving.
        """
        for _ in range(_LOOKS):
            finding, seen = await self._examine(witness=witness)
            if ahead.is_doubted(self, finding):
                continue
            if finding.verdict.sound or self.log is None or await self.look() == seen.look:
                return finding, seen
        raise JournalUnavailable("the journal moves on faster than it can be compared")

    async def _examine(self, *, witness: bool) -> tuple[Finding, Seen]:
        if self.log is None:
            if self.log_place.label in self.away:
                self.journal()
            verdict = Verdict.JOURNAL_REWOUND if self.store is not None else Verdict.CLOSED
            empty = Seen(Look(0, None, None, 0, flawed=False), await self.marker())
            return Finding(verdict, "the journal is missing or not readable"), empty
        look = await self.look()
        marker = await self.marker()
        if marker is None:
            seen = Seen(look, None)
        else:
            seen = await self._look_again(look, marker)
        stale = self.control is None or self.control.sequence != look.control
        if (stale or self._copied > look.control) and marker is not None and self.store is not None:
            # Before control: a copy follows its entry, and may come between the two.
            self._copied = (await self.store.read([tables.READ_CONTROL_SEQUENCE]))[0][0][0]
        try:
            control = await self.current_control(look)
        except ControlUnreadable as error:
            return Finding(Verdict.CLOSED, error.detail, error.members), seen
        if marker is not None and self._copied > control.sequence:
            seen = msgspec.structs.replace(seen, copied=self._copied)
        if not (witness or self._unwitnessed):
            return compare(control, seen, self.settings.instance), seen
        seen = await self._look_at_witness(seen)
        finding = compare(control, seen, self.settings.instance)
        self._unwitnessed = finding.verdict in _NOT_OURS
        return finding, seen

    async def _look_at_witness(self, seen: Seen) -> Seen:
        witness = self.witness.read()
        if witness is None or self.log is None:
            return seen
        row = await self.log.at(witness.position) if witness.position else None
        return msgspec.structs.replace(
            seen, witness=witness, at_witness=None if row is None else row.digest
        )

    async def _look_again(self, look: Look, marker: Marker) -> Seen:
        last = look.last
        if last is not None and marker.place.sequence == last.sequence:
            # The common case: the tip itself says what stands at the marker and before it.
            return Seen(look, marker, last, last, last.digest)
        log = self.journal()
        at_tip = None
        if last is not None and last.sequence < marker.place.sequence and self.store is not None:
            rows = (await self.store.read([tables.read_decisions_down(last.sequence, 1)]))[0]
            stored = tables.decisions_of(rows)
            if stored and stored[0].sequence == last.sequence:
                at_tip = stored[0].digest
        return Seen(
            look,
            marker,
            await log.place(marker.place.sequence),
            await log.place(marker.journalled),
            at_tip,
        )

    # The file's stamp: whether somebody else wrote to the store's file.

    def touched(self) -> bool:
        """Whether the store's file changed since this record, or a companion, last wrote it."""
        if self.store is None:
            return True
        now = self.store.stamp()
        if self.stamp == now:
            return False
        if self.stamp is not None and self.seen.names(now):
            self.stamp = now
            return False
        return True

    def _replaced(self) -> bool:
        """Whether another file, or none, stands in the place of the one that was opened."""
        if self.store is None:
            return True
        try:
            self.store.stamp()
        except (FileChanged, Unreachable):
            return True
        return False

    def distrust(self) -> None:
        """Trust the file no more until every head was compared: it is about to be rebuilt."""
        self._trusted = False
        self.stamp = None
        self.seen.forget()

    def saw(self) -> None:
        """Remember the file as it is now: our own commit, or a comparison that was clean."""
        if self.store is None:
            return
        now = self.store.stamp()
        if now != self.stamp:
            self.stamp = now
            self.seen.note(now, watched=not self.doubtful)

    def stopped_clean(self) -> bool:
        """Whether the file is as the last clean stop, a restore, or a live companion left it."""
        try:
            return self._trusted and not self.touched()
        except Unreachable:
            return False
