"""The decisions that every side is given: same order, same entities, same bytes."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

TYPE = "case"
"""An entity type of a free lifecycle: any action is allowed."""

_STARTED_MS = 1_760_000_000_000
_EACH_MS = 16
_SPREAD = 0x9E3779B97F4A7C15
_ACTIONS = ("assign", "note", "review", "approve")
_MASK = (1 << 62) - 1


class Decision(msgspec.Struct, frozen=True):
    """One decision as a caller states it; `body` is a JSON object as bytes."""

    operation: str
    entity: str
    action: str
    body: bytes


@dataclass(frozen=True)
class Slice:
    """`count` decisions from number `first` on, over `entities` entities.

    A sweep visits the entities in turn, which creates each; otherwise they come in an even,
    repeatable disorder. A slice is cheap to hand to another process; its decisions are not.
    """

    first: int
    count: int
    entities: int
    sweep: bool = False

    def __iter__(self) -> Iterator[Decision]:
        for number in range(self.first, self.first + self.count):
            yield decision(number, number if self.sweep else scatter(number), self.entities)


def scatter(number: int) -> int:
    """An even, repeatable disorder of 31 bits."""
    return (number * _SPREAD >> 29) & 0x7FFFFFFF


def operation_id(number: int) -> str:
    """A UUIDv7 whose order is that of `number`, as if 16 were made in each millisecond."""
    at = _STARTED_MS + number // _EACH_MS
    tail = (number * _SPREAD) & _MASK
    raw = at << 80 | 0x7 << 76 | (number % _EACH_MS) << 64 | 0b10 << 62 | tail
    text = f"{raw:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def decision(number: int, place: int, entities: int) -> Decision:
    """Decision `number`, on the entity at `place`."""
    return Decision(
        operation=operation_id(number),
        entity=f"{TYPE}/{place % entities:06d}",
        action=_ACTIONS[number % len(_ACTIONS)],
        body=b'{"amount":%d,"by":"reviewer-%02d","note":"checked against order %d"}'
        % (number % 10_000, number % 40, number),
    )


def request_body(number: int, entities: int) -> bytes:
    """The same decision as the body of `POST decisions`."""
    made = decision(number, scatter(number), entities)
    return b'{"operation":"%b","entity":"%b","action":"%b","body":%b}' % (
        made.operation.encode(),
        made.entity.encode(),
        made.action.encode(),
        made.body,
    )
