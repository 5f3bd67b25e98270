"""The promises, as the simulation holds the code to them, and what it remembers for that.

A ``Mirror`` is told every commit to the journal as it happens, by the connection that made it, and
judges each entry by rules of its own. What anybody is told is held against it at that moment.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

COMMITTED = "release.committed"
_DECIDING = frozenset({"internal", "external", "open"})
_SENDING = frozenset({"external", "open"})
_GENERATION_BITS = 32
_COLUMNS = 10


found: list[Broken] = []
"""What was found in the world that runs; some code tells of everything that it is ended by."""


class Broken(BaseException):
    """A promise does not hold. No handler of the code that is simulated may swallow it."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise}: {detail}")
        self.promise = promise
        self.detail = detail
        found.append(self)


class Line(Struct, frozen=True):
    """One entry of the journal, as it was committed."""

    position: int
    stream: str
    sequence: int | None
    history: str
    entity: str
    revision: int
    operation: str
    digest: str
    text: bytes
    body: bytes
    generation: int
    action: str
    state: str
    predecessor: str | None


def lines_of(values: Iterable[Any]) -> list[Line]:
    """The entries among the parameters of an INSERT, or the rows of a SELECT of its columns."""
    flat = list(values)
    found = []
    for start in range(0, len(flat), _COLUMNS):
        position, stream, sequence, history, entity, revision, operation, digest, text, body = flat[
            start : start + _COLUMNS
        ]
        raw = text.encode() if isinstance(text, str) else bytes(text)
        fields = json.loads(raw)
        before = fields["predecessor"]
        found.append(
            Line(
                position,
                stream,
                sequence,
                bytes(history).hex(),
                entity,
                revision,
                operation,
                bytes(digest).hex(),
                raw,
                bytes(body),
                fields["generation"],
                fields["action"],
                fields["outcome"]["state"],
                None if before is None else before["digest"],
            )
        )
    return found


WITHDRAWN = frozenset({"cancelled"})
"""States in which nothing of an entity may have effects."""


