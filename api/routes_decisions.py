"""Decisions and sealed entries: what callers send to be kept."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import msgspec
from litestar import Request, post
from msgspec import Meta, Raw, Struct, field

from api import problems
from api.answers import Answer, encode, reply
from api.auth import principal
from api.calls import IDEMPOTENCY_KEY, Call, described
from api.dispatcher import Ran
from api.problems import TooLarge
from api.requests import body_of, idempotency_key, journal_of, served_of, shape
from journal import Acceptance, Journal, Operation
from journal.acceptance import DUPLICATE
from journal.control import Role
from journal.entry import JSON_TYPE, MAX_INTEGER, NO_BODY_TYPE, parse_time
from journal.errors import Invalid, UnrewindError
from journal.intake import MAX_ENTRIES
from journal.lifecycle import Mode, lifecycle_of
from journal.release import command_id
from journal.sealed import SealedAnswer
from journal.service import MAX_ITEMS


class DecisionRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """An operation to be decided.

    `body` is any JSON value, kept byte for byte as it was sent; where it is an object it is merged
    into the entity's data (RFC 7396). `at` is an RFC 3339 time.
    """

    operation: str | None = None
    entity: str
    action: str
    body: Raw = field(default_factory=Raw)
    version: str | None = None
    expected_revision: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    actor: str | None = None
    at: str | None = None


class Batch(Struct, forbid_unknown_fields=True):
    """Operations to be judged one by one, in order; a malformed one affects only itself."""

    items: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_ITEMS)]


class BatchRequest(Struct):
    """Operations to be judged one by one, in order; a malformed one affects only itself."""

    items: Annotated[list[DecisionRequest], Meta(min_length=1, max_length=MAX_ITEMS)]


class Receipt(Acceptance, frozen=True, kw_only=True):
    """The receipt for an operation, and where its authoritative status is told.

    `ran` has what became of the commands that ran in this request; the decision stands either way.
    """

    status_url: str
    ran: list[Ran] = []


class Judgement(Struct, omit_defaults=True):
    """One item's answer: `acceptance` with status 201 or 200, or `problem` with the problem's."""

    status: int
    acceptance: Receipt | None = None
    problem: dict[str, Any] | None = None


class BatchAnswer(Struct):
    """The items' answers, in the order of the items."""

    items: list[Judgement]


class EntryRequest(Struct, forbid_unknown_fields=True):
    """A sealed entry: the envelope's exact text, and the body's bytes in base64."""

    envelope: str
    body: str = ""


class Entries(Struct, forbid_unknown_fields=True):
    """Sealed entries, all taken or none."""

    entries: Annotated[list[Raw], Meta(min_length=1, max_length=MAX_ENTRIES)]


class EntriesRequest(Struct):
    """Sealed entries, all taken or none."""

    entries: Annotated[list[EntryRequest], Meta(min_length=1, max_length=MAX_ENTRIES)]


class EntriesAnswer(Struct):
    """Where each entry's entity stands now, in the order of the entries.

    An entry may be acknowledged once `durable_through` has reached its revision.
    """

    entries: list[SealedAnswer]


_DECISION = shape(DecisionRequest)
_BATCH = shape(Batch)
_ENTRY = shape(EntryRequest)
_ENTRIES = shape(Entries)

_JUDGED = (
    "not-found",
    "revision-mismatch",
    "transition-refused",
    "history-incomplete",
    "operation-reused",
    "overloaded",
    "held",
)
_SENT = ("request-timeout", "too-large", "unsupported-media-type")


def operation_of(
    raw: bytes | Raw, journal: Journal, key: str | None, caller: str, where: str
) -> Operation:
    """The operation that a request asks for. Raises Invalid."""
    request: DecisionRequest = _DECISION.read(raw, where)
    operation = request.operation
    if operation is None:
        if key is None:
            raise Invalid(
                "operation is missing: choose an operation ID and send it in the body or as the "
                "Idempotency-Key header",
                field="operation",
            )
        operation = key
    elif key is not None and key != operation:
        raise Invalid(
            "operation and the Idempotency-Key header are not the same", field="operation"
        )
    body = bytes(request.body)
    limit = journal.settings.max_body
    if len(body) > limit:
        raise TooLarge(f"a body may have at most {limit} bytes", limit=limit, field="body")
    return Operation(
        operation=operation,
        entity=request.entity,
        action=request.action,
        body=body,
        body_type=JSON_TYPE if body else NO_BODY_TYPE,
        version=request.version,
        expected_revision=request.expected_revision,
        actor=request.actor,
        principal=caller,
        at=None if request.at is None else parse_time("at", request.at),
    )


def receipt(acceptance: Acceptance, base: str, ran: Sequence[Ran] = ()) -> Receipt:
    """The acceptance with its `status_url`, and the commands that ran."""
    return Receipt(
        *msgspec.structs.astuple(acceptance),
        status_url=f"{base}/operations/{quote(acceptance.operation, safe='')}",
        ran=[*ran],
    )


