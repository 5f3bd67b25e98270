"""Migrating: from data of an earlier format to this one, in two steps that can be parted by days.

*Expand* is what opening does by itself: tables are added, and an earlier release may go on beside
this one. *Contract* says that no earlier release is to work on the data any more.
"""

from __future__ import annotations

from msgspec import Struct

from journal import decrees, formats
from journal.control import Authority, Control
from journal.detection import Verdict
from journal.entry import Entry
from journal.errors import NewerFormat, Recovering, Refused, UnrewindError
from journal.lifecycle import Kind
from journal.locks import Presence
from journal.record import Record
from journal.settings import Settings
from journal.sql import Result, Statement
from journal.standing import LOGGER, append_control, examine
from journal.work import Status
from journal.writepath import make_ready

_STATUSES = frozenset(Status)
_READ_STATUSES = Statement("SELECT DISTINCT status FROM unrewind_counts WHERE items > 0")
_READ_STATES = Statement(
    "SELECT substr(entity, 1, instr(entity, '/') - 1) AS kind, state, count(*)"
    " FROM unrewind_entities GROUP BY kind, state ORDER BY kind, state"
)


class Strange(Struct, frozen=True):
    """Entities in a state that the declared lifecycle of their type does not lead to."""

    type: str
    state: str
    entities: int
    why: str


class Format(Struct, frozen=True):
    """How a tenant's data stands towards this code.

    ``format`` is this code's, ``needs`` the oldest whose code may work on the data. ``states`` and
    ``statuses`` are what this code does not know; it does nothing on their strength.
    """

    format: int
    needs: int
    states: tuple[Strange, ...]
    statuses: tuple[str, ...]

    @property
    def contracted(self) -> bool:
        """Whether no earlier release may work on the data any more."""
        return self.needs == self.format

    @property
    def strange(self) -> bool:
        """Whether the data holds what this code does not know."""
        return bool(self.states or self.statuses)


async def read_format(record: Record) -> Format:
    """How the data stands. Raises NewerFormat, Recovering, ControlUnreadable."""
    control = await record.current_control(await record.look())
    if record.store is None:
        raise Recovering("the store is missing or unreadable")
    statuses, states = await record.store.read([_READ_STATUSES, _READ_STATES])
    return Format(
        formats.FORMAT,
        control.needs,
        tuple(_strange(record, states)),
        tuple(sorted(status for (status,) in statuses if status not in _STATUSES)),
    )


def _strange(record: Record, rows: Result) -> list[Strange]:
    found: list[Strange] = []
    for kind, state, count in rows:
        lifecycle = record.lifecycles.get(kind)
        if lifecycle is None:
            found.append(Strange(kind, state, count, "the type is not declared"))
        elif lifecycle.kind is Kind.DECLARED and not lifecycle.knows(state):
            earlier = state in lifecycle.earlier
            why = "a state of an earlier version" if earlier else "no action leads to it"
            found.append(Strange(kind, state, count, why))
    return found


async def contract(record: Record, principal: str | None = None) -> Format:
    """Keep every earlier release from the data, for good; how it stands then. Again, it is so.

    Raises Refused where the data holds what this code does not know, or store and journal do not
    agree; and what decisions raise.
    """
    with record.lock.held():
        finding, _ = await examine(record)
        if finding.verdict in {Verdict.JOURNAL_REWOUND, Verdict.CLOSED}:
            raise Refused(f"nothing is written to this journal: {finding.detail}")
        await make_ready(record)
        found = await read_format(record)
        if found.contracted:
            return found
        if found.statuses:
            raise Refused(
                f"the data holds work of status {', '.join(found.statuses)}, which this version "
                "does not know: install the newer version that wrote it"
            )

        def build(control: Control) -> tuple[Entry, Authority]:
            entry = decrees.format_entry(
                control,
                formats.FORMAT,
                "contracted by an operator",
                f"control-{record.clock.fresh()}",
                record.clock.now(),
                principal,
            )
            return entry, control.authority

        await append_control(record, build)
        # The store refuses earlier releases from here on.
        await make_ready(record)
        return await read_format(record)


async def check_format(record: Record) -> None:
    """Refuse a tenant that only newer code understands, before anything is read out of it.

    Raises NewerFormat. What else is wrong is for detection to say.
    """
    try:
        if record.log is not None:
            await record.read_control()
    except NewerFormat:
        raise
    except (UnrewindError, OSError) as error:
        LOGGER.debug("control cannot be read: %s", error)
    finally:
        record.control = None


def check_alone(settings: Settings) -> None:
    """Refuse while a process has the tenant open: it may be of an earlier release."""
    try:
        Presence(settings.beside("presence"), exclusive=True).close()
    except Refused:
        raise Refused(
            "a process has the tenant open, and it may be of an earlier release: stop every one, "
            "contract, then start those of this release"
        ) from None
