"""Lanes: how they stand, pausing them, and claiming their work."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Annotated, Any

from litestar import Request, get, post
from msgspec import Meta, Raw, Struct

from api.answers import Answer, reply
from api.auth import principal
from api.calls import IDEMPOTENCY_KEY, LANE, Call, described
from api.problems import TooLarge
from api.requests import (
    form_of,
    idempotency_key,
    journal_of,
    path_value,
    query,
    shape,
)
from api.routes_releases import SENT, ReasonRequest, check_names, check_pulled
from journal.control import LaneState, Role, Running
from journal.data import parse
from journal.entry import MAX_ACTION, MAX_STRING, check_name
from journal.errors import Invalid, NotFound
from journal.handling import MAX_ITEMS
from journal.inquiry import LaneView
from journal.permits import MAX_CLAIM, Asked, Permit


class Lanes(Struct):
    """Every lane that is declared or still holds something, by name."""

    items: list[LaneView]


class OffRequest(Struct, forbid_unknown_fields=True):
    """Why; `discard` says that what waits and what comes is meant to be lost, and counted."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)]
    discard: bool = False


class ClaimRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Who claims, and how much at once.

    `operation` is the claim's own ID: repeating it gives the same permits. `execution` is the
    caller's reference to what runs the attempts.
    """

    worker: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)]
    operation: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_CLAIM)] = 1
    execution: Annotated[str, Meta(min_length=1, max_length=MAX_STRING)] | None = None


class ClaimAnswer(Struct, frozen=True):
    """The permits given under `operation`; `held` says what holds the lane where there are none."""

    operation: str
    permits: list[Permit]
    held: str | None


class Item(Struct, forbid_unknown_fields=True):
    """One piece of work: an ID of the caller's choice, and any JSON."""

    id: Annotated[str, Meta(min_length=1, max_length=MAX_ACTION)]
    data: Raw


class Items(Struct, forbid_unknown_fields=True):
    """Work of one kind."""

    kind: Annotated[str, Meta(min_length=1, max_length=MAX_ACTION)]
    items: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_ITEMS)]


class WorkRequest(Struct):
    """Work of one kind. An ID that the lane knows makes nothing new."""

    kind: Annotated[str, Meta(min_length=1, max_length=MAX_ACTION)]
    items: Annotated[list[Item], Meta(min_length=1, max_length=MAX_ITEMS)]


class Made(Struct, frozen=True):
    """The IDs of the work that is new."""

    made: list[str]


_REASON = shape(ReasonRequest)
_OFF = shape(OffRequest)
_CLAIM = shape(ClaimRequest)
_ITEMS = shape(Items)
_ITEM = shape(Item)
_HANDLED = (*SENT, "not-found", "refused")


@get(
    "/lanes",
    opt=described(
        Call(
            "Every lane: how it runs, what stands in it, and how long that will take.",
            Role.READER,
            {200: Lanes},
        )
    ),
)
async def list_lanes(request: Request[Any, Any, Any]) -> Answer:
    """`GET lanes`."""
    query(request)
    return reply(Lanes(await journal_of(request).lanes.lanes()))


@get(
    "/lanes/{lane:str}",
    opt=described(
        Call("One lane.", Role.READER, {200: LaneView}, ("not-found",), parameters=(LANE,))
    ),
)
async def read_lane(request: Request[Any, Any, Any]) -> Answer:
    """`GET lanes/{lane}`."""
    query(request)
    name = path_value(request, "lane")
    views = await journal_of(request).lanes.lanes()
    for view in views:
        if view.lane == name:
            return reply(view)
    known = ", ".join(view.lane for view in views)
    raise NotFound(f"there is no lane {name}; known: {known}", lane=name)


@post(
    "/lanes/{lane:str}/pause",
    status_code=200,
    opt=described(
        Call(
            "Give out no more work of a lane. What runs is left to its end.",
            Role.OPERATOR,
            {200: LaneState},
            _HANDLED,
            body=ReasonRequest,
            parameters=(LANE,),
        )
    ),
)
async def pause(request: Request[Any, Any, Any]) -> Answer:
    """`POST lanes/{lane}/pause`."""
    return await _set(request, Running.PAUSED, await _reason(request))


@post(
    "/lanes/{lane:str}/resume",
    status_code=200,
    opt=described(
        Call(
            "Let a lane run again.",
            Role.OPERATOR,
            {200: LaneState},
            _HANDLED,
            body=ReasonRequest,
            parameters=(LANE,),
        )
    ),
)
async def resume(request: Request[Any, Any, Any]) -> Answer:
    """`POST lanes/{lane}/resume`."""
    return await _set(request, Running.ON, await _reason(request))


