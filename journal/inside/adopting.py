"""Adoption: a baseline decision for each entity that the application's rows tell of.

A baseline says how a row stood when unrewind came to it, and nothing about how it came there. Its
operation ID follows from the entity, so an adoption that was interrupted is run again and an entity
has one baseline however often that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec
from msgspec import Struct

from journal.acceptance import EntityHead, Operation, check_operation
from journal.data import EMPTY, after
from journal.driving import drive
from journal.entry import JSON_TYPE, MAX_ACTION, NO_BODY_TYPE, check_entity, check_name
from journal.errors import Invalid, Refusal, UnrewindError
from journal.lifecycle import BASELINE, REBASELINE
from journal.record import Record
from journal.store import tables
from journal.writepath import turn

PAGE = 500
MAX_NAMED = 20
MISSING = "missing"
STATE = "state"
VERSION = "version"
DATA = "data"
EXTRA = "extra"


class Existing(Struct, frozen=True):
    """An entity as the application's rows tell of it. ``data`` is not looked at when it is None."""

    entity: str
    state: str
    version: str | None = None
    data: Mapping[str, Any] | None = None


class Difference(Struct, frozen=True):
    """An entity that is one thing in the application's rows and another in unrewind's.

    ``kind``: `missing` where unrewind has no such entity, `extra` where the rows have none, else
    what differs: `state`, `version` or `data`.
    """

    entity: str
    kind: str
    row: Any = None
    unrewind: Any = None


class Unfit(Struct, frozen=True):
    """A row that became no baseline, and why."""

    entity: str
    detail: str


class Adopted(Struct):
    """What an adoption did. ``unfit`` holds the first rows that were refused."""

    rows: int = 0
    baselines: int = 0
    rebaselines: int = 0
    known: int = 0
    refused: int = 0
    unfit: list[Unfit] = []


class Compared(Struct):
    """What a comparison found; ``differences`` holds all of them, or the first ``limit``."""

    rows: int = 0
    agreeing: int = 0
    differing: int = 0
    kinds: dict[str, int] = {}
    differences: list[Difference] = []

    def add(self, found: Difference, limit: int | None) -> None:
        """Count a difference, and keep it while there is room."""
        self.differing += 1
        self.kinds[found.kind] = self.kinds.get(found.kind, 0) + 1
        if limit is None or len(self.differences) < limit:
            self.differences.append(found)


Pair = tuple[Existing | Unfit, EntityHead | None]


def existing_of(row: Sequence[Any]) -> Existing | Unfit:
    """A row of the application's query: entity, state, version, data as a JSON object or NULL."""
    entity, state, version, data = row
    if not isinstance(entity, str):
        return Unfit("-", "the first column must name the entity: type/id")
    if not isinstance(state, str) or not state:
        return Unfit(entity, "the second column must name the state")
    try:
        check_entity(entity)
        found = None if data is None else msgspec.json.decode(data)
    except Invalid as error:
        return Unfit(entity, error.detail)
    except msgspec.MsgspecError as error:
        return Unfit(entity, f"the fourth column is not JSON: {error}")
    if found is not None and not isinstance(found, dict):
        return Unfit(entity, "the fourth column must be a JSON object")
    return Existing(entity, state, version, found)


def paired(record: Record, rows: Iterable[Existing]) -> Iterator[Pair]:
    """Rows with what unrewind has of each entity, page by page."""
    source = iter(rows)
    while page := [*islice(source, PAGE)]:
        heads = heads_of(record, [row.entity for row in page])
        for row in page:
            yield row, heads.get(row.entity)


def heads_of(record: Record, entities: Sequence[str]) -> dict[str, EntityHead]:
    """What unrewind has of these entities."""
    if record.store is None:
        return {}
    return tables.heads_of(drive(record.store.read([tables.read_heads(entities)]))[0])


def adopt(
    record: Record,
    pairs: Iterable[Pair],
    *,
    again: bool = False,
    principal: str | None = None,
    show: Callable[[Adopted], None] = lambda _: None,
) -> Adopted:
    """Take a baseline of each entity that has no decision yet.

    With ``again`` one is taken, as a decision of its own, of each whose row went another way since.
    A row that cannot become one is counted and named; the others go on. Raises Recovering,
    JournalUnavailable or LockHeld when nothing more can be decided; what was decided stays.
    """
    done = Adopted()
    source = iter(pairs)
    while page := [*islice(source, PAGE)]:
        wanted: list[Operation] = []
        for row, head in page:
            done.rows += 1
            if isinstance(row, Unfit):
                _refuse(done, row.entity, row.detail)
                continue
            if head is not None and not (again and differences(row, head)):
                done.known += 1
                continue
            try:
                wanted.append(_baseline(record, row, head, principal))
            except Invalid as error:
                _refuse(done, row.entity, error.detail)
        _take(record, wanted, done)
        show(done)
    return done


