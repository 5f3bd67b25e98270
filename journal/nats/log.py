"""The journal in a JetStream stream: an append is one message, and a local copy answers.

``look`` asks the stream's leader for its last sequence and reads the copy up to it. ``append``
publishes with the sequence that it has to follow, and returns once the servers have acknowledged it
and the copy has taken it at exactly that position. Every call blocks, within its timeout.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from journal.entry import Envelope
from journal.errors import (
    ConstraintFailed,
    Damaged,
    EngineError,
    FileChanged,
    SettingsInvalid,
    Unreachable,
)
from journal.log import Append, Look, Moved
from journal.log.engine import SqlLog
from journal.log.writing import statements_of
from journal.nats import promises
from journal.nats.address import address_of
from journal.nats.copy import REFUSED, Copy, Fed, Own, Written, put_aside
from journal.nats.message import continues, cut, encode, link_of
from journal.nats.stream import Info, Stream
from journal.nats.wire import Wire
from journal.sql import Database, Statement

LOGGER = logging.getLogger("unrewind")
Progress = Callable[[int, int], None]

OLDEST = (2, 11)
"""The first nats-server that gives many messages at once."""
PATIENCE = 3.0
"""Seconds for which a stream has to keep saying that it holds less before it is believed."""
LARGEST_MESSAGE = 4 * 1024 * 1024
_TELL_EVERY = 10.0
_PAUSE = 0.2
_ATTEMPTS = 5
_MOMENT = 0.05
"""Seconds for which the copy's lock is held while the servers take an append."""
_CLASH = """
WITH new (operation, entity, revision, stream, sequence, history) AS MATERIALIZED (
  SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
  FROM json_each(?)
)
SELECT 'operation ' || e.operation FROM new CROSS JOIN entries e ON e.operation = new.operation
UNION ALL SELECT 'revision ' || e.revision || ' of ' || e.entity
  FROM new CROSS JOIN entries e ON e.entity = new.entity AND e.revision = new.revision
  AND lower(hex(e.history)) = new.history
UNION ALL SELECT 'sequence ' || e.sequence || ' of ' || e.stream
  FROM new CROSS JOIN entries e ON e.stream = new.stream AND e.sequence = new.sequence
  AND e.sequence IS NOT NULL AND lower(hex(e.history)) = new.history
LIMIT 1
"""


