"""The story of one drill: its site and notebook, the steps that were done, and what was checked."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from api.drill.notebook import Notebook
from api.drill.site import Hung, Ran, Site
from api.drill.wire import Unanswered
from journal.errors import UnrewindError
from journal.places import LogPlace, StorePlace, place_of_log, place_of_store

PROMISES = {
    "P1": "An acknowledgement is sent only after the decision is in the store and in the journal.",
    "P2": "An acknowledged decision is never lost by a rewind of the store.",
    "P3": "No attempt at an effect begins before the journal holds the commitment to make it.",
    "P4": "A release is never sent again after its receipt is known; unknown is asked or held.",
    "P5": "An entity with an incomplete history is held; the others go on.",
    "P6": "One operation ID makes at most one decision; reuse for another is refused.",
    "P7": "Work of an older generation decides nothing and makes no attempt.",
    "P8": "A rewound store is noticed before another decision is acknowledged from it.",
    "P9": "Unreadable control means closed.",
    "P10": "Stored evidence is never changed; damage is found and told apart.",
    "P11": "Reconstruction is repeatable: interrupted and run again it ends in the same state.",
    "P12": "Every accepted operation ends, or is unresolved with an owner and a deadline.",
}


class Check(Struct, frozen=True):
    """One fact that a promise asks for: what was expected and what was found."""

    promise: str
    name: str
    expected: str
    found: str
    held: bool


class Step(Struct, frozen=True):
    """Something that was done. ``command`` is what a person would type; None: the drill's own."""

    what: str
    command: str | None
    code: int | None
    seconds: float


class Stuck(Exception):
    """A step failed, so what follows it cannot be done."""


class Story:
    """What one drill does and finds. ``wanted`` are the promises that it checks.

    One that is ``hurried`` does nothing more once all of these broke.
    """

    def __init__(
        self, site: Site, wanted: Collection[str], say: Any = None, *, hurried: bool = False
    ) -> None:
        self.site = site
        self.settings = site.settings
        self.wanted = frozenset(wanted)
        self._hurried = hurried
        self.notebook = Notebook(site.folder / "notebook.jsonl")
        self.checks: list[Check] = []
        self.steps: list[Step] = []
        self.stuck: str | None = None
        self.releases: dict[str, str] = {}
        self.digests: dict[str, str | None] = {}
        self.times: dict[str, float] = {}
        self.facts: dict[str, Any] = {}
        self._say = say or (lambda _: None)

    # Checking.

    def wants(self, *promises: str) -> bool:
        """Whether any of these promises is to be checked."""
        return bool(self.wanted.intersection(promises))

    def check(self, promise: str, name: str, expected: Any, found: Any) -> bool:
        """Note whether what was found is what was expected."""
        return self.judge(promise, name, str(expected), str(found), held=expected == found)

    def judge(self, promise: str, name: str, expected: str, found: str, *, held: bool) -> bool:
        """Note a fact that was judged."""
        if promise in self.wanted:
            self.checks.append(Check(promise, name, expected, found, held))
        return held

    # Doing.

    def _begin(self, what: str) -> None:
        if self._hurried and self.wanted <= {c.promise for c in self.checks if not c.held}:
            raise Stuck("everything that was to be checked broke")
        self._say(what)

    @contextmanager
    def step(self, promise: str, what: str) -> Iterator[None]:
        """Do something of the drill's own. What fails in it breaks the promise that it serves."""
        self._begin(what)
        began = time.monotonic()
        try:
            yield
        except (Hung, Unanswered, UnrewindError) as error:
            self.judge(promise, what, "done", f"{error}", held=False)
            self.stuck = f"{what}: {error}"
            raise Stuck(self.stuck) from error
        finally:
            self.steps.append(Step(what, None, None, time.monotonic() - began))

    def command(self, promise: str, what: str, *arguments: str, codes: Sequence[int] = (0,)) -> Ran:
        """Run a command as a person would. One that ends otherwise breaks the promise it serves."""
        self._begin(what)
        began = time.monotonic()
        try:
            ran = self.site.run(*arguments)
        except Hung as error:
            self.judge(promise, what, "ended", str(error), held=False)
            self.stuck = f"{what}: {error}"
            raise Stuck(self.stuck) from error
        taken = time.monotonic() - began
        self.steps.append(Step(what, f"unrewind {ran.command}", ran.code, taken))
        if ran.code not in codes:
            wanted = " or ".join(map(str, codes))
            self.judge(promise, what, f"exit code {wanted}", f"{ran.code}: {ran.why}", held=False)
            self.stuck = f"{what}: {ran.why}"
            raise Stuck(self.stuck)
        return ran

    def strike(self, point: str, *arguments: str) -> None:
        """Run a command that is killed at a point. One that never gets there is not interrupted."""
        from api.drill.struck import POINTS

        sentence = POINTS[point].sentence
        self._begin(f"kill -9 {sentence}")
        began = time.monotonic()
        try:
            ran = self.site.run(*arguments, point=point)
        except Hung as error:
            self.judge("P11", f"killed {sentence}", "killed", str(error), held=False)
            return
        taken = time.monotonic() - began
        self.steps.append(Step(f"kill -9 {sentence}", f"unrewind {ran.command}", ran.code, taken))
        self.check("P11", f"killed {sentence}", -9, ran.code)

    # Callers.

    def decide(self, operation: str, entity: str, action: str, **fields: Any) -> int:
        """Send an operation as a caller does; the status, 0 for no answer."""
        item = {"operation": operation, "entity": entity, "action": action, **fields}
        return self.send(item)

    def send(self, item: dict[str, Any]) -> int:
        """Send an operation, or send it again."""
        operation = item["operation"]
        self.notebook.send(item)
        try:
            status, answer = self.site.ask("POST", "decisions", item)
        except Unanswered as error:
            self.notebook.miss(operation, str(error))
            return 0
        self.notebook.hear(operation, status, answer)
        if status in {200, 201}:
            for release in answer.get("releases", ()):
                self.releases[release] = item["entity"]
            for identity in answer.get("commands", ()):
                self.facts.setdefault("commands", {})[identity] = item["entity"]
        else:
            self.facts["refusal"] = answer
        return status

    def must(self, operation: str, entity: str, action: str, **fields: Any) -> None:
        """Send an operation that has to be accepted. Raises Hung."""
        status = self.decide(operation, entity, action, **fields)
        if status not in {200, 201}:
            said = self.facts.get("refusal", {})
            raise Hung(f"{action} of {entity} was answered {status}: {said.get('detail')}")

    @property
    def journal(self) -> LogPlace:
        """Where the journal is."""
        return place_of_log(self.settings)

    @property
    def store(self) -> StorePlace:
        """Where the store is."""
        return place_of_store(self.settings)