async def follow_up(
    request: Request[Any, Any, Any], action: str, acceptance: Acceptance
) -> list[Ran]:
    """Set going what follows from a decision; what became of the commands that ran at once."""
    served = served_of(request)
    dispatcher = served.dispatches
    if acceptance.releases or acceptance.commands:
        dispatcher.wake()
    if not acceptance.commands:
        return []
    journal = served.journal
    lifecycle = lifecycle_of(journal.settings.lifecycles, acceptance.entity)
    wanted = [
        command_id(journal.settings.tenant, acceptance.operation, place, command.name)
        for place, command in enumerate(lifecycle.actions[action].commands)
        if command.mode is Mode.SYNC
    ]
    return await dispatcher.run_now([each for each in wanted if each in acceptance.commands])


def status_of(acceptance: Acceptance) -> int:
    """201 for a new decision, 200 for a repeat."""
    return 200 if acceptance.outcome == DUPLICATE else 201


def base_of(journal: Journal) -> str:
    """The prefix of every call on the tenant."""
    return f"/v1/{journal.settings.tenant}"


@post(
    "/decisions",
    opt=described(
        Call(
            "Make an operation a decision. Repeating it with the same operation ID never makes a "
            "second one: a repeat answers 200 with the first answer.",
            Role.WRITER,
            {201: Receipt, 200: Receipt},
            (*_JUDGED, *_SENT, "stale-generation", "forked"),
            body=DecisionRequest,
            parameters=(IDEMPOTENCY_KEY,),
        ),
        straight=True,
    ),
)
async def decide(request: Request[Any, Any, Any]) -> Answer:
    """`POST decisions`."""
    journal = journal_of(request)
    raw = await body_of(request, journal.settings.max_request)
    key = idempotency_key(request.scope)
    operation = operation_of(raw, journal, key, principal(request), "the request")
    acceptance = await journal.accept(operation)
    ran = await follow_up(request, operation.action, acceptance)
    return Answer(status_of(acceptance), encode(receipt(acceptance, base_of(journal), ran)))


@post(
    "/decisions/batch",
    opt=described(
        Call(
            "Judge up to 1,000 operations in order, each with an answer of its own.",
            Role.WRITER,
            {200: BatchAnswer},
            (*_SENT, "overloaded"),
            body=BatchRequest,
        )
    ),
)
async def decide_batch(request: Request[Any, Any, Any]) -> Answer:
    """`POST decisions/batch`."""
    journal = journal_of(request)
    raw = await body_of(request, journal.settings.max_request)
    if idempotency_key(request.scope) is not None:
        raise Invalid("a batch has no Idempotency-Key: each item names its own operation")
    items: list[Raw] = _BATCH.read(raw).items
    caller = principal(request)
    answers: list[Acceptance | UnrewindError | None] = []
    operations: list[Operation] = []
    for number, item in enumerate(items):
        try:
            operations.append(operation_of(item, journal, None, caller, f"item {number}"))
            answers.append(None)
        except Invalid as error:
            answers.append(error)
    decided = await journal.accept_many(operations) if operations else []
    ran = {
        answer.operation: await follow_up(request, operation.action, answer)
        for operation, answer in zip(operations, decided, strict=True)
        if isinstance(answer, Acceptance) and (answer.commands or answer.releases)
    }
    judged = iter(decided)
    base = base_of(journal)
    return reply(
        BatchAnswer(
            [judgement(next(judged) if answer is None else answer, base, ran) for answer in answers]
        )
    )


def judgement(
    answer: Acceptance | UnrewindError, base: str, ran: Mapping[str, Sequence[Ran]]
) -> Judgement:
    """An item's answer."""
    if isinstance(answer, UnrewindError):
        problem = problems.document(answer, None)
        return Judgement(problem["status"], problem=problem)
    mine = ran.get(answer.operation, ()) if answer.commands else ()
    return Judgement(status_of(answer), receipt(answer, base, mine))


@post(
    "/entries",
    opt=described(
        Call(
            "Append entries that a caller sealed who owns its store, in any order, all or none.",
            Role.WRITER,
            {200: EntriesAnswer},
            (*_SENT, "stale-generation", "forked", "operation-reused", "overloaded", "held"),
            body=EntriesRequest,
        )
    ),
)
async def append_entries(request: Request[Any, Any, Any]) -> Answer:
    """`POST entries`."""
    journal = journal_of(request)
    raw = await body_of(request, journal.settings.max_request)
    items: list[Raw] = _ENTRIES.read(raw).entries
    pairs = [_pair(number, item, journal.settings.max_body) for number, item in enumerate(items)]
    return reply(EntriesAnswer(await journal.append_entries(pairs)))


def _pair(number: int, item: Raw, limit: int) -> tuple[bytes, bytes]:
    entry: EntryRequest = _ENTRY.read(item, f"entry {number}")
    try:
        body = base64.b64decode(entry.body, validate=True)
    except ValueError as error:
        raise Invalid(f"entry {number}: the body is not base64: {error}", item=number) from None
    if len(body) > limit:
        raise TooLarge(f"entry {number}: a body may have at most {limit} bytes", limit=limit)
    return entry.envelope.encode(), body


ROUTES = [decide, decide_batch, append_entries]
