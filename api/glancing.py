"""A glance: how a tenant stands, from its files alone, without opening it for work.

For the many tenants that a service has and does not hold open: a glance starts no thread, takes no
lock, writes nothing, and costs as much however long the journal is.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import Struct

from api.opening import check_known
from journal.control import Control, ControlUnreadable, Stage, Token
from journal.errors import EngineError, FileChanged, JournalUnavailable
from journal.record import Record
from journal.settings import Settings
from journal.store import work as works
from journal.tokens import authenticate
from journal.worker import drive

T = TypeVar("T")


class Glance(Struct, frozen=True):
    """How a tenant stands.

    ``known`` says that its store's file is the one that a clean stop left, so that no head has to
    be compared; ``due`` that something is to be done now that no worker has to ask for; ``stopped``
    that its stop file stands.
    """

    stage: str
    verdict: str
    detail: str
    stopped: bool
    known: bool
    due: bool
    sound: bool

    @property
    def needs_opening(self) -> bool:
        """Whether the tenant has to be opened now, though nobody calls it."""
        if self.stopped or not self.sound:
            return not self.stopped
        return self.due or not self.known


def glance(settings: Settings) -> Glance:
    """How the tenant stands now. Raises Refused when there is none, or what opening it raises."""
    return _with_record(settings, _glance)


def token_of(settings: Settings, presented: str) -> Token | None:
    """The token that was presented, as the tenant's journal has it now.

    Raises ControlUnreadable or JournalUnavailable when nobody can be told from anybody (P9).
    """
    return _with_record(settings, _token_of, presented)


def _with_record(
    settings: Settings, function: Callable[..., Coroutine[Any, Any, T]], *args: Any
) -> T:
    check_known(settings)
    record = Record(settings, read_only=True)
    try:
        drive(record.open())
        try:
            return drive(function(record, *args))
        except FileChanged:
            drive(record.open_files())
            return drive(function(record, *args))
    except FileChanged as error:
        raise JournalUnavailable(f"the tenant's files are being replaced: {error}") from error
    finally:
        drive(record.close())


async def _token_of(record: Record, presented: str) -> Token | None:
    return authenticate(await record.read_control(), presented)


async def _glance(record: Record) -> Glance:
    finding, _ = await record.examine(witness=True)
    control = await _control(record)
    stopped = record.stop.stands()
    stage = Stage.CLOSED if control is None else control.authority.stage
    detail = finding.detail
    if stopped or not finding.verdict.sound:
        stage = Stage.CLOSED
    if stopped:
        detail = str(record.stop.facts().get("reason") or detail)
    elif stage is Stage.CLOSED and finding.verdict.sound and control is not None:
        detail = control.reason or detail
    return Glance(
        stage=str(stage),
        verdict=str(finding.verdict),
        detail=detail,
        stopped=stopped,
        known=record.stopped_clean(),
        due=await _is_due(record) if stage.decides else False,
        sound=finding.verdict.sound,
    )


async def _control(record: Record) -> Control | None:
    try:
        return await record.current_control(await record.look())
    except (ControlUnreadable, JournalUnavailable):
        return None


async def _is_due(record: Record) -> bool:
    """Whether the store has something to do; one that cannot say so has to be opened to find out.

    With ``dispatch = false`` another process carries out what is due.
    """
    settings = record.settings
    if record.store is None:
        return True
    lanes = [name for name, lane in settings.lanes.items() if not lane.pulled]
    try:
        rows = await record.store.read([works.read_due(lanes if settings.dispatch else [])])
    except EngineError:
        return True
    return bool(rows[0][0][0])
