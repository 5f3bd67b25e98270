"""The witness: a third place that remembers where the journal stood.

Store and journal that are rolled back to the same moment agree with each other. The witness lies in
a file of its own, best on a disk of its own, and names the last entry that it saw: a journal that
holds nothing there, or something else, was rolled back. It is never a source of decisions.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from journal.control import Control
from journal.entry import GENESIS
from journal.errors import UnrewindError
from journal.log import Log, Look
from journal.sqlite import make_directory, sync_directory

FORMAT = 1
_LOCK_SECONDS = 2.0
_PAUSE = 0.005
_ASIDE = 1000


class WitnessUnreadable(UnrewindError):
    """The witness's file is there and cannot be read, or was there and is gone."""


class Witness(Struct, frozen=True):
    """Where the journal stood at a time.

    ``journal`` is the journal's ID, ``epoch`` the control sequence of its last new beginning (0:
    none), ``position`` its size in entries, ``digest`` that of the entry there, ``control`` its
    last control sequence; ``sequence``, ``history`` and ``head`` say where its decisions end.
    """

    format: int
    tenant: str
    instance: str
    journal: str
    epoch: int
    position: int
    digest: str
    control: int
    sequence: int
    history: str
    generation: int
    head: str
    at: str

    def ended(self, control: Control) -> bool:
        """Whether the journal had a new beginning since, so that this one says nothing of it."""
        return self.epoch < control.rebased or self.digest == control.replaced

    def is_of(self, control: Control) -> bool:
        """Whether it remembers this journal, and not another one."""
        return (self.journal, self.tenant) == (control.journal, control.tenant)


class Step(Struct, frozen=True):
    """The witness as it was read, and the one that may take its place."""

    old: Witness | None
    new: Witness


def witness_of(control: Control, look: Look, digest: str, now: str) -> Witness:
    """What is to be remembered of a journal that stands at ``look``, ending in ``digest``."""
    last = look.last
    return Witness(
        format=FORMAT,
        tenant=control.tenant,
        instance=control.instance,
        journal=control.journal,
        epoch=control.rebased,
        position=look.position,
        digest=digest,
        control=look.control,
        sequence=0 if last is None else last.sequence,
        history=control.authority.history if last is None else last.history,
        generation=control.authority.generation,
        head=GENESIS if last is None else last.digest,
        at=now,
    )


class WitnessFile:
    """The witness of one tenant, on disk.

    ``fault`` says why it could not be read last, ``failed`` why it could not be written; None when
    it could. It only ever moves forward, and never from a place that the journal in hand
    contradicts. ``note`` stands since a first witness was written: without it, one that is gone
    would look like one that never was. One that is damaged or gone is replaced by ``renew`` alone.
    """

    def __init__(self, path: Path, note: Path | None = None) -> None:
        self.path = path
        self.note = note
        self.fault: str | None = None
        self.failed: str | None = None
        self._written: tuple[int, str] | None = None

    def exists(self) -> bool:
        """Whether anything stands under its path; also when that cannot be looked at."""
        try:
            return self.path.exists()
        except OSError:
            return True

    def read(self) -> Witness | None:
        """The witness; None when there is none that can be read."""
        try:
            found = self._read()
        except WitnessUnreadable as error:
            self.fault = error.detail
            return None
        self.fault = None
        return found

    def _read(self) -> Witness | None:
        try:
            found = msgspec.json.decode(self.path.read_bytes(), type=Witness)
        except FileNotFoundError:
            if self.note is None or not self.note.exists():
                return None
            raise WitnessUnreadable(
                f"{self.path} is gone, and there was one: bring it back (is its disk mounted?), or "
                "begin anew with `unrewind witness renew`",
                renewable=True,
            ) from None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise WitnessUnreadable(
                f"{self.path} is damaged ({error}): bring a whole one back, or begin anew with "
                "`unrewind witness renew`",
                renewable=True,
            ) from error
        except OSError as error:
            raise WitnessUnreadable(f"{self.path} cannot be read: {error.strerror}") from error
        if found.format > FORMAT:
            raise WitnessUnreadable(
                f"{self.path} has format {found.format}, this version reads {FORMAT}"
            )
        return found

    async def stands_at(self, log: Log, look: Look) -> bool:
        """Whether this process left it where the journal stands, at the entry that it has there."""
        if self._written is None or self._written[0] != look.position:
            return False
        row = await log.at(look.position)
        return row is not None and row.digest == self._written[1]

    async def step(self, log: Log, control: Control, look: Look, now: str) -> Step | None:
        """The next step forward; None when there is none, or the journal contradicts the last one.

        Raises WitnessUnreadable for one that cannot be read, or was there and is gone.
        """
        row = await log.at(look.position)
        if row is None:
            return None
        old = self._read()
        new = witness_of(control, look, row.digest, now)
        if old is None or (old.is_of(control) and old.ended(control)):
            return Step(old, new)
        if not old.is_of(control) or (old.epoch, old.position) > (new.epoch, new.position):
            return None
        at = await log.at(old.position)
        if at is None or at.digest != old.digest:
            return None
        if old.position == new.position:
            self._wrote(new)
            return None
        return Step(old, new)

    def take(self, step: Step) -> None:
        """Write a step, unless somebody else wrote since it was made. Raises OSError."""
        with self._locked():
            try:
                if self._read() != step.old:
                    return
            except WitnessUnreadable as error:
                raise OSError(error.detail) from error
            self._write(step.new)
        self._wrote(step.new)

    def renew(self, witness: Witness) -> Path | None:
        """Begin anew where it is damaged or gone; where the damaged one was moved (None: gone).

        Raises WitnessUnreadable where it stands for another reason, or can be read, and OSError.
        """
        aside = None
        with self._locked():
            try:
                found = self._read()
            except WitnessUnreadable as error:
                if not error.members.get("renewable"):
                    raise
                aside = self._move_damaged()
            else:
                if found is not None:
                    raise WitnessUnreadable(
                        f"{self.path} is whole: there is nothing to renew. If it is the wrong one, "
                        "move it away first"
                    )
            self._write(witness)
        self.fault = None
        self._wrote(witness)
        return aside

    def forget(self) -> None:
        """A new tenant is founded: whatever witness there was is none of its own."""
        if self.note is not None:
            self.note.unlink(missing_ok=True)

    def _move_damaged(self) -> Path | None:
        for number in range(1, _ASIDE):
            aside = self.path.with_name(f"{self.path.name}.damaged-{number}")
            if not aside.exists():
                with contextlib.suppress(FileNotFoundError):
                    return self.path.rename(aside)
                return None
        raise OSError(f"{self.path.parent} is full of damaged witnesses: move them away")

    def _wrote(self, witness: Witness) -> None:
        self._written = (witness.position, witness.digest)
        self.failed = None

    def _write(self, witness: Witness) -> None:
        aside = self.path.with_name(f"{self.path.name}.new")
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            os.write(handle, msgspec.json.format(msgspec.json.encode(witness)))
            os.fsync(handle)
        finally:
            os.close(handle)
        aside.replace(self.path)
        sync_directory(self.path.parent)
        if self.note is not None and not self.note.exists():
            self.note.touch()
            sync_directory(self.note.parent)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, of all processes; a hung one keeps nobody for long."""
        make_directory(self.path.parent)
        lock = self.path.with_suffix(".lock")
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + _LOCK_SECONDS
        try:
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_PAUSE)
            yield
        finally:
            os.close(handle)
