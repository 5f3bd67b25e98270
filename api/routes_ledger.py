"""The ledger: accepted operations, and what became of each."""

from __future__ import annotations

from typing import Any

from litestar import Request, get
from msgspec import Struct

from api.answers import Answer, reply
from api.calls import AFTER, LIMIT, OF_ENTITY, OPERATION, Call, Parameter, described
from api.requests import entity, integer, journal_of, path_value, query, text
from api.routes_decisions import Receipt, base_of, receipt
from journal import Acceptance, accounts, reading
from journal.accounts import Account
from journal.control import Role
from journal.errors import Invalid
from journal.ledger import Verdict
from journal.record import Record

UNRESOLVED = Parameter(
    "unresolved",
    "query",
    {"type": "boolean"},
    "Only what has not ended or is not known to have happened, the oldest acceptance first.",
)


class Operations(Struct):
    """A page of accepted operations, each with its fate; `next` is null at the end."""

    items: list[Account]
    next: str | None


class OperationView(Receipt, frozen=True, kw_only=True):
    """The decision that an operation became, and what became of that."""

    fate: Verdict


def _flag(name: str, value: str) -> bool:
    if value not in {"true", "false"}:
        raise Invalid(f"{name} must be true or false", field=name)
    return value == "true"


@get(
    "/operations",
    opt=described(
        Call(
            "Operations with their fates, in the order in which the journal took them. With "
            "`unresolved` those that have not ended, the oldest acceptance first.",
            Role.READER,
            {200: Operations},
            parameters=(UNRESOLVED, OF_ENTITY, AFTER, LIMIT),
        )
    ),
)
async def list_operations(request: Request[Any, Any, Any]) -> Answer:
    """`GET operations`."""
    asked = query(request, unresolved=_flag, entity=entity, after=text, limit=integer)
    page = await journal_of(request).read(_page, asked)
    return reply(page)


async def _page(record: Record, asked: dict[str, Any]) -> Any:
    read = accounts.read_unresolved if asked["unresolved"] else accounts.read_ledger
    page = await read(record, entity=asked["entity"], after=asked["after"], limit=asked["limit"])
    await reading.check_journalled(record)
    return page


@get(
    "/operations/{id:str}",
    opt=described(
        Call(
            "The authoritative status of an operation: the decision it became, and its fate.",
            Role.READER,
            {200: OperationView},
            ("not-found", "history-incomplete"),
            parameters=(OPERATION,),
        )
    ),
)
async def read_operation(request: Request[Any, Any, Any]) -> Answer:
    """`GET operations/{id}`."""
    query(request)
    journal = journal_of(request)
    known, fate = await journal.read(_operation, path_value(request, "id"))
    told = receipt(known, base_of(journal))
    fields = {name: getattr(told, name) for name in Receipt.__struct_fields__}
    return reply(OperationView(**fields, fate=fate))


async def _operation(record: Record, operation: str) -> tuple[Acceptance, Verdict]:
    known = await reading.read_operation(record, operation)
    fate = (await accounts.fate_of_operation(record, operation)).fate
    await reading.check_journalled(record)
    return known, fate


ROUTES = [list_operations, read_operation]
