"""The newest of several primaries: after a promotion the old one may live, and answer some.

A store behind its journal is a rewound one, unless it is an old primary's that a promotion left
behind. That is told by asking, when it matters, every place that the URL names: a primary of the
same system on a later timeline has taken this one's place. It is then the store that is looked at,
and judged as any other; a timeline alone never says that a store is sound, or that it is not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from journal.errors import Unreachable

LOGGER = logging.getLogger("unrewind")
Given = dict[str, Any]
_LISTS = ("host", "hostaddr", "port")
_ASK = """
SELECT (SELECT system_identifier FROM pg_control_system()), pg_is_in_recovery(),
  CASE WHEN pg_is_in_recovery() THEN 0
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint END
"""


class Chosen(Struct, frozen=True):
    """The place among those of a URL that is asked first, and the timeline that was found there."""

    place: int
    timeline: int


_chosen: dict[str, Chosen] = {}
"""By URL, as this process found it; at first a URL's own order holds."""


def towards(conninfo: str) -> str:
    """The same connection, with the chosen place before the others."""
    if not _chosen:
        return conninfo
    given = conninfo_to_dict(conninfo)
    found = _chosen.get(_key(given))
    if found is None:
        return conninfo
    return make_conninfo(conninfo, **_moved_first(given, found.place))


def chosen(conninfo: str) -> Chosen | None:
    """What was chosen among the places of this URL; None: nothing."""
    return _chosen.get(_key(conninfo_to_dict(conninfo))) if _chosen else None


def is_left_behind(conninfo: str, label: str, system: int, timeline: int) -> bool:
    """Whether another primary has taken the place of this one; it is led to from now on.

    ``system`` and ``timeline`` are this one's. Raises Unreachable where one that was chosen before
    does not answer now: it may be the newer one still.
    """
    given = conninfo_to_dict(conninfo)
    before = _chosen.get(_key(given))
    found: Chosen | None = None
    for place, alone in _places(given):
        asked = _ask(alone)
        if asked is None:
            if before is not None and before.place == place and before.timeline > timeline:
                raise Unreachable(
                    f"{label}: this server was left behind by a promotion, and the newer one at "
                    f"{alone.get('host') or alone.get('hostaddr')}:{alone.get('port') or 5432} "
                    "does not answer"
                )
        elif asked[0] == system and asked[1] > max(timeline, found.timeline if found else 0):
            found = Chosen(place, asked[1])
    if found is None or not system:
        return False
    LOGGER.warning(
        "%s: timeline %s was left behind by a promotion; the store is on timeline %s",
        label, timeline, found.timeline,
    )  # fmt: skip
    _chosen[_key(given)] = found
    return True


def _ask(alone: Given) -> tuple[int, int] | None:
    """A primary's system and timeline; None for a standby, or what does not answer."""
    try:
        with psycopg.connect(make_conninfo("", **alone), autocommit=True) as connection:
            row = connection.execute(_ASK).fetchone()
    except (psycopg.Error, OSError):
        return None
    return None if row is None or row[1] else (row[0], row[2])


def _key(given: Given) -> str:
    return " ".join(str(given.get(name)) for name in (*_LISTS, "dbname"))


def _places(given: Given) -> Iterator[tuple[int, Given]]:
    """Each place of a URL, as a connection of its own to whatever is there."""
    count = _count(given)
    rest = {name: value for name, value in given.items() if name not in _LISTS}
    rest["target_session_attrs"] = "any"
    lists = {name: _split(given[name], count) for name in _LISTS if given.get(name)}
    for place in range(count):
        yield place, {**rest, **{name: values[place] for name, values in lists.items()}}


def _moved_first(given: Given, place: int) -> Given:
    count = _count(given)
    order = [place, *(other for other in range(count) if other != place)]
    lists = {name: _split(given[name], count) for name in _LISTS if given.get(name)}
    return {name: ",".join(values[at] for at in order) for name, values in lists.items()}


def _count(given: Given) -> int:
    return max(len(str(given[name]).split(",")) if given.get(name) else 1 for name in _LISTS)


def _split(value: str, count: int) -> list[str]:
    """One value of a list for each place; a port given once is that of all."""
    values = str(value).split(",")
    return values * count if len(values) == 1 else values
