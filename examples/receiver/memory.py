"""What the receiver knows of each release: nothing but the sum of its record's lines."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from examples.receiver.record import Line, State


class Held(Struct, frozen=True):
    """What is held of one release ID. ``since`` is when its first call was taken."""

    state: State
    since: datetime
    body_sha256: str | None = None
    digest: str | None = None
    receipt: str | None = None
    status: int | None = None
    detail: str | None = None
    through: int = 0


class Count(Struct):
    """How often a release was called and executed, and the highest attempt that was seen."""

    attempts: int = 0
    executions: int = 0
    highest: int = 0


class Memory:
    """The state after the lines folded so far. ``window`` is how long an ID is held, in seconds.

    Counts are never forgotten: they are for whoever tests, the service has no use for them.
    """

    def __init__(self, window: float | None = None) -> None:
        self.window = None if window is None else timedelta(seconds=window)
        self.counts: dict[str, Count] = {}
        self.pending: dict[int, Line] = {}
        self._held: dict[str, Held] = {}

    def held(self, release: str, now: datetime) -> Held | None:
        """What is held of the release at this time."""
        self._forget(now)
        return self._held.get(release)

    def pending_calls(self, release: str) -> list[Line]:
        """The calls that were accepted and are not completed."""
        return [line for line in self.pending.values() if line.release == release]

    def highest_attempt(self, release: str) -> int:
        count = self.counts.get(release)
        return 0 if count is None else count.highest

    def fold(self, line: Line) -> None:
        if line.release is None or line.kind in {"lookup", "callback"}:
            return
        count = self.counts.setdefault(line.release, Count())
        count.executions += line.executed
        if line.kind == "call":
            count.attempts += 1
            count.highest = max(count.highest, line.attempt or 1)
        if line.outcome == "pending":
            self.pending[line.number] = line
        if line.of is not None:
            self.pending.pop(line.of, None)
        if line.state in {"void", "refused"}:
            for stopped in self.pending_calls(line.release):
                del self.pending[stopped.number]
        if line.outcome == "forgotten":
            self._held.pop(line.release, None)
        elif line.state is not None:
            self._held[line.release] = self._hold(line, line.state, self._held.get(line.release))

    def _hold(self, line: Line, state: State, before: Held | None) -> Held:
        return Held(
            state=state,
            since=line.at if before is None else before.since,
            body_sha256=line.body_sha256 or (before.body_sha256 if before else None),
            digest=digest_of(line.content) or (before.digest if before else None),
            receipt=receipt_of(line.number) if line.executed else None,
            status=line.answer,
            detail=line.detail,
            through=line.through or (before.through if before else 0),
        )

    def _forget(self, now: datetime) -> None:
        """Drop what is older than the window; the oldest is always first."""
        while self.window is not None and self._held:
            release, held = next(iter(self._held.items()))
            if now - held.since < self.window:
                return
            del self._held[release]


def digest_of(content: object) -> str | None:
    """The digest that a call's content names, if it names one."""
    digest = content.get("digest") if isinstance(content, dict) else None
    return digest if isinstance(digest, str) else None


def receipt_of(number: int) -> str:
    """The receipt for the execution told by the line of this number."""
    return f"receipt-{number}"
