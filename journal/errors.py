"""Every error of the project, once, grouped by when it happens.

An error's default message is its docstring. ``members`` are facts for the reader of a problem
document (RFC 9457, section 3.2); ``api.problems`` maps these classes to HTTP in one table and
``api.cli`` maps them to exit codes.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_BREAK = re.compile(r"\s*[\n\r\x0b\x0c\x85\u2028\u2029]\s*")


def _in_one_line(text: str) -> str:
    """A message that quotes what somebody sent, or what a library said, as one line to read."""
    if not _CONTROL.search(text):
        return text
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], _BREAK.sub(" ", text).strip())


class UnrewindError(Exception):
    """Something went wrong. Its message is one line, whatever it quotes."""

    def __init__(self, detail: str | None = None, **members: Any) -> None:
        told = detail or inspect.cleandoc(type(self).__doc__ or "").partition("\n\n")[0]
        self.detail = _in_one_line(told)
        self.members = members
        super().__init__(self.detail)


# At the door: the request itself.


class Invalid(UnrewindError):
    """The input is not what this call takes."""


class Unauthenticated(UnrewindError):
    """A valid bearer token is needed: `Authorization: Bearer unr_…`."""


class Forbidden(UnrewindError):
    """This token's role does not allow the call."""


class NotFound(UnrewindError):
    """There is nothing under this name."""


class Overloaded(UnrewindError):
    """Too much is waiting. Repeat later, with the same operation ID."""


# Judging an operation.


class Refusal(UnrewindError):
    """The operation was judged and refused; nothing was stored, and the refusal is forgotten."""


class RevisionMismatch(Refusal):
    """The entity is not at the expected revision."""


class TransitionRefused(Refusal):
    """The lifecycle does not allow this action in the entity's state."""


class HistoryIncomplete(Refusal):
    """The entity's history is incomplete; nothing about it is decided until it is whole."""


class OperationReused(Refusal):
    """The operation ID belongs to a different decision. Use a new ID for a new intention."""


class LeaseLost(Refusal):
    """The claim is not the newest one of this work any more; its report is kept as evidence."""


# Where the decision belongs.


class StaleGeneration(UnrewindError):
    """The work belongs to a generation or history that a recovery has ended."""


class Forked(UnrewindError):
    """Another decision already stands at this place of the history."""


class HistoryChanged(UnrewindError):
    """The cursor's history was ended by a recovery. Continue from the cursor in `resume`."""


class Recovering(UnrewindError):
    """The tenant is closed: store and journal do not agree, or an operator stopped it."""


class Held(UnrewindError):
    """An operator stopped this type or action. Repeat later, with the same operation ID."""


class JournalUnavailable(UnrewindError):
    """The journal cannot be written or read now. Repeat later, with the same operation ID."""


class NewerFormat(JournalUnavailable):
    """The data needs newer code than this. Nothing was changed; install the newer version."""


class WriterStopped(JournalUnavailable):
    """An I/O error on a commit stopped this process's writer. Restart it; keep the operation ID."""


# A decision in the application's own transaction.


class NotCommitted(NotFound):
    """No transaction with this decision was committed. Run it again, with the same operation ID."""


class OutcomeUnknown(JournalUnavailable):
    """Nobody can tell yet whether the transaction was committed. Ask again, with the same ID."""


# Engines: what a port reports.


class EngineError(UnrewindError):
    """A store or journal engine failed."""


class Unreachable(EngineError):
    """The database could not be opened or is busy."""


class DiskFailed(EngineError):
    """The disk refused a write or a sync; what was committed is unknown until a restart."""


class Damaged(EngineError):
    """The database file is not a readable database any more."""


class FileChanged(EngineError):
    """The database file under this path is not the one that was opened."""


class FenceFailed(EngineError):
    """The store's marker was not where this batch expected it."""


class ConstraintFailed(EngineError):
    """A constraint of the store refused a statement; the batch left nothing behind.

    The member ``projection`` is true when the application's projection itself failed.
    """


class LockHeld(UnrewindError):
    """Another process holds the tenant's lock."""


# Set-up and operation by hand.


class SettingsInvalid(UnrewindError):
    """The settings do not make sense."""


class Refused(UnrewindError):
    """The command was refused because it could do harm here; nothing was changed."""