@post(
    "/lanes/{lane:str}/off",
    status_code=200,
    opt=described(
        Call(
            "Switch a best-effort lane off: it discards what waits and what comes, counted.",
            Role.OPERATOR,
            {200: LaneState},
            _HANDLED,
            body=OffRequest,
            parameters=(LANE,),
        )
    ),
)
async def switch_off(request: Request[Any, Any, Any]) -> Answer:
    """`POST lanes/{lane}/off`."""
    query(request)
    asked: OffRequest = await form_of(request, _OFF)
    return await _set(request, Running.OFF, asked.reason, discard=asked.discard)


async def _reason(request: Request[Any, Any, Any]) -> str:
    query(request)
    asked: ReasonRequest = await form_of(request, _REASON)
    return asked.reason


async def _set(
    request: Request[Any, Any, Any], running: Running, reason: str, *, discard: bool = False
) -> Answer:
    lanes = journal_of(request).lanes
    name = path_value(request, "lane")
    state = await lanes.set_lane(name, running, reason, principal(request), discard=discard)
    return reply(state)


@post(
    "/lanes/{lane:str}/claim",
    status_code=200,
    opt=described(
        Call(
            "Claim work of a lane that workers pull. A permit for an effect outside is given once "
            "the journal holds the commitment to it. Repeated under the same operation ID, it "
            "gives the same permits.",
            Role.WRITER,
            {200: ClaimAnswer},
            (*_HANDLED, "lease-lost", "operation-reused", "stale-generation"),
            body=ClaimRequest,
            parameters=(LANE, IDEMPOTENCY_KEY),
        )
    ),
)
async def claim(request: Request[Any, Any, Any]) -> Answer:
    """`POST lanes/{lane}/claim`."""
    query(request)
    asked: ClaimRequest = await form_of(request, _CLAIM)
    check_names(worker=asked.worker, execution=asked.execution)
    operation = _operation(asked.operation, idempotency_key(request.scope))
    journal = journal_of(request)
    lane = path_value(request, "lane")
    check_pulled(journal, lane)
    claimed = await journal.lanes.claim(
        Asked(lane, asked.worker, operation, asked.limit, asked.execution)
    )
    return reply(ClaimAnswer(operation, claimed.permits, claimed.held))


def _operation(operation: str | None, key: str | None) -> str:
    """The claim's own ID. A claim that is given a fresh one cannot be repeated."""
    if operation is not None and key is not None and operation != key:
        raise Invalid(
            "operation and the Idempotency-Key header are not the same", field="operation"
        )
    chosen = key if operation is None else operation
    return f"claim-{secrets.token_hex(16)}" if chosen is None else chosen


@post(
    "/lanes/{lane:str}/work",
    opt=described(
        Call(
            "Put work that is no decision into an internal or best-effort lane. 200: the lane knew "
            "all of it.",
            Role.WRITER,
            {201: Made, 200: Made},
            (*SENT, "not-found", "overloaded"),
            body=WorkRequest,
            parameters=(LANE,),
        )
    ),
)
async def enqueue(request: Request[Any, Any, Any]) -> Answer:
    """`POST lanes/{lane}/work`."""
    query(request)
    asked: Items = await form_of(request, _ITEMS)
    journal = journal_of(request)
    items = list(_items(asked.items, journal.settings.max_body))
    made = await journal.lanes.enqueue(path_value(request, "lane"), asked.kind, items)
    return reply(Made(made), 201 if made else 200)


def _items(raws: Iterable[Raw], limit: int) -> Iterable[tuple[str, bytes]]:
    seen: set[str] = set()
    for number, raw in enumerate(raws):
        where = f"item {number}"
        item: Item = _ITEM.read(raw, where)
        check_name("id", item.id, MAX_ACTION)
        if item.id in seen:
            raise Invalid(f"{where} has the ID of one before it", field="items", item=number)
        seen.add(item.id)
        data = bytes(item.data)
        if len(data) > limit:
            raise TooLarge(f"{where}: data may have at most {limit} bytes", limit=limit)
        try:
            parse(data)
        except Invalid as error:
            detail = error.detail.replace("the body", "its data", 1)
            raise Invalid(f"{where}: {detail}", field="items", item=number) from None
        yield item.id, data


ROUTES = [list_lanes, read_lane, pause, resume, switch_off, claim, enqueue]
