"""Pages and the feed: the journal's entries in the order in which it took them.

A cursor is opaque and says where it stands; a feed's also says in which history, so that a consumer
learns of a recovery instead of missing it (R1).
"""

from __future__ import annotations

import base64
from typing import Any

import msgspec
from msgspec import Struct

from journal.control import TOKEN
from journal.entry import MAX_INTEGER
from journal.errors import HistoryChanged, Invalid
from journal.record import Record

MAX_PAGE = 1000
DEFAULT_PAGE = 100


class FeedItem(Struct, frozen=True):
    """An entry as the feed gives it: ``envelope`` is the stored text, ``body`` base64."""

    position: int
    digest: str
    envelope: str
    body: str


class Feed(Struct, frozen=True):
    """A page of the feed and the cursor that continues it."""

    entries: list[FeedItem]
    next: str


class Page(Struct, frozen=True):
    """A page of anything; ``next`` is null at the end."""

    items: list[Any]
    next: str | None


def clamp(limit: int | None) -> int:
    """A page size within bounds. Raises Invalid."""
    if limit is None:
        return DEFAULT_PAGE
    if not 1 <= limit <= MAX_PAGE:
        raise Invalid(f"limit must be from 1 to {MAX_PAGE}", field="limit")
    return limit


def encode_cursor(*parts: Any) -> str:
    """An opaque cursor."""
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).rstrip(b"=").decode()


def decode_cursor(text: str, shape: Any) -> Any:
    """The parts of a cursor. Raises Invalid when it is none of ours."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        parts: tuple[Any, ...] = msgspec.json.decode(raw, type=shape)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        parts = ()
    numbers = [part for part in parts if isinstance(part, int)]
    if not parts or any(not 0 <= number <= MAX_INTEGER for number in numbers):
        raise Invalid("this cursor was not given by unrewind", field="after")
    return parts


async def read_feed(record: Record, after: str | None, limit: int | None) -> Feed:
    """The journal's entries of every order above a cursor, tokens left out.

    Raises HistoryChanged for a cursor of a history that a recovery ended; `resume` continues where
    the cursor stood when the journal still holds that entry, else from the beginning.
    """
    size = clamp(limit)
    look = await record.look()
    authority = (await record.current_control(look)).authority
    position, digest = 0, ""
    if after is not None:
        history, position, digest = decode_cursor(after, tuple[str, int, str])
        stored = await record.journal().at(position) if position else None
        same = position == 0 or (stored is not None and stored.digest == digest)
        if history != authority.history or not same:
            raise HistoryChanged(
                f"history {history} has ended; {authority.history} is in force",
                history=authority.history,
                resume=encode_cursor(authority.history, position, digest) if same else None,
            )
    items: list[FeedItem] = []
    for row in await record.journal().feed(position, size):
        position, digest = row.position, row.digest
        if not row.entity.startswith(TOKEN):
            body = base64.b64encode(row.body).decode()
            items.append(FeedItem(row.position, row.digest, row.text.decode(), body))
    return Feed(items, encode_cursor(authority.history, position, digest))