class NatsLog(SqlLog):
    """One tenant's stream, with its copy.

    ``create`` makes the stream where there is none. ``accept`` names weaker promises that are put
    up with; ``weaker`` says which they are. Opening reads the copy up to the stream: ``progress``
    is told (messages read, messages there) while that takes long. Raises Unreachable while the
    servers do not answer or there is no stream, SettingsInvalid for a stream that is no journal,
    Damaged when the stream has lost messages.
    """

    def __init__(
        self,
        url: str,
        tenant: str,
        copy: Path,
        *,
        create: bool = False,
        read_only: bool = False,
        accept: Sequence[str] = (),
        replicas: int = 3,
        progress: Progress | None = None,
    ) -> None:
        self._path = copy
        self._read_only = read_only
        self._accept = accept
        self._replicas = replicas
        self._progress = progress
        self._wire = Wire.to(address_of(url))
        self._stream = Stream(self._wire, tenant)
        self._copy: Copy | None = None
        self._epoch = 0
        self._moment = (0, "")
        self._careful = False
        self._asked: Future[bytes] | None = None
        try:
            info = self._found_or_make(create=create and not read_only)
            self.weaker = self._check(info)
            self._kept = info
            super().__init__(self._open(info))
        except BaseException:
            self._close()
            raise

    @classmethod
    def exists(cls, url: str, tenant: str) -> bool:
        """Whether there is a stream that holds something. Raises Unreachable, SettingsInvalid."""
        wire = Wire.to(address_of(url))
        try:
            info = _settled(Stream(wire, tenant), lambda found: found is not None)
            return info is not None and info.last > 0
        finally:
            wire.close()

    def facts(self) -> dict[str, Any]:
        """See ``SqlLog.facts``."""
        return {
            "engine": "nats",
            "stream": self._stream.name,
            "created": self._kept.created,
            "servers": self._kept.servers(),
            "replicas": self._kept.config.num_replicas,
            "sync": "not proven" if promises.SYNC in self.weaker else "always",
            "copy": str(self._path),
        }

    # Opening.

    def _found_or_make(self, *, create: bool) -> Info:
        stream = self._stream
        if self._wire.version < OLDEST:
            raise SettingsInvalid(
                f"{self._wire.address.label}: a journal needs nats-server "
                f"{'.'.join(map(str, OLDEST))} or later"
            )
        info = stream.info()
        if info is None and create:
            self._make()
            deadline = time.monotonic() + PATIENCE
            while info is None:
                try:
                    info = stream.info()
                except Unreachable:  # it has no leader yet
                    if time.monotonic() > deadline:
                        raise
                time.sleep(0 if info else _PAUSE)
        if info is None:
            info = _settled(stream, lambda found: found is not None)
        if info is None:
            raise Unreachable(f"{stream.label}: there is no such stream")
        return info

    def _make(self) -> None:
        alone = promises.SINGLE in self._accept and not self._wire.clustered
        replicas = 1 if alone else self._replicas
        why = self._stream.create(promises.settings_of(replicas))
        if why is None:
            return
        if not self._wire.clustered and replicas > 1:
            raise SettingsInvalid(
                f"{self._stream.label}: one server alone keeps the journal once, not {replicas} "
                f'times; use a cluster, or accept that by name: accept = ["{promises.SINGLE}"]'
            )
        raise Unreachable(f"{self._stream.label}: it cannot be made: {why}")

    def _check(self, info: Info) -> dict[str, str]:
        """What the stream promises less and was accepted. Raises SettingsInvalid for the rest."""
        label = self._stream.label
        faults = promises.faults_of(info.config, self._stream.subject)
        if faults:
            raise SettingsInvalid(f"{label} is no journal: {'; '.join(faults)}")
        asked = [promises.server_at(monitor) for monitor in self._wire.address.monitors]
        weaker = promises.weaker_of(info, [told for told in asked if told], self._replicas)
        for word, why in weaker.items():
            if word not in self._accept:
                raise SettingsInvalid(
                    f'{label}: {why}; or accept the weaker promise by name: accept = ["{word}"]'
                )
        return weaker

    def _open(self, info: Info) -> Database:
        """The copy, fed; one that is of another stream, or of a later moment, is put aside."""
        for _ in range(_ATTEMPTS):
            copy = self._opened_copy()
            try:
                fault = self._fault_of(copy, info)
            except BaseException:
                copy.close()
                raise
            if fault is None:
                self._copy = copy
                self._epoch = self._wire.epoch
                self._read_up(info)
                copy.database.closing = self._close
                return copy.database
            self._put_aside(copy, *fault)
        raise Unreachable(f"the copy {self._path}: it keeps changing; try again")

    def _opened_copy(self) -> Copy:
        label = self._stream.label
        try:
            return Copy(self._path, label, read_only=self._read_only)
        except Damaged as error:
            LOGGER.warning("%s: %s; it is built again", label, error)
            put_aside(self._path, "damaged")
            return Copy(self._path, label, read_only=self._read_only)

    def _fault_of(self, copy: Copy, info: Info) -> tuple[str, str] | None:
        """Why a copy is not of this stream, as a word for its new name and as a sentence."""
        self._check_whole(info)
        fed = copy.fed()
        if fed is None:
            if not copy.is_new():
                return "outdated", "it was made by another version of unrewind"
            copy.begin(info.created)
            return None
        try:
            self._check_same(fed, info)
        except FileChanged as error:
            return "rewound", error.detail
        return None

    def _put_aside(self, copy: Copy, word: str, why: str) -> None:
        with copy.alone():
            try:
                copy.writer.check_identity()
            except FileChanged:
                copy.close()
                return  # somebody else has done it
            copy.close_file()
            aside = put_aside(self._path, word)
        copy.close()
        LOGGER.error("%s; the copy of what it held is kept as %s", why, aside)

    # Where the stream stands, against the copy.

    def _check_whole(self, info: Info) -> None:
        """Raises Damaged when messages have been taken out of the stream."""
        if _is_whole(info):
            return
        told = _settled(self._stream, lambda found: found is not None and _is_whole(found))
        if told is not None and not _is_whole(told):
            raise Damaged(
                f"{self._stream.label}: it holds {told.state.messages} messages of {told.last}, "
                f"from {told.state.first_seq}: somebody purged it, or it was damaged"
            )

    def _check_same(self, fed: Fed, info: Info) -> None:
        """Raises FileChanged when the stream is not the copy's, or is of an earlier moment."""
        label = self._stream.label
        if fed.created != info.created:
            raise FileChanged(
                f"{label}: it was made at {info.created}; the copy is of one made at {fed.created}"
            )
        if info.last < fed.sequence:
            told = _settled(self._stream, lambda found: found is None or found.last >= fed.sequence)
            if told is None:
                raise FileChanged(f"{label}: it is gone")
            if told.last < fed.sequence:
                raise FileChanged(
                    f"{label}: it ends at message {told.last}, and this machine has seen "
                    f"{fed.sequence}: it was rolled back"
                )
        self._check_last(fed)

    def _check_last(self, fed: Fed) -> None:
        """Raises FileChanged when the stream holds another message at the copy's last place."""
        if not fed.sequence:
            return
        payload = self._stream.message(fed.sequence)
        if payload is None or link_of(payload) != fed.link:
            raise FileChanged(
                f"{self._stream.label}: it holds another message {fed.sequence} than this machine "
                "has seen: it was rolled back and went on"
            )

    def _fed(self) -> Fed:
        fed = None if self._copy is None else self._copy.fed()
        if fed is None:
            raise FileChanged(f"{self._path}: it is no copy of the stream any more")
        return fed

    def _read_up(self, info: Info) -> None:
        """Put what is new into the copy, page by page."""
        copy, fed, last = self._copy, self._fed(), info.last
        if copy is None or fed.sequence >= last:
            return
        told = time.monotonic()
        with closing(self._stream.pages(fed.sequence, last)) as pages:
            for page in pages:
                if page[0][0] == fed.sequence + 1 and not continues(page[0][1], fed.link):
                    self._check_last(fed)
                copy.feed(info.created, page)
                if self._progress is not None:
                    self._progress(page[-1][0], last)
                if time.monotonic() > told + _TELL_EVERY:
                    told = time.monotonic()
                    LOGGER.info("%s: %d of %d read", self._stream.label, page[-1][0], last)

    # The port.

    def ask_ahead(self, ids: Sequence[str]) -> bool:  # noqa: ARG002 - the copy answers at once
        """See ``SqlLog.ask_ahead``: where the stream stands is what has to be waited for."""
        self._asked = self._stream.ask()
        return True

    def forget(self) -> None:
        """See ``SqlLog.forget``."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.cancel()

    async def look(self) -> Look:
        """See ``Log.look``: as the stream's leader has it now."""
        self.database.check_identity()
        asked, self._asked = self._asked, None
        info = self._stream.info(asked)
        if info is None:
            info = _settled(self._stream, lambda found: found is not None)
        if info is None:
            raise FileChanged(f"{self._stream.label}: it is gone")
        if info.config != self._kept.config:
            self._check_config(info)
        self._follow(info)
        return await super().look()

    def _check_config(self, info: Info) -> None:
        """Raises Unreachable while settings that were changed keep the stream from its promises."""
        faults = promises.faults_of(info.config, self._stream.subject)
        copies = info.config.num_replicas
        if copies < self._replicas and promises.SINGLE not in self._accept:
            faults.append(f"it is kept {copies} times, not {self._replicas} times")
        if faults:
            raise Unreachable(
                f"{self._stream.label} was changed and is no journal: {'; '.join(faults)}"
            )
        self._kept = info

    def _follow(self, info: Info) -> None:
        fed = self._fed()
        epoch = self._wire.epoch
        moment = (info.last, info.state.last_ts)
        doubtful = info.last < fed.sequence or fed.created != info.created or epoch != self._epoch
        if moment[0] == self._moment[0] and moment != self._moment:
            doubtful = True  # another message than the last one that was seen there
        if doubtful:
            self._check_same(fed, info)
        if not _is_whole(info):
            self._check_whole(info)
        self._read_up(info)
        self._epoch, self._moment = epoch, moment

    async def append(self, append: Append, expects: Look) -> None:
        """See ``Log.append``. Unreachable leaves the outcome unknown: the next look tells."""
        if self._read_only or self._copy is None:
            raise Unreachable(f"{self._stream.label}: it was opened for reading alone")
        self.database.check_identity()
        fed = self._fed()  # before the look: what came between makes the stream refuse
        found = await super().look()
        if found != expects:
            raise Moved(
                f"the journal stands at position {found.position}, "
                f"not {expects.position}, or its control has changed"
            )
        if self._careful:
            self._check_clash(append)
        data = encode(append, found.position)
        payloads = list(cut(data, fed.link, self._largest()))
        sent = self._stream.send(payloads, fed.sequence)
        written = Written(statements_of(append, found.position), len(append.entries))
        last = fed.sequence + len(payloads)
        messages, own = list(enumerate(payloads, fed.sequence + 1)), Own(last, written)

        def wait(seconds: float | None = None) -> None:
            self._stream.taken(sent, fed.sequence, seconds)
            if self._wire.epoch != self._epoch:
                self._check_last(fed)  # servers that were put back meanwhile may have taken it

        try:
            # The copy takes it while the servers do, and keeps it once they have.
            self._copy.feed(fed.created, messages, own, lambda: wait(_MOMENT))
        except Late:
            wait()  # without the copy's lock
            self._copy.feed(fed.created, messages, own)
        self._judged(last)

    def _judged(self, sequence: int) -> None:
        """Raises ConstraintFailed or EngineError when the copy found that our append is void.

        It stays in the stream, where it means nothing. So that it does not become many, an append
        is looked at before it is sent once one was refused.
        """
        reason = self._copy.void(sequence) if self._copy is not None else None
        self._careful = reason is not None
        if reason is None:
            return
        told = f"{self._stream.label}: message {sequence} means nothing: {reason}"
        raise ConstraintFailed(told) if reason.startswith(REFUSED) else EngineError(told)

    def _largest(self) -> int:
        """The largest message that the servers and the stream take, in bytes."""
        sizes = (self._wire.max_payload, self._kept.config.max_msg_size, LARGEST_MESSAGE)
        return min(size for size in sizes if size > 0)

    def _check_clash(self, append: Append) -> None:
        """Raises ConstraintFailed for an entry whose place is taken; the stream never sees it."""
        if not append.entries:
            return
        new = [(stream, entry.envelope) for stream, entry in append.entries]
        for places in _places(new):
            if len(set(places)) != len(places):
                raise ConstraintFailed("two entries of one append take the same place")
        rows = [
            (e.operation, e.entity, e.revision, stream, e.sequence, e.history) for stream, e in new
        ]
        taken = self.database.read([Statement(_CLASH, (msgspec.json.encode(rows).decode(),))])[0]
        if taken:
            raise ConstraintFailed(f"the journal already holds {taken[0][0]}")

    async def close(self) -> None:
        """See ``Log.close``."""
        self.database.close()

    def _close(self) -> None:
        copy, self._copy = self._copy, None
        try:
            if copy is not None:
                copy.close()
        finally:
            self._wire.close()


def _places(entries: Sequence[tuple[str, Envelope]]) -> list[list[tuple[Any, ...]]]:
    """The places that entries take, each kind by itself."""
    return [
        [(e.operation,) for _, e in entries],
        [(e.entity, e.revision, e.history) for _, e in entries],
        [(stream, e.sequence, e.history) for stream, e in entries if e.sequence is not None],
    ]


def _is_whole(info: Info) -> bool:
    """Whether a stream still holds every message from its first."""
    state = info.state
    return state.first_seq <= 1 and state.messages == state.last_seq


def _settled(stream: Stream, holds: Callable[[Info | None], bool]) -> Info | None:
    """Ask until the answer holds; in a cluster for a while, where a new leader may be behind."""
    deadline = time.monotonic() + (PATIENCE if stream.wire.clustered else 0.0)
    while True:
        info = stream.info()
        if holds(info) or time.monotonic() >= deadline:
            return info
        time.sleep(_PAUSE)
