"""What a caller is told, and what must not be taken for success."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NoReturn

from msgspec import Struct


class Outcome(StrEnum):
    """What became of an operation."""

    ACCEPTED = "accepted"
    """It is a decision now, and releases or commands follow from it."""
    DUPLICATE = "duplicate"
    """Its ID had made this very decision before; ``receipt`` is the first answer again."""
    IGNORED = "ignored"
    """It is a decision now, recorded like any other, and there is nothing to do for it."""
    ABANDONED = "abandoned"
    """Whether there is a decision could not be established. It MUST NOT be taken for success."""


class _Told(Struct, frozen=True, kw_only=True):
    """An answer without a truth value: `if result:` would take *abandoned* for success."""

    def __bool__(self) -> NoReturn:
        raise TypeError("a result is neither true nor false: ask for the outcome")


class Result(_Told, frozen=True, kw_only=True):
    """What became of an operation.

    ``receipt`` is the server's full answer, None when it was abandoned. ``attempts`` counts the
    requests made; ``unanswered`` those among them that may have arrived and whose fate no answer
    told. After one of them *duplicate* most likely means our own first attempt, but another caller
    that used the ID for the same decision looks alike.
    """

    outcome: Outcome
    operation: str
    receipt: Mapping[str, Any] | None = None
    reason: str = ""
    attempts: int = 1
    unanswered: int = 0

    @property
    def recorded(self) -> bool:
        """Whether the decision stands: true for all outcomes but *abandoned*."""
        return self.receipt is not None

    def require(self) -> Mapping[str, Any]:
        """The receipt. Raises Abandoned."""
        if self.receipt is None:
            raise Abandoned(self)
        return self.receipt


class Kept(StrEnum):
    """How a report on a permit was kept."""

    DECIDED = "decided"
    """As a decision of the entity."""
    NOTED = "noted"
    """In its lane: it says only what is done next, such as another attempt."""
    OBSERVED = "observed"
    """As evidence: it can be no decision now. A receipt that was observed counts as known."""
    ABANDONED = "abandoned"
    """Whether it was kept could not be established."""


class Reception(_Told, frozen=True, kw_only=True):
    """How a report on a permit was kept.

    ``said`` is the outcome reported, ``status`` where the work stands now, and ``receipt`` the
    decision, where there is one.
    """

    release: str
    said: str
    kept: Kept
    status: str | None = None
    receipt: Mapping[str, Any] | None = None
    reason: str = ""
    attempts: int = 1

    @property
    def stored(self) -> bool:
        """Whether the report is kept in any way."""
        return self.kept is not Kept.ABANDONED


class ClientError(Exception):
    """Something that the caller has to know, and that no result tells."""


class Refused(ClientError):
    """The request was judged and refused; it stored nothing.

    ``name`` is the last part of the problem's ``type``, ``members`` are its extension members.
    ``unanswered`` counts earlier attempts of the same call whose fate no answer told: one that is
    still on its way may yet be judged anew, so look the operation up before its opposite is done.
    """

    def __init__(
        self, problem: Mapping[str, Any], operation: str | None, attempts: int, unanswered: int
    ) -> None:
        known = {"type", "title", "status", "detail", "instance", "repeat"}
        self.type = str(problem["type"])
        self.name = self.type.rpartition("/")[2]
        self.title = str(problem.get("title", ""))
        self.status = problem.get("status")
        self.detail = str(problem.get("detail", ""))
        self.members = {name: fact for name, fact in problem.items() if name not in known}
        self.operation = operation
        self.attempts = attempts
        self.unanswered = unanswered
        about = "" if operation is None else f" (operation {operation})"
        super().__init__(f"{self.name}: {self.detail or self.title}{about}")


class Abandoned(ClientError):
    """No usable answer came, in as many attempts and as much time as were allowed."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.operation = result.operation
        self.reason = result.reason
        about = f"operation {result.operation}" if result.operation else "the question"
        super().__init__(f"{about} was abandoned after {result.attempts} attempts: {result.reason}")


class ClaimLost(ClientError):
    """The claim of a permit no longer holds: begin nothing more on the strength of it."""

    def __init__(self, release: str, reason: str) -> None:
        self.release = release
        self.reason = reason
        super().__init__(f"the claim of {release} no longer holds: {reason}")


class NotReported(ClientError):
    """The block of a permit was left without a report; *unknown* was reported instead."""

    def __init__(self, release: str, reception: Reception | None) -> None:
        self.release = release
        self.reception = reception
        kept = reception is not None and reception.stored
        super().__init__(
            f"{release}: say what became of it before the block ends, with confirm, refuse, fail "
            f"or unknown; as nothing was said, unknown was, and {'is' if kept else 'is not'} stored"
        )
