"""Founding: the first entry of a journal, the first row of a store, each whole or not at all.

On a server two processes may found a tenant at once: the second finds what the first has made.
"""

from __future__ import annotations

import contextlib

from journal import control as controls
from journal import decrees
from journal.acceptance import beginning
from journal.clock import Clock
from journal.control import Control
from journal.entry import GENESIS
from journal.errors import ConstraintFailed, Refused, Unreachable
from journal.log import CONTROL, Append, Look, Moved
from journal.places import LogPlace, StorePlace
from journal.settings import Settings
from journal.store import tables
from journal.store.tables import Marker
from journal.witness import WitnessFile


def check_may_found(settings: Settings, witness: WitnessFile, *, create: bool) -> None:
    """A tenant is founded once: two disks that are not mounted are no first start.

    Raises Refused.
    """
    founded = settings.beside("founded")
    if not create:
        raise Refused(
            f"there is no tenant {settings.tenant} under {settings.data}; "
            "`unrewind serve` or `unrewind import` founds one"
        )
    if witness.exists():
        raise Refused(
            f"the witness {settings.witness_file} remembers a journal of tenant "
            f"{settings.tenant}, and store and journal are both missing: bring them back (are "
            "their disks mounted?). To found a new tenant in their place, move the witness "
            f"and {founded} away"
        )
    if founded.exists():
        raise Refused(
            f"tenant {settings.tenant} was founded here, and its store and its journal are "
            "both missing: bring them back (are their disks mounted?). To found a new tenant "
            f"in their place, remove {founded}"
        )


def is_missing(*places: LogPlace | StorePlace) -> bool:
    """Whether there is neither store nor journal, not even one that nobody can read."""
    try:
        for place in places:
            if place.exists() if place.file is None else place.file.exists():
                return False
    except Unreachable:
        return False
    return True


async def found_journal(place: LogPlace, settings: Settings, clock: Clock) -> None:
    """A new journal that holds its founding."""
    entry = decrees.founding(
        settings.tenant,
        settings.instance,
        clock.fresh(),
        clock.fresh(),
        f"control-{clock.fresh()}",
        clock.now(),
    )
    append = Append(
        entries=[(CONTROL, entry)], becomes=controls.fold([entry], settings.tenant).authority
    )
    with contextlib.suppress(Moved), place.created() as log:
        await log.append(append, Look(0, None, None, 0, flawed=False))


def found_store(place: StorePlace, control: Control) -> None:
    """A new, empty store that stands at the beginning of the tenant's first history."""
    marker = first_marker(control)
    with contextlib.suppress(ConstraintFailed), place.created() as store:
        store.database.batch([tables.found(marker)])


def first_marker(control: Control) -> Marker:
    """Where a store of this journal begins."""
    first = control.histories[0]
    start = beginning(first.history, first.generation, first.first, GENESIS)
    return Marker(tables.FORMAT, control.tenant, control.instance, start, journalled=0)