def _take(record: Record, wanted: Sequence[Operation], done: Adopted) -> None:
    if not wanted:
        return
    for made, answer in zip(wanted, drive(turn(record, wanted)), strict=True):
        if isinstance(answer, Refusal | Invalid):
            _refuse(done, made.entity, answer.detail)
        elif isinstance(answer, UnrewindError):
            raise answer
        elif made.action.startswith(BASELINE):
            done.baselines += 1
        else:
            done.rebaselines += 1


def _refuse(done: Adopted, entity: str, detail: str) -> None:
    done.refused += 1
    if len(done.unfit) < MAX_NAMED:
        done.unfit.append(Unfit(entity, detail))


def _baseline(
    record: Record, row: Existing, head: EntityHead | None, principal: str | None
) -> Operation:
    """The operation that takes an entity as its row stands. Raises Invalid."""
    named = sha256(row.entity.encode()).hexdigest()[:32]
    revision = 0 if head is None else head.revision
    body = b"" if row.data is None else msgspec.json.encode(row.data)
    if head is not None and row.data is not None:
        body = msgspec.json.encode(_patch(msgspec.json.decode(head.data), _kept(row.data)))
    made = Operation(
        operation=f"baseline-{named}" if head is None else f"rebaseline-{named}-{revision}",
        entity=row.entity,
        action=f"{BASELINE if head is None else REBASELINE}{row.state}",
        body=body,
        body_type=JSON_TYPE if body else NO_BODY_TYPE,
        version=row.version,
        expected_revision=revision,
        principal=principal,
    )
    check_name("the state", made.action, MAX_ACTION)
    # The door refuses a baseline to everybody else; all its other rules hold for this one too.
    other = msgspec.structs.replace(made, action="baseline")
    check_operation(other, record.lifecycles, record.settings.max_body)
    return made


def _kept(data: Mapping[str, Any]) -> dict[str, Any]:
    """A row's data as unrewind keeps it: what is null is not there."""
    kept: dict[str, Any] = msgspec.json.decode(after(EMPTY, msgspec.json.encode(data), JSON_TYPE))
    return kept


def _patch(before: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The merge (RFC 7396) that leads from one object to another."""
    patch: dict[str, Any] = {name: None for name in before if name not in wanted}
    for name, value in wanted.items():
        there = before.get(name)
        if isinstance(value, dict) and isinstance(there, dict):
            if value != there:
                patch[name] = _patch(there, value)
        elif name not in before or there != value:
            patch[name] = value
    return patch


def differences(row: Existing, head: EntityHead | None) -> list[Difference]:
    """Where a row and what unrewind has of its entity differ."""
    entity = row.entity
    if head is None:
        return [Difference(entity, MISSING, row.state)]
    found: list[Difference] = []
    if row.state != head.state:
        found.append(Difference(entity, STATE, row.state, head.state))
    if row.version != head.version:
        found.append(Difference(entity, VERSION, row.version, head.version))
    if row.data is not None:
        wanted, there = _kept(row.data), msgspec.json.decode(head.data)
        if wanted != there:
            found.append(Difference(entity, DATA, wanted, there))
    return found


def compare(
    pairs: Iterable[Pair],
    extra: Iterable[str] = (),
    *,
    limit: int | None = None,
    show: Callable[[Compared], None] = lambda _: None,
) -> Compared:
    """Hold the application's rows against unrewind's entities.

    ``extra`` are entities of which the rows tell nothing; those of a type that no row has are left
    out.
    """
    done = Compared()
    kinds: set[str] = set()
    for row, head in pairs:
        done.rows += 1
        found = (
            [Difference(row.entity, "unreadable", row.detail)]
            if isinstance(row, Unfit)
            else differences(row, head)
        )
        kinds.add(row.entity.partition("/")[0])
        done.agreeing += not found
        for each in found:
            done.add(each, limit)
        if done.rows % PAGE == 0:
            show(done)
    for entity in extra:
        if entity.partition("/")[0] in kinds:
            done.add(Difference(entity, EXTRA), limit)
    show(done)
    return done
