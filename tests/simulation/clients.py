"""Clients: callers that write down what they are told, and repeat what they were not told about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from api.served import Served
from journal import Acceptance, Operation
from journal.entry import JSON_TYPE
from journal.errors import (
    HistoryIncomplete,
    NotFound,
    OperationReused,
    Recovering,
    Refusal,
    RevisionMismatch,
    UnrewindError,
)
from tests.simulation import machine
from tests.simulation.promises import Broken
from tests.simulation.service import Gone

if TYPE_CHECKING:
    from tests.simulation.world import World


class Wish(Struct, frozen=True):
    """One operation that a client wants, with an ID of its own."""

    id: str
    entity: str
    action: str
    body: dict[str, Any]
    version: str | None = None
    expected: int | None = None

    @property
    def operation(self) -> Operation:
        """What is sent."""
        data = msgspec.json.encode(self.body)
        return Operation(
            self.id, self.entity, self.action, data, JSON_TYPE, self.version, self.expected
        )


class Clients:
    """Everything that clients know: ``told`` by operation ID, ``open`` what they know not."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.told: dict[str, Acceptance | UnrewindError] = {}
        self.open: dict[str, Wish] = {}

    # What is told.

    def hear(self, wish: Wish, answer: Any) -> None:
        """An answer is there: hold it against the journal, and remember it."""
        mirror = self.world.mirror
        if isinstance(answer, Acceptance):
            mirror.acknowledged(wish.id, answer.digest, answer.durable_through)
            if wish.expected is not None and answer.revision != wish.expected + 1:
                raise Broken(
                    "P1", f"{wish.id} wants {wish.expected} to be the newest: {answer.revision}"
                )
            before = self.told.get(wish.id)
            if isinstance(before, Acceptance) and before.digest != answer.digest:
                raise Broken("P6", f"{wish.id} was told {before.digest}, now {answer.digest}")
            self.told[wish.id] = answer
            self.open.pop(wish.id, None)
            self.world.count("accepted" if answer.outcome == "accepted" else "repeated")
            return
        if isinstance(answer, OperationReused):
            raise Broken("P6", f"{wish.id} is refused as another one's: {answer.detail}")
        if isinstance(answer, HistoryIncomplete):
            return
        if isinstance(answer, (Refusal, NotFound)):
            self._refused(wish, answer)

    def _refused(self, wish: Wish, answer: UnrewindError) -> None:
        if isinstance(self.told.get(wish.id), Acceptance):
            raise Broken("P2", f"{wish.id} was acknowledged, and is refused: {answer.detail}")
        if wish.id in self.world.mirror.operations:
            raise Broken("P6", f"{wish.id} is decided, and is refused: {answer.detail}")
        revision = answer.members.get("revision")
        if isinstance(answer, RevisionMismatch) and isinstance(revision, int):
            held = len(self.world.mirror.entities.get(wish.entity, ()))
            if revision > held:
                raise Broken("P1", f"{wish.id} is refused for revision {revision}, of {held}")
        self.told[wish.id] = answer
        self.open.pop(wish.id, None)
        self.world.count("refused")

    def forget(self, gone: set[str]) -> None:
        """What both files have lost has to be asked for anew: nobody promised more."""
        for identity, answer in [*self.told.items()]:
            if isinstance(answer, Acceptance) and answer.digest in gone:
                del self.told[identity]
                self.world.count("acknowledged and gone")

    # Calls.

    def send(self, wishes: list[Wish], *, cancel: float | None = None) -> None:
        """Send operations, one or a batch, and hear what becomes of them."""
        for wish in wishes:
            if wish.id not in self.told:
                self.open[wish.id] = wish
        operations = [wish.operation for wish in wishes]

        async def accept(served: Served) -> Any:
            if len(operations) == 1:
                return [await served.journal.accept(operations[0])]
            return await served.journal.accept_many(operations)

        def check(answers: Any) -> None:
            for wish, answer in zip(wishes, answers, strict=True):
                self.hear(wish, answer)

        try:
            answers = self.world.service().ask(accept, check, cancel=cancel)
        except UnrewindError as error:
            for wish in wishes:
                self.hear(wish, error)
            self.world.note("send", ids=[w.id for w in wishes], error=repr(error)[:150])
            return
        said = [getattr(answer, "outcome", type(answer).__name__) for answer in answers]
        self.world.note("send", ids=[wish.id for wish in wishes], said=said)
        if any(getattr(answer, "releases", ()) for answer in answers):
            self._wake()

    def _wake(self) -> None:
        """As the service's door does after a decision that lets something out."""
        for service in self.world.services:
            if service.up and service.served is not None and service.served.dispatcher is not None:
                loop, wake = service._loop, service.served.dispatcher.wake
                if loop is not None:
                    loop.call_soon_threadsafe(wake)

    def repeat(self, wish: Wish) -> None:
        """Send it until an answer is there that says what became of it."""
        for _ in range(60):
            if wish.id in self.told:
                return
            self.send([wish])
            if wish.id not in self.told:
                self.world.operator.tend()
                machine.hub().sleep(2.0)

    def reuse(self, wish: Wish) -> None:
        """Use the ID of an operation for something different: it has to be refused."""
        other = msgspec.structs.replace(wish, body={**wish.body, "other": 1})
        if not isinstance(self.told.get(wish.id), Acceptance):
            return

        async def accept(served: Served) -> Any:
            return await served.journal.accept(other.operation)

        try:
            self.world.service().ask(accept)
        except OperationReused:
            self.world.count("reuse refused")
        except (Recovering, Gone, UnrewindError):
            return
        else:
            raise Broken("P6", f"{wish.id} was taken a second time, for something different")

    def look(self, entity: str) -> None:
        """Read an entity, and hold what is shown against the journal."""

        mirror = self.world.mirror
        known = len(mirror.entities.get(entity, ()))

        async def read(served: Served) -> Any:
            view = await served.journal.entity(entity)
            asked = {1, view.revision}
            return view, [await served.journal.gate(entity, one) for one in sorted(asked)]

        def check(answer: Any) -> None:
            view, rulings = answer
            mirror.shown(entity, view.revision, view.digest, view.state)
            for ruling in rulings:
                if ruling.gate == "go":
                    mirror.passed(entity, ruling.revision, known)
            self.world.count("reads")

        try:
            self.world.service().ask(read, check)
        except UnrewindError:
            self.world.count("reads refused")
