"""Callers that own their store: they seal entries themselves, and send them in any order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from api.served import Served
from journal.errors import JournalUnavailable, Recovering, UnrewindError
from journal.sealed import SealedAnswer
from tests.simulation.service import Gone
from tests.support.sealing import Caller, items

if TYPE_CHECKING:
    from tests.simulation.world import World

_TRIES = 20


class Callers:
    """Each entity has a caller of its own, which seals three decisions in the history in force."""

    def __init__(self, world: World) -> None:
        self.world = world

    def deliver(self, entity: str, order: list[int]) -> None:
        """Seal, and send one after the other; what cannot be taken any more leaves a gap."""
        mirror = self.world.mirror
        caller = Caller(mirror.history, mirror.generation)
        sealed = [
            caller.seal(entity, operation=f"{entity}-{number}") for number in range(len(order))
        ]
        for place in order:
            answers = self._send(entity, sealed[place])
            if answers is None:
                return
            self._ask(entity, len(order))

    def _send(self, entity: str, entry: Any) -> list[SealedAnswer] | None:
        async def append(served: Served) -> Any:
            return await served.journal.append_entries(items(entry))

        def check(answers: Any) -> None:
            for answer in answers:
                self.world.mirror.sealed(entity, answer.durable_through)

        for _ in range(_TRIES):
            try:
                found: list[SealedAnswer] = self.world.service().ask(append, check)
            except (Gone, JournalUnavailable, Recovering):
                self.world.hub.sleep(self.world.delay(8.0))
            except UnrewindError as error:
                self.world.note("sealed", entity=entity, error=type(error).__name__)
                self.world.count("sealed refused")
                return None
            else:
                self.world.count("sealed")
                return found
        return None

    def _ask(self, entity: str, revision: int) -> None:
        async def gate(served: Served) -> Any:
            return await served.journal.gate(entity, revision)

        def check(ruling: Any) -> None:
            if ruling.gate == "go":
                self.world.mirror.sealed(entity, revision, go=True)
            self.world.count("gate go" if ruling.gate == "go" else "gate held")

        try:
            self.world.service().ask(gate, check)
        except UnrewindError:
            return
