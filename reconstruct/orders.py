"""Orders: holes in the journal's positions and sequences, and which of them are explained.

An entry that was removed leaves a hole in the order of positions, and a decision one in the order
of its history too. A hole is explained when a revision that was abandoned as missing stood there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from journal.abandonment import Cuts
from journal.control import Control, Missing
from journal.history import Flaw
from journal.sql import Database, Result, Statement
from reconstruct.walking import Finding

POSITION = "position"
SEQUENCE = "sequence"
_MOST = 1000
_DECIDED = "FROM entries WHERE stream = 'decisions' AND sequence IS NOT NULL"
_BEFORE_NOTHING = (
    "SELECT lower(hex(e.history)), (SELECT max(p.sequence) FROM entries p"
    "  WHERE p.stream = 'decisions' AND p.history = e.history"
    "  AND p.sequence > ? AND p.sequence < e.sequence), e.sequence FROM entries e"
    " WHERE e.stream = 'decisions' AND e.sequence > ? AND NOT EXISTS (SELECT 1 FROM entries p"
    "  WHERE p.stream = 'decisions' AND p.sequence = e.sequence - 1 AND p.sequence > ?"
    "  AND p.history = e.history) LIMIT ?"
)
"""Decisions that none of their history stands before, each with the last one below it.

Read in the order of the index, one at a time: a window over them all would hold them in memory.
"""


class Hole(Struct, frozen=True):
    """Numbers of an order that nothing stands at, from ``first`` through ``last``."""

    what: str
    first: int
    last: int

    def finding(self) -> Finding:
        """The hole as something that is wrong."""
        one = self.first == self.last
        return Finding(
            str(Flaw.GAP),
            f"{self.what} {self.first} is missing"
            if one
            else f"{self.what}s {self.first} to {self.last} are missing",
            position=self.first if self.what == POSITION else None,
            sequence=self.first if self.what == SEQUENCE else None,
        )


def holes(database: Database, control: Control | None) -> list[Hole]:
    """Holes in the positions, and in the sequences of each history."""
    found: list[Hole] = []
    count, last = database.read(
        [Statement("SELECT count(*), coalesce(max(position), 0) FROM entries")]
    )[0][0]
    if count != last:
        found += _find(
            database,
            "SELECT position AS at, lag(position, 1, 0) OVER (ORDER BY position) AS before"
            " FROM entries",
            POSITION,
        )
    firsts = {} if control is None else {item.history: item.first for item in control.histories}
    for history, number, least, most in _counts(database, [*firsts]):
        first = firsts.get(history) or least
        if most - first + 1 != number:
            found += _find(
                database,
                "SELECT sequence AS at, lag(sequence, 1, ?) OVER (ORDER BY sequence) AS before"
                " FROM entries WHERE stream = 'decisions' AND history = ?",
                SEQUENCE,
                first - 1,
                bytes.fromhex(history),
            )
    return found


def _counts(database: Database, known: Sequence[str]) -> Result:
    """Each history of decisions: how many there are, the first sequence, the last one.

    One look at the index for each history that control knows; grouping would sort all of it in
    memory, so it is done only where there are decisions of another one.
    """
    total: int = database.read([Statement(f"SELECT count(*) {_DECIDED}")])[0][0][0]
    counts: Result = []
    for history in known:
        statement = Statement(
            f"SELECT count(*), min(sequence), max(sequence) {_DECIDED} AND history = ?",
            (bytes.fromhex(history),),
        )
        number, least, most = database.read([statement])[0][0]
        if number:
            counts.append((history, number, least, most))
    if sum(number for _, number, *_ in counts) == total:
        return counts
    return database.read(
        [
            Statement(
                "SELECT lower(hex(history)), count(*), min(sequence), max(sequence)"
                f" {_DECIDED} GROUP BY history"
            )
        ]
    )[0]


def lost_above(database: Database, control: Control, after: int) -> list[Hole]:
    """Holes among the sequences above one that no abandonment explains; their cost follows those.

    A decision is missing in each whose operation and entity nobody knows from the journal.
    """
    rows = database.read([Statement(_BEFORE_NOTHING, (after, after, after, _MOST))])[0]
    firsts = {item.history: item.first for item in control.histories}
    found: list[Hole] = []
    for history, before, at in rows:
        low = max(after, firsts.get(history, 0) - 1) if before is None else before
        if history not in firsts and before is None:
            continue
        if at > low + 1:
            found.append(Hole(SEQUENCE, low + 1, at - 1))
    return unexplained(found, control.abandoned)


def _find(database: Database, query: str, what: str, *parameters: Any) -> list[Hole]:
    rows = database.read(
        [
            Statement(
                f"SELECT before, at FROM ({query}) o WHERE at > before + 1 LIMIT {_MOST}",
                parameters,
            )
        ]
    )[0]
    return [Hole(what, before + 1, at - 1) for before, at in rows]


def unexplained(found: Sequence[Hole], cuts: Cuts) -> list[Hole]:
    """What is left of these holes where no revision that was abandoned as missing stood."""
    missing = [each for of_entity in cuts.values() for cut in of_entity for each in cut.missing]
    return left_of(found, missing)


def left_of(found: Sequence[Hole], missing: Sequence[Missing]) -> list[Hole]:
    """What is left of these holes, when as many as possible are explained.

    Of several spans that could explain a number, the one that ends first is taken: the others may
    explain later ones.
    """
    left: list[Hole] = []
    for what in (POSITION, SEQUENCE):
        spans = [
            [*span]
            for each in missing
            if (span := each.positions if what == POSITION else each.sequences) is not None
        ]
        spans.sort(key=lambda span: span[1])
        holes_there = sorted((hole for hole in found if hole.what == what), key=lambda h: h.first)
        if not spans:
            left += holes_there
            continue
        for hole in holes_there:
            left += _left(hole, spans)
    return left


def _left(hole: Hole, spans: list[list[int]]) -> list[Hole]:
    left: list[Hole] = []
    for number in range(hole.first, hole.last + 1):
        span = next((s for s in spans if s[0] < number < s[1] and s[2] > 0), None)
        if span is not None:
            span[2] -= 1
        elif left and left[-1].last == number - 1:
            left[-1] = Hole(hole.what, left[-1].first, number)
        else:
            left.append(Hole(hole.what, number, number))
    return left


def size_of(found: Sequence[Hole]) -> int:
    """How many numbers the holes have."""
    return sum(hole.last - hole.first + 1 for hole in found)
