"""Following a tenant that moved: a process that has it open opens it anew, where it is by now."""

from __future__ import annotations

import asyncio
import logging

from api.registering import registry_of, settings_of
from journal.errors import UnrewindError
from journal.places import place_of_log, place_of_store
from journal.registry import lasting
from journal.settings import Settings

LOGGER = logging.getLogger("unrewind")
EVERY = 1.0
"""Seconds from one look at the registry to the next: it is one call to the system."""


def now_at(settings: Settings) -> Settings | None:
    """The settings that lead to where the tenant is now; None: it has not moved from here.

    A place that settings name and the registry never had is left to whoever named it. Raises
    SettingsInvalid where the registry's file is damaged.
    """
    found = registry_of(settings).read(settings.tenant)
    if found is None:
        return None
    here = (lasting(settings.store), lasting(settings.journal))
    left = [(earlier.store, earlier.journal) for earlier in found.earlier]
    if here == (found.store, found.journal) or here not in left:
        return None
    return settings_of(settings, settings.tenant, found)


async def moved(settings: Settings) -> Settings:
    """Wait until the tenant has moved away from here; the settings that lead to where it is."""
    registry = registry_of(settings)
    seen, looked = registry.mark(settings.tenant), False
    while True:
        mark = registry.mark(settings.tenant)
        if mark != seen or not looked:
            seen, looked = mark, True
            there = _now_at(settings)
            if there is not None:
                LOGGER.warning(
                    "tenant %s has moved to %s and %s: it is opened there",
                    settings.tenant,
                    place_of_store(there).label,
                    place_of_log(there).label,
                )
                return there
        await asyncio.sleep(EVERY)


def _now_at(settings: Settings) -> Settings | None:
    try:
        return now_at(settings)
    except UnrewindError as error:
        LOGGER.warning("nobody can tell whether tenant %s moved: %s", settings.tenant, error.detail)
        return None
