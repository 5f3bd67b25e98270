"""Dead letters: what nobody will attempt again by itself, and what is done about it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Annotated, Any

from litestar import Request, get, post
from msgspec import Meta, Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import AFTER, LIMIT, OF_LANE, Call, described
from api.requests import form_of, journal_of, query, shape, work_id
from api.routes_releases import SENT, check_names, read_work
from journal import Journal
from journal.control import Role
from journal.entry import MAX_ACTION, MAX_STRING, check_entity, check_name
from journal.errors import Invalid
from journal.feed import MAX_PAGE
from journal.handling import MAX_HANDLED, Handled
from journal.inquiry import Filter, WorkView
from journal.lanes import Effect
from journal.work import Status

_AT_ONCE = 20
"""Dead letters between which decisions get their turn."""


class DeadLetters(Struct):
    """A page of dead letters and refused work, lane by lane; `next` is null at the end."""

    items: list[WorkView]
    next: str | None


class LettersRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Which dead letters, and why.

    By their `ids`; or up to `limit` of a `lane`, oldest first, of one `entity` and `kind` or all.
    """

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)]
    ids: Annotated[list[str], Meta(min_length=1, max_length=MAX_HANDLED)] | None = None
    lane: str | None = None
    entity: str | None = None
    kind: Annotated[str, Meta(min_length=1, max_length=MAX_ACTION)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_HANDLED)] | None = None


_LETTERS = shape(LettersRequest)
_EFFECTS = tuple(Effect)
_HANDLED = (*SENT, "not-found")

Act = Callable[[Sequence[str], str, str], Awaitable[Handled]]


@get(
    "/dead-letters",
    opt=described(
        Call(
            "Work whose budget is spent, and what a receiver refused.",
            Role.READER,
            {200: DeadLetters},
            ("not-found",),
            parameters=(OF_LANE, AFTER, LIMIT),
        )
    ),
)
async def list_letters(request: Request[Any, Any, Any]) -> Answer:
    """`GET dead-letters`."""
    return await read_work(request, _EFFECTS, dead=True)


@post(
    "/dead-letters/replay",
    status_code=200,
    opt=described(
        Call(
            "Put dead letters back into their lanes, where a repeat is safe; `left` says of each "
            "other one why it stays.",
            Role.OPERATOR,
            {200: Handled},
            _HANDLED,
            body=LettersRequest,
        )
    ),
)
async def replay(request: Request[Any, Any, Any]) -> Answer:
    """`POST dead-letters/replay`."""
    return await _handle(request, journal_of(request).lanes.replay)


@post(
    "/dead-letters/drain",
    status_code=200,
    opt=described(
        Call(
            "Put dead letters aside for good; `left` says of each other one why it stays.",
            Role.OPERATOR,
            {200: Handled},
            _HANDLED,
            body=LettersRequest,
        )
    ),
)
async def drain(request: Request[Any, Any, Any]) -> Answer:
    """`POST dead-letters/drain`."""
    return await _handle(request, journal_of(request).lanes.drain)


async def _handle(request: Request[Any, Any, Any], act: Act) -> Answer:
    query(request)
    asked: LettersRequest = await form_of(request, _LETTERS)
    check_names(reason=asked.reason)
    ids = await _ids(journal_of(request), asked)
    handled = Handled([], {})
    for part in _parts(ids):
        found = await act(part, asked.reason, principal(request))
        handled.done.extend(found.done)
        handled.left.update(found.left)
    return reply(handled)


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _AT_ONCE):
        yield ids[start : start + _AT_ONCE]


async def _ids(journal: Journal, asked: LettersRequest) -> list[str]:
    """The IDs that are named, each once, or those that the filter finds. Raises Invalid."""
    by_filter = (asked.lane, asked.entity, asked.kind, asked.limit)
    if asked.ids is not None:
        if any(part is not None for part in by_filter):
            raise Invalid("name dead letters by their ids or by a lane, not by both", field="ids")
        return list(dict.fromkeys(work_id("ids", each) for each in asked.ids))
    if asked.lane is None:
        raise Invalid("say which dead letters: their ids, or a lane", field="ids")
    if asked.entity is not None:
        check_entity(asked.entity)
    if asked.kind is not None:
        check_name("kind", asked.kind, MAX_ACTION)
    return await _found(journal, asked, asked.limit or MAX_HANDLED)


async def _found(journal: Journal, asked: LettersRequest, most: int) -> list[str]:
    wanted = Filter(asked.lane, str(Status.DEAD), asked.entity)
    found: list[str] = []
    after = None
    while True:
        page = await journal.lanes.work(_EFFECTS, wanted, after, MAX_PAGE)
        found += [view.id for view in page.items if asked.kind in {None, view.kind}]
        after = page.next
        if after is None or len(found) >= most:
            return found[:most]


ROUTES = [list_letters, replay, drain]