class Mirror:
    """Everything that the journal holds, and what follows from it."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.operations: dict[str, Line] = {}
        self.digests: dict[str, Line] = {}
        self.entities: dict[str, list[Line]] = defaultdict(list)
        self.callers: dict[str, dict[int, Line]] = defaultdict(dict)
        self.commitments: dict[str, list[tuple[int, int | None]]] = defaultdict(list)
        self.receipts: dict[str, int] = {}
        self.tip: Line | None = None
        self.first = 1
        self.history = ""
        self.generation = 0
        self.stage = "closed"
        self.foreign: dict[str, str] = {}
        """Decisions that were committed into a store that had been rewound, and how."""
        self.gone: set[str] = set()
        """Digests of decisions that neither journal nor store held at some moment."""
        self.excused: set[str] = set()
        """Releases whose permission is gone: asked for anew, they are made anew."""
        self._expected: dict[str, Line] = {}
        self.rolled_back = False
        """Whether the journal is an older one, and the witness or the store can tell."""

    # Taking in.

    def take(self, lines: Iterable[Line], authority: tuple[Any, ...] | None) -> None:
        """A commit of these entries, which perhaps put an authority in force. Raises Broken."""
        for line in lines:
            if self.rolled_back and line.stream == "decisions":
                raise Broken("P2", f"{line.operation} goes into a journal that was rolled back")
            self._judge(line)
            self._add(line)
        if authority is not None:
            self._enforce(*authority)

    def check_deciding(self, operation: str) -> None:
        """A service makes a decision (P7, P9)."""
        if self.stage not in _DECIDING:
            raise Broken("P9", f"{operation} is journalled at stage {self.stage}")

    def lose(self, lines: list[Line], authority: Any, stored: set[str], *, told: bool) -> None:
        """The journal was put back, perhaps with the store: what is left of both is this.

        ``told`` says that somebody else remembers more.
        """
        held = stored.union(line.digest for line in lines)
        for line in self.lines:
            if line.digest not in held:
                self._miss(line, told=told)
        before = {line.digest: line for line in self.lines if line.stream == "decisions"}
        self._begin_anew(lines, authority)
        self.rolled_back = told
        if told:
            self._expected = {digest: line for digest, line in before.items() if digest in held}

    def reckon(self, stored: set[str]) -> None:
        """The store was replaced: what neither it nor the journal holds is gone."""
        for digest, line in [*self._expected.items()]:
            if digest not in stored and digest not in self.digests:
                del self._expected[digest]
                self._miss(line, told=self.rolled_back)

    def _miss(self, line: Line, *, told: bool) -> None:
        self.gone.add(line.digest)
        fields = json.loads(line.text)
        self.excused.update(release["id"] for release in fields["releases"])
        if not told and line.action.startswith("release."):
            self.excused.add(json.loads(line.body)["release"])

    def heal(self, lines: list[Line], authority: Any) -> None:
        """Another journal was put in the place of the one that was put back (P2)."""
        held = {line.digest for line in lines}
        lost = [line for digest, line in self._expected.items() if digest not in held]
        if lost:
            raise Broken("P2", f"{lost[0].operation} was in the store, and is not healed")
        self._begin_anew(lines, authority)
        self.rolled_back = False
        self._expected = {}

    def _begin_anew(self, lines: list[Line], authority: Any) -> None:
        for kept in (
            self.lines,
            self.operations,
            self.digests,
            self.entities,
            self.callers,
            self.commitments,
            self.receipts,
            self.foreign,
        ):
            kept.clear()
        self.tip, self.generation = None, 0
        for line in lines:
            if hashlib.sha256(b"\x00" + line.text).hexdigest() != line.digest:
                raise Broken("P10", f"{line.operation} does not hash to its digest")
            self._add(line)
        self._enforce(*authority)

    def _enforce(self, history: str, generation: int, stage: str, first: int, _digest: str) -> None:
        if generation < self.generation:
            raise Broken("P7", f"generation {generation} follows {self.generation}")
        if history != self.history:
            self.foreign.clear()
        self.history, self.generation, self.stage = history, generation, stage
        self.first = first

    def _judge(self, line: Line) -> None:
        if hashlib.sha256(b"\x00" + line.text).hexdigest() != line.digest:
            raise Broken("P10", f"{line.operation} does not hash to its digest")
        if line.position != len(self.lines) + 1:
            raise Broken("P10", f"position {line.position} follows {len(self.lines)}")
        if line.operation in self.operations:
            raise Broken("P6", f"operation {line.operation} makes a second decision")
        if line.stream == "decisions":
            self._judge_decision(line)

    def _judge_decision(self, line: Line) -> None:
        if line.history != self.history or line.generation > self.generation:
            raise Broken(
                "P7",
                f"{line.operation} of history {line.history} was journalled in {self.history}",
            )
        if line.generation < self.generation and self.stage in _DECIDING:
            raise Broken("P7", f"{line.operation} carries generation {line.generation}")
        expected = self.first
        if self.tip is not None and self.tip.history == line.history:
            expected = (self.tip.sequence or 0) + 1
        if line.sequence != expected:
            raise Broken("P1", f"{line.operation} takes sequence {line.sequence}, not {expected}")
        before = self.entities[line.entity]
        digest = before[-1].digest if before else None
        if line.predecessor != digest or line.revision != len(before) + 1:
            raise Broken(
                "P8",
                f"{line.operation} is revision {line.revision} of {line.entity} after "
                f"{line.predecessor}; the journal holds {len(before)}, the last one {digest}",
            )
        if line.action.startswith("release."):
            self._judge_report(line)
        if line.digest in self.foreign:
            how = self.foreign[line.digest]
            raise Broken("P8", f"{line.operation} was journalled from a store that {how}")

    def _judge_report(self, line: Line) -> None:
        report = json.loads(line.body)
        release, lease = report["release"], report.get("lease")
        known = [lease for _, lease in self.commitments.get(release, ()) if lease is not None]
        if line.action != COMMITTED:
            if lease is not None and known and lease != known[-1]:
                raise Broken(
                    "P7", f"{line.operation} is of claim {lease}, the newest is {known[-1]}"
                )
            return
        if self.stage not in _SENDING:
            raise Broken("P7", f"{line.operation} is committed at stage {self.stage}")
        if lease >> _GENERATION_BITS != self.generation or (known and lease <= known[-1]):
            raise Broken("P7", f"{line.operation} has claim {lease} after {known}")
        if line.state in WITHDRAWN:
            raise Broken("P4", f"{line.operation} is committed, and {line.entity} is {line.state}")

    def _add(self, line: Line) -> None:
        self.lines.append(line)
        self.operations[line.operation] = line
        self.digests[line.digest] = line
        if line.stream == "decisions":
            self.tip = line
            self.entities[line.entity].append(line)
            if line.action.startswith("release."):
                self._add_report(line)
        elif line.stream.startswith("caller/"):
            self.callers[line.entity][line.revision] = line
        elif line.stream == "observations" and line.action == "observed.confirmed":
            release = line.entity.partition("/")[2]
            self.receipts.setdefault(release, line.position)

    def _add_report(self, line: Line) -> None:
        report = json.loads(line.body)
        if line.action == COMMITTED:
            self.commitments[report["release"]].append((line.position, report.get("lease")))
        elif line.action == "release.confirmed":
            self.receipts.setdefault(report["release"], line.position)

    # What is told.

    def acknowledged(self, operation: str, digest: str, through: int) -> None:
        """Somebody is told that an operation is decided (P1)."""
        line = self.operations.get(operation)
        if line is None:
            raise Broken("P1", f"{operation} is acknowledged, and the journal does not hold it")
        if line.digest != digest:
            raise Broken("P6", f"{operation} is acknowledged as {digest}, journalled {line.digest}")
        held = len(self.entities.get(line.entity, ()))
        if line.stream == "decisions" and not line.revision <= through <= held:
            raise Broken("P1", f"{operation} is told to be durable through {through} of {held}")

    def shown(self, entity: str, revision: int, digest: str, state: str) -> None:
        """Somebody is shown an entity (P1)."""
        known = self.entities.get(entity, [])
        if revision > len(known) or known[revision - 1].digest != digest:
            raise Broken("P1", f"{entity} is shown at revision {revision}, of {len(known)} known")
        if known[revision - 1].state != state:
            raise Broken("P1", f"{entity} is shown {state}, journalled {known[revision - 1].state}")

    def passed(self, entity: str, revision: int, known: int) -> None:
        """A revision may have effects, for somebody who asked when so many were known (P5)."""
        lines = self.entities.get(entity, [])
        if not known <= revision <= len(lines):
            raise Broken("P5", f"{entity} may have effects at {revision}, superseded by {known}")
        if lines[revision - 1].state in WITHDRAWN:
            raise Broken("P5", f"{entity} may have effects, and is {lines[revision - 1].state}")

    def sealed(self, entity: str, through: int, *, go: bool = False) -> None:
        """A caller is told through which revision its entity's history is whole, or to go (P5)."""
        held = self.callers.get(entity, {})
        missing = [number for number in range(1, through + 1) if number not in held]
        if missing:
            what = "may have effects" if go else "is told to be durable"
            raise Broken("P5", f"{entity} {what} through {through}, without {missing}")

    # What is attempted.

    def permitted(self, release: str, lease: int, commitment: str | None) -> None:
        """A worker is given a permit (P3)."""
        leases = [known for _, known in self.commitments.get(release, ())]
        if lease not in leases or commitment not in self.digests:
            raise Broken("P3", f"{release}: a permit under {lease}, and the journal has {leases}")
        self._not_received(release, leases.index(lease) + 1)

    def called(self, release: str, attempt: int) -> None:
        """A receiver is called (P3, P4)."""
        known = self.commitments.get(release, [])
        if not 0 < attempt <= len(known):
            raise Broken("P3", f"{release}: attempt {attempt} of {len(known)} that are journalled")
        self._not_received(release, attempt)

    def _not_received(self, release: str, attempt: int) -> None:
        receipt = self.receipts.get(release)
        if receipt is not None and self.commitments[release][attempt - 1][0] > receipt:
            raise Broken("P4", f"{release}: attempt {attempt} begins after its receipt was known")

    # What stays.

    def compare(self, lines: list[Line]) -> None:
        """Hold the journal's file against everything that was committed to it (P10)."""
        if lines != self.lines:
            place = next(
                (
                    n
                    for n, pair in enumerate(zip(lines, self.lines, strict=False))
                    if len(set(pair)) > 1
                ),
                min(len(lines), len(self.lines)),
            )
            raise Broken(
                "P10",
                f"the journal's bytes differ from entry {place + 1} on: {len(lines)} entries, "
                f"{len(self.lines)} were committed",
            )
